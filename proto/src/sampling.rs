//! The settings of sampling on the wire. The message's fields have the names of the table's rows
//! ([`brigade_sampling::for_each_setting`]), so a new row needs nothing here.

use brigade_sampling::{DryParams, Mirostat, SETTINGS, SamplingParams};

use crate::frame_error::FrameError;
use crate::pipeline::{Dry, LogitBias, Mirostat as MirostatMessage, SamplerSetup};

macro_rules! conversions {
    (
        chain { $($(#[$doc:meta])* $field:ident: $ty:ty = $default:expr => $rule:expr;)* }
        dry { $($(#[$dry_doc:meta])* $dry:ident: $dry_ty:ty = $dry_default:expr => $dry_rule:expr;)* }
        mirostat { $($(#[$miro_doc:meta])* $miro:ident: $miro_ty:ty = $miro_default:expr => $miro_rule:expr;)* }
    ) => {
        /// The settings as a message; what else a setup has is left empty.
        pub fn settings_to_wire(params: &SamplingParams) -> SamplerSetup {
            let bias = |&(token, bias): &(u32, f32)| LogitBias { token, bias };
            let dry = &params.dry;
            SamplerSetup {
                $($field: params.$field,)*
                logit_bias: params.logit_bias.iter().map(bias).collect(),
                dry: dry.is_on().then(|| Dry { $($dry: dry.$dry,)* breakers: dry.breakers.to_vec() }),
                mirostat: params.mirostat.map(|on| MirostatMessage { $($miro: on.$miro,)* }),
                ..SamplerSetup::default()
            }
        }

        /// The settings of a message that are a number each: without the biases, and what ends DRY's runs.
        fn numbers(setup: &SamplerSetup) -> SamplingParams {
            let off = DryParams::default;
            let dry = |dry: &Dry| DryParams { $($dry: dry.$dry,)* ..off() };
            SamplingParams {
                $($field: setup.$field,)*
                logit_bias: Vec::new(),
                dry: setup.dry.as_ref().map_or_else(off, dry),
                mirostat: setup.mirostat.map(|on| Mirostat { $($miro: on.$miro,)* }),
            }
        }
    };
}

brigade_sampling::for_each_setting!(conversions);

/// The settings of a message that was checked.
pub fn settings_from_wire(setup: &SamplerSetup) -> SamplingParams {
    let mut params = numbers(setup);
    params.logit_bias = setup.logit_bias.iter().map(|entry| (entry.token, entry.bias)).collect();
    if let Some(dry) = &setup.dry {
        params.dry.breakers = dry.breakers.as_slice().into();
    }
    params
}

/// Checks the settings that are a number each.
pub(crate) fn check_numbers(setup: &SamplerSetup) -> Result<(), FrameError> {
    let params = numbers(setup);
    let guidance = setup.guidance.iter().all(|guidance| guidance.scale.is_finite());
    if guidance && SETTINGS.iter().all(|setting| setting.get(&params).is_finite()) {
        return Ok(());
    }
    Err(FrameError::Invalid { field: "sampler", why: "a setting is not finite" })
}

#[cfg(test)]
mod tests {
    use brigade_sampling::{Rule, Value};

    use super::*;

    fn params() -> SamplingParams {
        let mirostat = Some(Mirostat::default());
        let mut params = SamplingParams { mirostat, ..SamplingParams::default() };
        for (setting, i) in SETTINGS.iter().zip(1u16..) {
            let value = match setting.rule {
                Rule::Number { .. } => Value::Number(f32::from(i) / 8.0),
                Rule::Count { .. } => Value::Count(i.into()),
                Rule::Switch { on, .. } => Value::Count(on),
            };
            setting.set(&mut params, value);
        }
        params.logit_bias = vec![(3, -1.5), (4, f32::NEG_INFINITY)];
        params.dry.breakers = [5, 6].into();
        params
    }

    #[test]
    fn every_setting_goes_there_and_back() {
        assert_eq!(settings_from_wire(&settings_to_wire(&params())), params());
        let off = SamplingParams::default();
        let setup = settings_to_wire(&off);
        assert_eq!((&setup.dry, &setup.mirostat), (&None, &None));
        assert_eq!(settings_from_wire(&setup), off);
    }

    #[test]
    fn each_number_must_be_finite() {
        assert_eq!(check_numbers(&settings_to_wire(&params())), Ok(()));
        for setting in SETTINGS {
            let Rule::Number { .. } = setting.rule else { continue };
            let mut bad = params();
            setting.set(&mut bad, Value::Number(f32::INFINITY));
            assert!(check_numbers(&settings_to_wire(&bad)).is_err(), "{}", setting.name);
        }
    }
}
