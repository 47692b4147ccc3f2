//! The options that the file may have, from clap's definitions of `serve`, `run` and `worker`.
//!
//! There is no second list: keys, their values, the schema for editors and the reference in the manual are read from the
//! same commands that read arguments. A crate that derives schemas from types, such as schemars, would need those types
//! once more beside the options, and seven crates.

use std::any::TypeId;
use std::sync::OnceLock;

use clap::builder::StyledStr;
use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::cli::Cli;
use crate::cli::options::units::ThreadCounts;

/// Commands whose options stand in the file, each in a section of its name.
pub const SECTIONS: [&str; 3] = ["serve", "run", "worker"];

/// The section of models, of which there may be many.
pub const MODEL: &str = "model";

/// The name of the repeatable section `[[share]]`: groups of keys that share kept prompts.
pub const SHARE: &str = "share";
/// The list of keys in a section [`SHARE`].
pub const KEYS: &str = "keys";
/// The server's option for which a section [`SHARE`] stands.
pub const SHARE_PREFIX: &str = "share-prefix";

/// The key of a model's name, beside the options of its line.
pub const NAME: &str = "name";

/// The version of the file that this program reads, and those before it.
pub const VERSION: i128 = 1;
/// The key that it stands at.
pub const VERSION_KEY: &str = "version";

/// Options that locate the file, and therefore cannot be in it.
pub const CONFIG: &str = "config";

/// Options of `serve` that are about the server as a whole: the others are a line's, and may stand with its model.
const OF_THE_SERVER: [&str; 26] = [
    "admin-listen",
    "allow-host",
    "allow-pull",
    "audit-content",
    "audit-log",
    "audit-size",
    "cluster-ca",
    "cluster-cert",
    "cluster-cert-ttl",
    "cluster-key",
    "control",
    "cors",
    "data-dir",
    "drain-within",
    "insecure-network",
    "journal",
    "listen",
    "log-format",
    "max-connections-per-address",
    "max-loaded",
    "new-ca",
    "no-auth",
    "pull-budget",
    "share-prefix",
    "tls-cert",
    "tls-key",
];

/// The form of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A boolean, `true` or `false`.
    Switch,
    /// An integer.
    Integer,
    /// An integer or a decimal number.
    Number,
    /// A string.
    Text,
}

/// An option that the file may have.
#[derive(Clone, Debug)]
pub struct Opt {
    arg: Arg,
}

/// The options of one command.
#[derive(Clone, Debug)]
pub struct Section {
    /// Its name, and the command's.
    pub name: &'static str,
    /// clap's definition of the command.
    pub command: Command,
    /// Its options, in the order of `--help`.
    pub options: Vec<Opt>,
}

/// The sections, read from the commands once.
pub fn sections() -> &'static [Section] {
    static SECTIONS_READ: OnceLock<Vec<Section>> = OnceLock::new();
    SECTIONS_READ.get_or_init(|| {
        let mut root = Cli::command();
        // Options of all commands reach each of them only now.
        root.build();
        let of = |name| {
            root.find_subcommand(name).map(|command| Section {
                name,
                command: command.clone(),
                options: command.get_arguments().filter_map(Opt::of).collect(),
            })
        };
        SECTIONS.into_iter().filter_map(of).collect()
    })
}

/// The section called so.
pub fn section(name: &str) -> Option<&'static Section> {
    sections().iter().find(|section| section.name == name)
}

impl Section {
    /// The option called so in the file.
    pub fn option(&self, key: &str) -> Option<&Opt> {
        self.options.iter().find(|option| option.key() == key)
    }

    /// The options that a model may have.
    pub fn of_a_model(&self) -> impl Iterator<Item = &Opt> {
        self.options.iter().filter(|option| self.is_of_a_model(option))
    }

    /// Whether this is an option of a model's line.
    pub fn is_of_a_model(&self, option: &Opt) -> bool {
        !OF_THE_SERVER.contains(&option.key())
    }

    /// Whether these two exclude each other.
    pub fn conflict(&self, one: &Opt, other: &Opt) -> bool {
        let excludes = |a: &Opt, b: &Opt| {
            self.command.get_arg_conflicts_with(&a.arg).iter().any(|c| c.get_id() == b.arg.get_id())
        };
        excludes(one, other) || excludes(other, one)
    }
}

impl Opt {
    /// The option of an argument: what `--help` shows with a long name, without what only asks for a text.
    fn of(arg: &Arg) -> Option<Self> {
        let asks = matches!(
            arg.get_action(),
            ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
        );
        let long = arg.get_long()?;
        (!asks && !arg.is_hide_set() && long != CONFIG).then(|| Self { arg: arg.clone() })
    }

