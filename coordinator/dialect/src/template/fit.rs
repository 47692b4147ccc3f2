//! Fits a conversation to what the model's chat template takes, and sees to it that nothing of it is lost.
//!
//! A conversation is given to the template as it is. Where the template refuses it, or where a message's text is
//! not in the prompt, other arrangements of the same texts are tried ([`super::arrange`]). Only what no arrangement
//! can hold is an error.

use std::cell::LazyCell;
use std::ops::ControlFlow;
use std::sync::Mutex;

use brigade_text::{ChatTemplate, TemplateInput, TextError};
use serde_json::Value;

use super::arrange::{Arrangement, CallsGiven, text_of};
use super::content_form::{Form, Forms};
use super::held_texts::{has_words, lost_of_calls, marked, not_seen, without_marks, written_out};
use super::history::Prepared;
use super::sketch::{bytes_of, sketch};

/// Most bytes of a text that an error quotes.
const QUOTED: usize = 40;

/// Longest conversation of which every arrangement is rendered whole; of a longer one its sketch is.
pub const MAX_TRIED_BYTES: usize = 1 << 12;

/// Limit of the arrangements of a long conversation, beside the first one, that are rendered whole. They are chosen
/// by the sketch, so a refusal costs only a few renderings.
pub const MAX_TRIED: usize = 2;

/// Log messages about arrangements that were needed for a template. Each message is logged once.
#[derive(Debug, Default)]
pub struct Said(Mutex<Vec<&'static str>>);

impl Said {
    /// Logs the arrangements that were not logged before.
    pub fn say(&self, model: &str, words: &[&'static str]) {
        // A panic cannot leave the list half changed, so a poisoned lock is fine.
        let mut said = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for what in words {
            if !said.contains(what) {
                said.push(what);
                tracing::warn!(model, "conversations are changed for the chat template: {what}");
            }
        }
    }
}

/// A conversation as a template renders it.
#[derive(Debug)]
pub struct Fitted {
    /// The rendered prompt.
    pub text: String,
    /// How the messages were arranged.
    pub arrangement: Arrangement,
}

/// Renders for one template.
#[derive(Clone, Copy, Debug)]
pub struct Fitting<'a> {
    /// The model's chat template.
    pub template: &'a ChatTemplate,
    /// The forms in which it reads contents.
    pub forms: Forms,
    /// The template's input without the messages.
    pub input: TemplateInput<'a>,
}

impl Fitting<'_> {
    /// The prompt of a conversation, in the first arrangement that the template takes whole. `in_words`: the same
    /// conversation, its calls written as text.
    ///
    /// If a long conversation does not fit as it is, its sketch ([`sketch`]) is tried in all arrangements. Only
    /// arrangements that fit the sketch are rendered whole, and few of them.
    ///
    /// # Errors
    /// No arrangement fits; the error is that of the first one.
    pub fn fit(
        &self,
        prepared: &Prepared,
        in_words: impl Fn() -> Prepared,
    ) -> Result<Fitted, TextError> {
        let first = match self.whole(&prepared.messages) {
            Err(error) if !error.is_limit() => error,
            taken => return Ok(Fitted { text: taken?, arrangement: Arrangement::default() }),
        };
        let words = LazyCell::new(|| in_words().messages);
        let given = |arrangement: Arrangement| match arrangement.calls {
            CallsGiven::InWords => words.as_slice(),
            _ => prepared.messages.as_slice(),
        };
        // A result whose call is not there can be in words as well.
        let is_result = |message: &&Value| message.get("role").is_some_and(|role| role == "tool");
        let n_results = prepared.messages.iter().filter(is_result).count();
        let n_calls = prepared.n_calls + n_results;
        let is_short = prepared.messages.iter().map(bytes_of).sum::<usize>() <= MAX_TRIED_BYTES;
        let taken = if is_short {
            each_other(n_calls, given, |arrangement, messages| self.tried(arrangement, messages))
        } else {
            let (short, mut n_tried) = (sketch(&prepared.messages), 0);
            let short_words = LazyCell::new(|| sketch(&words));
            let short = |arrangement: Arrangement| match arrangement.calls {
                CallsGiven::InWords => short_words.as_slice(),
                _ => short.as_slice(),
            };
            each_other(n_calls, short, |arrangement, sketched| {
                if n_tried == MAX_TRIED || self.whole(sketched).is_err() {
                    return ControlFlow::Continue(());
                }
                n_tried += 1;
                self.tried(arrangement, &arrangement.of(given(arrangement)))
            })
        };
        taken.unwrap_or(Err(first))
    }

    /// Ends the search with the prompt of an arrangement, or with a limit that others would run into as well.
    fn tried(
        &self,
        arrangement: Arrangement,
        messages: &[Value],
    ) -> ControlFlow<Result<Fitted, TextError>> {
        match self.whole(messages) {
            Ok(text) => ControlFlow::Break(Ok(Fitted { text, arrangement })),
            Err(error) if error.is_limit() => ControlFlow::Break(Err(error)),
            Err(_) => ControlFlow::Continue(()),
        }
    }

    /// The prompt of these messages, if it has all of them.
    fn whole(&self, messages: &[Value]) -> Result<String, TextError> {
        let forms: Vec<Form> = messages.iter().map(|message| self.forms.of(message)).collect();
        let text = self.render(messages, &forms)?;
        let lost = self.lost(messages, &forms, &text);
        if lost.is_empty() {
            self.has_calls(messages, &text)?;
            return Ok(text);
        }
        // Some templates read one form here and the other there.
        let mut others = forms;
        lost.iter().for_each(|i| others[*i] = others[*i].other());
        if let Ok(other) = self.render(messages, &others)
            && written_out(&other) <= written_out(&text)
            && self.lost(messages, &others, &other).is_empty()
        {
            self.has_calls(messages, &other)?;
            return Ok(other);
        }
        Err(left_out(&messages[lost[0]], lost[0]))
    }

    /// Renders these messages without checking whether the template leaves texts out.
    ///
    /// # Errors
    /// The template refuses them.
    pub fn as_it_is(&self, messages: &[Value]) -> Result<String, TextError> {
        let forms: Vec<Form> = messages.iter().map(|message| self.forms.of(message)).collect();
        self.render(messages, &forms)
    }

    fn render(&self, messages: &[Value], forms: &[Form]) -> Result<String, TextError> {
        #[cfg(test)]
        RENDERED.with_borrow_mut(|all| all.push(messages.iter().map(bytes_of).sum()));
        // Most templates read texts, and then nothing is copied.
        if forms.iter().all(|form| *form == Form::Text) {
            return self.template.render(&TemplateInput { messages, ..self.input });
        }
        let given: Vec<Value> =
            messages.iter().zip(forms).map(|(message, form)| form.give(message.clone())).collect();
        self.template.render(&TemplateInput { messages: &given, ..self.input })
    }

    /// Messages whose text the prompt does not have.
    fn lost(&self, messages: &[Value], forms: &[Form], prompt: &str) -> Vec<usize> {
        let unseen = not_seen(messages, prompt);
        if unseen.is_empty() {
            return unseen;
        }
        let mut probe = messages.to_vec();
        for i in &unseen {
            let text = marked(&messages[*i], *i);
            if let Some(message) = probe[*i].as_object_mut() {
                message.insert("content".to_string(), Value::from(text));
            }
        }
        match self.render(&probe, forms) {
            Ok(text) => without_marks(&unseen, &text),
            Err(_) => unseen.into_iter().filter(|i| !has_words(&messages[*i], prompt)).collect(),
        }
    }

    /// Checks that the calls are in the prompt.
    fn has_calls(&self, messages: &[Value], prompt: &str) -> Result<(), TextError> {
        let lost = |(i, message)| lost_of_calls(message, prompt).map(|text| (i, text));
        match messages.iter().enumerate().find_map(lost) {
            None => Ok(()),
            Some((i, text)) => Err(TextError::Template(format!(
                "it leaves out {} of a tool call in message {i} of the conversation, and so the model would not read \
                 it; no other arrangement helps",
                quoted(text)
            ))),
        }
    }
}

