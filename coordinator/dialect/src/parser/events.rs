//! Collects what a parser has read: pieces of reasoning, content and calls. White space at their edges is
//! trimmed here.

/// Something new in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// More of the reasoning.
    Reasoning(String),
    /// More of the content.
    Content(String),
    /// A tool call begins.
    Call {
        /// The call's number, from 0.
        index: usize,
        /// The call's id.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// More of a call's arguments: JSON text, unless the model wrote none.
    Arguments {
        /// The call's number, from 0.
        index: usize,
        /// New text of the arguments.
        text: String,
    },
}

/// The seed of calls' ids: equal requests get equal ids, and two calls of one conversation never share one, because
/// prompt, seed or number differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdSeed([u8; 32]);

impl IdSeed {
    /// The seed for one choice, from its prompt's tokens and its seed.
    pub fn new(prompt: &[u32], seed: u64) -> Self {
        let mut hash = blake3::Hasher::new();
        hash.update(&seed.to_le_bytes());
        for id in prompt {
            hash.update(&id.to_le_bytes());
        }
        Self(hash.finalize().into())
    }

    /// The id of call number `index`.
    pub fn id(&self, index: usize, nine: bool) -> String {
        let mut hash = blake3::Hasher::new_keyed(&self.0);
        hash.update(&index.to_le_bytes());
        let letters = letters(hash.finalize().as_bytes());
        if nine { letters[..NINE].to_string() } else { format!("call_{}", &letters[..LONG]) }
    }
}

/// Letters of an id as Mistral's templates want it.
const NINE: usize = 9;

/// Letters of any other.
const LONG: usize = 24;

/// 9 letters and digits for an id of another form; the same for the same id.
pub fn nine_of(id: &str) -> String {
    letters(blake3::hash(id.as_bytes()).as_bytes())[..NINE].to_string()
}

fn letters(bytes: &[u8; 32]) -> String {
    const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    bytes.iter().map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect()
}

/// One stream of text whose edges are trimmed.
#[derive(Clone, Debug, Default)]
struct Flow {
    /// Line breaks are dropped until something else comes.
    at_start: bool,
    /// White space that may turn out to be at the end.
    held: String,
    /// Whether anything but white space came.
    any: bool,
    /// Whether the next text begins a new paragraph.
    paragraph: bool,
}

impl Flow {
    /// The part of `text` that cannot be trimmed any more.
    fn push(&mut self, text: &str, hold: bool) -> String {
        let mut text = text;
        if self.at_start {
            text = text.trim_start_matches(['\n', '\r']);
            if text.is_empty() {
                return String::new();
            }
            self.at_start = false;
        }
        let sure = if hold { text.trim_end().len() } else { text.len() };
        if sure == 0 {
            self.held.push_str(text);
            return String::new();
        }
        let mut out = String::new();
        if std::mem::take(&mut self.paragraph) && self.any {
            out.push_str("\n\n");
        }
        self.any |= !text.trim().is_empty();
        out.push_str(&std::mem::take(&mut self.held));
        out.push_str(&text[..sure]);
        self.held = text[sure..].to_string();
        out
    }

    /// Ends the text. More text would be a new paragraph.
    fn end(&mut self) {
        self.held.clear();
        self.at_start = true;
        self.paragraph = true;
    }
}

/// Collects events, trims their texts and numbers calls.
#[derive(Clone, Debug, Default)]
pub struct Sink {
    events: Vec<Event>,
    seed: IdSeed,
    nine: bool,
    content: Flow,
    reasoning: Flow,
    /// White space at the content's end is held back. If a call follows, it is dropped.
    hold_space: bool,
    n_calls: usize,
}

impl Sink {
    /// An empty sink. `hold_space`: calls may come.
    pub fn new(seed: IdSeed, nine: bool, hold_space: bool) -> Self {
        let reasoning = Flow { at_start: true, ..Flow::default() };
        Self { seed, nine, hold_space, reasoning, ..Self::default() }
    }

    /// The number of calls so far.
    pub fn n_calls(&self) -> usize {
        self.n_calls
    }

    /// Whether there is content that is not white space.
    pub fn has_content(&self) -> bool {
        self.content.any
    }

    /// Whether there was reasoning.
    pub fn has_reasoning(&self) -> bool {
        self.reasoning.any
    }

    /// Adds content.
    pub fn content(&mut self, text: &str) {
        // White space at the beginning may stand before reasoning.
        let hold = self.hold_space || !self.content.any;
        let sure = self.content.push(text, hold);
        match self.events.last_mut() {
            _ if sure.is_empty() => {}
            Some(Event::Content(last)) => last.push_str(&sure),
            _ => self.events.push(Event::Content(sure)),
        }
    }

    /// Adds reasoning.
    pub fn reasoning(&mut self, text: &str) {
        let sure = self.reasoning.push(text, true);
        match self.events.last_mut() {
            _ if sure.is_empty() => {}
            Some(Event::Reasoning(last)) => last.push_str(&sure),
            _ => self.events.push(Event::Reasoning(sure)),
        }
    }

    /// The reasoning is over; another one would begin in a new paragraph.
    pub fn end_reasoning(&mut self) {
        self.reasoning.end();
        if !self.content.any {
            self.content.held.clear();
            self.content.at_start = true;
        }
    }

    /// Begins a new paragraph of content, if there was some.
    pub fn new_paragraph(&mut self) {
        self.content.end();
    }

    /// Begins a call.
    pub fn call(&mut self, name: String, id: Option<String>) {
        self.content.held.clear();
        let index = self.n_calls;
        self.n_calls += 1;
        let id = id.unwrap_or_else(|| self.seed.id(index, self.nine));
        self.events.push(Event::Call { index, id, name });
    }

    /// More arguments of the last call.
    pub fn arguments(&mut self, text: &str) {
        let Some(index) = self.n_calls.checked_sub(1) else { return };
        match self.events.last_mut() {
            _ if text.is_empty() => {}
            Some(Event::Arguments { text: last, .. }) => last.push_str(text),
            _ => self.events.push(Event::Arguments { index, text: text.to_string() }),
        }
    }

    /// Completes the call. White space between calls belongs to neither of them.
    pub fn end_call(&mut self) {
        self.content.at_start = true;
    }

    /// The end: white space that waited is content if no call came.
    pub fn finish(&mut self) {
        let held = std::mem::take(&mut self.content.held);
        if self.n_calls == 0 && !held.is_empty() {
            match self.events.last_mut() {
                Some(Event::Content(last)) => last.push_str(&held),
                _ => self.events.push(Event::Content(held)),
            }
        }
    }

    /// White space that waits.
    pub fn held(&self) -> &str {
        &self.content.held
    }

    /// Content as it is.
    pub fn verbatim(&mut self, text: &str) {
        self.content = Flow::default();
        self.content.any = true;
        self.events.push(Event::Content(text.to_string()));
    }

    /// Drops white space that was held back, since it belongs to the prompt.
    pub fn forget_space(&mut self) {
        self.content.held.clear();
        self.reasoning.held.clear();
    }

    /// Events since the last call.
    pub fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}
