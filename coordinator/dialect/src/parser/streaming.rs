//! The streaming parser of all dialects: it takes the text of an answer in pieces and gives events.

use std::sync::Arc;

use super::call_body::{Arguments, Around};
use super::call_head::{self, Context, Head, MAX_HEAD_BYTES};
use super::channel::{Channels, Setting};
use super::control_tokens::{has_control, told, with_controls, without_controls};
use super::events::{Event, Sink};
use super::lexer::{self, Begins, Found, begins, find};
use super::markers::{Role, calls_to_read, channel_marks, head_marker, is_between, marks};
use super::whole_calls::whole_call;
use crate::values::json::Scan;
use crate::{Calls, Dialect, Ids, Shape};

pub use super::markers::Options;

/// Longest call that is held back until it is complete.
const MAX_WHOLE_BYTES: usize = 1 << 20;

#[derive(Clone, Debug)]
enum State {
    /// Reading content, or reasoning if `thinks`.
    Text,
    /// Reading between two calls, or before the first.
    Between,
    /// Where a call may begin.
    Head,
    /// Reading a call that is parsed when it is complete.
    Whole(Scan),
    /// Reading a call's arguments.
    Body { name: String, arguments: Arguments },
    /// Reading behind the arguments of a call that is a JSON object.
    Tail,
    /// Reading the channels of gpt-oss.
    Channels(Channels),
    /// The answer is complete; further text is ignored.
    Done,
}

/// How the text ended, if it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    No,
    /// The model ended its answer.
    Whole,
    /// The answer was cut off.
    CutOff,
}

/// Parses one answer, piece by piece.
#[derive(Clone, Debug)]
pub struct Parser {
    dialect: Arc<Dialect>,
    options: Options,
    marks: Vec<(Role, String)>,
    /// Text that is not decided yet.
    text: String,
    /// Text before it that belongs to a call if there is one, and is content otherwise.
    undecided: String,
    state: State,
    /// Reasoning is going on.
    thinks: bool,
    /// Nothing but white space came so far.
    at_start: bool,
    /// The calls that we are among have begun for certain.
    committed: bool,
    ended: Ended,
    /// The answer is in markup that says nothing: what ends it counts.
    in_silent: bool,
    /// The end of that, and white space: text if more follows.
    silent_end: String,
    /// Markup of reasoning that stands in ordinary text, as long as there is nothing else: text if nothing follows.
    markup: String,
    channel_marks: Arc<[String]>,
    sink: Sink,
}

impl Parser {
    /// A parser at the beginning of an answer.
    pub fn new(dialect: Arc<Dialect>, options: Options) -> Self {
        let calls = calls_to_read(&dialect, &options);
        let nine = calls.is_some_and(|calls| calls.ids == Ids::Nine);
        let holds_space = calls.is_some() || (dialect.channels && !options.tools.is_empty());
        let state =
            if dialect.channels { State::Channels(Channels::default()) } else { State::Text };
        Self {
            marks: marks(&dialect, &options),
            channel_marks: channel_marks(&options),
            sink: Sink::new(options.seed, nine, holds_space),
            dialect,
            options,
            text: String::new(),
            undecided: String::new(),
            state,
            thinks: false,
            at_start: true,
            committed: false,
            ended: Ended::No,
            in_silent: false,
            silent_end: String::new(),
            markup: String::new(),
        }
    }

    /// Takes in text that the prompt ends with: it counts for what follows and is not part of the answer.
    pub fn begin_with(&mut self, text: &str) {
        self.begin_answer(text);
        self.sink.forget_space();
        self.markup.clear();
    }

    /// Reads the end of the prompt that is the beginning of the answer. Names of control tokens are control tokens
    /// there.
    pub fn begin_answer(&mut self, text: &str) -> Vec<Event> {
        let text = told(text, &self.options.hidden);
        self.push(&text)
    }

