//! Numbers as texts and files write them: 3, 3.0 and 3e0 are one whole number, whatever type it is stored in.
//!
//! This is the only place that says when a number is whole and when it fits. The metadata of models are read with it,
//! and so is JSON, in requests and in schemas.

/// A number as it was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A number in a type without fractions.
    Whole(i128),
    /// A number in a type of real numbers.
    Real(f64),
}

/// Whole numbers of either sign up to here are exact in an i128, and far beyond every type of a field.
const WIDEST: f64 = 1e30;

impl Number {
    /// The whole number that it is, where a `T` holds it: 3 of 3 and of 3.0; `None` for 3.5, and for what is too large.
    pub fn whole<T: TryFrom<i128>>(self) -> Option<T> {
        let whole = match self {
            Self::Whole(whole) => whole,
            Self::Real(real) if real.fract() == 0.0 && real.abs() <= WIDEST => real as i128,
            Self::Real(_) => return None,
        };
        T::try_from(whole).ok()
    }

    /// The nearest real number.
    pub fn real(self) -> f64 {
        match self {
            Self::Whole(whole) => whole as f64,
            Self::Real(real) => real,
        }
    }

    /// The nearest real number of four bytes. It is not rounded twice.
    pub fn real_f32(self) -> f32 {
        match self {
            Self::Whole(whole) => whole as f32,
            Self::Real(real) => real as f32,
        }
    }

    /// The number as a flag: 0 is false and 1 is true. `None` for every other number.
    pub fn flag(self) -> Option<bool> {
        match self.whole::<u8>()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_what_it_is_however_it_is_written() {
        assert_eq!(
            (Number::Whole(3).whole(), Number::Real(3.0).whole()),
            (Some(3_u32), Some(3_u32))
        );
        assert_eq!(Number::Real(-0.0).whole(), Some(0_u8));
        assert_eq!(
            Number::Real(18_446_744_073_709_549_568.0).whole(),
            Some(18_446_744_073_709_549_568_u64)
        );
        assert_eq!(Number::Real(18_446_744_073_709_551_616.0).whole::<u64>(), None);
        assert_eq!(Number::Whole(i128::from(i64::MIN)).whole(), Some(i64::MIN));
        for not in [3.5, f64::NAN, f64::INFINITY, -1.0, 4_294_967_296.0, 1e300] {
            assert_eq!(Number::Real(not).whole::<u32>(), None, "{not}");
        }
        assert_eq!((Number::Whole(7).real(), Number::Real(0.25).real_f32()), (7.0, 0.25));
    }

    #[test]
    fn flags_are_zero_and_one() {
        assert_eq!((Number::Whole(0).flag(), Number::Real(1.0).flag()), (Some(false), Some(true)));
        assert_eq!((Number::Whole(2).flag(), Number::Real(0.5).flag()), (None, None));
    }
}
