//! A model's tokens as the grammar sees them.

use std::sync::Arc;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{
    ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie, TokenId,
    TokenizerEnv,
};
use llguidance::{Matcher, ParserFactory};

use super::ConstraintError;
use super::compiled::Compiled;

/// States of a grammar's lexer; each takes one or two kB.
const MAX_LEXER_STATES: usize = 25_000;

/// Places in a grammar that an answer may have come to at the same time.
const MAX_ROW_ITEMS: usize = 4_000;

/// Symbols in all productions of a grammar.
const MAX_GRAMMAR_SYMBOLS: usize = 200_000;

/// Steps of compiling a grammar's lexer, each about a ten-millionth of a second. This bounds the time that a compile
/// takes by a count: whether a grammar can be used must not depend on how busy a machine is.
const MAX_COMPILE_STEPS: u64 = 1_000_000;

/// The same for the lexer's part of one mask.
const MAX_MASK_STEPS: u64 = 200_000;

/// Places in a grammar that are looked at for one mask.
const MAX_MASK_ITEMS: usize = 50_000;

/// Most beginnings of a token that are tokens themselves. Where more tokens may follow, there is a choice.
const MAX_BEGINNINGS: usize = 32;

/// Tokens that may follow, a bit for each.
#[derive(Debug)]
pub struct Mask(SimpleVob);

impl Mask {
    pub(super) fn new(bits: SimpleVob) -> Self {
        Self(bits)
    }

