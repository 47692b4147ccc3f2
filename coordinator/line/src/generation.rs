//! The tokens of one sequence as text. Only whole characters leave, and stop strings are found and cut off.
//!
//! This is the one place where text meets a running sequence. HTTP and `run` both read from here. A stop
//! string ends the generation at once, which cancels the sequence.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use brigade_dialect::text_model::TextModel;
use brigade_engine::batch::SampledToken;
use brigade_text::{StopMatcher, StreamDecoder, TextError};

use crate::handle::{Failure, FinishReason, Lingering, RequestId, SeqEvent, Sequence};

/// A drawn token with its text and the values that were asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenPiece {
    /// The token's id in the vocabulary.
    pub id: u32,
    /// The token's bytes; none for a control token.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability, if asked for.
    pub logprob: Option<f32>,
    /// The most probable tokens at its place.
    pub top: Vec<(u32, f32)>,
}

/// New text, and the tokens whose text is complete with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// Whole characters that cannot be part of a stop string any more.
    pub text: String,
    /// Tokens; one whose text is held back comes with a later piece.
    pub tokens: Vec<TokenPiece>,
    /// Where in the text the names of control tokens begin that were asked for with [`Generation::show`].
    pub controls: Vec<usize>,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// A stop token or a stop string.
    Stop,
    /// The request's limit of tokens, or the end of the context.
    Length,
}

/// How a generation ended, with its counts and times.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// Whether a stop or the length ended it.
    pub reason: EndReason,
    /// The stop string that ended it.
    pub stop: Option<String>,
    /// Tokens drawn, the stop token included.
    pub n_generated: u32,
    /// Tokens of the prompt that were taken from a kept state.
    pub n_reused: u32,
    /// Tokens that its client had said to expect: drafted and drawn, and drafted in vain.
    pub expected: [u32; 2],
    /// Positions that were computed again because a line was lost.
    pub n_recomputed: u32,
    /// Whether it went on where other bits are computed than before.
    pub numerics_changed: bool,
    /// Time from submission to the first token: queue and prefill.
    pub to_first: Duration,
    /// Time from there to the end.
    pub after_first: Duration,
}

/// A part of a generation.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// More text or tokens.
    Piece(Piece),
    /// The last part; nothing follows.
    End(End),
}

/// A running generation. Dropping it cancels the sequence.
#[derive(Debug)]
pub struct Generation {
    model: Arc<TextModel>,
    sequence: Sequence,
    decoder: StreamDecoder,
    stops: StopMatcher,
    stop_texts: Vec<String>,
    /// Tokens whose text is still withheld.
    held: VecDeque<Held>,
    /// Bytes of text decoded so far.
    decoded: usize,
    /// Bytes of text given out so far.
    shown: usize,
    n_generated: u32,
    submitted: Instant,
    first: Option<Instant>,
    /// The end, to be returned by the next call.
    end: Option<End>,
    /// Control tokens whose names are text here, ascending.
    visible: Arc<[u32]>,
    /// Where the names of those begin, in bytes decoded; those that are not given out yet.
    controls: VecDeque<usize>,
}

#[derive(Debug)]
struct Held {
    piece: TokenPiece,
    /// Decoded bytes before it.
    begin: usize,
    /// Decoded bytes with it.
    end: usize,
}

impl Generation {
    /// The text of `sequence`, cut at the first of `stops`.
    ///
    /// # Errors
    /// The stop strings are too many, too long, or empty.
    pub fn new(
        model: Arc<TextModel>,
        sequence: Sequence,
        stops: &[String],
    ) -> Result<Self, TextError> {
        Ok(Self {
            model,
            sequence,
            decoder: StreamDecoder::new(),
            stops: StopMatcher::new(stops.to_vec())?,
            stop_texts: stops.to_vec(),
            held: VecDeque::new(),
            decoded: 0,
            shown: 0,
            n_generated: 0,
            submitted: Instant::now(),
            first: None,
            end: None,
            visible: Arc::from([]),
            controls: VecDeque::new(),
        })
    }

    /// Shows the names of these control tokens (ascending) as text, for parsers of a model's markup.
    pub fn show(&mut self, tokens: Arc<[u32]>) {
        self.visible = tokens;
    }

    /// Ends the generation early. The sequence is cancelled when this is dropped.
    pub fn stop(self) -> End {
        self.end_now()
    }

