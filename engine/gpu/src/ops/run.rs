//! All ops by their name.

use brigade_ops::Op;

use crate::device::Gpu;
use crate::operands::OnGpu;

impl Gpu {
    /// Records an op.
    ///
    /// # Panics
    /// If its shapes disagree.
    pub fn run(&self, op: Op<'_, OnGpu>) {
        match op {
            Op::Conv(op) => self.conv(op),
            Op::Ssd(op) => self.ssd(op),
            Op::Delta(op) => self.delta_scan(op),
            Op::Mamba(op) => self.mamba_scan(op),
            Op::Wkv6Decay(op) => self.wkv6_decay(op),
            Op::Wkv6(op) => self.wkv6(op),
            Op::Wkv7Prepare(op) => self.wkv7_prepare(op),
            Op::Wkv7(op) => self.wkv7(op),
            Op::Wkv7Bonus(op) => self.wkv7_bonus(op),
        }
    }
}
