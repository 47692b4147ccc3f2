//! The choice of a row's adapter among those of the file ([`SwitchSpec`](crate::spec::SwitchSpec)): attention with one
//! head over all tokens of the sequence so far. A token's key is the gain, positive where it switches an adapter on,
//! and its value is the place of that adapter.
//!
//! The host knows which adapters there are to multiply with. So this is computed by the host, whose memory has its
//! pages.

use super::{Block, BlockCx};
use crate::device::Rows;
use crate::spec::{Beside, SwitchRouterSpec};
use crate::state::{AttendHow, AttendVariant, BlockState, KvRows};

/// The router of a model's own adapters. It has no weights.
pub struct Switch {
    spec: SwitchRouterSpec,
}

impl Switch {
    /// The router that `spec` describes.
    pub fn new(spec: &SwitchRouterSpec) -> Self {
        Self { spec: *spec }
    }
}

impl Block for Switch {
    fn nbytes(&self) -> usize {
        0
    }

    /// Puts the place of each row's adapter beside the rows, where the place that the row's own token switches on was.
    /// Zeros come out: nothing is added to the stream.
    fn forward(&self, cx: &mut BlockCx<'_>, state: &mut BlockState, x: &Rows) -> Rows {
        let kv = state.kv();
        const WIDTH: usize = SwitchRouterSpec::WIDTH;
        let places = std::mem::take(&mut cx.beside[Beside::ADAPTERS]);
        let zeros = || Rows::new(vec![0.0; places.len() * WIDTH], WIDTH);
        let [mut q, mut k, mut v, mut found] = [zeros(), zeros(), zeros(), zeros()];
        for (row, place) in places.host().iter().enumerate() {
            let at = row * WIDTH;
            q.host_mut()[at] = 1.0;
            k.host_mut()[at] = if *place > 0.0 { self.spec.gain } else { -self.spec.gain };
            v.host_mut()[at] = *place;
        }
        kv.append(cx.ubatch(), &KvRows { k: &k, v: Some(&v), index: None });
        let how = AttendHow { scale: 1.0, variant: AttendVariant::default() };
        kv.attend(cx.ubatch(), how, &q, &mut found);
        let last = (self.spec.n_places - 1) as f32;
        let found = found.host().chunks_exact(WIDTH).map(|found| found[0].clamp(0.0, last).round());
        cx.beside[Beside::ADAPTERS] = Rows::new(found.collect(), 1);
        cx.scratch.zeros(x.n_rows(), x.cols())
    }
}
