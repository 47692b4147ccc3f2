//! What a page of KV positions is called.

/// Index of a page of KV positions ([`crate::KV_PAGE`] of them), valid on every stage.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, bytemuck::Pod, bytemuck::Zeroable,
)]
#[repr(transparent)]
pub struct BlockId(pub u32);