    /// Takes in more text, in which the names of control tokens begin at `controls`.
    pub fn push_with(&mut self, text: &str, controls: &[usize]) -> Vec<Event> {
        self.push(&with_controls(text, controls))
    }

    /// Takes in more text, control tokens in it named as [`super::control_tokens`] does.
    pub fn push(&mut self, text: &str) -> Vec<Event> {
        self.text.push_str(text);
        while self.step() {}
        self.taken()
    }

    /// New events, with control tokens taken out of their texts.
    fn taken(&mut self) -> Vec<Event> {
        let mut events = self.sink.take();
        for event in &mut events {
            let (Event::Reasoning(text) | Event::Content(text) | Event::Arguments { text, .. }) =
                event
            else {
                continue;
            };
            if has_control(text) {
                *text = without_controls(text, &self.options.hidden);
            }
        }
        events
    }

    /// The end of the answer. `cut_off`: it ended in the middle, so a call that was begun is dropped instead
    /// of being shown as text.
    pub fn finish(&mut self, cut_off: bool) -> Vec<Event> {
        self.ended = if cut_off { Ended::CutOff } else { Ended::Whole };
        while self.step() {}
        let nothing = !self.sink.has_content() && !self.sink.has_reasoning();
        if !cut_off && nothing && self.sink.n_calls() == 0 && !self.markup.is_empty() {
            // It is about the markup, then.
            let markup = std::mem::take(&mut self.markup);
            self.sink.forget_space();
            self.sink.verbatim(&markup);
        }
        self.sink.finish();
        self.taken()
    }

    /// The number of calls so far.
    pub fn n_calls(&self) -> usize {
        self.sink.n_calls()
    }

    /// Whether a call has begun that is not complete.
    pub fn is_in_call(&self) -> bool {
        match &self.state {
            State::Head | State::Whole(_) | State::Body { .. } => true,
            State::Channels(channels) => matches!(channels, Channels::Call(..)),
            State::Text | State::Between | State::Tail | State::Done => false,
        }
    }

