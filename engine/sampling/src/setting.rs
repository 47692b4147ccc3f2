//! A setting's description besides its field: its names, its allowed values, and where it can be set.

use crate::params::{Mirostat, SamplingParams};

/// A setting of the sampling chain.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Name in requests and in messages. Messages call it by the first.
    pub name: &'static str,
    /// Names in requests of other servers.
    pub aliases: &'static [&'static str],
    /// Allowed values.
    pub rule: Rule,
    /// The APIs in which it can be set besides OpenAI's, which have all.
    pub apis: &'static [Api],
    /// The option of commands that sets it, if one does.
    pub option: Option<CommandOption>,
    acts: fn(&SamplingParams) -> bool,
    get: fn(&SamplingParams) -> Value,
    set: fn(&mut SamplingParams, Value),
}

/// Allowed values of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// A number within bounds.
    Number {
        /// The least that a request may ask for.
        low: f32,
        /// Greatest allowed value.
        high: f32,
        /// Requirement of the chain, which holds for every source of the value.
        sound: Sound,
    },
    /// A whole number from 0.
    Count {
        /// Meaning of -1 in a request; `None`: it is refused.
        minus_one: Option<MinusOne>,
    },
    /// Whether a step of the chain acts, as a number.
    Switch {
        /// The number that turns it on; 0 is off.
        on: u32,
        /// Text of the refusal: the values that are allowed.
        want: &'static str,
    },
}

/// Requirement of the sampling chain for a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sound {
    /// A finite number.
    Finite,
    /// A number above 0.
    AboveZero,
    /// A number not below 0.
    FromZero,
}

/// Meaning of -1 in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinusOne {
    /// The step is off, which 0 says here.
    Off,
    /// A window has the whole context.
    Context,
}

/// APIs in which only some settings can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// Anthropic's `/v1/messages`.
    Anthropic,
    /// OpenAI's `/v1/responses`.
    Responses,
    /// `options` of Ollama's addresses.
    Ollama,
}

/// An option of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandOption {
    /// Identifier, by which other options refer to it.
    pub id: &'static str,
    /// Long name on the command line, without its two hyphens.
    pub long: &'static str,
    /// Other long names.
    pub aliases: &'static [&'static str],
    /// Text in the command's help.
    pub help: &'static str,
}

/// The value of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A value of [`Rule::Number`].
    Number(f32),
    /// A value of [`Rule::Count`] or [`Rule::Switch`].
    Count(u32),
}

impl Value {
    /// Whether it is a count, or a number that is finite.
    pub fn is_finite(self) -> bool {
        match self {
            Self::Number(value) => value.is_finite(),
            Self::Count(_) => true,
        }
    }
}

/// A type of the settings' fields.
trait Field: Copy {
    fn to_value(self) -> Value;
    /// `None` for a value of the other kind.
    fn of_value(value: Value) -> Option<Self>;
}

impl Field for f32 {
    fn to_value(self) -> Value {
        Value::Number(self)
    }

    fn of_value(value: Value) -> Option<Self> {
        match value {
            Value::Number(value) => Some(value),
            Value::Count(_) => None,
        }
    }
}

impl Field for u32 {
    fn to_value(self) -> Value {
        Value::Count(self)
    }

    fn of_value(value: Value) -> Option<Self> {
        match value {
            Value::Count(value) => Some(value),
            Value::Number(_) => None,
        }
    }
}

/// A value of the other kind leaves the field as it is: readers ask the rule which kind a setting has.
fn put<T: Field>(field: &mut T, value: Value) {
    if let Some(value) = T::of_value(value) {
        *field = value;
    }
}

/// APIs besides OpenAI's.
const OTHERS: &[Api] = &[Api::Anthropic, Api::Responses, Api::Ollama];

const fn named(name: &'static str, rule: Rule) -> Setting {
    Setting {
        name,
        aliases: &[],
        rule,
        apis: &[],
        option: None,
        acts: |_| true,
        get: |_| Value::Count(0),
        set: |_, _| {},
    }
}

