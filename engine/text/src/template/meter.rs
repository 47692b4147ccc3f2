//! Limits what one rendering of a chat template may make.
//!
//! A template can double a text with every step (`x ~ x`). Limiting its steps therefore does not limit its
//! memory. So a meter counts every byte of text and every item of a list that a template makes, over the
//! whole rendering. It refuses what goes beyond the limit before that is made, or directly after one step
//! that at most doubled it.
//!
//! It also keeps values shallow and finite. Nothing may contain itself, nest so deeply that dropping it would
//! exhaust the thread's stack, or have more parts than can be walked.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use minijinja::value::{DynObject, ObjectRepr, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::list::List;

/// Bytes of text and lists that any template may make.
pub const TEMPLATE_BYTES: u64 = 128 << 20;
/// Bytes that a rendering may make in addition for each byte of messages, tools and arguments. Templates copy these
/// some times. A template that gathers its output in a variable copies it with every message, which for a thousand
/// messages is a thousand times half of it.
pub const TEMPLATE_BYTES_PER_INPUT: u64 = 512;
/// Most bytes of text and lists that a template may make, whatever its input.
pub const MAX_TEMPLATE_BYTES_MADE: u64 = 1 << 30;
/// Deepest nesting of a value that a template makes (messages may come with 128 levels).
pub const MAX_TEMPLATE_DEPTH: usize = 256;
/// Parts of nested values that one rendering may walk through.
const MAX_WALKED: u64 = 1 << 24;

/// Counted for a value besides its text, or its items.
const VALUE_BYTES: u64 = 96;
/// Counted for an item of a list: what it takes there.
const ITEM_BYTES: u64 = size_of::<Value>() as u64;
/// Counted for a key of a mapping with its value.
const PAIR_BYTES: u64 = 96;
/// Shorter texts lie in their values themselves.
const SHORT_TEXT: u64 = 22;
/// Counted for a macro or another object that keeps variables.
const OBJECT_BYTES: u64 = 1024;

/// The variable that carries the limit into a rendering; no template can name it.
pub const LIMIT: &str = "brigade/limit";

/// The count of one rendering, kept in its [`State`].
pub struct Meter {
    limit: u64,
    left: u64,
    walks_left: u64,
    /// Length of the right operand of the addition that comes next, where it is a list.
    right_len: Option<usize>,
}

/// Limit of bytes for a rendering with so many bytes of input.
pub fn limit_for(input_bytes: u64) -> u64 {
    let for_input = input_bytes.saturating_mul(TEMPLATE_BYTES_PER_INPUT);
    TEMPLATE_BYTES.saturating_add(for_input).min(MAX_TEMPLATE_BYTES_MADE)
}