    /// Makes the logits of all other tokens `-inf`. `row`: `[n_vocab]`.
    pub fn apply(&self, row: &mut [f32]) {
        let words = self.0.as_slice();
        for (logits, i) in row.chunks_mut(u32::BITS as usize).zip(0..) {
            let word = words.get(i).copied().unwrap_or(0);
            if word == u32::MAX {
                continue;
            }
            for (logit, bit) in logits.iter_mut().zip(0..) {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// Whether token `id` may follow.
    pub fn allows(&self, id: u32) -> bool {
        (id as usize) < self.0.len() && self.0.is_allowed(id)
    }

    /// Whether no token may follow.
    pub fn is_empty(&self) -> bool {
        self.0.is_zero()
    }

    /// The same and one more.
    pub(super) fn with(mut self, id: u32) -> Self {
        if (id as usize) < self.0.len() {
            self.0.allow_token(id);
        }
        self
    }
}

/// A token that must follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Only {
    /// The longest whose text must follow.
    pub token: u32,
    /// Whether no other token may follow. If not, tokens that are beginnings of it may follow too. If not, tokens may
    /// follow that are beginnings of it.
    pub is_sure: bool,
}

/// The tokens of a model, ready for grammars; shared by all sequences.
pub struct Vocabulary {
    factory: ParserFactory,
    /// Text of each token, that of control tokens by their names. Markers are looked for in these.
    texts: Vec<Vec<u8>>,
    end: SimpleVob,
    compiled: Compiled,
}

impl Vocabulary {
    /// Builds the vocabulary of a model whose tokens have these texts, control tokens by their names. `is_control` says
    /// which those are, and `ends` are the tokens that end an answer.
    ///
    /// # Errors
    /// None ends an answer.
    pub fn new(
        texts: Vec<Vec<u8>>,
        is_control: impl Fn(u32) -> bool,
        ends: &[u32],
    ) -> Result<Self, ConstraintError> {
        let wrong = |what: &str| ConstraintError::Vocabulary(what.to_owned());
        let first = *ends.first().ok_or_else(|| wrong("the model has no token that ends it"))?;
        let n_vocab = texts.len() as u32;
        // Control tokens are no text of the answer: under this mark no grammar of text reaches them.
        let marked = |id: u32| {
            if is_control(id) {
                [&[TokTrie::SPECIAL_TOKEN_MARKER], texts[id as usize].as_slice()].concat()
            } else {
                texts[id as usize].clone()
            }
        };
        let words: Vec<Vec<u8>> = (0..n_vocab).map(marked).collect();
        let trie = TokTrie::from(&TokRxInfo::new(n_vocab, first), &words).with_eos_tokens(ends);
        let end = trie.eos_token_set();
        let env: TokEnv = Arc::new(Env(trie));
        let factory = factory(&env, &SlicedBiasComputer::json_slices())?;
        Ok(Self { factory, texts, end, compiled: Compiled::default() })
    }

    /// At the beginning of one of an owner's grammars.
    pub(super) fn matcher(&self, owner: u64, grammar: &str) -> Result<Matcher, ConstraintError> {
        self.compiled.matcher(owner, grammar, || matcher(&self.factory, grammar))
    }

    /// Number of grammars compiled so far.
    pub fn n_compiled(&self) -> u64 {
        self.compiled.n_compiled()
    }

    /// Text of a token, the names of control tokens too.
    pub(super) fn text(&self, id: u32) -> &[u8] {
        self.texts.get(id as usize).map_or(&[], Vec::as_slice)
    }

    /// The token that must follow; `None`: there is a choice, or the answer may end.
    pub(super) fn only(&self, mask: &Mask) -> Option<Only> {
        let n = mask.0.num_set();
        if n == 0 || n > MAX_BEGINNINGS {
            return None;
        }
        let may: Vec<u32> = mask.0.iter().collect();
        let longest = may.iter().copied().max_by_key(|id| self.text(*id).len())?;
        let is_beginning = |id: &u32| self.text(longest).starts_with(self.text(*id));
        let ends = may.iter().any(|id| self.end.is_allowed(*id));
        let only = Only { token: longest, is_sure: n == 1 };
        (!ends && may.iter().all(is_beginning)).then_some(only)
    }

    /// Tokens that end an answer.
    pub(super) fn end(&self) -> Mask {
        Mask::new(self.end.clone())
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("n_vocab", &self.texts.len()).finish_non_exhaustive()
    }
}

/// Bytes of an answer that a grammar is tried with before it is used.
const TRIED_BYTES: usize = 48;

/// Bytes that go on to another part of the answer, best first, where the grammar leaves a choice.
const PREFERRED: &[u8] = b"\",:[{}]";

/// Compiles a grammar, tries it with the beginning of an answer, and forgets it: what is wrong with it does not depend
/// on the vocabulary.
///
/// # Errors
/// [`ConstraintError::Grammar`]: it cannot be compiled, fits no text, or takes more steps than may be.
pub fn check_grammar(grammar: &str) -> Result<(), ConstraintError> {
    check_grammar_while(grammar, || true)
}

/// As [`check_grammar`], but gives up when `is_wanted` returns false.
///
/// # Errors
/// [`ConstraintError::Unwanted`] as well.
pub fn check_grammar_while(
    grammar: &str,
    is_wanted: impl Fn() -> bool,
) -> Result<(), ConstraintError> {
    if !is_wanted() {
        return Err(ConstraintError::Unwanted);
    }
    let factory = factory(&ApproximateTokEnv::single_byte_env(), &[])?;
    let mut matcher = matcher(&factory, grammar)?;
    let wrong = |what: String| ConstraintError::Grammar(in_plain_words(&what));
    for at in 0..TRIED_BYTES {
        if !is_wanted() {
            return Err(ConstraintError::Unwanted);
        }
        let mask = matcher.compute_mask_or_eos().map_err(|error| wrong(error.to_string()))?;
        if mask.is_zero() {
            let where_ = if at == 0 { "no text" } else { "no text to its end" };
            return Err(wrong(format!("it fits {where_}")));
        }
        let is_space = |byte: u8| byte.is_ascii_whitespace();
        let may = |byte: &u8| mask.is_allowed(u32::from(*byte));
        let rest = (0..=u8::MAX).filter(|byte| !is_space(*byte));
        let next = PREFERRED.iter().copied().chain(rest).chain(*b" \n").find(may);
        let Some(next) = next.filter(|_| !matcher.is_stopped()) else { return Ok(()) };
        matcher.consume_token(u32::from(next)).map_err(|error| wrong(error.to_string()))?;
        if matcher.is_stopped() {
            return Ok(());
        }
    }
    Ok(())
}

fn factory(env: &TokEnv, slices: &[String]) -> Result<ParserFactory, ConstraintError> {
    let mut factory = ParserFactory::new(env, InferenceCapabilities::default(), slices)
        .map_err(|error| ConstraintError::Vocabulary(error.to_string()))?;
    factory.quiet();
    *factory.limits_mut() = ParserLimits {
        max_items_in_row: MAX_ROW_ITEMS,
        max_lexer_states: MAX_LEXER_STATES,
        max_grammar_size: MAX_GRAMMAR_SYMBOLS,
        initial_lexer_fuel: MAX_COMPILE_STEPS,
        step_lexer_fuel: MAX_MASK_STEPS,
        step_max_items: MAX_MASK_ITEMS,
        verbose_errors: false,
        ..ParserLimits::default()
    };
    Ok(factory)
}

fn matcher(factory: &ParserFactory, grammar: &str) -> Result<Matcher, ConstraintError> {
    let grammar = TopLevelGrammar::from_lark_or_grammar_list(grammar);
    let matcher = Matcher::new(grammar.and_then(|grammar| factory.create_parser(grammar)));
    match matcher.get_error() {
        None => Ok(matcher),
        Some(error) => Err(ConstraintError::Grammar(in_plain_words(&error))),
    }
}

/// The library's message for the author of the grammar, without the words of its programming language.
fn in_plain_words(text: &str) -> String {
    let text = text.replace("<non-verbose/>", "").replace("NoExtensionBias", "it fits no text");
    let mut plain = text.trim().replace("None", "none");
    while let Some(at) = plain.find("Some(") {
        let Some(end) = plain[at..].find(')') else { break };
        plain.remove(at + end);
        plain.replace_range(at..at + "Some(".len(), "");
    }
    plain
}

/// A trie without an algorithm behind it: nothing is ever tokenised for a grammar.
struct Env(TokTrie);

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(bytes)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// A regular expression as it stands between slashes in a grammar.
pub fn regex_for_lark(regex: &str) -> String {
    llguidance::regex_to_lark(regex, "")
}