const fn number(name: &'static str, low: f32, high: f32) -> Setting {
    named(name, Rule::Number { low, high, sound: Sound::Finite })
}

const fn count(name: &'static str) -> Setting {
    named(name, Rule::Count { minus_one: None })
}

impl Setting {
    const fn computes(self, sound: Sound) -> Self {
        match self.rule {
            Rule::Number { low, high, .. } => {
                Self { rule: Rule::Number { low, high, sound }, ..self }
            }
            Rule::Count { .. } | Rule::Switch { .. } => self,
        }
    }

    const fn minus_one_is(self, meaning: MinusOne) -> Self {
        Self { rule: Rule::Count { minus_one: Some(meaning) }, ..self }
    }

    const fn also(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    const fn in_apis(self, apis: &'static [Api]) -> Self {
        Self { apis, ..self }
    }

    const fn only_if(self, acts: fn(&SamplingParams) -> bool) -> Self {
        Self { acts, ..self }
    }

    const fn option(
        self,
        id: &'static str,
        long: &'static str,
        aliases: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { option: Some(CommandOption { id, long, aliases, help }), ..self }
    }

    /// Whether its value in `params` says anything. A setting without effect may have any value.
    pub fn acts(&self, params: &SamplingParams) -> bool {
        (self.acts)(params)
    }

    /// The setting's value in `params`. Where its step is off, that is the default.
    pub fn get(&self, params: &SamplingParams) -> Value {
        (self.get)(params)
    }

    /// Gives it a value in `params`, of the kind that its rule says. Settings of a step that is off are not kept.
    pub fn set(&self, params: &mut SamplingParams, value: Value) {
        (self.set)(params, value);
    }

    /// The setting's names in requests, its own first.
    pub fn names(&self) -> Vec<&'static str> {
        [self.name].iter().chain(self.aliases).copied().collect()
    }
}

macro_rules! settings {
    (
        chain { $($(#[$doc:meta])* $field:ident: $ty:ty = $default:expr => $rule:expr;)* }
        dry { $($(#[$dry_doc:meta])* $dry:ident: $dry_ty:ty = $dry_default:expr => $dry_rule:expr;)* }
        mirostat { $($(#[$miro_doc:meta])* $miro:ident: $miro_ty:ty = $miro_default:expr => $miro_rule:expr;)* }
    ) => {
        /// All settings that are a number each. A switch stands before the settings of its step.
        pub const SETTINGS: &[Setting] = &[
            $(Setting {
                get: |params| params.$field.to_value(),
                set: |params, value| put(&mut params.$field, value),
                ..$rule
            },)*
            $(Setting {
                get: |params| params.dry.$dry.to_value(),
                set: |params, value| put(&mut params.dry.$dry, value),
                ..$dry_rule
            },)*
            MIROSTAT,
            $(Setting {
                get: |params| params.mirostat.unwrap_or_default().$miro.to_value(),
                set: |params, value| {
                    if let Some(mirostat) = &mut params.mirostat {
                        put(&mut mirostat.$miro, value);
                    }
                },
                ..$miro_rule
            },)*
        ];
    };
}

crate::for_each_setting!(settings);

/// Whether draws are mirostat's, as llama.cpp counts its versions.
const MIROSTAT: Setting = Setting {
    get: |params| Value::Count(if params.mirostat.is_some() { MIROSTAT_VERSION } else { 0 }),
    set: |params, value| {
        params.mirostat = (value == Value::Count(MIROSTAT_VERSION)).then(Mirostat::default);
    },
    ..named("mirostat", Rule::Switch { on: MIROSTAT_VERSION, want: "2 is version 2, 0 is off" })
        .in_apis(&[Api::Ollama])
};

/// The version that is computed here.
const MIROSTAT_VERSION: u32 = 2;
