//! The settings of sampling, in one table: [`for_each_setting`] has a row for each, and everything that names settings is
//! written from it. Nothing here draws, parses or sends.
//!
//! - [`SamplingParams`] are the settings as the engine has them.
//! - [`SETTINGS`] says of each what it is called, what it may be and where it can be set.
//!
//! A new setting is a row here, a field of the same name in `proto/proto/pipeline.proto` (and what is generated from that),
//! and what it does in `engine/src/sample`.

mod params;
mod setting;
mod table;

pub use params::{DryParams, Mirostat, SamplingParams, WHOLE_CONTEXT};
pub use setting::{Api, CommandOption, MinusOne, Rule, SETTINGS, Setting, Sound, Value};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn another(setting: &Setting) -> Value {
        match setting.rule {
            Rule::Number { low, high, .. } => Value::Number(low + (high - low) * 0.375),
            Rule::Count { .. } => Value::Count(7),
            Rule::Switch { on, .. } => Value::Count(on),
        }
    }

    #[test]
    fn each_setting_is_kept_and_no_other_is_changed() {
        for (i, setting) in SETTINGS.iter().enumerate() {
            // Settings of a step that is off are not kept.
            let mirostat = Some(Mirostat::default());
            let before = SamplingParams { mirostat, ..SamplingParams::default() };
            let mut params = before.clone();
            setting.set(&mut params, another(setting));
            assert_eq!(setting.get(&params), another(setting), "{}", setting.name);
            for (j, other) in SETTINGS.iter().enumerate().filter(|(j, _)| *j != i) {
                assert_eq!(other.get(&params), other.get(&before), "{i} {j} {}", other.name);
            }
        }
    }

    #[test]
    fn names_are_of_one_setting_and_defaults_within_their_range() {
        let names: Vec<&str> = SETTINGS.iter().flat_map(Setting::names).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        for setting in SETTINGS {
            let default = setting.get(&SamplingParams::default());
            match (setting.rule, default) {
                (Rule::Number { low, high, .. }, Value::Number(value)) => {
                    assert!((low..=high).contains(&value), "{}", setting.name);
                }
                (Rule::Count { .. } | Rule::Switch { .. }, Value::Count(_)) => {}
                (rule, value) => panic!("{} is {value:?} by {rule:?}", setting.name),
            }
        }
    }

    #[test]
    fn a_value_of_another_kind_is_not_taken() {
        let mut params = SamplingParams::default();
        for setting in SETTINGS.iter().filter(|s| !matches!(s.rule, Rule::Switch { .. })) {
            let wrong = match setting.get(&params) {
                Value::Number(_) => Value::Count(3),
                Value::Count(_) => Value::Number(3.0),
            };
            setting.set(&mut params, wrong);
        }
        assert_eq!(params, SamplingParams::default());
    }
}
