//! Options of sampling: one for each row of the table of settings that has an option, the biases and the seed. The
//! defaults are llama.cpp's.

use std::sync::LazyLock;

use brigade_engine::batch::SamplingParams;
use brigade_sampling::{CommandOption, MinusOne, Rule, SETTINGS, Setting, Value};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use serde_json::{Map, Value as Json, json};

use crate::cli::options::units;

/// How tokens are drawn.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    #[command(flatten)]
    settings: SettingArgs,
    /// Add to a token's logit: ID=BIAS; repeatable, -inf bans the token
    #[arg(long, value_name = "ID=BIAS", value_parser = units::logit_bias)]
    logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws; the same seed gives the same text [default: random]
    #[arg(long, short)]
    pub seed: Option<u64>,
}

impl SamplingArgs {
    /// clap's ids of these options.
    pub fn ids() -> impl Iterator<Item = &'static str> {
        typed().iter().map(|typed| typed.option.id).chain(["logit_bias", "seed"])
    }

    /// The engine's form of these arguments, with a context of `n_ctx`.
    pub fn params(&self, n_ctx: u32) -> SamplingParams {
        let logit_bias = self.logit_bias.clone();
        let mut params = SamplingParams { logit_bias, ..SamplingParams::default() };
        for (typed, value) in typed().iter().zip(&self.settings.0) {
            let value = match *value {
                Given::Number(value) => Value::Number(value),
                // A value below 0 means the whole context.
                Given::Count(value) => Value::Count(u32::try_from(value).unwrap_or(n_ctx)),
            };
            typed.setting.set(&mut params, value);
        }
        params
    }

    /// These arguments as fields of a request.
    pub fn fields(&self) -> Map<String, Json> {
        let given = typed().iter().zip(&self.settings.0);
        let mut fields: Map<String, Json> = given
            .map(|(typed, value)| {
                let value = match *value {
                    Given::Number(value) => number(value),
                    Given::Count(value) => json!(value),
                };
                (typed.setting.name.to_string(), value)
            })
            .collect();
        if !self.logit_bias.is_empty() {
            fields.insert("logit_bias".to_string(), biases(&self.logit_bias));
        }
        fields.extend(self.seed.map(|seed| ("seed".to_string(), json!(seed))));
        fields
    }
}

/// The number as it was typed: 0.95, not the nearest f32.
pub fn number(value: f32) -> Json {
    value.to_string().parse().map_or(Json::Null, |value: f64| json!(value))
}

/// JSON has no infinity: `false` bans a token.
fn biases(biases: &[(u32, f32)]) -> Json {
    let value = |bias: f32| if bias == f32::NEG_INFINITY { json!(false) } else { number(bias) };
    biases.iter().map(|(id, bias)| json!([id, value(*bias)])).collect()
}

/// A setting that has an option.
struct Typed {
    setting: &'static Setting,
    option: CommandOption,
    /// The name of the value in `--help`.
    value_name: String,
    /// Its default, as help shows it.
    default: String,
}

/// All of these options, in the table's order.
fn typed() -> &'static [Typed] {
    static TYPED: LazyLock<Vec<Typed>> = LazyLock::new(|| {
        let defaults = SamplingParams::default();
        let typed = SETTINGS.iter().filter_map(|setting| {
            let option = setting.option?;
            let default = match setting.get(&defaults) {
                Value::Number(value) => value.to_string(),
                Value::Count(value) => value.to_string(),
            };
            Some(Typed { setting, option, value_name: option.id.to_uppercase(), default })
        });
        typed.collect()
    });
    &TYPED
}

impl Typed {
    fn takes_minus_one(&self) -> bool {
        self.setting.rule == Rule::Count { minus_one: Some(MinusOne::Context) }
    }

    fn arg(&'static self) -> Arg {
        let arg = Arg::new(self.option.id)
            .long(self.option.long)
            .aliases(self.option.aliases.iter().copied())
            .help(self.option.help)
            .value_name(self.value_name.as_str())
            .default_value(self.default.as_str())
            .action(ArgAction::Set);
        match self.setting.rule {
            Rule::Number { .. } => arg.value_parser(value_parser!(f32)),
            Rule::Count { .. } if self.takes_minus_one() => arg
                .allow_negative_numbers(true)
                .value_parser(value_parser!(i64).range(-1..=i64::from(u32::MAX))),
            Rule::Count { .. } | Rule::Switch { .. } => arg.value_parser(value_parser!(u32)),
        }
    }

    fn given(&self, matches: &ArgMatches) -> Option<Given> {
        let id = self.option.id;
        match self.setting.rule {
            Rule::Number { .. } => matches.get_one(id).copied().map(Given::Number),
            Rule::Count { .. } if self.takes_minus_one() => {
                matches.get_one(id).copied().map(Given::Count)
            }
            Rule::Count { .. } | Rule::Switch { .. } => {
                matches.get_one(id).map(|value: &u32| Given::Count((*value).into()))
            }
        }
    }
}

/// The typed value of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Given {
    Number(f32),
    /// -1 where the setting takes it.
    Count(i64),
}

/// The typed values, one for each of [`typed`].
#[derive(Clone, Debug)]
struct SettingArgs(Vec<Given>);

impl FromArgMatches for SettingArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = typed().iter().map(|typed| {
            // Each has a default.
            typed.given(matches).ok_or_else(|| {
                clap::Error::raw(
                    clap::error::ErrorKind::MissingRequiredArgument,
                    format!("--{} has no value: give one", typed.option.long),
                )
            })
        });
        given.collect::<Result<_, _>>().map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for SettingArgs {
    fn augment_args(command: Command) -> Command {
        command.args(typed().iter().map(Typed::arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        sampling: SamplingArgs,
    }

    fn parse(line: &str) -> SamplingArgs {
        Line::try_parse_from(line.split(' ')).unwrap().sampling
    }

    #[test]
    fn what_is_typed_reaches_the_engine_and_nothing_else_does() {
        assert_eq!(parse("run").params(64), SamplingParams::default());
        let all = "run --temperature 0.5 --top-k 3 --top-p 0.25 --min-p 0.125 --typ-p 0.75 \
                   --repetition-penalty 2 --repeat-last-n -1 --presence-penalty 1 --frequency-penalty 4 \
                   --logit-bias 5=-inf";
        let all = all.split_whitespace().collect::<Vec<_>>().join(" ");
        let wanted = SamplingParams {
            temperature: 0.5,
            top_k: 3,
            top_p: 0.25,
            min_p: 0.125,
            typical_p: 0.75,
            repeat_penalty: 2.0,
            penalty_last_n: 64,
            presence_penalty: 1.0,
            frequency_penalty: 4.0,
            logit_bias: vec![(5, f32::NEG_INFINITY)],
            ..SamplingParams::default()
        };
        assert_eq!(parse(&all).params(64), wanted);
        assert_eq!(parse(&all).fields()["repeat_last_n"], json!(-1));
    }

    #[test]
    fn values_are_as_typed_in_requests() {
        let fields = parse("run --temp 0 --top-k 3 --seed 7 --logit-bias 5=-inf").fields();
        assert_eq!((&fields["temperature"], &fields["top_k"]), (&json!(0.0), &json!(3)));
        assert_eq!(fields["top_p"].to_string(), "0.95");
        assert_eq!((&fields["seed"], &fields["logit_bias"]), (&json!(7), &json!([[5, false]])));
    }
}
