//! Lists that grow. In Python a list has `append`, `extend`, `insert` and `pop`, and some templates queue tool calls
//! with them. The engine's lists are constant. So the empty list literals of such a template are rewritten into calls
//! of a function, which makes a list object that has these methods.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr, Value};
use minijinja::{Error, ErrorKind};

/// Name of the function that makes a list; no template would choose it.
pub const MAKE_LIST: &str = "_brigade_list";

/// Most items; a template that adds more is out of its mind.
const MAX_ITEMS: usize = 1 << 16;

/// A list shared by all who hold it, as in Python.
#[derive(Debug, Default)]
pub struct List {
    items: Mutex<Vec<Value>>,
    /// Greatest depth in other values at which the list was found. Items added to it lie deeper.
    depth: AtomicUsize,
}

impl List {
    /// Makes an empty list.
    pub fn make() -> Value {
        Value::from_object(Self::default())
    }

    /// Notes that it lies so deep in another value.
    pub fn is_at(&self, depth: usize) {
        self.depth.fetch_max(depth, Ordering::Relaxed);
    }

    /// Greatest depth in other values at which the list was found.
    pub fn depth(&self) -> usize {
        self.depth.load(Ordering::Relaxed)
    }

    /// Adds an item at the end. The caller has checked that the item does not contain this list.
    ///
    /// # Errors
    /// The list is full.
    pub fn append(&self, item: Value) -> Result<(), Error> {
        self.insert(i64::MAX, item)
    }

    /// Puts an item before that at `index`, counted from the end where it is below 0.
    ///
    /// # Errors
    /// The list is full.
    pub fn insert(&self, index: i64, item: Value) -> Result<(), Error> {
        self.with(|items| {
            if items.len() >= MAX_ITEMS {
                let what = format!("a list of more than {MAX_ITEMS} items, the limit");
                return Err(Error::new(ErrorKind::InvalidOperation, what));
            }
            let at = if index < 0 { index.saturating_add(items.len() as i64) } else { index };
            let at = usize::try_from(at).unwrap_or(0).min(items.len());
            items.insert(at, item);
            Ok(())
        })
    }

    /// Takes an item out: the last one, or that at `index`, from the end where it is below 0.
    ///
    /// # Errors
    /// There is none.
    pub fn pop(&self, index: Option<i64>) -> Result<Value, Error> {
        self.with(|items| {
            let index = index.unwrap_or(-1);
            let at = if index < 0 { index + items.len() as i64 } else { index };
            match usize::try_from(at) {
                Ok(at) if at < items.len() => Ok(items.remove(at)),
                _ => Err(Error::new(ErrorKind::InvalidOperation, "pop from a list too short")),
            }
        })
    }

    fn with<T>(&self, f: impl FnOnce(&mut Vec<Value>) -> T) -> T {
        // A panic cannot leave a Vec of values half changed, so a poisoned lock is fine.
        f(&mut self.items.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = key.as_usize()?;
        self.with(|items| items.get(index).cloned())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.with(|items| items.clone()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.with(|items| items.len()))
    }
}

/// Replaces `[]` inside tags and outside strings, if the template adds to lists at all.
pub fn with_growing_lists(source: &str) -> String {
    if ![".append(", ".extend(", ".insert("].iter().any(|method| source.contains(method)) {
        return source.to_owned();
    }
    let call = format!("{MAKE_LIST}()");
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut in_tag = false;
    let mut quote = None;
    while let Some(c) = rest.chars().next() {
        let mut taken = c.len_utf8();
        let mut text = &rest[..taken];
        match (quote, c) {
            (Some(_), '\\') => {
                taken += rest[1..].chars().next().map_or(0, char::len_utf8);
                text = &rest[..taken];
            }
            (Some(q), _) if q == c => quote = None,
            (None, '\'' | '"') if in_tag => quote = Some(c),
            (None, '{') if rest.starts_with("{%") || rest.starts_with("{{") => in_tag = true,
            (None, '%' | '}') if rest.starts_with("%}") || rest.starts_with("}}") => in_tag = false,
            (None, '[') if in_tag && is_empty_list(rest, &out) => {
                taken = 2;
                text = &call;
            }
            _ => {}
        }
        out.push_str(text);
        rest = &rest[taken..];
    }
    out
}

/// Whether `rest` starts with an empty list and not with an index of what stands before it.
fn is_empty_list(rest: &str, before: &str) -> bool {
    let indexes = |c: char| c.is_alphanumeric() || matches!(c, '_' | ')' | ']' | '"' | '\'');
    rest.starts_with("[]") && !before.ends_with(indexes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_empty_lists_in_code_are_replaced() {
        let source =
            "[] {% set a = [] %}{{ a.append('[]') or \"\\\"[]\" }}{# x #}[]{{ f([],[1]) }}";
        let want =
            "[] {% set a = L() %}{{ a.append('[]') or \"\\\"[]\" }}{# x #}[]{{ f(L(),[1]) }}";
        assert_eq!(with_growing_lists(source), want.replace("L()", "_brigade_list()"));
        assert_eq!(with_growing_lists("{% set a = [] %}"), "{% set a = [] %}");
    }
}
