//! The messages of gpt-oss ("harmony"). An answer is a series of messages. Each has a header, which names a
//! channel and, for a call, the tool that is called.
//!
//! ```text
//! <|channel|>analysis<|message|>...<|end|>
//! <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
//! <|start|>assistant<|channel|>final<|message|>...<|return|>
//! ```

use super::call_head::MAX_HEAD_BYTES;
use super::control_tokens::{CONTROL, has_control};
use super::events::Sink;
use super::lexer::{self, Begins, Found, begins, find};
use crate::values::json::Mender;
use crate::values::tools::Tools;

/// All markers of this format.
pub const MARKERS: [&str; 7] = [
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|start|>",
    "<|call|>",
    "<|return|>",
    "<|constrain|>",
];
const CHANNEL: usize = 0;
const MESSAGE: usize = 1;
const END: usize = 2;
const START: usize = 3;
const CALL: usize = 4;
const RETURN: usize = 5;
const CONSTRAIN: usize = 6;

/// The text before a recipient.
const TO: &str = "to=";
/// The text before the names of the request's tools.
const FUNCTIONS: &str = "functions.";

/// The parser's place in the series.
#[derive(Clone, Debug, Default)]
pub enum Channels {
    /// The beginning of the answer: the prompt may have ended within a header.
    #[default]
    First,
    /// Within a header.
    Header,
    /// Within reasoning.
    Reasoning,
    /// Within content.
    Content,
    /// Within a call's arguments: the copier, unless they turn out not to be JSON, and whether there are any.
    Call(Option<Mender>, bool),
    /// Between two messages.
    Between,
}

/// The request and the format with which messages are read.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// The tools of the request.
    pub tools: &'a Tools,
    /// Whether calls are wanted.
    pub read_calls: bool,
    /// Whether the text is complete.
    pub ended: bool,
    /// The text was cut off.
    pub cut_off: bool,
    /// [`MARKERS`], as they are named in the text.
    pub marks: &'a [String],
}

impl<'a> Setting<'a> {
    fn mark(&self, which: usize) -> &'a str {
        &self.marks[which]
    }

    fn all(&self) -> Vec<&'a str> {
        self.marks.iter().map(String::as_str).collect()
    }
}

impl Channels {
    /// Reads from `text`. Returns the number of bytes that are done with; `None`: more text is needed.
    pub fn step(&mut self, text: &str, sink: &mut Sink, setting: Setting<'_>) -> Option<usize> {
        match self {
            Self::First => {
                let space = lexer::space(text);
                match begins(
                    &text[space..],
                    &[setting.mark(CHANNEL), TO, setting.mark(MESSAGE)],
                    setting.ended,
                ) {
                    Begins::Perhaps => None,
                    Begins::No if text[space..].is_empty() && !setting.ended => None,
                    Begins::No => self.go(Self::Content, 0),
                    Begins::With(_) => self.go(Self::Header, 0),
                }
            }
            Self::Header => self.header(text, sink, setting),
            Self::Between => {
                let space = lexer::space(text);
                match begins(
                    &text[space..],
                    &[setting.mark(START), setting.mark(CHANNEL)],
                    setting.ended,
                ) {
                    Begins::Perhaps => None,
                    Begins::No if text[space..].is_empty() => setting.ended.then_some(space),
                    Begins::No => self.go(Self::Content, space),
                    Begins::With(0) => self.go(Self::Header, space + setting.mark(START).len()),
                    Begins::With(_) => self.go(Self::Header, space),
                }
            }
            Self::Reasoning | Self::Content | Self::Call(..) => self.message(text, sink, setting),
        }
    }

    fn go(&mut self, to: Self, used: usize) -> Option<usize> {
        *self = to;
        Some(used)
    }

    fn header(&mut self, text: &str, sink: &mut Sink, setting: Setting<'_>) -> Option<usize> {
        let ends = [MESSAGE, END, CALL, RETURN].map(|which| setting.mark(which));
        match find(text, &ends, setting.ended) {
            Found::At(at, 0) if at <= MAX_HEAD_BYTES => {
                let next = message_of(&text[..at], sink, setting);
                self.go(next, at + setting.mark(MESSAGE).len())
            }
            Found::At(at, which) if which > 0 && at <= MAX_HEAD_BYTES => {
                self.go(Self::Between, at + ends[which].len())
            }
            Found::NotBefore(_) if text.len() <= MAX_HEAD_BYTES && !setting.ended => None,
            Found::NotBefore(_) if setting.cut_off => Some(text.len()),
            // No header: its words are content.
            _ => {
                let Found::At(at, which) = find(text, &setting.all(), true) else {
                    return self.go(Self::Content, 0);
                };
                sink.content(&text[..at]);
                self.go(Self::Content, at + setting.mark(which).len())
            }
        }
    }

