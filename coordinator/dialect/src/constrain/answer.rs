//! The constraint of a whole answer: the client's form, and calls of tools, in the model's markup.

use brigade_engine::batch::{self, Constraint, Marker};
use brigade_text::Tokenizer;

use super::calls::{CallGrammars, check_size};
use super::grammar::{Grammar, Literals, quote};
use super::{Form, Refused};
use crate::template::opening::opening;
use crate::text_model::{Force, Prompt, TextModel};
use crate::{Shape, Tools};

/// Begins the answer of a model that writes channels.
const FINAL: &str = "<|channel|>final<|message|>";

/// A chat's wishes for its answer.
#[derive(Clone, Copy, Debug)]
pub struct Wishes<'a> {
    /// The form of the answer as a whole.
    pub form: Option<&'a Form>,
    /// How far the answer is forced to be a call.
    pub force: &'a Force,
    /// Whether one call is enough.
    pub single: bool,
    /// The tools of the request.
    pub tools: &'a Tools,
}

/// The constraint of an answer to a plain prompt.
///
/// # Errors
/// The form cannot be enforced.
pub fn of_text(form: &Form) -> Result<Constraint, Refused> {
    let mut held = Held::default();
    held.result.first = Some(held.add(&form.grammar()?, false));
    Ok(held.result)
}

/// The constraint of an answer to a chat; `None`: the answer is free.
///
/// # Errors
/// The form or a strict tool's schema cannot be enforced, or not both together in this model's markup.
pub fn of_chat(
    text: &TextModel,
    prompt: &Prompt,
    wishes: Wishes<'_>,
) -> Result<Option<Constraint>, Refused> {
    let Wishes { form, force, single, tools } = wishes;
    let any_strict = tools.iter().any(|tool| tool.strict);
    if form.is_none() && *force == Force::Free && !any_strict {
        return Ok(None);
    }
    let Some((dialect, facts)) = text.dialect() else {
        return form.map(of_text).transpose();
    };
    let literals = TextLiterals(text.tokenizer());
    let grammars = CallGrammars { dialect, facts, tools, literals: &literals, single };
    let mut held = Held::default();
    let calls_held = any_strict || *force != Force::Free;
    let bare =
        dialect.calls.as_ref().is_some_and(|calls| calls.bare) && grammars.marker().is_none();
    // One call that must be made is held from the start.
    let first_only = single && *force != Force::Free;
    if calls_held
        && !first_only
        && let Some((marker, grammar)) = grammars.behind_markers()?
    {
        let grammar = held.add(&check_size(grammar)?, true);
        held.marker(marker, grammar);
    }
    let first = match force {
        Force::Tool(name) => grammars.arguments_of(name)?,
        Force::Any => {
            let counted = |shape: &Shape| matches!(shape, Shape::Named(named) if named.name_is_id);
            let is_counted = dialect.calls.as_ref().is_some_and(|calls| counted(&calls.shape));
            let before = opening(dialect, facts, None, 0).unwrap_or_default();
            let before = if is_counted { prompt.opening.clone() } else { before };
            grammars.rest_of(&before, 0)?
        }
        Force::Free => None,
    };
    if let Some(first) = first {
        held.result.first = Some(held.add(&check_size(first)?, true));
    } else if let Some(form) = form.filter(|_| *force == Force::Free) {
        held.form(text, prompt, form, wishes, bare.then_some(&grammars))?;
    } else if bare
        && any_strict
        && *force == Force::Free
        && let Some(call) = grammars.bare()?
    {
        // An answer that does not begin as a call is text.
        let either =
            Grammar::lark("start: @call | /[^{\\[\\s](.|\\n)*/").with("call", check_size(call)?);
        held.result.first = Some(held.add(&either, true));
    }
    let holds = held.result.first.is_some() || !held.result.markers.is_empty();
    if let Some(at) = tools.iter().position(|tool| tool.strict)
        && !holds
    {
        let path = format!("tools[{at}].function.strict");
        let message = format!(
            "{path}: this model's calls begin with nothing that tells them from text, so that they cannot be held: \
             use tool_choice \"required\", or leave strict out"
        );
        return Err(Refused::new(path, message));
    }
    Ok(holds.then_some(held.result))
}

