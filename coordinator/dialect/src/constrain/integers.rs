//! Regular expressions for the integers of a range, of any size. The grammar library's own ones are limited to
//! numbers that are exact both as i64 and as f64.

/// A regular expression for the JSON integers from `least` to `most`; `None`: the range is empty. An end that is not
/// there is open.
pub fn regex(least: Option<i128>, most: Option<i128>) -> Option<String> {
    let mut ways = Vec::new();
    // Below zero the digits are those of the number with its sign turned, and the ends change places.
    if least.is_none_or(|least| least < 0) {
        let nearest = most.filter(|most| *most < 0).map_or(1, i128::unsigned_abs);
        let farthest = least.map(i128::unsigned_abs);
        ways.extend(from_to(nearest, farthest).map(|digits| format!("-{digits}")));
    }
    if most.is_none_or(|most| most >= 0) {
        let nearest = least.filter(|least| *least > 0).map_or(0, i128::unsigned_abs);
        ways.extend(from_to(nearest, most.map(i128::unsigned_abs)));
    }
    (!ways.is_empty()).then(|| any_of(ways))
}

/// The digits of the numbers from `first` to `last`.
fn from_to(first: u128, last: Option<u128>) -> Option<String> {
    if last.is_some_and(|last| last < first) {
        return None;
    }
    let shortest = first.to_string();
    let longest = last.map(|last| last.to_string());
    // Numbers of more digits than `first` are one class each, up to those that have as many as `last`.
    let n_last = longest.as_ref().map_or(shortest.len(), String::len);
    let mut ways: Vec<String> = (shortest.len()..=n_last)
        .map(|n_digits| {
            let lowest = if n_digits == shortest.len() {
                shortest.clone()
            } else {
                format!("1{}", "0".repeat(n_digits - 1))
            };
            let highest = longest.clone().filter(|longest| longest.len() == n_digits);
            let highest = highest.unwrap_or_else(|| "9".repeat(n_digits));
            of_length(&lowest, &highest)
        })
        .collect();
    if last.is_none() {
        ways.push(format!("[1-9][0-9]{{{n_last},}}"));
    }
    Some(any_of(ways))
}

/// The digits of the numbers from `lowest` to `highest`, which have as many.
fn of_length(lowest: &str, highest: &str) -> String {
    let n_digits = lowest.len();
    let is_all = |text: &str, digit: char| text.chars().all(|c| c == digit);
    if is_all(lowest, '0') && is_all(highest, '9') {
        return any_digits(n_digits);
    }
    let (low, lowest) = lowest.split_at(1);
    let (high, highest) = highest.split_at(1);
    if low == high {
        return format!("{low}{}", of_length(lowest, highest));
    }
    // Where all behind a first digit is free at an end, this digit is one of those between.
    let (mut between, mut ways) = (Vec::from_iter(digit(low)..=digit(high)), Vec::new());
    if !is_all(lowest, '0') {
        between.remove(0);
        ways.push(format!("{low}{}", of_length(lowest, &"9".repeat(n_digits - 1))));
    }
    if !is_all(highest, '9') {
        between.pop();
        ways.push(format!("{high}{}", of_length(&"0".repeat(n_digits - 1), highest)));
    }
    match between[..] {
        [] => {}
        [only] => ways.push(format!("{only}{}", any_digits(n_digits - 1))),
        [first, .., last] => ways.push(format!("[{first}-{last}]{}", any_digits(n_digits - 1))),
    }
    any_of(ways)
}

fn digit(text: &str) -> u8 {
    text.bytes().next().map_or(0, |byte| byte - b'0')
}

fn any_digits(n: usize) -> String {
    match n {
        0 => String::new(),
        1 => "[0-9]".to_string(),
        _ => format!("[0-9]{{{n}}}"),
    }
}

fn any_of(ways: Vec<String>) -> String {
    format!("({})", ways.join("|"))
}

#[cfg(test)]
mod tests {
    use fancy_regex::Regex;
    use proptest::prelude::*;

    use super::*;

    const MIN: i128 = i64::MIN as i128;
    const MAX: i128 = i64::MAX as i128;
    const MOST: i128 = u64::MAX as i128;

    fn is_within(least: Option<i128>, most: Option<i128>, number: i128) -> bool {
        least.is_none_or(|least| number >= least) && most.is_none_or(|most| number <= most)
    }

    /// Checks a range at its ends, beside them, at each change of length, and at `more`.
    fn check(least: Option<i128>, most: Option<i128>, more: &[i128]) {
        let regex = regex(least, most).map(|regex| Regex::new(&format!("^{regex}$")).unwrap());
        let near = |end: i128| (end - 2..=end + 2).chain([-end, end * 10, end / 10]);
        let lengths = (0..22).map(|n| 10_i128.pow(n)).flat_map(|end| [end, end - 1]);
        let lengths = lengths.flat_map(|end| [end, -end]);
        let ends = least.into_iter().chain(most).flat_map(near);
        for number in lengths.chain(ends).chain(more.iter().copied()) {
            let passes =
                |text: &str| regex.as_ref().is_some_and(|regex| regex.is_match(text).unwrap());
            let text = number.to_string();
            assert_eq!(
                passes(&text),
                is_within(least, most, number),
                "{least:?} {most:?} {number}"
            );
            for other in [format!("0{number}"), format!("{number}.0"), format!("+{number}")] {
                assert!(!passes(&other), "{least:?} {most:?} {other}");
            }
        }
        assert!(
            !regex
                .is_some_and(|regex| regex.is_match("-0").unwrap() || regex.is_match("").unwrap())
        );
    }

    #[test]
    fn the_ends_of_all_types() {
        let edges = [MIN, MIN + 1, -(1 << 53) - 1, -1, 0, 1, (1 << 53) + 1, MAX - 1, MAX, MOST];
        for edge in edges {
            check(Some(edge), None, &edges);
            check(None, Some(edge), &edges);
            for other in edges {
                check(Some(edge), Some(other), &edges);
            }
        }
        check(None, None, &edges);
    }

    #[test]
    fn small_ranges_are_those_numbers() {
        for least in -120..=120 {
            for most in least - 1..=125 {
                let Some(regex) = regex(Some(least), Some(most)) else {
                    assert!(most < least);
                    continue;
                };
                let regex = Regex::new(&format!("^{regex}$")).unwrap();
                let passed =
                    (-130..=130).filter(|number| regex.is_match(&number.to_string()).unwrap());
                assert_eq!(passed.collect::<Vec<_>>(), Vec::from_iter(least..=most));
            }
        }
    }

    proptest! {
        #[test]
        fn a_number_is_taken_where_it_is_within(
            least in prop::option::of(MIN..=MOST), most in prop::option::of(MIN..=MOST),
            shift in 0_u32..64, more in prop::collection::vec(MIN..=MOST, 20),
        ) {
            // Short ranges and short numbers too.
            check(least.map(|least| least >> shift), most.map(|most| most >> shift), &more);
            check(least, least.map(|least| least + (1 << (shift % 12))), &more);
        }
    }
}