    /// The option's key in the file: its long name.
    pub fn key(&self) -> &str {
        self.arg.get_long().unwrap_or_default()
    }

    /// The option's id in clap.
    pub fn id(&self) -> &str {
        self.arg.get_id().as_str()
    }

    /// clap's definition of the option.
    pub fn arg(&self) -> &Arg {
        &self.arg
    }

    /// Other names that the command line takes for it.
    pub fn aliases(&self) -> Vec<&str> {
        self.arg.get_all_aliases().unwrap_or_default()
    }

    /// The option's help text, as in `--help`.
    pub fn help(&self) -> String {
        self.arg.get_help().map(StyledStr::to_string).unwrap_or_default()
    }

    /// The heading under which `--help` lists it.
    pub fn heading(&self) -> &str {
        self.arg.get_help_heading().unwrap_or("Options")
    }

    /// The variable that it is taken from too.
    pub fn env(&self) -> Option<String> {
        Some(self.arg.get_env()?.to_string_lossy().into_owned())
    }

    /// Whether it may be given several times, and is a list in the file.
    pub fn is_list(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::Append)
    }

    /// Whether its value must not be shown.
    pub fn is_secret(&self) -> bool {
        self.arg.is_hide_env_values_set()
    }

    /// The name of the value in `--help`.
    pub fn value_name(&self) -> String {
        let names = self.arg.get_value_names().unwrap_or_default();
        names.first().map_or_else(|| self.key().to_uppercase(), ToString::to_string)
    }

    /// The values that it may have, where they are few.
    pub fn choices(&self) -> Vec<String> {
        let values = self.arg.get_possible_values();
        match self.kind() {
            Kind::Switch => Vec::new(),
            _ => values.iter().map(|value| value.get_name().to_owned()).collect(),
        }
    }

    /// The default value, where the option has one.
    pub fn default(&self) -> Option<String> {
        let first = self.arg.get_default_values().first()?;
        (self.kind() != Kind::Switch).then(|| first.to_string_lossy().into_owned())
    }

    /// The form of the value.
    pub fn kind(&self) -> Kind {
        if !self.arg.get_action().takes_values() {
            return Kind::Switch;
        }
        let of = self.arg.get_value_parser().type_id();
        let is = |types: &[TypeId]| types.iter().any(|one| of == *one);
        let whole = [
            TypeId::of::<u16>(),
            TypeId::of::<u32>(),
            TypeId::of::<u64>(),
            TypeId::of::<usize>(),
            TypeId::of::<i64>(),
            // The commands with a file take one.
            TypeId::of::<ThreadCounts>(),
        ];
        match () {
            // Sizes have units.
            () if self.value_name() == "SIZE" => Kind::Text,
            () if is(&whole) => Kind::Integer,
            () if is(&[TypeId::of::<f32>(), TypeId::of::<f64>()]) => Kind::Number,
            () => Kind::Text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_of_the_three_commands_is_in_the_file() {
        let mut root = Cli::command();
        root.build();
        let mut seen = 0;
        for name in SECTIONS {
            let section = section(name).expect("a section");
            for arg in root.find_subcommand(name).expect("a command").get_arguments() {
                let not_in_it = ["config", "help", "version"];
                match arg.get_long() {
                    Some(long) if !arg.is_hide_set() && !not_in_it.contains(&long) => {
                        assert!(section.option(long).is_some(), "[{name}] lacks {long}");
                        seen += 1;
                    }
                    // A prompt without an option's name has one with it.
                    _ => assert!(
                        arg.is_positional() || section.option(arg.get_id().as_str()).is_none()
                    ),
                }
            }
        }
        assert!(seen > 120, "{seen} options");
    }

    #[test]
    fn every_option_takes_one_value_or_none() {
        for section in sections() {
            for option in &section.options {
                let known = matches!(
                    option.arg().get_action(),
                    ArgAction::Set | ArgAction::SetTrue | ArgAction::Append
                );
                assert!(known, "[{}] {}: {:?}", section.name, option.key(), option.arg());
                // Of a list, each element is a value of its own in any case.
                let is_cut = option.arg().get_value_delimiter().is_some();
                assert!(!is_cut || option.is_list(), "{}", option.key());
                assert!(!option.help().is_empty(), "{}", option.key());
            }
        }
    }

    #[test]
    fn what_is_the_servers_is_an_option_of_serve() {
        let serve = section("serve").unwrap();
        for key in OF_THE_SERVER {
            assert!(serve.option(key).is_some(), "{key} is no option");
        }
        assert!(serve.of_a_model().any(|option| option.key() == "ctx"));
        assert!(serve.option(NAME).is_none(), "`name` is what a model is called");
    }
}