    /// Whether nothing that follows would count.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    fn has_ended(&self) -> bool {
        self.ended != Ended::No
    }

    /// One step; whether another may follow.
    fn step(&mut self) -> bool {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => self.running_text(),
            State::Between => self.between(),
            State::Head => self.head(),
            State::Whole(scan) => self.whole(scan),
            State::Body { name, arguments } => self.body(name, arguments),
            State::Tail => self.tail(),
            State::Channels(channels) => self.channels(channels),
            State::Done => {
                self.text.clear();
                self.state = State::Done;
                false
            }
        }
    }

    /// Stays in `state` until more text is there. If the answer was cut off, the undecided text is dropped.
    fn wait(&mut self, state: State) -> bool {
        if self.ended == Ended::CutOff {
            self.text.clear();
            self.undecided.clear();
        }
        self.state = state;
        false
    }

    fn go(&mut self, state: State) -> bool {
        self.state = state;
        true
    }

    /// Moves `n` bytes out of the text.
    fn take(&mut self, n: usize) -> String {
        let rest = self.text.split_off(n);
        std::mem::replace(&mut self.text, rest)
    }

    fn show(&mut self, text: &str) {
        if !self.silent_end.is_empty() {
            self.silent_end.push_str(text);
            if text.trim().is_empty() {
                return;
            }
            // It was no end.
            let text = std::mem::take(&mut self.silent_end);
            return self.show(&text);
        }
        if !self.markup.is_empty() && text.trim().is_empty() {
            self.markup.push_str(text);
        }
        if self.thinks {
            self.sink.reasoning(text);
        } else {
            self.sink.content(text);
        }
        self.at_start &= text.trim().is_empty();
    }

    fn running_text(&mut self) -> bool {
        if self.at_start && !self.thinks && self.reads_calls() && self.is_bare() {
            match self.text.trim_start().chars().next() {
                None if !self.has_ended() => return self.wait(State::Text),
                Some('{' | '[') => {
                    self.at_start = false;
                    self.committed = false;
                    return self.go(State::Between);
                }
                _ => {}
            }
        }
        let counting: Vec<usize> =
            (0..self.marks.len()).filter(|which| self.counts(*which)).collect();
        let marks: Vec<&str> = counting.iter().map(|which| self.marks[*which].1.as_str()).collect();
        let (at, which) = match find(&self.text, &marks, self.ended == Ended::Whole) {
            Found::NotBefore(at) => (at, None),
            Found::At(at, which) => (at, Some(which)),
        };
        let before = self.take(at);
        self.show(&before);
        let Some(which) = which else {
            return self.wait(State::Text);
        };
        let (role, mark) = self.marks[counting[which]].clone();
        self.marker(role, &mark);
        true
    }

    /// Whether this marker has a meaning at the present place. Otherwise it is text.
    fn counts(&self, which: usize) -> bool {
        let (role, mark) = &self.marks[which];
        match role {
            Role::Open | Role::Head => true,
            // A control token is never text.
            _ if has_control(mark) => true,
            Role::ThinkOpen if self.thinks => self.at_start,
            Role::ThinkOpen => !self.sink.has_content(),
            Role::ThinkClose => self.thinks,
            Role::Silent if self.in_silent => true,
            Role::Silent => !self.thinks && self.sink.has_reasoning() && !self.sink.has_content(),
        }
    }

    /// A marker stands at the beginning of the text.
    fn marker(&mut self, role: Role, mark: &str) {
        match role {
            Role::Open => {
                self.undecided = self.take(mark.len());
                self.committed = false;
                self.state = State::Between;
            }
            Role::Head => {
                self.committed = false;
                self.state = State::Head;
            }
            // A template that opens the reasoning, and a model that does so again.
            Role::ThinkOpen if self.thinks && self.at_start => self.swallow(mark),
            Role::ThinkOpen if !self.thinks && !self.sink.has_content() => {
                let text = self.take(mark.len());
                if !has_control(mark) {
                    self.markup = format!("{}{text}", self.sink.held());
                }
                self.thinks = true;
                self.at_start = true;
            }
            Role::ThinkClose
                if self.thinks || (has_control(mark) && !self.sink.has_reasoning()) =>
            {
                self.swallow(mark);
                self.end_reasoning();
            }
            _ if has_control(mark) => drop(self.take(mark.len())),
            Role::Silent if self.in_silent => {
                let end = self.take(mark.len());
                self.silent_end.push_str(&end);
            }
            Role::Silent
                if !self.thinks && self.sink.has_reasoning() && !self.sink.has_content() =>
            {
                self.take(mark.len());
                self.in_silent = true;
            }
            Role::Silent | Role::ThinkOpen | Role::ThinkClose => {
                let text = self.take(mark.len());
                self.show(&text);
            }
        }
    }

    /// Takes more markup of reasoning out of the text.
    fn swallow(&mut self, mark: &str) {
        let text = self.take(mark.len());
        if !self.markup.is_empty() {
            self.markup.push_str(&text);
        }
    }

    fn end_reasoning(&mut self) {
        self.thinks = false;
        self.at_start = true;
        self.sink.end_reasoning();
    }

    fn reads_calls(&self) -> bool {
        calls_to_read(&self.dialect, &self.options).is_some()
    }

    fn is_bare(&self) -> bool {
        self.dialect.calls.as_ref().is_some_and(|calls| calls.bare)
    }

    /// Skips what stands between calls and finds out what is next.
    fn between(&mut self) -> bool {
        let dialect = self.dialect.clone();
        let Some(calls) = &dialect.calls else { return self.go(State::Text) };
        let in_list = matches!(calls.shape, Shape::Json(_) | Shape::Python);
        let skipped =
            |c: char| c.is_whitespace() || (in_list && matches!(c, '[' | ']' | ',' | ';' | '}'));
        let n = self.text.len() - self.text.trim_start_matches(skipped).len();
        let (openers, mut closers) = (calls.openers(), calls.closers());
        let heads = head_marker(&calls.shape);
        let n_closers = closers.len();
        closers.extend(openers);
        let rest = &self.text[n..];
        let ended = self.ended == Ended::Whole;
        match begins(rest, &closers, ended) {
            Begins::Perhaps => self.wait(State::Between),
            Begins::With(which) if which < n_closers => {
                let ends = calls.section.as_ref().is_none_or(|s| s.close == closers[which]);
                self.skip(n + closers[which].len());
                if ends { self.leave() } else { self.go(State::Between) }
            }
            Begins::With(which) if heads == Some(closers[which]) => {
                self.skip(n);
                self.go(State::Head)
            }
            Begins::With(which) => {
                self.skip(n + closers[which].len());
                self.go(State::Between)
            }
            Begins::No if rest.is_empty() && ended => {
                self.skip(n);
                self.leave()
            }
            Begins::No if rest.is_empty() => self.wait(State::Between),
            Begins::No => {
                self.skip(n);
                self.go(State::Head)
            }
        }
    }

    /// Takes `n` bytes that belong to a call if one follows.
    fn skip(&mut self, n: usize) {
        let text = self.take(n);
        self.undecided.push_str(&text);
    }

    /// The calls are over, as they should be; if there was none, what stood there is text.
    fn leave(&mut self) -> bool {
        let text = std::mem::take(&mut self.undecided);
        // Markers in ordinary text are text, if nothing is between them.
        if !(self.committed || has_control(&text) && self.says_nothing(&text)) {
            self.show_visible(&text);
        }
        self.go(State::Text)
    }

    /// Turns what looked like a call into content.
    fn give_up(&mut self) -> bool {
        let mut text = std::mem::take(&mut self.undecided);
        if self.committed && text.trim_matches(is_between).is_empty() {
            text.clear();
        }
        self.show_visible(&text);
        self.go(State::Text)
    }

    /// Whether `text` is nothing but the markers of calls.
    fn says_nothing(&self, text: &str) -> bool {
        let Some(calls) = &self.dialect.calls else { return false };
        let mut text = text.to_string();
        for marker in calls.openers().into_iter().chain(calls.closers()) {
            text = text.replace(marker, "");
        }
        text.trim_matches(is_between).is_empty()
    }

    /// Emits text without its special tokens.
    fn show_visible(&mut self, text: &str) {
        let text = without_controls(text, &self.options.hidden);
        self.show(&text);
    }

    /// Whether a call counts only if its tool is one of the request's: within reasoning, and without a marker.
    fn known_only(&self, calls: &Calls) -> bool {
        let has_marker = !self.undecided.trim_matches(is_between).is_empty();
        self.thinks || (calls.bare && !has_marker) || self.options.tools.is_empty()
    }

    fn head(&mut self) -> bool {
        let dialect = self.dialect.clone();
        let Some(calls) = &dialect.calls else { return self.go(State::Text) };
        let known_only = self.known_only(calls);
        let ended = self.ended == Ended::Whole;
        let context = Context { calls, tools: &self.options.tools, known_only, ended };
        match call_head::read(&self.text, context) {
            Head::More if !ended => self.wait(State::Head),
            Head::More | Head::No => {
                // The call's own marker would be found again.
                let marker = head_marker(&calls.shape);
                if let Some(marker) = marker.filter(|marker| self.text.starts_with(marker)) {
                    self.skip(marker.len());
                }
                self.give_up()
            }
            Head::Whole => self.go(State::Whole(Scan::default())),
            Head::Plain(used) => {
                self.take(used);
                self.undecided.clear();
                self.go(State::Text)
            }
            Head::Call(called) => {
                self.take(called.used);
                self.call(called.name.clone(), called.id);
                let arguments = Arguments::new(called.body);
                self.go(State::Body { name: called.name, arguments })
            }
        }
    }

    fn call(&mut self, name: String, id: Option<String>) {
        self.undecided.clear();
        self.committed = true;
        if self.thinks {
            self.end_reasoning();
        }
        self.at_start = false;
        self.sink.call(name, id);
    }

    fn whole(&mut self, mut scan: Scan) -> bool {
        let Some(end) = scan.end(&self.text).filter(|end| *end <= MAX_WHOLE_BYTES) else {
            if self.ended == Ended::Whole || self.text.len() > MAX_WHOLE_BYTES {
                return self.give_up();
            }
            return self.wait(State::Whole(scan));
        };
        let known_only = self.dialect.calls.as_ref().is_some_and(|calls| self.known_only(calls));
        match whole_call(&self.text[..end]) {
            Some(call) if !known_only || self.options.tools.get(&call.name).is_some() => {
                self.take(end);
                self.call(call.name, call.id);
                self.sink.arguments(&call.arguments);
                self.end_call(State::Between)
            }
            _ => {
                self.skip(end);
                self.give_up()
            }
        }
    }

    fn body(&mut self, name: String, mut arguments: Arguments) -> bool {
        let dialect = self.dialect.clone();
        let Some(calls) = &dialect.calls else { return self.go(State::Text) };
        let (ended, cut_off) = (self.has_ended(), self.ended == Ended::CutOff);
        let tools = &*self.options.tools;
        let around = Around { calls, tools, name: &name, ended, cut_off };
        let was_raw = matches!(arguments, Arguments::Raw(..));
        let read = arguments.read(&self.text, around);
        let is_json = matches!(arguments, Arguments::Json(_) | Arguments::Empty);
        self.take(read.used);
        self.sink.arguments(&read.json);
        if !read.stray.is_empty() {
            self.sink.content(&read.stray);
        }
        if read.end {
            return self.end_call(if is_json { State::Tail } else { State::Between });
        }
        let became_raw = !was_raw && matches!(arguments, Arguments::Raw(..));
        let body = State::Body { name, arguments };
        if became_raw { self.go(body) } else { self.wait(body) }
    }

    fn end_call(&mut self, next: State) -> bool {
        self.sink.end_call();
        self.go(if self.options.single { State::Done } else { next })
    }

    /// Skips what a call's object has behind its arguments.
    fn tail(&mut self) -> bool {
        let space = lexer::space(&self.text);
        let rest = &self.text[space..];
        let ended = self.ended == Ended::Whole;
        let mut chars = rest.chars().filter(|c| !c.is_whitespace());
        match (chars.next(), chars.next()) {
            (None, _) | (Some(','), None) if !ended => self.wait(State::Tail),
            (Some(','), Some('"')) => {
                match Scan::inside().end(rest) {
                    Some(end) => drop(self.take(space + end)),
                    None if rest.len() <= MAX_HEAD_BYTES && !ended => {
                        return self.wait(State::Tail);
                    }
                    None => {}
                }
                self.go(State::Between)
            }
            (Some('}'), _) => {
                self.take(space + 1);
                self.go(State::Between)
            }
            _ => self.go(State::Between),
        }
    }

    fn channels(&mut self, mut channels: Channels) -> bool {
        let setting = Setting {
            tools: &self.options.tools,
            read_calls: !self.options.tools.is_empty(),
            ended: self.has_ended(),
            cut_off: self.ended == Ended::CutOff,
            marks: &self.channel_marks,
        };
        let used = channels.step(&self.text, &mut self.sink, setting);
        let done = self.options.single && self.sink.n_calls() > 0 && channels.is_between();
        let used = match used {
            Some(used) => used,
            None => {
                self.state = State::Channels(channels);
                return false;
            }
        };
        self.take(used);
        let goes_on = !self.text.is_empty() || (used == 0 && !self.has_ended());
        self.state = if done { State::Done } else { State::Channels(channels) };
        goes_on
    }
}