    fn message(&mut self, text: &str, sink: &mut Sink, setting: Setting<'_>) -> Option<usize> {
        let (at, which) = match find(text, &setting.all(), setting.ended && !setting.cut_off) {
            Found::At(at, which) => (at, Some(which)),
            Found::NotBefore(at) => (at, None),
        };
        match self {
            Self::Reasoning => sink.reasoning(&text[..at]),
            Self::Call(mender, any) => arguments(&text[..at], mender, any, sink),
            _ => sink.content(&text[..at]),
        }
        let Some(which) = which else {
            if setting.ended {
                // White space at the very end of content is content.
                if !matches!(self, Self::Content) {
                    self.end(sink, setting.cut_off);
                }
                *self = Self::Between;
                return Some(text.len());
            }
            return (at > 0).then_some(at);
        };
        let used = at + setting.mark(which).len();
        match which {
            MESSAGE | CONSTRAIN => {
                // Within a message they mean nothing; in ordinary text they are text.
                match self {
                    _ if has_control(setting.mark(which)) => {}
                    Self::Reasoning => sink.reasoning(&text[at..used]),
                    Self::Call(mender, any) => arguments(&text[at..used], mender, any, sink),
                    _ => sink.content(&text[at..used]),
                }
                Some(used)
            }
            CHANNEL => {
                self.end(sink, false);
                self.go(Self::Header, at)
            }
            START => {
                self.end(sink, false);
                self.go(Self::Header, used)
            }
            _ => {
                self.end(sink, false);
                self.go(Self::Between, used)
            }
        }
    }

    fn end(&self, sink: &mut Sink, cut_off: bool) {
        match self {
            Self::Reasoning if !cut_off => sink.end_reasoning(),
            Self::Content if !cut_off => sink.new_paragraph(),
            Self::Call(mender, any) => {
                if !cut_off && !any {
                    sink.arguments("{}");
                } else if !cut_off
                    && let Some(mender) = mender
                    && !mender.is_done()
                    && let Some(rest) = mender.completion()
                {
                    sink.arguments(&rest);
                }
                sink.end_call();
            }
            _ => {}
        }
    }

    /// Whether a call has just ended.
    pub fn is_between(&self) -> bool {
        matches!(self, Self::Between)
    }
}

/// The kind of message that a header announces.
fn message_of(header: &str, sink: &mut Sink, setting: Setting<'_>) -> Channels {
    let ends = |c: char| c.is_whitespace() || c == '<' || c == CONTROL;
    let word = |text: &str| text.trim_start().split(ends).next().unwrap_or_default().to_string();
    let channel = header.split_once(setting.mark(CHANNEL)).map(|(_, rest)| word(rest));
    let recipient = header.split_once(TO).map(|(_, rest)| word(rest));
    let called = recipient.and_then(|to| match to.strip_prefix(FUNCTIONS) {
        Some(name) => Some(name.to_string()),
        None => setting.tools.get(&to).is_some().then_some(to),
    });
    match (called, channel.as_deref()) {
        (Some(name), _) if setting.read_calls && lexer::is_name(&name) => {
            sink.call(name, None);
            Channels::Call(Some(Mender::default()), false)
        }
        (_, Some("analysis")) => Channels::Reasoning,
        _ => Channels::Content,
    }
}

fn arguments(text: &str, mender: &mut Option<Mender>, any: &mut bool, sink: &mut Sink) {
    let text = if *any { text } else { text.trim_start() };
    *any |= !text.is_empty();
    let Some(copy) = mender else { return sink.arguments(text) };
    let mut json = String::new();
    let read = copy.push(text, &mut json);
    sink.arguments(&json);
    if let Err((_, at)) = read {
        *mender = None;
        sink.arguments(&text[at..]);
    }
}
