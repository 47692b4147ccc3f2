//! Limits what one rendering of a chat template holds, and how much it works.
//!
//! The engine's own limit counts instructions. It cannot replace this meter: one instruction doubles a text
//! (`x ~ x`), repeats it or compares two lists of millions of parts, so forty of them take all memory or all day.
//! So a meter counts the bytes of text and the items of lists that a rendering holds, and refuses a step before it
//! makes too much; and it counts the bytes and parts that each step reads, copies or walks through.
//!
//! It also keeps values shallow and finite. Nothing may contain itself, or nest so deeply that dropping it would
//! exhaust the thread's stack.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use minijinja::value::{DynObject, ObjectRepr, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::list::List;
use crate::hash::FastHash;

/// Bytes of text and lists that any template may hold at a time. The memory is at most three times as much: buffers
/// grow to twice their contents, and are copied at the end.
pub const TEMPLATE_BYTES: u64 = 16 << 20;
/// Bytes that a rendering may hold in addition for each byte of messages, tools and arguments. Templates copy these
/// some times, and the small values that they make for a message are counted for good.
pub const TEMPLATE_BYTES_PER_INPUT: u64 = 64;
/// Most bytes of text and lists that a template may hold, whatever its input.
pub const MAX_TEMPLATE_BYTES_HELD: u64 = 256 << 20;
/// Bytes that any template may read and copy; what takes longer than to copy its bytes counts as more of them.
pub const TEMPLATE_WORK: u64 = 1 << 29;
/// Bytes that a rendering may read and copy in addition for each byte of messages, tools and arguments. A template that
/// gathers its output in a variable copies it with every message, which for a thousand messages is a thousand times
/// half of it.
pub const TEMPLATE_WORK_PER_INPUT: u64 = 4096;
/// Most bytes that a template may read and copy, whatever its input.
pub const MAX_TEMPLATE_WORK: u64 = 4 << 30;
/// Deepest nesting of a value that a template makes (messages may come with 128 levels).
pub const MAX_TEMPLATE_DEPTH: usize = 256;

/// Work for a part of a nested value that is visited, in bytes that could be copied in that time.
const PART_WORK: u64 = 128;
/// Work for an item of a list that is handed on.
const ITEM_WORK: u64 = 32;
/// Work for a call of a filter or a method.
pub const CALL_WORK: u64 = 512;
/// Work for a call of a test, and for a value that is compared.
pub const TEST_WORK: u64 = 128;
/// Work for a byte that is looked at as a character, or written out from a nested value.
pub const CHAR_WORK: u64 = 8;

/// Counted for a value besides its text, or its items.
const VALUE_BYTES: u64 = 96;
/// Counted for an item of a list: what it takes there.
const ITEM_BYTES: u64 = size_of::<Value>() as u64;
/// Counted for a key of a mapping with its value.
const PAIR_BYTES: u64 = 96;
/// Shorter texts lie in their values themselves.
const SHORT_TEXT: usize = 22;
/// Counted for a macro or another object that keeps variables.
const OBJECT_BYTES: u64 = 1024;

/// The variable that carries the number of bytes of the input into a rendering; no template can name it.
pub const INPUT_BYTES: &str = "brigade/input-bytes";

/// The count of one rendering, kept in its [`State`].
pub struct Meter {
    limit: u64,
    left: u64,
    work_limit: u64,
    work_left: u64,
    /// Length of the right operand of the addition that comes next, where it is a list.
    right_len: Option<usize>,
    /// Texts and lists that were counted, by their addresses: what only this table holds is taken off again.
    held: HashMap<usize, Held, FastHash>,
}

/// A text or a list whose holders can be counted.
enum Held {
    Text(Arc<str>),
    List(Arc<Vec<Value>>),
}

impl Held {
    /// The text or the list of a value. Shorter texts and other values have no holders to be counted.
    fn of(value: &Value) -> Option<Self> {
        match value.as_str() {
            Some(text) if text.len() > SHORT_TEXT && value.kind() == ValueKind::String => {
                value.to_str().map(Self::Text)
            }
            Some(_) => None,
            None => value.downcast_object().map(Self::List),
        }
    }

    fn address(&self) -> usize {
        match self {
            Self::Text(text) => text.as_ptr() as usize,
            Self::List(list) => Arc::as_ptr(list) as usize,
        }
    }

    fn bytes(&self) -> u64 {
        VALUE_BYTES
            + match self {
                Self::Text(text) => text.len() as u64,
                Self::List(list) => ITEM_BYTES * list.len() as u64,
            }
    }

    /// Whether something besides the meter holds it.
    fn is_used(&self) -> bool {
        match self {
            Self::Text(text) => Arc::strong_count(text) > 1,
            Self::List(list) => Arc::strong_count(list) > 1,
        }
    }
}

