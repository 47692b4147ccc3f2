//! Bounds and literals of schemas near the limits of exact numbers. A number is accepted or refused exactly as the
//! schema says, or the schema is refused by its keyword.

use serde_json::json;

use super::Strictness;
use super::bounds::{HIGHEST, LOWEST};
use super::tests::is_whole as passes;
use super::wide_integers_tests::held;
use crate::text_model::TextModel;

const MIN: i128 = i64::MIN as i128;
const MAX: i128 = i64::MAX as i128;
const UNSIGNED: i128 = u64::MAX as i128;

/// Numbers at which something ends, and their neighbours.
fn numbers() -> Vec<i128> {
    let ends = [MIN, LOWEST, -(1 << 62), -(1 << 53), 0, 1 << 53, 1 << 62, -LOWEST, MAX];
    let mut all: Vec<i128> = ends.iter().flat_map(|end| end - 2..=end + 2).collect();
    all.extend([
        1 << 64,
        (1 << 64) - 1,
        -(1 << 64),
        MIN + 1023,
        MIN + 2048,
        999_999_999_999_999_999,
    ]);
    all.sort_unstable();
    all.dedup();
    all
}

/// Numbers at the ends and beside a bound.
fn around(bound: i128) -> Vec<i128> {
    let near = bound - 1..=bound + 1;
    near.chain([MIN, LOWEST, 0, HIGHEST, UNSIGNED]).collect()
}

/// Whether `number` is within a bound.
fn is_within(word: &str, bound: i128, number: i128) -> bool {
    match word {
        "minimum" => number >= bound,
        "exclusiveMinimum" => number > bound,
        "maximum" => number <= bound,
        _ => number < bound,
    }
}

#[test]
fn a_bound_of_whole_numbers_is_held_exactly_or_refused_by_its_name() {
    let text = TextModel::sample();
    let (mut n_held, mut n_refused) = (0, 0);
    for word in ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"] {
        for bound in numbers() {
            let schema = format!(r#"{{"type": "integer", "{word}": {bound}}}"#);
            match held(&schema, Strictness::Strict) {
                Ok(held) => {
                    n_held += 1;
                    // Far from zero the library closes a range where its own numbers end.
                    let is_own = |number: &i128| (LOWEST..=HIGHEST).contains(number);
                    let is_wide = !is_exact(word, bound);
                    for number in around(bound).into_iter().filter(|n| is_wide || is_own(n)) {
                        let wanted = is_within(word, bound, number);
                        assert_eq!(
                            passes(&text, &held, &number.to_string()),
                            wanted,
                            "{schema} {number}"
                        );
                    }
                }
                Err(refused) => {
                    n_refused += 1;
                    assert_eq!(refused.path, format!("s.{word}"), "{refused}");
                    // It was not read with all its digits.
                    assert!(!(MIN..=UNSIGNED).contains(&bound), "{schema}: {refused}");
                }
            }
            // Without strictness the next exact range inside is used.
            let lenient = held(&schema, Strictness::Lenient);
            for number in around(bound).into_iter().filter(|n| !is_within(word, bound, *n)) {
                let passed =
                    lenient.as_ref().is_ok_and(|held| passes(&text, held, &number.to_string()));
                assert!(!passed, "{schema} {number}");
            }
        }
    }
    println!("bounds | {n_held} held, {n_refused} refused");
    assert!(n_held >= 180 && n_refused <= 16);
}

/// Whether the outermost number that a bound allows is one that is held.
fn is_exact(word: &str, bound: i128) -> bool {
    let outermost = match word {
        "exclusiveMinimum" => bound + 1,
        "exclusiveMaximum" => bound - 1,
        _ => bound,
    };
    let is_real = outermost as f64 as i128 == outermost || outermost == HIGHEST;
    (LOWEST..=HIGHEST).contains(&outermost) && is_real
}

