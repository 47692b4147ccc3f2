//! CPUs as they are typed and as the system lists them: `0-3,8`.

/// Limit of CPU numbers.
pub const MAX_CPUS: usize = 4096;

/// The CPUs of a list, each once; `None` where the text is none.
pub fn parse(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for item in text.split(',') {
        let (first, last) = item.trim().split_once('-').unwrap_or((item.trim(), item.trim()));
        let first: usize = first.trim().parse().ok()?;
        let last: usize = last.trim().parse().ok()?;
        if first > last || last >= MAX_CPUS {
            return None;
        }
        for cpu in first..=last {
            if !cpus.contains(&cpu) {
                cpus.push(cpu);
            }
        }
    }
    Some(cpus)
}

/// CPUs as a list; neighbours in ascending order become a range.
pub fn ranges(cpus: &[usize]) -> String {
    let ranges = cpus.chunk_by(|a, b| a + 1 == *b).filter_map(|range| match range {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    ranges.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_written_as_they_are_typed() {
        assert_eq!(ranges(&[0, 1, 2, 8, 10, 11]), "0-2,8,10-11");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn lists_have_numbers_and_ranges() {
        assert_eq!(parse("0-2,8, 1"), Some(vec![0, 1, 2, 8]));
        for text in ["", "a", "3-1", "1-", "0-99999999"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
