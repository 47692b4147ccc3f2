//! Switches that a command line turns off: `--push=false` for each option without a value. clap knows only present
//! and absent switches, so a switch that the file turns on could not be turned off without this.

use std::ffi::OsString;

use super::options::{Kind, Opt, Section};

/// A command line of a section without its `--SWITCH=false`.
#[derive(Clone, Debug, Default)]
pub struct Switched {
    /// The arguments; `--SWITCH=true` is `--SWITCH`.
    pub args: Vec<OsString>,
    /// clap's ids of the switches that are turned off.
    pub off: Vec<String>,
}

impl Switched {
    /// Takes such arguments out of `args`. The last word about a switch counts.
    pub fn read(args: &[OsString], section: &Section) -> Self {
        let mut switched = Self::default();
        let at = args.iter().position(|arg| arg == section.name).map_or(args.len(), |at| at + 1);
        let (before, behind) = args.split_at(at);
        switched.args.extend(before.iter().cloned());
        let mut is_text = false;
        for arg in behind {
            is_text |= arg == "--";
            match arg.to_str().filter(|_| !is_text).and_then(|text| switch(text, section)) {
                Some((option, Some(false))) => {
                    let flag = format!("--{}", option.key());
                    switched.args.retain(|arg| *arg != *flag);
                    switched.off.push(option.id().to_owned());
                }
                Some((option, _)) => {
                    switched.off.retain(|id| id != option.id());
                    let flag = OsString::from(format!("--{}", option.key()));
                    if !switched.args.contains(&flag) {
                        switched.args.push(flag);
                    }
                }
                None => switched.args.push(arg.clone()),
            }
        }
        switched
    }

    /// Whether this option is turned off.
    pub fn is_off(&self, option: &Opt) -> bool {
        self.off.iter().any(|id| id == option.id())
    }
}

/// The switch that an argument names, and its value, if it has one.
fn switch<'s>(text: &str, section: &'s Section) -> Option<(&'s Opt, Option<bool>)> {
    let (name, value) = match text.strip_prefix("--")?.split_once('=') {
        Some((name, value)) => (name, Some(value.parse::<bool>().ok()?)),
        None => (text.strip_prefix("--")?, None),
    };
    let is_it = |option: &&Opt| option.key() == name || option.aliases().contains(&name);
    let mut switches = section.options.iter().filter(|option| option.kind() == Kind::Switch);
    Some((switches.find(is_it)?, value))
}

#[cfg(test)]
mod tests {
    use super::super::loaded::Loaded;
    use super::super::merge::{Purpose, merge};
    use super::super::options::sections;
    use super::super::source;
    use super::*;

    /// A file that turns a switch on.
    fn loaded(section: &str, key: &str) -> Loaded {
        let name = format!("brigade-switches-{}-{section}-{key}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, format!("version = 1\n[{section}]\n{key} = true\n")).unwrap();
        let loaded = source::read(&path);
        std::fs::remove_file(path).unwrap();
        loaded
    }

    #[test]
    fn every_switch_that_the_file_turns_on_is_turned_off_by_the_command_line() {
        let mut seen = 0;
        for section in sections() {
            for option in section.options.iter().filter(|o| o.kind() == Kind::Switch) {
                let loaded = loaded(section.name, option.key());
                let on = |more: &[&str]| {
                    let args: Vec<OsString> =
                        ["brigade", section.name].iter().chain(more).map(OsString::from).collect();
                    let merged = merge(&args, section, &loaded, Purpose::ShowFile).unwrap();
                    let (_, matches) = merged.matches.subcommand().unwrap();
                    matches.get_flag(option.id())
                };
                let [off, with, flag] = [
                    format!("--{}=false", option.key()),
                    format!("--{}=true", option.key()),
                    format!("--{}", option.key()),
                ];
                let what = format!("[{}] {}", section.name, option.key());
                assert!(on(&[]) && on(&[&with]) && on(&[&flag]), "{what}");
                assert!(!on(&[&off]) && !on(&[&flag, &off]) && on(&[&off, &flag]), "{what}");
                seen += 1;
            }
        }
        assert!(seen > 20, "{seen} switches");
    }

    #[test]
    fn only_switches_are_read_and_only_before_texts() {
        let section = sections().iter().find(|section| section.name == "run").unwrap();
        let read = |line: &str| {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let Switched { args, off } = Switched::read(&args, section);
            let args: Vec<String> =
                args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
            (args.join(" "), off.join(" "))
        };
        let plain = |line: &str| (line.to_owned(), String::new());
        assert_eq!(read("x run --push=false -n 1"), ("x run -n 1".to_owned(), "push".to_owned()));
        assert_eq!(read("x run --push=true"), plain("x run --push"));
        for line in
            ["x run --push=maybe", "x run -- --push=false", "x run --ctx=1", "x run --nope=false"]
        {
            assert_eq!(read(line), plain(line));
        }
    }
}
