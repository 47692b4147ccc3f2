//! The greatest values of rows.

use crate::carry::carried;
use crate::place::Place;

/// Finds the greatest value of each row, the first of equal ones.
pub struct Greatest<'a, P: Place> {
    /// `[n_rows, d]`.
    pub x: P::Read<'a, f32>,
    /// Values of a row.
    pub d: usize,
    /// For each row the value's [`key`] and its place, `[n_rows, 2]`. See
    /// [`is_usable`].
    pub out: P::Write<'a, u32>,
}

carried!(Greatest { x: read, d: same, out: write });

/// Finds the greatest values of each row; of equal ones the earlier.
pub struct FewGreatest<'a, P: Place> {
    /// `[n_rows, d]`, all of them numbers.
    pub x: P::Read<'a, f32>,
    /// Values of a row.
    pub d: usize,
    /// Values to find in each row, at most `d`.
    pub k: usize,
    /// For each row `k` places, which ascend, and the bits of the values there: `[n_rows, 2, k]`.
    pub out: P::Write<'a, u32>,
}

carried!(FewGreatest { x: read, d: same, k: same, out: write });

/// The key of positive infinity and of values that are not a number.
pub const NO_NUMBER: u32 = u32::MAX;

/// A value as a whole number that is ordered as values are. Zeros are equal, whatever their sign.
#[inline]
pub fn key(value: f32) -> u32 {
    if value.is_nan() || value == f32::INFINITY {
        return NO_NUMBER;
    }
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// Whether a row's greatest value has this key, and all its values are numbers below infinity.
#[inline]
pub fn is_usable(of: u32) -> bool {
    key(f32::NEG_INFINITY) < of && of < NO_NUMBER
}

impl<P: Place> Greatest<'_, P> {
    /// Holds the shapes to each other.
    ///
    /// # Panics
    /// If they disagree.
    pub fn check(&self) {
        let n = P::len(&self.x);
        assert!(
            self.d > 0 && n.is_multiple_of(self.d),
            "greatest: {n} values in rows of {}",
            self.d
        );
        assert_eq!(P::len_mut(&self.out), 2 * (n / self.d), "greatest: a pair for each row");
    }
}

impl<P: Place> FewGreatest<'_, P> {
    /// Holds the shapes to each other.
    ///
    /// # Panics
    /// If they disagree.
    pub fn check(&self) {
        let (n, d, k) = (P::len(&self.x), self.d, self.k);
        assert!(d > 0 && n.is_multiple_of(d), "greatest: {n} values in rows of {d}");
        assert!(0 < k && k <= d, "greatest: {k} of {d}");
        assert_eq!(P::len_mut(&self.out), 2 * k * (n / d), "greatest: {k} of each row");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_ordered_as_values_are() {
        let values = [f32::NEG_INFINITY, -3e38, -1.0, -1e-40, 0.0, 1e-40, 0.5, 3e38, f32::INFINITY];
        assert!(values.map(key).is_sorted_by(|a, b| a < b));
        assert_eq!((key(-0.0), key(f32::NAN), key(-f32::NAN)), (key(0.0), NO_NUMBER, NO_NUMBER));
        let usable = values.map(|value| is_usable(key(value)));
        assert_eq!(usable, [false, true, true, true, true, true, true, true, false]);
    }
}
