//! Parsers of command-line values with a form of their own: times, lists of CPUs, numbers of threads, token ids and logit
//! biases.

use std::fmt;
use std::time::Duration;

use brigade_worker::config::{MAX_THREADS, parse_bytes};

/// Longer times are typing errors: a year.
const MAX_SECONDS: u64 = 366 * 24 * 3600;

/// A time: `90s`, `5m`, `1h`, `2d`, or a number of seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let seconds = match &text[digits.len()..] {
        "" | "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3600),
        "d" => Some(24 * 3600),
        _ => None,
    };
    let value = digits.parse::<u64>().ok().zip(seconds).and_then(|(n, unit)| n.checked_mul(unit));
    match value {
        Some(seconds) if seconds <= MAX_SECONDS => Ok(Duration::from_secs(seconds)),
        _ => Err(format!("{text:?} is not a time such as 90s, 5m or 1h, of a year at most")),
    }
}

/// A size such as 4G, or 0.
pub fn size_or_none(text: &str) -> Result<u64, String> {
    match text.trim() {
        "0" => Ok(0),
        text => parse_bytes("the size", text).map_err(|error| error.to_string()),
    }
}

/// The same as [`duration`], but not 0.
pub fn some_time(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time.is_zero() {
        Err("it would have ended at once: give 1s or more".to_owned())
    } else {
        Ok(time)
    }
}

/// A time span in its largest unit, for people: `90 s`, `5 min`, `3 h`, `2 days`.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// One CPU list: `0`, `0,2` or `4-7`.
pub fn cpu_list(text: &str) -> Result<Vec<usize>, String> {
    let mut cpus = Vec::new();
    for item in text.split(',') {
        let bad = || format!("{item:?} in {text:?} is not a CPU number or a range such as 0-3");
        let (first, last) = match item.split_once('-') {
            Some((a, b)) => (a.parse().map_err(|_| bad())?, b.parse().map_err(|_| bad())?),
            None => {
                let cpu: usize = item.parse().map_err(|_| bad())?;
                (cpu, cpu)
            }
        };
        if first > last || last >= MAX_CPU {
            return Err(bad());
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

/// Larger CPU numbers are typing errors.
const MAX_CPU: usize = 4096;

/// CPU lists of several workers, separated by `/`: worker i gets the i-th.
pub fn cpu_lists(text: &str) -> Result<CpuLists, String> {
    text.split('/').map(cpu_list).collect::<Result<_, _>>().map(CpuLists)
}

/// CPUs of each local worker, in the line's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuLists(pub Vec<Vec<usize>>);

/// Numbers of threads, one or several: `4` or `1,2,4`.
pub fn thread_counts(text: &str) -> Result<ThreadCounts, String> {
    let count = |item: &str| {
        let count = item.trim().parse().ok().filter(|n| (1..=MAX_THREADS).contains(n));
        count.ok_or_else(|| format!("{item:?} is not a number from 1 to {MAX_THREADS}"))
    };
    text.split(',').map(count).collect::<Result<_, _>>().map(ThreadCounts)
}

/// Numbers of threads, at least one, as they were typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadCounts(Vec<usize>);

impl ThreadCounts {
    /// One number.
    pub fn one(threads: usize) -> Self {
        Self(vec![threads])
    }

    /// The number, if it is one.
    pub fn only(&self) -> Option<usize> {
        match self.0[..] {
            [one] => Some(one),
            _ => None,
        }
    }

    /// All of them, in order.
    pub fn each(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }
}

impl fmt::Display for ThreadCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self.each().map(|n| n.to_string()).collect();
        f.write_str(&counts.join(","))
    }
}

/// Token ids as typed (`1,2,3`) or as printed by `--ids` (`[1, 2, 3]`).
pub fn token_ids(text: &str) -> Result<TokenIds, String> {
    let inner = text.trim().trim_start_matches('[').trim_end_matches(']').trim();
    if inner.is_empty() {
        return Ok(TokenIds(Vec::new()));
    }
    inner
        .split(',')
        .map(|id| id.trim().parse().map_err(|_| format!("{:?} is not a token id", id.trim())))
        .collect::<Result<_, _>>()
        .map(TokenIds)
}

/// A list of token ids given on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenIds(pub Vec<u32>);

/// `ID=BIAS` or `ID:BIAS`, the bias a number or `-inf`.
pub fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let bad = || format!("{text:?} is not ID=BIAS, for example 13=-inf or 42=1.5");
    let (id, bias) = text.split_once(['=', ':']).ok_or_else(bad)?;
    let bias: f32 = bias.parse().map_err(|_| bad())?;
    if bias.is_nan() {
        return Err(bad());
    }
    Ok((id.parse().map_err(|_| bad())?, bias))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_a_number_or_a_list() {
        let several = thread_counts("1, 2,64").unwrap();
        assert_eq!((several.to_string().as_str(), several.only()), ("1,2,64", None));
        assert_eq!(several.each().sum::<usize>(), 67);
        assert_eq!(thread_counts("8").unwrap().only(), Some(8));
        for text in ["", "0", "1,", "2000", "a"] {
            assert!(thread_counts(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_have_units_and_a_limit() {
        let seconds = |text| duration(text).map(|time| time.as_secs());
        let good = [("0", 0), ("90s", 90), ("5m", 300), ("1h", 3600), ("366d", MAX_SECONDS)];
        for (text, expected) in good {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for text in ["", "s", "-1", "1.5h", "1w", "5 m", "367d", "99999999999999999999h"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn cpus() {
        assert_eq!(cpu_lists("0/1"), Ok(CpuLists(vec![vec![0], vec![1]])));
        assert_eq!(cpu_lists("0,2/4-6"), Ok(CpuLists(vec![vec![0, 2], vec![4, 5, 6]])));
        assert!(cpu_lists("0//1").is_err() && cpu_lists("3-1").is_err());
    }

    #[test]
    fn tokens_and_bias() {
        assert_eq!(token_ids("1,2,3"), token_ids("[1, 2, 3]"));
        assert!(token_ids("1,x").is_err());
        assert_eq!(logit_bias("13=-inf"), Ok((13, f32::NEG_INFINITY)));
        assert!(logit_bias("13").is_err() && logit_bias("13=nan").is_err());
    }
}
