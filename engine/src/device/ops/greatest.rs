//! The greatest values of rows, where a device finds them.

use crate::device::accelerator::{There, first_mut};
use crate::device::{Device, Rows};
use crate::ops::greatest::is_usable;
use crate::ops::{Anywhere, Fetch, FewGreatest, Greatest, Op, Purpose, ToFetch, ViewMut};

/// Some values of a row with their places, which ascend.
pub type FewValues = Vec<(u32, f32)>;

/// The greatest values of each row: on their way to the host.
pub struct FoundGreatest {
    /// Key and place of each row's greatest value: [`Greatest`].
    first: Box<dyn Fetch>,
    /// Number of greatest values wanted of each row, and these: [`FewGreatest`]. `None`: one place is enough.
    several: Option<(usize, Box<dyn Fetch>)>,
}

impl FoundGreatest {
    /// The values with their places, which ascend; of equal ones the earlier. A single one counts as 0. `None` where a
    /// row has a value that is no number or +inf, or only -inf: the caller must look at the rows then. Waits for them.
    pub fn values(&self) -> Option<Vec<FewValues>> {
        let firsts: &[[u32; 2]] = bytemuck::cast_slice(self.first.bytes());
        if !firsts.iter().all(|[key, _]| is_usable(*key)) {
            return None;
        }
        let Some((k, several)) = &self.several else {
            return Some(firsts.iter().map(|[_, place]| vec![(*place, 0.0)]).collect());
        };
        let rows = bytemuck::cast_slice::<u8, u32>(several.bytes()).chunks_exact(2 * k);
        let few = |row: &[u32]| {
            let (places, values) = row.split_at(*k);
            let values = values.iter().map(|bits| f32::from_bits(*bits));
            places.iter().copied().zip(values).collect()
        };
        Some(rows.map(few).collect())
    }
}

impl Device {
    /// Finds the `k` greatest values of each row. `None` where the host computes, and where a device has no such op or no room for
    /// them.
    pub fn greatest(&self, x: &Rows, k: usize) -> Option<FoundGreatest> {
        let there = self.there.as_ref().filter(|_| x.is_there())?;
        let several = match k {
            1 => None,
            _ => Some((k, found(there, x, Some(k))?)),
        };
        Some(FoundGreatest { first: found(there, x, None)?, several })
    }
}

/// Greatest values of rows that lie with a device, on their way to the host: `k` of each row, or the first of the
/// greatest.
fn found(there: &There, x: &Rows, k: Option<usize>) -> Option<Box<dyn Fetch>> {
    let (n_rows, d, x) = (x.n_rows(), x.cols(), x.view());
    let bytes = 2 * k.unwrap_or(1) * n_rows * size_of::<u32>();
    let mut buffer = there.alloc(bytes, Purpose::Results).ok()?;
    let out = ViewMut::Device(first_mut(&mut *buffer, bytes));
    let op: Op<'_, Anywhere> = match k {
        Some(k) => FewGreatest { x, d, k, out }.into(),
        None => Greatest { x, d, out }.into(),
    };
    if !there.supports(&op) {
        return None;
    }
    there.run(op).ok()?;
    there.fetch(ToFetch::Whole(buffer)).ok()
}