    /// Name of the sequence.
    pub fn id(&self) -> RequestId {
        self.sequence.id()
    }

    /// A handle that asks the driver to keep the sequence's state for a while.
    pub fn lingering(&self) -> Lingering {
        self.sequence.lingering()
    }

    /// Tokens of the prompt that need not be computed; settled before the first of them would be.
    pub fn n_reused(&self) -> u32 {
        self.sequence.reused()
    }

    /// The next part; after [`Part::End`] it must not be called again.
    ///
    /// # Errors
    /// The sequence failed; nothing more comes.
    pub async fn next(&mut self) -> Result<Part, Failure> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The same as [`Self::next`], for callers that poll several generations.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Part, Failure>> {
        if let Some(end) = self.end.take() {
            return Poll::Ready(Ok(Part::End(end)));
        }
        loop {
            let part = match ready!(self.sequence.poll_next(cx)) {
                Some(SeqEvent::Token(token)) => match self.token(token) {
                    Some(piece) => Ok(Part::Piece(piece)),
                    None => continue,
                },
                Some(SeqEvent::Finished(finish)) => {
                    let reason = match finish.reason {
                        FinishReason::Stop(_) => {
                            self.n_generated += 1;
                            EndReason::Stop
                        }
                        FinishReason::Length | FinishReason::LogitsDone => EndReason::Length,
                    };
                    Ok(self.finish(reason, finish.to_first, finish.after_first))
                }
                Some(SeqEvent::Failed(failure)) => Err(failure),
                Some(SeqEvent::Logits { .. }) | None => {
                    let reason = "a generation got something else than tokens".to_string();
                    Err(Failure::Internal { reason })
                }
            };
            return Poll::Ready(part);
        }
    }

    /// Takes in a token; a piece if there is something to show.
    fn token(&mut self, token: SampledToken) -> Option<Piece> {
        self.n_generated += 1;
        self.first.get_or_insert_with(Instant::now);
        let bytes = self.model.token_bytes(token.id);
        let begin = self.decoded;
        let decoded = match self.visible.binary_search(&token.id) {
            Ok(_) => {
                let name = self.model.vocab_bytes(token.id);
                let decoded = self.decoder.push(&name);
                // A broken character may stand before it.
                self.controls.push_back(begin + decoded.len().saturating_sub(name.len()));
                decoded
            }
            Err(_) => self.decoder.push(&bytes),
        };
        self.decoded += decoded.len();
        let piece = TokenPiece { id: token.id, bytes, logprob: token.logprob, top: token.top };
        self.held.push_back(Held { piece, begin, end: self.decoded });
        let outcome = self.stops.push(&decoded);
        let controls = self.controls_of(&outcome.text);
        self.shown += outcome.text.len();
        if outcome.stopped.is_some() {
            let stop = outcome.stopped.and_then(|at| self.stop_texts.get(at).cloned());
            self.end = Some(End { stop, ..self.end_now() });
            let tokens = self.release(|held, shown| held.begin < shown);
            return Some(Piece { text: outcome.text, tokens, controls });
        }
        let tokens = self.release(|held, shown| held.end <= shown);
        let piece = Piece { text: outcome.text, tokens, controls };
        (!piece.text.is_empty() || !piece.tokens.is_empty()).then_some(piece)
    }

    /// The end that is decided here, which the driver does not know of.
    fn end_now(&self) -> End {
        let now = Instant::now();
        let first = self.first.unwrap_or(now);
        End {
            reason: EndReason::Stop,
            stop: None,
            n_generated: self.n_generated,
            n_reused: self.sequence.reused(),
            expected: self.sequence.expected(),
            n_recomputed: self.sequence.recomputed(),
            numerics_changed: self.sequence.numerics_changed(),
            to_first: first - self.submitted,
            after_first: now - first,
        }
    }

    /// The sequence ended by itself: withheld text is emitted before the end.
    fn finish(&mut self, reason: EndReason, to_first: Duration, after_first: Duration) -> Part {
        let end = End {
            reason,
            stop: None,
            n_generated: self.n_generated,
            n_reused: self.sequence.reused(),
            expected: self.sequence.expected(),
            n_recomputed: self.sequence.recomputed(),
            numerics_changed: self.sequence.numerics_changed(),
            to_first,
            after_first,
        };
        let tail = self.decoder.finish();
        let mut text = self.stops.push(&tail).text;
        text.push_str(&self.stops.finish());
        let controls = self.controls_of(&text);
        let tokens = self.release(|_, _| true);
        if text.is_empty() && tokens.is_empty() {
            return Part::End(end);
        }
        self.end = Some(end);
        Part::Piece(Piece { text, tokens, controls })
    }

