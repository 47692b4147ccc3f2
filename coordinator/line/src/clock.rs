//! The time of day, in seconds since 1970.

use std::time::{SystemTime, UNIX_EPOCH};

use time::{OffsetDateTime, PrimitiveDateTime};

/// Seconds since the Unix epoch.
pub fn unix_now() -> u64 {
    unix_now_ms() / 1000
}

/// Milliseconds since the Unix epoch.
pub fn unix_now_ms() -> u64 {
    // A clock before 1970 is shown as 1970.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// A point in time in UTC, to the second, as RFC 3339 writes it. Times after the year 9999 become its last second.
pub fn date_time(unix_s: u64) -> String {
    let seconds = i64::try_from(unix_s).unwrap_or(i64::MAX);
    let last = PrimitiveDateTime::MAX.assume_utc();
    let at = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(last);
    let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
    let (hour, minute, second) = at.to_hms();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_795_364_892, "2026-11-22T16:28:12Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
            (u64::MAX, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(date_time(unix), text);
        }
    }
}