/// Tries the arrangements but the first, each with its messages, until one ends the search. `n_calls`: calls and results. `given`: the messages that an
/// arrangement is of.
fn each_other<'m, T>(
    n_calls: usize,
    given: impl Fn(Arrangement) -> &'m [Value],
    mut try_it: impl FnMut(Arrangement, &[Value]) -> ControlFlow<T>,
) -> Option<T> {
    let mut tried = vec![given(Arrangement::default()).to_vec()];
    for arrangement in Arrangement::all().skip(1).filter(|other| other.is_for(n_calls)) {
        let messages = arrangement.of(given(arrangement));
        if tried.contains(&messages) {
            continue;
        }
        if let ControlFlow::Break(end) = try_it(arrangement, &messages) {
            return Some(end);
        }
        tried.push(messages);
    }
    None
}

fn left_out(message: &Value, i: usize) -> TextError {
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    TextError::Template(format!(
        "it leaves out the text of message {i} of the conversation (role {role:?}, {}), and so the model would not \
         read it; no other arrangement helps",
        quoted(text_of(message))
    ))
}

/// The beginning of a text, in quotes.
fn quoted(text: &str) -> String {
    let text = text.trim();
    let end = text.char_indices().map(|(at, _)| at).find(|at| *at >= QUOTED);
    match end {
        Some(end) => format!("{:?} ...", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
thread_local! {
    /// Bytes of each conversation that this thread has rendered.
    pub static RENDERED: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(Vec::new()) };
}
