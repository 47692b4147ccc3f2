//! Bounds of integers beyond 2^53, which the grammar library would round to an f64, at every place of a schema: an answer
//! passes exactly if it matches.

use std::sync::Arc;

use brigade_engine::batch::Constraint;
use serde_json::{Value, json};

use super::answer::of_text;
use super::tests::is_whole as passes;
use super::{Form, FormKind, Refused, Strictness};
use crate::text_model::TextModel;

/// The constraint that enforces a schema.
pub fn held(schema: &str, strictness: Strictness) -> Result<Arc<Constraint>, Refused> {
    let schema: Value = serde_json::from_str(schema).unwrap();
    let form = Form { path: "s".to_string(), kind: FormKind::Schema(schema, strictness) };
    of_text(&form).map(Arc::new)
}

/// Checks which of some answers pass.
fn check(schema: &Value, good: &[&str], bad: &[&str]) {
    let text = TextModel::sample();
    let held = held(&schema.to_string(), Strictness::Strict).unwrap();
    for (answers, wanted) in [(good, true), (bad, false)] {
        for answer in answers {
            assert_eq!(passes(&text, &held, answer), wanted, "{schema} {answer}");
        }
    }
}

/// A schema of an i64.
fn signed() -> Value {
    json!({ "type": "integer", "minimum": i64::MIN, "maximum": i64::MAX, "format": "int64" })
}

/// A schema of a u64.
fn unsigned() -> Value {
    json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX, "title": "a number" })
}