#[derive(Default)]
struct Held {
    result: Constraint,
}

impl Held {
    fn add(&mut self, grammar: &Grammar, then_free: bool) -> u32 {
        self.result.grammars.push(batch::Grammar { text: grammar.text(), then_free });
        self.result.grammars.len() as u32 - 1
    }

    fn marker(&mut self, text: String, grammar: u32) {
        self.result.markers.push(Marker { text, grammar });
    }

    /// The form holds from the beginning, or behind the model's reasoning.
    fn form(
        &mut self,
        text: &TextModel,
        prompt: &Prompt,
        form: &Form,
        wishes: Wishes<'_>,
        bare: Option<&CallGrammars<'_>>,
    ) -> Result<(), Refused> {
        let Some((dialect, facts)) = text.dialect() else { return Ok(()) };
        let body = form.grammar()?;
        let spaced = Grammar::lark("start: /[ \\n]{1,8}/? @form").with("form", body.clone());
        if dialect.channels {
            let grammar = self.add(&spaced, false);
            self.marker(FINAL.to_string(), grammar);
            return Ok(());
        }
        let thinking = dialect.reasoning.as_ref();
        if let Some(pair) = thinking {
            let grammar = self.add(&spaced, false);
            self.marker(pair.close.clone(), grammar);
            if prompt.begins == pair.open {
                return Ok(());
            }
            self.result.unless.extend(token(text.tokenizer(), &pair.open));
        }
        let may_call = !wishes.tools.is_empty();
        let first = match bare.filter(|_| may_call) {
            Some(grammars) => match grammars.bare()? {
                Some(call) => Grammar::lark("start: @form | @call")
                    .with("form", body)
                    .with("call", check_size(call)?),
                None => body,
            },
            None => body,
        };
        if may_call && bare.is_none() {
            let literals = TextLiterals(text.tokenizer());
            let Wishes { tools, single, .. } = wishes;
            let grammars = CallGrammars { dialect, facts, tools, literals: &literals, single };
            let openers = dialect.calls.as_ref().map(|calls| calls.openers()).unwrap_or_default();
            let opens: Vec<u32> =
                openers.iter().filter_map(|o| token(text.tokenizer(), o)).collect();
            if opens.is_empty() && grammars.marker().is_some() {
                let message = format!(
                    "{} together with tools needs tool_choice \"none\" or \"required\" here: this model's calls \
                     begin with no token of their own",
                    form.path
                );
                return Err(Refused::new(&form.path, message));
            }
            self.result.unless.extend(opens);
        }
        self.result.first = Some(self.add(&first, false));
        Ok(())
    }
}

/// The token that is exactly `text`.
fn token(tokenizer: &Tokenizer, text: &str) -> Option<u32> {
    tokenizer.find(text.trim())
}

/// Literals by a tokenizer's control tokens.
struct TextLiterals<'a>(&'a Tokenizer);

impl TextLiterals<'_> {
    /// Runs of text, and control tokens between them.
    fn pieces(&self, text: &str) -> Vec<Result<String, u32>> {
        let Ok(ids) = self.0.encode(text, false, true) else { return vec![Ok(text.to_string())] };
        let mut pieces = Vec::new();
        let mut rest = text;
        for id in ids.into_iter().filter(|id| self.0.is_special(*id)) {
            let name = self.0.token_text(id).unwrap_or_default();
            let Some((before, behind)) = rest.split_once(name).filter(|_| !name.is_empty()) else {
                continue;
            };
            if !before.is_empty() {
                pieces.push(Ok(before.to_string()));
            }
            pieces.push(Err(id));
            rest = behind;
        }
        if !rest.is_empty() {
            pieces.push(Ok(rest.to_string()));
        }
        pieces
    }
}

impl Literals for TextLiterals<'_> {
    fn literal(&self, text: &str) -> String {
        let written = self.pieces(text).into_iter().map(|piece| match piece {
            Ok(text) => quote(&text),
            Err(id) => format!("<[{id}]>"),
        });
        let all: Vec<String> = written.collect();
        all.join(" ")
    }

    fn is_plain(&self, text: &str) -> bool {
        self.pieces(text).iter().all(Result::is_ok)
    }
}