fn refuse(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

impl Meter {
    /// Meter of a rendering.
    pub fn of<'a>(state: &'a mut State<'_, '_>) -> &'a mut Self {
        // Where it is there already nothing is looked up.
        let bytes = match state.get_extension::<Self>() {
            Some(_) => None,
            None => state.lookup(INPUT_BYTES).and_then(|bytes| u64::try_from(bytes).ok()),
        };
        state.get_or_insert_extension_with(|| Self::new(bytes.unwrap_or(0)))
    }

    /// Meter of a rendering with so many bytes of input.
    fn new(input_bytes: u64) -> Self {
        let limit = |any: u64, per_input: u64, most: u64| {
            any.saturating_add(input_bytes.saturating_mul(per_input)).min(most)
        };
        let limit_of_bytes =
            limit(TEMPLATE_BYTES, TEMPLATE_BYTES_PER_INPUT, MAX_TEMPLATE_BYTES_HELD);
        let work_limit = limit(TEMPLATE_WORK, TEMPLATE_WORK_PER_INPUT, MAX_TEMPLATE_WORK);
        Self {
            limit: limit_of_bytes,
            left: limit_of_bytes,
            work_limit,
            work_left: work_limit,
            right_len: None,
            held: HashMap::default(),
        }
    }

    /// Counts work, in bytes that are read or copied.
    ///
    /// # Errors
    /// There is more than one rendering may do; the limit is named.
    pub fn work(&mut self, bytes: u64) -> Result<(), Error> {
        match self.work_left.checked_sub(bytes) {
            Some(left) => {
                self.work_left = left;
                Ok(())
            }
            None => {
                self.work_left = 0;
                Err(refuse(format!(
                    "the template reads and copies more than {} bytes of text and lists, the limit for a request of this size",
                    self.work_limit
                )))
            }
        }
    }

    /// Work that may still be done.
    pub fn work_left(&self) -> u64 {
        self.work_left
    }

    /// Whether so many bytes may still be made.
    ///
    /// # Errors
    /// So many bytes may not be made. The error names the limit.
    pub fn allow(&mut self, bytes: u64) -> Result<(), Error> {
        while bytes > self.left {
            if !self.forget()? {
                return Err(refuse(format!(
                    "the template holds more than {} bytes of text and lists, the limit for a request of this size",
                    self.limit
                )));
            }
        }
        Ok(())
    }

    /// Takes off what the template has let go. Returns whether there was any.
    fn forget(&mut self) -> Result<bool, Error> {
        self.work(ITEM_WORK * (1 + self.held.len() as u64))?;
        let before = self.held.len();
        let mut bytes = 0;
        self.held.retain(|_, held| {
            let is_used = held.is_used();
            bytes += if is_used { 0 } else { held.bytes() };
            is_used
        });
        self.left = (self.left + bytes).min(self.limit);
        Ok(self.held.len() < before)
    }

    /// Whether so many items may still be made, each a value by itself.
    ///
    /// # Errors
    /// As [`Self::allow`].
    pub fn allow_items(&mut self, n: usize) -> Result<(), Error> {
        self.allow((n as u64).saturating_mul(ITEM_BYTES))
    }

    /// Counts bytes that are made.
    ///
    /// # Errors
    /// As [`Self::allow`] and [`Self::work`].
    pub fn count(&mut self, bytes: u64) -> Result<(), Error> {
        self.allow(bytes)?;
        self.left -= bytes;
        self.work(bytes)
    }

    /// Counts items that a list takes up, for good.
    ///
    /// # Errors
    /// As [`Self::count`].
    pub fn count_items(&mut self, n: usize) -> Result<(), Error> {
        self.count((n as u64).saturating_mul(ITEM_BYTES))
    }

    /// Counts a text or a list of so many bytes, until it is let go.
    fn count_held(&mut self, value: &Value, bytes: u64) -> Result<(), Error> {
        let Some(held) = Held::of(value) else { return self.count(bytes) };
        let address = held.address();
        if self.held.contains_key(&address) {
            return self.work(VALUE_BYTES);
        }
        self.count(bytes)?;
        self.held.insert(address, held);
        self.work(TEST_WORK)
    }

    /// Counts a name that a macro keeps with its value.
    ///
    /// # Errors
    /// As [`Self::count`].
    pub fn enclosed(&mut self) -> Result<(), Error> {
        self.count(PAIR_BYTES)
    }

    /// Counts a text whose bytes were counted when they were written, until it is let go.
    ///
    /// # Errors
    /// As [`Self::count`].
    pub fn captured(&mut self, text: Value) -> Result<Value, Error> {
        match Held::of(&text) {
            Some(held) => {
                self.count(VALUE_BYTES)?;
                self.held.insert(held.address(), held);
            }
            None => self.work(VALUE_BYTES)?,
        }
        Ok(text)
    }

    /// Bytes of a value written out.
    ///
    /// # Errors
    /// More than may be held, or more work than may be done.
    pub fn text_len(&mut self, value: &Value) -> Result<u64, Error> {
        if let Some(text) = value.as_str() {
            return Ok(text.len() as u64);
        }
        let mut counter = Counter { left: self.limit.min(self.work_left / ITEM_WORK), len: 0 };
        let written = write!(counter, "{value}");
        self.work(counter.len.saturating_mul(ITEM_WORK))?;
        match written {
            Ok(()) => Ok(counter.len),
            Err(_) => self.allow(u64::MAX).map(|()| 0),
        }
    }

    /// Counts the work of looking at all of a value: at each part, and at each byte of its texts.
    ///
    /// # Errors
    /// As [`Self::work`].
    pub fn read(&mut self, value: &Value) -> Result<(), Error> {
        if let Some(text) = value.as_str() {
            return self.work(text.len() as u64);
        }
        let Some(object) = value.as_object() else { return Ok(()) };
        self.work(PART_WORK)?;
        match object.repr() {
            ObjectRepr::Map => {
                for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                    self.work(PART_WORK)?;
                    self.read(&key)?;
                    self.read(&value)?;
                }
            }
            ObjectRepr::Seq | ObjectRepr::Iterable => {
                for value in object.try_iter().into_iter().flatten() {
                    self.work(PART_WORK)?;
                    self.read(&value)?;
                }
            }
            _ => {
                self.text_len(value)?;
            }
        }
        Ok(())
    }

    /// Counts the work of looking at each character of a text, or at each item of a list but not into it.
    ///
    /// # Errors
    /// As [`Self::work`].
    pub fn read_items(&mut self, value: &Value) -> Result<(), Error> {
        match value.as_str() {
            Some(text) => self.work(CHAR_WORK * text.len() as u64),
            None => self.work(ITEM_WORK.saturating_mul(value.len().unwrap_or(0) as u64)),
        }
    }

    /// Counts the work of comparing two values, which ends where the shorter does.
    ///
    /// # Errors
    /// As [`Self::work`].
    pub fn compare(&mut self, left: &Value, right: &Value) -> Result<(), Error> {
        match (left.as_str(), right.as_str()) {
            (Some(left), Some(right)) => self.work(left.len().min(right.len()) as u64),
            _ if left.as_object().is_some() && right.as_object().is_some() => self.read(left),
            _ => Ok(()),
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
            if sum > self.limit {
                break;
            }
        }
        sum
    }

    /// Counts a value that a step has made. One that computes its items when asked is made a list of them:
    /// lists of lists of such could hide any length and depth.
    pub fn made(&mut self, value: Value) -> Result<Value, Error> {
        match value.kind() {
            // It lies in the value itself.
            ValueKind::String if is_short(&value) => self.work(VALUE_BYTES)?,
            ValueKind::String | ValueKind::Bytes => {
                let bytes = value.as_str().map(str::len).or(value.as_bytes().map(<[u8]>::len));
                self.count_held(&value, VALUE_BYTES + bytes.unwrap_or(0) as u64)?;
            }
            ValueKind::Seq => {
                let bytes = VALUE_BYTES + ITEM_BYTES * value.len().unwrap_or(1) as u64;
                self.count_held(&value, bytes)?;
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
        let mut items = Vec::new();
        for item in value.try_iter()? {
            self.work(ITEM_WORK)?;
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
        self.made(Value::from(items))
    }

    /// Counts an item that was made with the list that it is in.
    fn new_item(&mut self, item: &Value) -> Result<(), Error> {
        let bytes = match item.kind() {
            ValueKind::String if !is_short(item) => {
                VALUE_BYTES + item.as_str().map_or(0, str::len) as u64
            }
            ValueKind::Seq | ValueKind::Iterable => {
                VALUE_BYTES + ITEM_BYTES * item.len().unwrap_or(1) as u64
            }
            ValueKind::Map => VALUE_BYTES + PAIR_BYTES * item.len().unwrap_or(1) as u64,
            _ => return self.work(ITEM_WORK),
        };
        self.count_held(item, bytes)
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
        self.work(PART_WORK)?;
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
                    // The mapping finds a key by all of it.
                    self.read(&key)?;
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

/// Whether a text needs no memory besides its value.
fn is_short(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.len() <= SHORT_TEXT) && !value.is_safe()
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
