//! Sizes of an index that scores blocks of positions, and the tile of its products.

use brigade_shapes::KvLayout;

/// Products of some queries with the index's keys in some pages.
pub(crate) struct ProductTile<'a> {
    /// Shape of the keys: one head that has nothing else.
    pub(crate) keys: &'a KvLayout,
    /// The keys in each page.
    pub(crate) pages: &'a [&'a [u8]],
    /// At most [`TILE_QUERIES`], each as wide as a key.
    pub(crate) queries: &'a [&'a [f32]],
    /// `[queries.len(), pages.len() * KV_PAGE]`: also of positions that hold no key.
    pub(crate) out: &'a mut [f32],
}