fn refuse(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

impl Meter {
    /// Meter of a rendering.
    pub fn of<'a>(state: &'a mut State<'_, '_>) -> &'a mut Self {
        let limit = match state.get_extension::<Self>() {
            Some(meter) => meter.limit,
            None => state
                .lookup(LIMIT)
                .and_then(|limit| u64::try_from(limit).ok())
                .unwrap_or(TEMPLATE_BYTES),
        };
        state.get_or_insert_extension_with(|| Self {
            limit,
            left: limit,
            walks_left: MAX_WALKED,
            right_len: None,
        })
    }

    /// Whether so many bytes may still be made.
    ///
    /// # Errors
    /// So many bytes may not be made. The error names the limit.
    pub fn allow(&self, bytes: u64) -> Result<(), Error> {
        if bytes <= self.left {
            return Ok(());
        }
        Err(refuse(format!(
            "the template makes more than {} bytes of text and lists, the limit for a request of this size",
            self.limit
        )))
    }

    /// Whether so many items may still be made, each a value by itself.
    ///
    /// # Errors
    /// As [`Self::allow`].
    pub fn allow_items(&self, n: usize) -> Result<(), Error> {
        self.allow((n as u64).saturating_mul(ITEM_BYTES))
    }

    /// Counts bytes that are made.
    ///
    /// # Errors
    /// As [`Self::allow`].
    pub fn count(&mut self, bytes: u64) -> Result<(), Error> {
        self.allow(bytes)?;
        self.left -= bytes;
        Ok(())
    }

    /// Bytes of a value written out.
    ///
    /// # Errors
    /// More than may still be made.
    pub fn text_len(&self, value: &Value) -> Result<u64, Error> {
        if let Some(text) = value.as_str() {
            return Ok(text.len() as u64);
        }
        let mut counter = Counter { left: self.left, len: 0 };
        match write!(counter, "{value}") {
            Ok(()) => Ok(counter.len),
            Err(_) => self.allow(u64::MAX).map(|()| 0),
        }
    }

    /// Bytes of a value's line ends and indentations, `columns` for each level; more than may be made ends
    /// the count.
    pub fn indented_len(&self, value: &Value, columns: u64, depth: u64) -> u64 {
        let Some(object) = value.as_object() else { return 0 };
        let keys_hold = matches!(object.repr(), ObjectRepr::Map);
        let mut sum = 1 + columns * depth;
        for item in object.try_iter().into_iter().flatten() {
            sum += 1 + columns * depth;
            let item = if keys_hold { object.get_value(&item).unwrap_or_default() } else { item };
            sum += self.indented_len(&item, columns, depth + 1);
            if sum > self.left {
                break;
            }
        }
        sum
    }

    /// Counts a value that a step has made. One that computes its items when asked is made a list of them:
    /// lists of lists of such could hide any length and depth.
    pub fn made(&mut self, value: Value) -> Result<Value, Error> {
        match value.kind() {
            ValueKind::String | ValueKind::Bytes => {
                let bytes = value.as_str().map(str::len).or(value.as_bytes().map(<[u8]>::len));
                self.count(VALUE_BYTES + bytes.unwrap_or(0) as u64)?;
            }
            ValueKind::Seq => {
                self.count(VALUE_BYTES + ITEM_BYTES * value.len().unwrap_or(1) as u64)?;
            }
            ValueKind::Map => {
                self.count(VALUE_BYTES + PAIR_BYTES * value.len().unwrap_or(1) as u64)?;
            }
            ValueKind::Iterable => return self.collected(&value, false),
            ValueKind::Plain => self.count(OBJECT_BYTES)?,
            _ => {}
        }
        Ok(value)
    }

    /// A list of what a value computes when asked. `are_new`: its items are made for it alone.
    fn collected(&mut self, value: &Value, are_new: bool) -> Result<Value, Error> {
        self.count(VALUE_BYTES)?;
        let mut items = Vec::new();
        for item in value.try_iter()? {
            self.count(ITEM_BYTES)?;
            if are_new {
                self.new_item(&item)?;
            }
            if items.len() == items.capacity() {
                // It grows to twice its size, and has both until all is copied.
                self.allow(2 * ITEM_BYTES * items.capacity() as u64)?;
            }
            items.push(item);
        }
        items.shrink_to_fit();
        Ok(Value::from(items))
    }

    /// Counts an item that was made with the list that it is in.
    fn new_item(&mut self, item: &Value) -> Result<(), Error> {
        let bytes = match item.kind() {
            ValueKind::String => {
                let len = item.as_str().map_or(0, str::len) as u64;
                if len > SHORT_TEXT { VALUE_BYTES + len } else { 0 }
            }
            ValueKind::Seq | ValueKind::Iterable => {
                VALUE_BYTES + ITEM_BYTES * item.len().unwrap_or(1) as u64
            }
            ValueKind::Map => VALUE_BYTES + PAIR_BYTES * item.len().unwrap_or(1) as u64,
            _ => 0,
        };
        self.count(bytes)
    }

    /// Counts a list whose items were made with it: texts, or lists of what was there.
    pub fn with_new_items(&mut self, value: Value) -> Result<Value, Error> {
        match value.kind() {
            ValueKind::Iterable => self.collected(&value, true),
            ValueKind::Seq => {
                for item in value.try_iter()? {
                    self.new_item(&item)?;
                }
                Ok(value)
            }
            _ => Ok(value),
        }
    }

    /// Takes a text off the count again. It was made last, and only the caller holds it.
    pub fn gone(&mut self, value: &Value) {
        let bytes = value.as_str().map_or(0, |text| VALUE_BYTES + text.len() as u64);
        self.left = (self.left + bytes).min(self.limit);
    }

    /// As [`Self::made`], for a value put together from others: it walks through the value.
    pub fn built(&mut self, value: Value) -> Result<Value, Error> {
        let is_range = value.kind() == ValueKind::Iterable;
        let value = self.made(value)?;
        if !is_range {
            self.walk_parts(&value)?;
        }
        Ok(value)
    }

    /// Walks through the parts of a value.
    pub fn walk_parts(&mut self, value: &Value) -> Result<(), Error> {
        match value.as_object() {
            Some(object) => self.walk_object(object, 1, None),
            None => Ok(()),
        }
    }

    /// Walks through a value that is to be put at `depth` of another, into `list` if given.
    ///
    /// # Errors
    /// The value nests too deeply, has too many parts, contains `list`, or holds what may be in a variable only.
    pub fn walk(
        &mut self,
        value: &Value,
        depth: usize,
        list: Option<&Arc<List>>,
    ) -> Result<(), Error> {
        let Some(left) = self.walks_left.checked_sub(1) else {
            return Err(refuse(format!(
                "the template's lists have more than {MAX_WALKED} parts in all, the limit"
            )));
        };
        self.walks_left = left;
        let Some(object) = value.as_object() else { return Ok(()) };
        only_a_variable(value)?;
        if depth > MAX_TEMPLATE_DEPTH {
            return Err(refuse(format!(
                "the template nests lists more than {MAX_TEMPLATE_DEPTH} deep, the limit"
            )));
        }
        if let (Some(list), Some(found)) = (list, value.downcast_object::<List>())
            && Arc::ptr_eq(list, &found)
        {
            return Err(refuse("a list may not contain itself"));
        }
        if let Some(list) = object.downcast_ref::<List>() {
            list.is_at(depth);
        }
        self.walk_object(object, depth + 1, list)
    }

    fn walk_object(
        &mut self,
        object: &DynObject,
        depth: usize,
        list: Option<&Arc<List>>,
    ) -> Result<(), Error> {
        match object.repr() {
            ObjectRepr::Map => {
                for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                    self.walk(&key, depth, list)?;
                    self.walk(&value, depth, list)?;
                }
            }
            ObjectRepr::Seq | ObjectRepr::Iterable => {
                for value in object.try_iter().into_iter().flatten() {
                    self.walk(&value, depth, list)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Notes the right operand of an addition.
    pub fn right(&mut self, value: &Value) {
        self.right_len = value.as_object().and_then(|_| value.len());
    }

    /// Counts what an addition has made. The shorter of two lists is walked through. The parts of the longer were
    /// walked when it was put together, so that no list has more parts than were walked.
    pub fn added(&mut self, value: Value) -> Result<Value, Error> {
        let value = self.made(value)?;
        let Some(right) = self.right_len.take() else { return Ok(value) };
        let len = value.len().unwrap_or(0);
        let left = len.saturating_sub(right);
        let shorter = if right <= left { left..len } else { 0..left };
        for i in shorter {
            self.walk(&value.get_item_by_index(i)?, 1, None)?;
        }
        Ok(value)
    }
}

/// Refuses what may be in a variable only: put into a list or a namespace it could contain itself.
pub fn only_a_variable(value: &Value) -> Result<(), Error> {
    let Some(object) = value.as_object() else { return Ok(()) };
    let name = object.type_name();
    for (ending, what) in [("::Namespace", "a namespace"), ("::Loop", "`loop`")] {
        if name.ends_with(ending) {
            return Err(refuse(format!(
                "{what} may not be put into a list, a mapping or a namespace"
            )));
        }
    }
    Ok(())
}

/// Counts what is written, up to a limit.
struct Counter {
    left: u64,
    len: u64,
}

impl fmt::Write for Counter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.len += text.len() as u64;
        if self.len > self.left { Err(fmt::Error) } else { Ok(()) }
    }
}
