//! `strftime` for UTC, by which chat templates tell the model the date.

const WEEKDAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const SECONDS_A_DAY: i64 = 86_400;

/// A point in time, broken down.
struct Utc {
    year: i64,
    /// From 1.
    month: usize,
    /// From 1.
    day: i64,
    /// From Sunday.
    weekday: usize,
    /// From 1.
    year_day: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Utc {
    /// From seconds since 1970; proleptic Gregorian.
    fn new(seconds: i64) -> Self {
        let days = seconds.div_euclid(SECONDS_A_DAY);
        let time = seconds.rem_euclid(SECONDS_A_DAY);
        // Years of 400 have 146097 days; counted from 1 March 0000 the leap day is the last.
        let from_march = days + 719_468;
        let era = from_march.div_euclid(146_097);
        let of_era = from_march.rem_euclid(146_097);
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        // Months from March on: 31, 30, 31, 30, 31 days, repeated.
        let march_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][month as usize - 1];
        Self {
            year,
            month: month as usize,
            day,
            weekday: (days + 4).rem_euclid(7) as usize,
            year_day: before + day + i64::from(leap && month > 2),
            hour: time / 3600,
            minute: time / 60 % 60,
            second: time % 60,
        }
    }
}

/// Formats seconds since 1970 (UTC). `%-d` and the like drop the padding.
///
/// # Errors
/// A directive that is not known.
pub fn strftime(seconds: i64, format: &str) -> Result<String, String> {
    let t = Utc::new(seconds);
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
        let hour12 = (t.hour + 11) % 12 + 1;
        out.push_str(&match directive {
            Some('Y') => t.year.to_string(),
            Some('y') => number(t.year.rem_euclid(100), 2),
            Some('m') => number(t.month as i64, 2),
            Some('B') => MONTHS[t.month - 1].to_owned(),
            Some('b' | 'h') => MONTHS[t.month - 1][..3].to_owned(),
            Some('d') => number(t.day, 2),
            Some('e') => format!("{:2}", t.day),
            Some('j') => number(t.year_day, 3),
            Some('A') => WEEKDAYS[t.weekday].to_owned(),
            Some('a') => WEEKDAYS[t.weekday][..3].to_owned(),
            Some('H') => number(t.hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(t.minute, 2),
            Some('S') => number(t.second, 2),
            Some('p') => if t.hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('F') => format!("{}-{:02}-{:02}", t.year, t.month, t.day),
            Some('T') => format!("{:02}:{:02}:{:02}", t.hour, t.minute, t.second),
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
