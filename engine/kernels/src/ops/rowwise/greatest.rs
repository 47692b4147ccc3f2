//! The greatest values of rows.

use brigade_ops::greatest::{NO_NUMBER, key};
use brigade_ops::{FewGreatest, Greatest, Host};

use crate::compute::Compute;

impl Compute {
    /// Runs the op [`Greatest`].
    pub(crate) fn greatest(&self, op: Greatest<'_, Host>) {
        op.check();
        for (row, out) in op.x.chunks_exact(op.d).zip(op.out.chunks_exact_mut(2)) {
            let mut best = (0, NO_NUMBER);
            for (value, place) in row.iter().zip(0..) {
                let key = key(*value);
                if key > best.0 || place == 0 {
                    best = (key, place);
                }
            }
            out.copy_from_slice(&[best.0, best.1]);
        }
    }

    /// Runs the op [`FewGreatest`].
    pub(crate) fn few_greatest(&self, op: FewGreatest<'_, Host>) {
        op.check();
        for (row, out) in op.x.chunks_exact(op.d).zip(op.out.chunks_exact_mut(2 * op.k)) {
            let mut places: Vec<u32> = (0..row.len() as u32).collect();
            let key = |place: &u32| std::cmp::Reverse(key(row[*place as usize]));
            places.sort_by_key(key);
            places.truncate(op.k);
            places.sort_unstable();
            let (to, values) = out.split_at_mut(op.k);
            to.copy_from_slice(&places);
            let bits = places.iter().map(|place| row[*place as usize].to_bits());
            values.iter_mut().zip(bits).for_each(|(value, bits)| *value = bits);
        }
    }
}
