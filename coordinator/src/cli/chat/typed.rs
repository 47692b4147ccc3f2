//! Parses an input: a message, or one of the chat's commands. Pure: no terminal, no server.

use serde_json::Value;
use thiserror::Error;

/// Stands before and behind text of several lines.
const FENCE: &str = "\"\"\"";

/// The text of `/help`.
pub const HELP: &str = "\
/clear              begin anew; the system message and the settings stay
/system [TEXT]      set the system message and begin anew; without TEXT: show it
/regen              answer the last message again
/set [NAME [VALUE]] set a field of the requests, such as temperature 0.3 or max_tokens 200;
                    NAME alone: leave it to the server; nothing: show all
/save FILE          write the chat: FILE.json as a request's messages, any other as text
/help               this
/exit               end; so does Ctrl-D

Ctrl-C ends an answer. A line that ends with \\ goes on in the next one. \"\"\" begins and ends
text of several lines. // at the beginning says something that begins with /.";

/// A parsed input.
#[derive(Clone, Debug, PartialEq)]
pub enum Typed {
    /// The input is empty.
    Nothing,
    /// Say this to the model.
    Say(String),
    /// Forget the chat so far.
    Clear,
    /// Show the system message, or set it.
    System(Option<String>),
    /// Answer the last message again.
    Regen,
    /// Write the chat into this file.
    Save(String),
    /// Show the settings of requests.
    Settings,
    /// Set a field, or leave it to the server.
    Set(String, Option<Value>),
    /// Show the list of commands.
    Help,
    /// End the chat.
    Exit,
}

/// Why an input is not a valid command.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TypedError {
    /// There is no such command.
    #[error(
        "/{0} is not a command: /help lists all; // at the beginning says something that begins with /"
    )]
    Unknown(String),
    /// A command has text behind it that it does not take.
    #[error("/{0} takes nothing behind it")]
    TakesNothing(&'static str),
    /// A command lacks its text.
    #[error("/save needs a file's name: /save chat.json")]
    NoFile,
    /// A field that the chat itself sets.
    #[error("the chat itself sets {0}: /set cannot")]
    Own(String),
}

/// Fields of a request that are the chat's own.
const OWN_FIELDS: [&str; 6] = ["messages", "model", "n", "stream", "stream_options", "tools"];

/// Whether `input` is whole: if not, another line belongs to it.
pub fn is_whole(input: &str) -> bool {
    match input.trim_start().strip_prefix(FENCE) {
        Some(fenced) => fenced.trim_end().ends_with(FENCE),
        None => !continues(input),
    }
}

/// A last backslash is there for the next line, unless it is itself escaped.
fn continues(input: &str) -> bool {
    let backslashes = input.bytes().rev().take_while(|b| *b == b'\\').count();
    backslashes % 2 == 1
}

impl Typed {
    /// Parses a complete input.
    ///
    /// # Errors
    /// The command does not exist, or lacks an argument.
    pub fn parse(input: &str) -> Result<Self, TypedError> {
        let trimmed = input.trim();
        if let Some(fenced) = trimmed.strip_prefix(FENCE) {
            let text = fenced.strip_suffix(FENCE).unwrap_or(fenced);
            return Ok(Self::say(text.trim_matches('\n')));
        }
        match trimmed.strip_prefix('/') {
            Some(said) if said.starts_with('/') => Ok(Self::say(&joined(said))),
            Some(command) => Self::command(command),
            None => Ok(Self::say(&joined(trimmed))),
        }
    }

    fn say(text: &str) -> Self {
        if text.trim().is_empty() { Self::Nothing } else { Self::Say(text.to_string()) }
    }

    fn command(command: &str) -> Result<Self, TypedError> {
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = joined(rest.trim());
        let alone = |typed, name| {
            if rest.is_empty() { Ok(typed) } else { Err(TypedError::TakesNothing(name)) }
        };
        match name {
            "clear" => alone(Self::Clear, "clear"),
            "regen" => alone(Self::Regen, "regen"),
            "help" => alone(Self::Help, "help"),
            "exit" | "quit" => alone(Self::Exit, "exit"),
            "system" if rest.is_empty() => Ok(Self::System(None)),
            "system" => Ok(Self::System(Some(unfenced(&rest)))),
            "save" if rest.is_empty() => Err(TypedError::NoFile),
            "save" => Ok(Self::Save(rest)),
            "set" => Self::set(&rest),
            other => Err(TypedError::Unknown(other.to_string())),
        }
    }

    fn set(rest: &str) -> Result<Self, TypedError> {
        let (name, value) = match rest.split_once(|c: char| c == '=' || c.is_whitespace()) {
            _ if rest.is_empty() => return Ok(Self::Settings),
            Some((name, value)) => (name, Some(value.trim()).filter(|v| !v.is_empty())),
            None => (rest, None),
        };
        setting(name, value)
    }
}

