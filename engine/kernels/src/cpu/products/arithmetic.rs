//! The arithmetic of products, by the kinds of unpacked codes. Formats have far fewer kinds of arithmetic than ways to
//! be packed, so the code of many rows is compiled once for each kind.

use crate::format::{Offset, PanelFormat};

/// The computation of a sum from codes and scales.
pub(super) trait Arithmetic: 'static {
    /// Whether each half of a block has its own scale.
    const HALVES: bool;
    /// Whether there are minima.
    const MINS: bool;
    /// Conversion of codes to integers. The number in [`Offset::Shift`] does not count.
    const OFFSET: Offset;
    /// The greatest code, or a greater one that is added up in the same way.
    const MAX_CODE: u8;
}

/// The arithmetic of all formats with the same facts. `OFFSET` is what [`kind`] gives.
struct Class<const HALVES: bool, const MINS: bool, const OFFSET: u8, const MAX_CODE: u8>;

const NONE: u8 = 0;
const SHIFT: u8 = 1;
const SIGNED: u8 = 2;

impl<const HALVES: bool, const MINS: bool, const OFFSET: u8, const MAX_CODE: u8> Arithmetic
    for Class<HALVES, MINS, OFFSET, MAX_CODE>
{
    const HALVES: bool = HALVES;
    const MINS: bool = MINS;
    const OFFSET: Offset = match OFFSET {
        NONE => Offset::None,
        SHIFT => Offset::Shift(0),
        _ => Offset::Signed,
    };
    const MAX_CODE: u8 = MAX_CODE;
}

/// An offset without its number.
const fn kind(offset: Offset) -> u8 {
    match offset {
        Offset::None => NONE,
        Offset::Shift(_) => SHIFT,
        Offset::Signed => SIGNED,
    }
}

/// The greatest code of those that are added up in the same way: a set that adds 16-bit sums before it widens them takes
/// eight, four, two or one of them ([`Simd::dots`](crate::simd::Simd::dots)).
const fn greatest(max_code: u8) -> u8 {
    match max_code {
        0..=15 => 15,
        16..=31 => 31,
        32..=63 => 63,
        64..=127 => 127,
        _ => 255,
    }
}

/// Whether the arithmetic of `Q` is that of `A`.
const fn is<Q: PanelFormat, A: Arithmetic>() -> bool {
    Q::HALVES == A::HALVES
        && Q::MINS == A::MINS
        && kind(Q::OFFSET) == kind(A::OFFSET)
        && greatest(Q::MAX_CODE) == A::MAX_CODE
}

/// A use of one arithmetic, whichever it is.
pub(super) trait ArithmeticVisitor {
    /// Result of the use.
    type Out;
    /// Uses the arithmetic `A`.
    fn visit<A: Arithmetic>(self) -> Self::Out;
}

/// Calls `visitor` with the class of `Q`, and compiles no other.
#[inline(always)]
pub(super) fn with_class<Q: PanelFormat, V: ArithmeticVisitor>(visitor: V) -> V::Out {
    /// The one of the classes that `Q` belongs to.
    macro_rules! the_one_of {
        ($($class:ty),* $(,)?) => {
            $(
                if const { is::<Q, $class>() } {
                    return visitor.visit::<$class>();
                }
            )*
            const { assert!($(is::<Q, $class>())||*, "a format's arithmetic is in the list") };
            unreachable!("one of the classes above returned")
        };
    }
    the_one_of![
        Class<false, false, SHIFT, 15>,
        Class<false, false, SHIFT, 31>,
        Class<false, false, SHIFT, 63>,
        Class<false, false, SHIFT, 127>,
        Class<false, false, SIGNED, 255>,
        Class<false, true, NONE, 15>,
        Class<false, true, NONE, 31>,
        Class<false, true, SHIFT, 15>,
        Class<true, false, SHIFT, 15>,
        Class<true, false, SHIFT, 31>,
        Class<true, false, SHIFT, 63>,
        Class<true, false, SHIFT, 127>,
        Class<true, true, NONE, 15>,
    ];
}
