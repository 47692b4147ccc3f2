//! Operands from one place to another, field by field and written once: a device takes what lies anywhere to its own memory, and
//! the host's kernels take it to slices.

use crate::derived::Derived;
use crate::place::{Element, Place};
use crate::routing::Routing;

/// Takes operands of a place `A` to a place `B`, where they are for `'b`.
pub trait Carry<'a: 'b, 'b, A: Place, B: Place> {
    /// Values that are read.
    fn read<T: Element>(&mut self, values: A::Read<'a, T>) -> B::Read<'b, T>;

    /// Values that are written.
    fn write<T: Element>(&mut self, values: A::Write<'a, T>) -> B::Write<'b, T>;

    /// Carries the place for derived copies along with values. Where the values are copied, an empty one takes its
    /// place.
    fn derived(&mut self, derived: &'a Derived) -> &'b Derived {
        derived
    }

    /// Told which pairs of rows and experts the op works on, before it runs.
    fn pairs(&mut self, _routing: &Routing) {}
}

/// Writes how an operand goes to another place: each field with what it is.
///
/// - `read`, `write`: values; `some_read`: values that may be missing.
/// - `rows`: several values that are read ([`mapped`]); `some_rows`: such that may be missing; `reads`: a list of values;
///   `lists`: lists of lists of several; `all`: a list of operands.
/// - `decides`: values that are read, where the op runs; `choice`: how experts are chosen.
/// - `derived`: what a device keeps of values; `pairs`: pairs of rows and experts.
/// - `same`: what is the same everywhere, such as a shape.
macro_rules! carried {
    ($name:ident { $($field:ident: $kind:ident),* $(,)? }) => {
        impl<'a, A: crate::place::Place> $name<'a, A> {
            /// The same at another place.
            #[inline]
            pub fn carried<'b, B: crate::place::Place>(
                self,
                by: &mut impl crate::carry::Carry<'a, 'b, A, B>,
            ) -> $name<'b, B>
            where
                'a: 'b,
            {
                $name { $($field: carried!(@ by, self.$field, $kind)),* }
            }
        }

        impl $name<'_, crate::place::Anywhere> {
            /// Whether all that is written lies with a device, or what decides does.
            pub fn writes_with_device(&self) -> bool {
                true $(&& carried!(@@ self.$field, $kind))*
            }
        }
    };
    (@ $by:ident, $value:expr, read) => { $by.read($value) };
    (@ $by:ident, $value:expr, some_read) => { $value.map(|value| $by.read(value)) };
    (@ $by:ident, $value:expr, write) => { $by.write($value) };
    (@ $by:ident, $value:expr, reads) => {
        $value.into_iter().map(|values| $by.read(values)).collect()
    };
    (@ $by:ident, $value:expr, rows) => { $value.map(|values| $by.read(values)) };
    (@ $by:ident, $value:expr, decides) => { $by.read($value) };
    (@ $by:ident, $value:expr, choice) => { $value.map_bias(|values| $by.read(values)) };
    (@ $by:ident, $value:expr, all) => {
        $value.into_iter().map(|operands| operands.carried($by)).collect()
    };
    (@ $by:ident, $value:expr, derived) => { $by.derived($value) };
    (@ $by:ident, $value:expr, pairs) => {{
        let pairs = $value;
        $by.pairs(pairs.routing());
        pairs
    }};
    (@ $by:ident, $value:expr, some_rows) => {
        $value.map(|rows| rows.map(|values| $by.read(values)))
    };
    (@ $by:ident, $value:expr, lists) => {
        $value
            .into_iter()
            .map(|list| list.into_iter().map(|rows| rows.map(|values| $by.read(values))).collect())
            .collect()
    };
    (@ $by:ident, $value:expr, same) => { $value };
    (@@ $value:expr, all) => { $value.iter().all(|operands| operands.writes_with_device()) };
    (@@ $value:expr, decides) => { $value.is_with_device() };
    (@@ $value:expr, write) => { $value.is_with_device() };
    (@@ $value:expr, $other:ident) => { true };
}

/// Writes how several values that are read become others, each by itself.
///
/// - `read`: values; `some_read`: values that may be missing; `rows`: several again; `same`: what stays.
macro_rules! mapped {
    ($name:ident { $($field:ident: $kind:ident),* $(,)? }) => {
        impl<V> $name<V> {
            /// The same of other values.
            pub fn map<W>(self, mut by: impl FnMut(V) -> W) -> $name<W> {
                let by = &mut by;
                $name { $($field: mapped!(@ by, self.$field, $kind)),* }
            }
        }
    };
    (@ $by:ident, $value:expr, read) => { $by($value) };
    (@ $by:ident, $value:expr, some_read) => { $value.map(|values| $by(values)) };
    (@ $by:ident, $value:expr, reads) => {
        $value.into_iter().map(|values| $by.read(values)).collect()
    };
    (@ $by:ident, $value:expr, rows) => { $value.map(&mut *$by) };
    (@ $by:ident, $value:expr, same) => { $value };
}

pub(crate) use {carried, mapped};