#[test]
fn members_are_there_or_not_in_their_order() {
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["b"],
        "properties": { "a\"/": signed(), "b": { "type": "string" }, "c": unsigned(), "d": signed() },
    });
    check(
        &schema,
        &[
            r#"{"b": "x"}"#,
            r#"{"a\"/":-9223372036854775808,"b":"x"}"#,
            "{\n  \"b\": \"x\",\n  \"c\": 18446744073709551615,\n  \"d\": 9223372036854775807\n}",
            r#"{"b": "x", "d": 0}"#,
        ],
        &[
            "{}",
            r#"{"b": "x",}"#,
            r#"{"a\"/":-9223372036854775809,"b":"x"}"#,
            r#"{"a\"/": 9223372036854775808, "b": "x"}"#,
            r#"{"b": "x", "c": 18446744073709551616}"#,
            r#"{"b": "x", "c": -1}"#,
            r#"{"c": 1, "b": "x"}"#,
            r#"{"b": "x", "e": 1}"#,
            r#"{"b": "x", "b": "x"}"#,
        ],
    );
    let optional = json!({ "type": "object", "properties": { "a": signed(), "b": signed() } });
    check(
        &optional,
        &["{}", r#"{"a": 1}"#, r#"{"b": 1}"#, r#"{"a": 1, "b": -9223372036854775808}"#],
        &[r#"{"b": 1, "a": 1}"#, r#"{, "a": 1}"#, r#"{"a": 9223372036854775808}"#],
    );
    let others = json!({ "type": "object", "additionalProperties": unsigned() });
    check(
        &others,
        &["{}", r#"{"x": 18446744073709551615, "y \" z": 0}"#],
        &[r#"{"x": 18446744073709551616}"#, r#"{x: 1}"#, r#"{"x": 1 "y": 2}"#],
    );
}

#[test]
fn lists_have_as_many_items_as_they_may() {
    let list = |least: Value, most: Value| {
        let mut list = json!({ "type": "array", "items": unsigned() });
        for (word, count) in [("minItems", least), ("maxItems", most)] {
            if !count.is_null() {
                list[word] = count;
            }
        }
        list
    };
    let answers = ["[]", "[0]", "[1, 2]", "[1,2,3]", "[1,\n 2, 3, 18446744073709551615]"];
    for (least, most, good) in [
        (Value::Null, Value::Null, 0..5),
        (json!(1), Value::Null, 1..5),
        (json!(3.0), Value::Null, 3..5),
        (Value::Null, json!(0), 0..1),
        (json!(0), json!(1), 0..2),
        (json!(1), json!(1), 1..2),
        (json!(2), json!(3), 2..4),
    ] {
        let schema = list(least, most);
        let bad = [&answers[..good.start], &answers[good.end..]].concat();
        check(&schema, &answers[good], &bad);
        check(&schema, &[], &["[18446744073709551616]", "[1,]", "[1 2]"]);
    }
}

#[test]
fn types_literals_and_unions_beside_them() {
    let wide = 9_007_199_254_740_993_u64;
    check(
        &json!({ "type": ["integer", "null", "string"], "minimum": wide, "maxLength": 2 }),
        &["9007199254740993", "null", r#""ab""#, "99999999999999999999999"],
        &["9007199254740992", r#""abc""#, "true", "-1"],
    );
    check(
        &json!({ "enum": [wide, "x", null, i64::MIN, 1.5] }),
        &["9007199254740993", r#""x""#, "null", "-9223372036854775808", "1.5"],
        &["9007199254740992", r#""y""#, "-9223372036854775807", "1"],
    );
    check(
        &json!({ "type": ["object", "null", "array"], "properties": { "a": signed() }, "items": unsigned() }),
        &["null", r#"{"a": -9223372036854775808}"#, "[18446744073709551615]"],
        &[r#"{"a": -9223372036854775809}"#, "[-1]", "0"],
    );
    check(&json!({ "type": "string", "enum": [wide, "x"] }), &[r#""x""#], &["9007199254740993"]);
    check(
        &json!({ "enum": [wide, u64::MAX], "maximum": wide }),
        &["9007199254740993"],
        &["18446744073709551615", "9007199254740992"],
    );
    check(
        &json!({ "anyOf": [{ "$ref": "#/$defs/a~1b" }, { "type": "boolean" }, { "const": u64::MAX }],
                 "$defs": { "a/b": signed(), "other": { "type": "string" } } }),
        &["-9223372036854775808", "true", "18446744073709551615"],
        &["9223372036854775808", r#""a""#, "18446744073709551614"],
    );
    check(
        &json!({ "type": "integer", "allOf": [
            { "minimum": wide, "type": ["number", "null"] }, { "minimum": 5, "maximum": u64::MAX } ] }),
        &["9007199254740993", "18446744073709551615"],
        &["9007199254740992", "18446744073709551616", "null"],
    );
}

#[test]
fn a_schema_may_be_in_itself() {
    let schema = json!({
        "$ref": "#/$defs/node",
        "$defs": { "node": {
            "type": "object", "required": ["id"],
            "properties": { "id": signed(), "next": { "anyOf": [{ "$ref": "#/$defs/node" }, { "type": "null" }] },
                            "tags": { "type": "array", "items": { "$ref": "#/$defs/tag" } } },
        }, "tag": { "type": "string", "maxLength": 1 } },
    });
    check(
        &schema,
        &[
            r#"{"id": 1}"#,
            r#"{"id": 1, "next": {"id": -9223372036854775808, "next": null}, "tags": ["a"]}"#,
        ],
        &[
            r#"{"id": 1, "next": {"id": -9223372036854775809}}"#,
            r#"{"id": 1, "next": {}}"#,
            r#"{"id": 1, "tags": ["ab"]}"#,
        ],
    );
}

#[test]
fn numbers_for_people_need_not_be_held() {
    let schema = json!({
        "type": "object", "required": ["n"], "description": "from -9223372036854775808 on",
        "properties": { "n": { "type": "integer", "maximum": 9, "default": i64::MIN, "examples": [i64::MIN] } },
    });
    check(&schema, &[r#"{"n": 9}"#], &[r#"{"n": 10}"#]);
    let held = held(&schema.to_string(), Strictness::Lenient).unwrap();
    assert!(!passes(&TextModel::sample(), &held, r#"{"n": 10}"#));
}