/// A field of the requests by name, and the text of its value: JSON, or words.
///
/// # Errors
/// The field is the chat's own.
pub fn setting(name: &str, value: Option<&str>) -> Result<Typed, TypedError> {
    if OWN_FIELDS.contains(&name) {
        return Err(TypedError::Own(name.to_string()));
    }
    let value = value.map(|text| serde_json::from_str(text).unwrap_or_else(|_| text.into()));
    Ok(Typed::Set(name.to_string(), value))
}

fn unfenced(text: &str) -> String {
    let inner = text.strip_prefix(FENCE).and_then(|text| text.strip_suffix(FENCE));
    inner.map_or(text, |inner| inner.trim_matches('\n')).to_string()
}

/// Lines that a backslash continued, without it.
fn joined(text: &str) -> String {
    let last = text.strip_suffix('\\').filter(|_| continues(text)).unwrap_or(text);
    let mut lines = last.split('\n').peekable();
    let mut whole = String::new();
    while let Some(line) = lines.next() {
        let goes_on = lines.peek().is_some() && continues(line);
        whole.push_str(if goes_on { &line[..line.len() - 1] } else { line });
        if lines.peek().is_some() {
            whole.push('\n');
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn say(input: &str) -> String {
        match Typed::parse(input) {
            Ok(Typed::Say(text)) => text,
            other => panic!("{input}: {other:?}"),
        }
    }

    #[test]
    fn what_is_no_command_is_said() {
        assert_eq!(say(" hello \n"), "hello");
        assert_eq!(say("//etc/hosts is what?"), "/etc/hosts is what?");
        assert_eq!(say("one\\\ntwo\\\nthree"), "one\ntwo\nthree");
        assert_eq!(say("pasted\nlines"), "pasted\nlines");
        assert_eq!(say("a path C:\\\\"), "a path C:\\\\");
        assert_eq!(say("\"\"\"\nfn a() {\n}\n\"\"\""), "fn a() {\n}");
        assert_eq!(say("\"\"\"/clear\"\"\""), "/clear");
        for nothing in ["", "  \n", "\"\"\"\n\"\"\""] {
            assert_eq!(Typed::parse(nothing), Ok(Typed::Nothing), "{nothing:?}");
        }
    }

    #[test]
    fn unfinished_lines_wait_for_more() {
        for whole in ["", "a", "a\\\\", "a\\\nb", "\"\"\"a\nb\"\"\"", "/clear"] {
            assert!(is_whole(whole), "{whole:?}");
        }
        for unfinished in ["a\\", "a\\\nb\\", "\"\"\"", "\"\"\"a\nb", "  \"\"\"a", "a\\\\\\"] {
            assert!(!is_whole(unfinished), "{unfinished:?}");
        }
        assert_eq!(say("cut off\\"), "cut off", "the end of a pipe");
    }

    #[test]
    fn commands_have_names_and_texts() {
        let set = |name: &str, value| Typed::Set(name.to_string(), value);
        for (input, typed) in [
            ("/clear", Typed::Clear),
            (" /regen ", Typed::Regen),
            ("/help", Typed::Help),
            ("/exit", Typed::Exit),
            ("/quit", Typed::Exit),
            ("/system", Typed::System(None)),
            ("/system Be brief.", Typed::System(Some("Be brief.".to_string()))),
            ("/system Be\\\nbrief.", Typed::System(Some("Be\nbrief.".to_string()))),
            ("/system \"\"\"Be\nbrief.\"\"\"", Typed::System(Some("Be\nbrief.".to_string()))),
            ("/save a b.json", Typed::Save("a b.json".to_string())),
            ("/set", Typed::Settings),
            ("/set top_k", set("top_k", None)),
            ("/set top_k 3", set("top_k", Some(json!(3)))),
            ("/set temperature=0.5", set("temperature", Some(json!(0.5)))),
            ("/set reasoning_effort low", set("reasoning_effort", Some(json!("low")))),
            ("/set stop [\"a\", \"b\"]", set("stop", Some(json!(["a", "b"])))),
        ] {
            assert_eq!(Typed::parse(input), Ok(typed), "{input:?}");
        }
    }

    #[test]
    fn what_cannot_be_done_says_what_can() {
        let error = |input: &str| Typed::parse(input).unwrap_err();
        assert_eq!(error("/etc/hosts"), TypedError::Unknown("etc/hosts".to_string()));
        assert_eq!(error("/clear all"), TypedError::TakesNothing("clear"));
        assert_eq!(error("/save"), TypedError::NoFile);
        assert_eq!(error("/set stream false"), TypedError::Own("stream".to_string()));
        assert!(error("/x").to_string().contains("/help lists all"));
    }
}
