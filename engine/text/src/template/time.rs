//! `strftime` for UTC, by which chat templates tell the model the date.

use time::{OffsetDateTime, PrimitiveDateTime};

/// A moment from seconds since 1970, or the first or last one that the calendar has.
fn moment(seconds: i64) -> OffsetDateTime {
    let end = if seconds < 0 { PrimitiveDateTime::MIN } else { PrimitiveDateTime::MAX };
    OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(end.assume_utc())
}

/// Formats seconds since 1970 (UTC). `%-d` and the like drop the padding.
///
/// # Errors
/// A directive that is not known.
pub fn strftime(seconds: i64, format: &str) -> Result<String, String> {
    let t = moment(seconds);
    let (year, month, day) = (t.year(), u8::from(t.month()), t.day());
    let (hour, minute, second) = t.to_hms();
    let (month_name, weekday) = (t.month().to_string(), t.weekday().to_string());
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let padded = directive != Some('-');
        if !padded {
            directive = chars.next();
        }
        let number = |value: i64, width: usize| {
            if padded { format!("{value:0width$}") } else { value.to_string() }
        };
        let hour12 = (hour + 11) % 12 + 1;
        out.push_str(&match directive {
            Some('Y') => year.to_string(),
            Some('y') => number(year.rem_euclid(100).into(), 2),
            Some('m') => number(month.into(), 2),
            Some('B') => month_name.clone(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('d') => number(day.into(), 2),
            Some('e') => format!("{day:2}"),
            Some('j') => number(t.ordinal().into(), 3),
            Some('A') => weekday.clone(),
            Some('a') => weekday[..3].to_owned(),
            Some('H') => number(hour.into(), 2),
            Some('I') => number(hour12.into(), 2),
            Some('M') => number(minute.into(), 2),
            Some('S') => number(second.into(), 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            other => {
                let name = other.map_or("at the end".to_owned(), |c| format!("{c:?}"));
                return Err(format!("strftime_now: unknown directive {name} in {format:?}"));
            }
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments_are_formatted() {
        let all = "%Y-%m-%d %H:%M:%S %a %b %j %p %I %-d/%-m %y %e%%";
        assert_eq!(strftime(0, all).unwrap(), "1970-01-01 00:00:00 Thu Jan 001 AM 12 1/1 70  1%");
        assert_eq!(
            strftime(1_709_210_096, all).unwrap(),
            "2024-02-29 12:34:56 Thu Feb 060 PM 12 29/2 24 29%"
        );
        assert_eq!(strftime(-1, "%F %T %A %B").unwrap(), "1969-12-31 23:59:59 Wednesday December");
        assert_eq!(strftime(4_102_444_799, "%F %j").unwrap(), "2099-12-31 365");
    }

    #[test]
    fn an_unknown_directive_is_an_error() {
        assert!(strftime(0, "%Q").unwrap_err().contains("'Q'"));
        assert!(strftime(0, "%").is_err());
    }
}