#[test]
fn what_is_not_held_is_named() {
    for (schema, says) in [
        (r#"{"type": "integer", "maximum": 9223372036854775808}"#, ""),
        (
            r#"{"type": "integer", "minimum": -9223372036854775809}"#,
            r#"use "minimum": -9223372036854774784"#,
        ),
        (
            r#"{"type": "integer", "maximum": 18446744073709551616}"#,
            r#"use "maximum": 9223372036854775807"#,
        ),
        (r#"{"type": "integer", "minimum": 18446744073709551616}"#, "numbers are held from"),
        (
            r#"{"type": "integer", "minimum": 9007199254740993, "multipleOf": 3}"#,
            r#"use "minimum": 9007199254740994"#,
        ),
        (r#"{"type": "integer", "minimum": "5"}"#, "is a string: a number is needed"),
        (r#"{"type": "integer", "multipleOf": true}"#, "is a boolean: a number is needed"),
        (
            r#"{"type": "number", "minimum": -9223372036854775808}"#,
            r#"use "minimum": -9223372036854774784"#,
        ),
        (
            r#"{"type": "number", "minimum": 9007199254740993, "maximum": 9007199254740996}"#,
            r#"use "minimum": 9007199254740994"#,
        ),
        (r#"{"type": "number", "minimum": 2000000000000000000}"#, "beside another one"),
        (r#"{"exclusiveMinimum": 9007199254740992}"#, r#"for "type": "integer" alone"#),
        (r#"{"const": [-9223372036854775808]}"#, "s.const has -9223372036854775808"),
        (
            r#"{"const": 9007199254740993, "enum": [9007199254740993]}"#,
            "s.const has 9007199254740993",
        ),
        (r#"{"const": 18446744073709551616}"#, "s.const has"),
        (r#"{"enum": [1, [{"a": 18446744073709551615}]]}"#, "s.enum has 18446744073709551615"),
        (r#"{"oneOf": [{"const": 9007199254740993}, {"type": "null"}]}"#, "s.oneOf[0].const has"),
        (
            r#"{"type": "object", "properties": {"a": {"minimum": 9007199254740993, "type": "integer"}}, "minProperties": 1}"#,
            "s.properties.a.minimum is",
        ),
    ] {
        match held(schema, Strictness::Strict) {
            Ok(_) => assert_eq!(says, "", "{schema}"),
            Err(refused) => {
                assert!(!says.is_empty() && refused.message.contains(says), "{schema}: {refused}")
            }
        }
        assert!(
            held(schema, Strictness::Lenient).is_ok()
                || says.contains("numbers are held")
                || says.contains("needed"),
            "{schema}"
        );
    }
}

#[test]
fn a_literal_is_itself() {
    let text = TextModel::sample();
    let edges = [MIN, MIN + 1, LOWEST, -(1 << 53) - 1, -(1 << 53), -1, 0, 1 << 53, (1 << 53) + 1];
    for number in edges.into_iter().chain([(1 << 53) + 2, -LOWEST, MAX - 1, MAX, UNSIGNED - 2]) {
        for schema in
            [format!(r#"{{"const": {number}}}"#), format!(r#"{{"enum": ["a", {number}]}}"#)]
        {
            let held = held(&schema, Strictness::Strict).unwrap();
            for other in number - 1..=number + 1 {
                let wanted = other == number;
                assert_eq!(passes(&text, &held, &other.to_string()), wanted, "{schema} {other}");
            }
        }
    }
}

#[test]
fn bounds_of_parts_meet_exactly() {
    let text = TextModel::sample();
    let far = 1_i128 << 60;
    let schema = json!({ "allOf": [
        { "type": "integer", "minimum": far as i64, "exclusiveMaximum": (far + 4097) as i64 },
        { "type": ["integer", "number"], "maximum": (far + 2048) as i64 },
    ] });
    let held = held(&schema.to_string(), Strictness::Strict).unwrap();
    for number in [far - 1, far, far + 1, far + 2047, far + 2048, far + 2049, far + 4096] {
        let wanted = (far..=far + 2048).contains(&number);
        assert_eq!(passes(&text, &held, &number.to_string()), wanted, "{number}");
    }
}
