//! Sizes in bytes as people write and read them, such as `12G` and `11.5 GiB`.

/// `12G`, `512M`, `1.5g`, `2TiB`, `4096`: powers of 1024.
///
/// # Errors
/// The error says what is wrong with the text.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.trim().to_ascii_lowercase();
    let power = match unit.trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return Err(format!("{text:?} is not a size: use a number and K, M, G or T")),
    };
    let number: f64 =
        number.parse().map_err(|_| format!("{text:?} is not a size: it starts with no number"))?;
    let bytes = number * 1024f64.powi(power);
    // Beyond 2^53 a float is not exact, and no machine has that much.
    if bytes < 9e15 { Ok(bytes as u64) } else { Err(format!("{text:?} is too large a size")) }
}

/// A size for people, such as `11.5 GiB`.
pub fn format_bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.2} {}", units[unit]) }
}

/// The same as [`format_bytes`], rounded up: for a size that has to be provided.
pub fn format_bytes_up(bytes: u64) -> String {
    let mut step = 1;
    while bytes / step >= 1024 && step < 1 << 50 {
        step <<= 10;
    }
    // Two digits are shown.
    let hundredths = (u128::from(bytes) * 100).div_ceil(u128::from(step));
    let rounded = (hundredths * u128::from(step)).div_ceil(100);
    format_bytes(u64::try_from(rounded).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("12G", 12 << 30),
            ("512M", 512 << 20),
            ("1.5g", 3 << 29),
            ("2TiB", 2 << 40),
            ("4096", 4096),
            (" 7 kb ", 7 << 10),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1G", "1X", "1.2.3M", "1e9", "99999999T"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_written() {
        assert_eq!(format_bytes(999), "999 B");
        assert_eq!(format_bytes(3 << 29), "1.50 GiB");
        assert_eq!(format_bytes(u64::MAX), "16384.00 PiB");
        for bytes in [1, 1023, 1025, 10_241, (1 << 20) + 1, 173_005_006, (3 << 29) + 1] {
            let up = format_bytes_up(bytes);
            assert!(parse_bytes(&up).unwrap() >= bytes, "{bytes}: {up}");
        }
        assert_eq!(format_bytes_up(3 << 29), "1.50 GiB");
    }
}
