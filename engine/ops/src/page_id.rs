//! The number of a page of KV positions.

/// Index of a page of KV positions ([`KV_PAGE`](brigade_shapes::KV_PAGE) of them), valid on every stage.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, bytemuck::Pod, bytemuck::Zeroable,
)]
#[repr(transparent)]
pub struct PageId(pub u32);
