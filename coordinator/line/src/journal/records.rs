//! The journal's lines: one JSON object each. Log-probabilities are written as the bits of their floats, so that they
//! are read back exactly. Each line ends with a checksum of itself, which shows damage.

use brigade_engine::batch::SampledToken;
use brigade_sched::FinishReason;
use serde::{Deserialize, Serialize};

use super::Drawn;
use crate::stages::numerics::Numerics;

/// A request as it was taken: enough to go on with it, and to write its answer as it was begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opened {
    /// Name of its stream.
    pub id: String,
    /// The address that it was sent to.
    pub path: String,
    /// The number of the API key that owns it, if it needed one.
    pub owner: Option<u64>,
    /// The request's id in logs.
    pub label: String,
    /// Seconds since the Unix epoch.
    pub created: u64,
    /// The seed of its first sequence; the others count on from it.
    pub seed: u64,
    /// Tokens of each prompt.
    pub prompts: Vec<Vec<u32>>,
    /// Tokens of the prompt of their companion, where they have one.
    #[serde(default, rename = "guide", skip_serializing_if = "Option::is_none")]
    pub companion: Option<Vec<u32>>,
    /// Sequences of all prompts.
    pub sequences: usize,
    /// The request as it came.
    pub body: String,
}

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Record {
    /// A request was taken.
    Open { no: u64, opened: Opened },
    /// One of its sequences drew a token.
    Token {
        no: u64,
        sequence: u32,
        /// The tokens' place in the answer; absent in files of older releases.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<u32>,
        token: Token,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        numerics: Option<Numerics>,
    },
    /// One of its sequences ended; with the token that it ended on, or because it was long enough.
    Finish { no: u64, sequence: u32, stop: Option<Token> },
    /// The request is over: no client can ask for it.
    Over { no: u64 },
}

/// A drawn token, with floats as bits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Token {
    id: u32,
    /// Bits of the log-probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    logprob: Option<u32>,
    /// Token and bits of its log-probability.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    top: Vec<(u32, u32)>,
    /// Bits of mirostat's mu after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mu: Option<u32>,
}

impl From<&SampledToken> for Token {
    fn from(token: &SampledToken) -> Self {
        Self {
            id: token.id,
            logprob: token.logprob.map(f32::to_bits),
            top: token.top.iter().map(|(id, value)| (*id, value.to_bits())).collect(),
            mu: token.mu.map(f32::to_bits),
        }
    }
}

impl From<Token> for SampledToken {
    fn from(token: Token) -> Self {
        let value = |bits: Option<u32>| bits.map(f32::from_bits);
        let top = token.top.into_iter().map(|(id, bits)| (id, f32::from_bits(bits)));
        let (logprob, mu) = (value(token.logprob), value(token.mu));
        Self { id: token.id, logprob, top: top.collect(), mu, ..Self::default() }
    }
}

impl Record {
    pub fn token(
        no: u64,
        sequence: u32,
        at: u32,
        token: &SampledToken,
        numerics: Option<Numerics>,
    ) -> Self {
        Self::Token { no, sequence, at: Some(at), token: token.into(), numerics }
    }

    pub fn finish(no: u64, sequence: u32, reason: &FinishReason) -> Self {
        let stop = match reason {
            FinishReason::Stop(token) => Some(token.into()),
            FinishReason::Length | FinishReason::LogitsDone => None,
        };
        Self::Finish { no, sequence, stop }
    }
}

/// A request that was read back.
#[derive(Debug)]
pub(super) struct Old {
    pub opened: Opened,
    pub drawn: Vec<Drawn>,
    /// Whether a line of each sequence is missing. Tokens behind it are drawn again.
    has_hole: Vec<bool>,
}

impl Old {
    pub fn new(opened: Opened) -> Self {
        let drawn = vec![Drawn::default(); opened.sequences];
        let has_hole = vec![false; opened.sequences];
        Self { opened, drawn, has_hole }
    }

    /// A line about a sequence cannot be read; `None`: the sequence is unknown.
    pub fn lose(&mut self, sequence: Option<u32>) {
        match sequence.and_then(|sequence| self.has_hole.get_mut(sequence as usize)) {
            Some(has_hole) => *has_hole = true,
            None => self.has_hole.fill(true),
        }
    }

    /// Takes in a record of one of its sequences.
    pub fn take(&mut self, record: Record) {
        match record {
            Record::Token { sequence, at, token, numerics, .. } => {
                let of = sequence as usize;
                if let (Some(drawn), Some(has_hole)) =
                    (self.drawn.get_mut(of), self.has_hole.get_mut(of))
                {
                    *has_hole |= at.is_some_and(|at| at as usize != drawn.tokens.len());
                    if *has_hole {
                        return;
                    }
                    drawn.numerics = numerics.or(drawn.numerics);
                    drawn.tokens.push(token.into());
                }
            }
            Record::Finish { sequence, stop, .. } => {
                let of = sequence as usize;
                if let Some(drawn) = self.drawn.get_mut(of).filter(|_| !self.has_hole[of]) {
                    let length = FinishReason::Length;
                    drawn.finish = Some(stop.map_or(length, |t| FinishReason::Stop(t.into())));
                }
            }
            Record::Open { .. } | Record::Over { .. } => {}
        }
    }
}

