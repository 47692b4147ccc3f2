//! Operands from one place to another, field by field and written once: a device takes what lies anywhere to its own memory, and
//! the host's kernels take it to slices.

use crate::place::{Element, Place};

/// Takes operands of a place `A` to a place `B`, where they are for `'b`.
pub trait Carry<'a: 'b, 'b, A: Place, B: Place> {
    /// Values that are read.
    fn read<T: Element>(&mut self, values: A::Read<'a, T>) -> B::Read<'b, T>;

    /// Values that are written.
    fn write<T: Element>(&mut self, values: A::Write<'a, T>) -> B::Write<'b, T>;
}

/// Writes how an operand goes to another place: each field with what it is.
///
/// - `read`, `write`: values; `read?`: values that may be missing.
/// - `inner`: an operand of its own; `inner?`: one that may be missing.
/// - `same`: what is the same everywhere, such as a shape.
macro_rules! carried {
    ($name:ident { $($field:ident: $kind:tt $($maybe:tt)?),* $(,)? }) => {
        impl<'a, A: crate::place::Place> $name<'a, A> {
            /// The same at another place.
            pub fn carried<'b, B: crate::place::Place>(
                self,
                by: &mut impl crate::carry::Carry<'a, 'b, A, B>,
            ) -> $name<'b, B>
            where
                'a: 'b,
            {
                $name { $($field: carried!(@ by, self.$field, $kind $($maybe)?)),* }
            }
        }

        impl $name<'_, crate::place::Anywhere> {
            /// Whether all that is written lies with a device.
            pub fn writes_with_device(&self) -> bool {
                true $(&& carried!(@@ self.$field, $kind $($maybe)?))*
            }
        }
    };
    (@ $by:ident, $value:expr, read) => { $by.read($value) };
    (@ $by:ident, $value:expr, read ?) => { $value.map(|value| $by.read(value)) };
    (@ $by:ident, $value:expr, write) => { $by.write($value) };
    (@ $by:ident, $value:expr, inner) => { $value.carried($by) };
    (@ $by:ident, $value:expr, inner ?) => { $value.map(|value| value.carried($by)) };
    (@ $by:ident, $value:expr, same) => { $value };
    (@@ $value:expr, write) => { $value.is_with_device() };
    (@@ $value:expr, inner) => { $value.writes_with_device() };
    (@@ $value:expr, inner ?) => { $value.as_ref().is_none_or(|value| value.writes_with_device()) };
    (@@ $value:expr, $other:tt $($maybe:tt)?) => { true };
}

pub(crate) use carried;