    /// Where names of control tokens begin in the text that is given out now.
    fn controls_of(&mut self, text: &str) -> Vec<usize> {
        let (from, to) = (self.shown, self.shown + text.len());
        let n = self.controls.iter().take_while(|at| **at < to).count();
        self.controls.drain(..n).filter_map(|at| at.checked_sub(from)).collect()
    }

    fn release(&mut self, is_shown: impl Fn(&Held, usize) -> bool) -> Vec<TokenPiece> {
        let shown = self.shown;
        let n = self.held.iter().take_while(|held| is_shown(held, shown)).count();
        self.held.drain(..n).map(|held| held.piece).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::{Engine, Finish};
    use crate::request::{Drawing, Limits, Request};

    /// Plays `tokens` to a generation and returns its text, its tokens and its end.
    async fn play(tokens: &[u32], stops: &[&str], reason: FinishReason) -> (String, Vec<u32>, End) {
        let (engine, mut ends) = Engine::channel();
        let model = Arc::new(TextModel::sample());
        let limits = Limits { n_ctx: 64, n_vocab: model.n_vocab(), answer: 1024, encoder: None };
        let request = Request::generate(vec![1], Drawing::default(), &limits).unwrap();
        let tokens = tokens.to_vec();
        tokio::spawn(async move {
            let submission = ends.submissions.recv().await.unwrap();
            submission.verdict.send(Ok(())).unwrap();
            for id in tokens {
                let token = SampledToken { id, logprob: Some(-1.0), ..SampledToken::default() };
                let _ = submission.events.send(SeqEvent::Token(token)).await;
            }
            let (to_first, after_first) = (Duration::ZERO, Duration::ZERO);
            let finish = Finish { reason, to_first, after_first };
            let _ = submission.events.send(SeqEvent::Finished(finish)).await;
        });
        let sequence = engine.submit(RequestId(0), request).await.unwrap();
        let stops: Vec<String> = stops.iter().map(|s| (*s).to_string()).collect();
        let mut generation = Generation::new(model, sequence, &stops).unwrap();
        let (mut text, mut ids) = (String::new(), Vec::new());
        loop {
            match generation.next().await.unwrap() {
                Part::Piece(piece) => {
                    text.push_str(&piece.text);
                    ids.extend(piece.tokens.iter().map(|t| t.id));
                }
                Part::End(end) => return (text, ids, end),
            }
        }
    }

    fn ids(texts: &[&str]) -> Vec<u32> {
        let model = TextModel::sample();
        texts.iter().map(|text| model.tokenizer().find(text).unwrap()).collect()
    }

    #[tokio::test]
    async fn a_stop_string_over_two_tokens_takes_their_logprobs_with_it() {
        let tokens = ids(&["a", "b", "c", "d"]);
        let (text, shown, end) = play(&tokens, &["bc"], FinishReason::Length).await;
        assert_eq!((text.as_str(), shown), ("a", vec![tokens[0]]));
        assert_eq!((end.reason, end.n_generated), (EndReason::Stop, 3));
    }

    #[tokio::test]
    async fn a_beginning_that_does_not_end_is_shown_at_the_end() {
        let tokens = ids(&["a", "b"]);
        let (text, shown, end) = play(&tokens, &["bc"], FinishReason::Length).await;
        assert_eq!((text.as_str(), shown), ("ab", tokens));
        assert_eq!((end.reason, end.n_generated), (EndReason::Length, 2));
    }

    #[tokio::test]
    async fn a_character_over_two_tokens_comes_whole() {
        let tokens = ids(&["<0xC3>", "<0xA9>"]);
        let stop = SampledToken { id: 2, ..SampledToken::default() };
        let (text, shown, end) = play(&tokens, &[], FinishReason::Stop(stop)).await;
        assert_eq!((text.as_str(), shown), ("\u{e9}", tokens));
        assert_eq!((end.reason, end.n_generated), (EndReason::Stop, 3));
    }
}