/// A record as a line, with its sum as the last field.
pub(super) fn line(record: &Record) -> Vec<u8> {
    // These are plain values in plain structs, which JSON can always express.
    let mut line = serde_json::to_vec(record).unwrap_or_default();
    let sum = sum(&line);
    line.pop();
    line.extend_from_slice(SUM.as_bytes());
    line.extend_from_slice(sum.as_bytes());
    line.extend_from_slice(b"\"}\n");
    line
}

/// The text between a record and its checksum.
const SUM: &str = ",\"sum\":\"";

/// Hexadecimal digits of a line's sum.
const SUM_DIGITS: usize = 16;

fn sum(record: &[u8]) -> String {
    blake3::hash(record).to_hex()[..SUM_DIGITS].to_owned()
}

/// The record of a line, without its line end; `None`: it was damaged. Lines of older releases have no sum.
pub(super) fn read(line: &[u8], has_sums: bool) -> Option<Record> {
    if !has_sums {
        return serde_json::from_slice(line).ok();
    }
    let at = line.len().checked_sub(SUM.len() + SUM_DIGITS + 2)?;
    let (record, rest) = line.split_at(at);
    let given = rest.strip_prefix(SUM.as_bytes())?.strip_suffix(b"\"}")?;
    let record = [record, b"}"].concat();
    (sum(&record).as_bytes() == given).then(|| serde_json::from_slice(&record).ok())?
}

/// The request, and its sequence, that a damaged line seems to be about.
pub(super) fn seems_about(line: &[u8]) -> Option<(u64, Option<u32>)> {
    let line: serde_json::Value = serde_json::from_slice(line).ok()?;
    let fields = line.as_object()?.values().find_map(|value| value.as_object())?;
    let sequence = fields.get("sequence").and_then(serde_json::Value::as_u64);
    Some((fields.get("no")?.as_u64()?, sequence.and_then(|n| u32::try_from(n).ok())))
}

/// Most sequences of a request.
const MAX_SEQUENCES: usize = 64;

/// Longest name of a stream, an address or a request.
const MAX_NAME_BYTES: usize = 256;

/// Limits that the model sets for values of a journal, whose file may hold anything.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Size of its vocabulary.
    pub n_vocab: u32,
}

impl Bounds {
    /// The part of a record that is impossible for the model, in words; `None`: it is valid.
    pub(super) fn problem(&self, record: &Record) -> Option<&'static str> {
        match record {
            Record::Open { opened, .. } => self.of_opened(opened),
            Record::Token { token, .. } => self.of_token(token),
            Record::Finish { stop, .. } => stop.as_ref().and_then(|token| self.of_token(token)),
            Record::Over { .. } => None,
        }
    }

    fn of_opened(&self, opened: &Opened) -> Option<&'static str> {
        let Opened { id, path, label, prompts, companion, sequences, .. } = opened;
        let is_name = |name: &&String| {
            name.len() <= MAX_NAME_BYTES && name.chars().all(|c| c.is_ascii_graphic())
        };
        let is_prompt = |ids: &&Vec<u32>| {
            let known = ids.iter().all(|id| *id < self.n_vocab);
            !ids.is_empty() && known
        };
        let n = prompts.len();
        match () {
            () if ![id, path].iter().all(is_name) => Some(
                "an id or a path that is too long or has other characters than printable ASCII",
            ),
            () if label.len() > MAX_NAME_BYTES || label.chars().any(char::is_control) => {
                Some("a label that is too long or has control characters")
            }
            () if !prompts.iter().chain(companion).all(|ids| is_prompt(&ids)) => {
                Some("tokens of a prompt that the model does not have")
            }
            () if n == 0 || !(n..=MAX_SEQUENCES).contains(sequences) || sequences % n > 0 => Some(
                "a number of sequences that is out of range, or no multiple of the number of prompts",
            ),
            () => None,
        }
    }

    fn of_token(&self, token: &Token) -> Option<&'static str> {
        let ids = token.top.iter().map(|(id, _)| *id).chain([token.id]);
        let is_number = |bits: &u32| !f32::from_bits(*bits).is_nan();
        let logprobs = token.top.iter().map(|(_, bits)| bits).chain(&token.logprob);
        match () {
            () if ids.into_iter().any(|id| id >= self.n_vocab) => {
                Some("a token that the model does not have")
            }
            () if !logprobs.into_iter().all(is_number) => {
                Some("a log-probability that is not a number")
            }
            () if token.mu.is_some_and(|bits| !f32::from_bits(bits).is_finite()) => {
                Some("a surprise (mu) that is not a finite number")
            }
            () => None,
        }
    }
}

/// All lines of a request.
pub(super) fn lines(no: u64, old: &Old) -> Vec<u8> {
    let mut out = line(&Record::Open { no, opened: old.opened.clone() });
    for (drawn, sequence) in old.drawn.iter().zip(0..) {
        for (token, at) in drawn.tokens.iter().zip(0..) {
            // That some were drawn by others than the last is told already.
            out.extend(line(&Record::token(no, sequence, at, token, drawn.numerics)));
        }
        if let Some(reason) = &drawn.finish {
            out.extend(line(&Record::finish(no, sequence, reason)));
        }
    }
    out
}
