//! Pages of keys and values: their shape, and which rows they belong to. A page here is byte for byte a page of the engine's CPU
//! kernels.
//!
//! Heads lie one after the other. A head has its keys as `[head_dim_k, KV_PAGE]`, then its values as `[KV_PAGE, head_dim_v]`
//! with rows filled up to whole vectors of sixteen. Where values are the beginnings of keys, it has keys alone, as rows. Behind
//! the codes come the scales, as `[blocks, KV_PAGE]`, where there are any. Behind the heads come the keys of an index.

/// Positions in a page. Attention accumulates page by page, so this is part of the arithmetic.
pub const KV_PAGE: usize = 64;

/// Rows of a page are filled up to a multiple of this.
pub(super) const LANES: usize = 16;

/// Elements of a block of [`KvType::Q8_0`].
const SCALE_ELEMS: usize = 32;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// Exactly.
    F32,
    /// Rounded to half precision, to nearest even.
    F16,
    /// Bytes in blocks of 32 elements of a head, with a scale in half precision each.
    Q8_0,
}

/// Where a page has its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValuePlace {
    /// Beside the keys.
    Apart,
    /// In the keys: a value is the first `head_dim_v` elements of its key.
    InKeys,
}

/// The shape of a layer's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageLayout {
    /// Heads of keys and values.
    pub n_kv_head: usize,
    /// Elements of a key head.
    pub head_dim_k: usize,
    /// Elements of a value head.
    pub head_dim_v: usize,
    /// Where values are stored.
    pub values: ValuePlace,
    /// Elements of an index's key, with the gate by which it is pooled; 0: there is none.
    pub index_dim: usize,
    /// Element type.
    pub ty: KvType,
}

/// Consecutive positions of one sequence, and where its pages are.
#[derive(Clone, Copy, Debug)]
pub struct PagePart<'a> {
    /// The sequence's pages: number `i` holds positions `i * KV_PAGE ..`.
    pub pages: &'a [u32],
    /// Position of the first row.
    pub first_pos: usize,
    /// Rows, at consecutive positions.
    pub n_rows: usize,
    /// Index of the first row among all. Parts are in the order of their rows, and no row is in two of them.
    pub first_row: usize,
}

impl KvType {
    /// Its number in shaders.
    pub(super) fn code(self) -> u32 {
        self as u32
    }

    /// Bytes of an element without its part of a scale.
    pub(super) fn code_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Q8_0 => 1,
        }
    }

    /// Bytes of `n` elements of a position.
    pub(super) fn bytes_of(self, n: usize) -> usize {
        let scales = if self == Self::Q8_0 { n.div_ceil(SCALE_ELEMS) } else { 0 };
        n * self.code_bytes() + 2 * scales
    }
}

impl PageLayout {
    /// Bytes of a page, a multiple of 64.
    pub fn page_bytes(&self) -> usize {
        let index = self.ty.bytes_of(self.key_width(self.index_dim));
        (self.n_kv_head * (self.key_bytes() + self.value_bytes()) + index) * KV_PAGE
    }

    /// Elements that a page has of a key of `n`.
    fn key_width(&self, n: usize) -> usize {
        match self.values {
            ValuePlace::Apart => n,
            ValuePlace::InKeys => n.next_multiple_of(LANES),
        }
    }

    /// Elements of a value that are not in its key.
    pub(super) fn v_width(&self) -> usize {
        match self.values {
            ValuePlace::Apart => self.head_dim_v,
            ValuePlace::InKeys => 0,
        }
    }

    /// Bytes of a head's key at a position.
    fn key_bytes(&self) -> usize {
        self.ty.bytes_of(self.key_width(self.head_dim_k))
    }

    /// Bytes of a head's value at a position, beside its key.
    fn value_bytes(&self) -> usize {
        self.ty.bytes_of(self.v_width().next_multiple_of(LANES))
    }

    /// Values of a row that invocations write, `unit` each.
    pub(super) fn units(&self, unit: usize) -> usize {
        let key = self.key_width(self.head_dim_k).div_ceil(unit);
        let value = self.v_width().next_multiple_of(LANES).div_ceil(unit);
        self.n_kv_head * (key + value) + self.key_width(self.index_dim).div_ceil(unit)
    }

    /// Panics where a pool of `len` bytes at `address` is no row of pages, or does not have the page `page`.
    pub(super) fn check_pool(&self, op: &str, address: u64, len: usize) {
        assert!(address.is_multiple_of(64), "{op}: the pool starts on no multiple of 64 bytes");
        let bytes = self.page_bytes();
        assert!(bytes > 0 && len.is_multiple_of(bytes), "{op}: {len} bytes in pages of {bytes}");
    }
}

impl PagePart<'_> {
    /// Rows, the first ones, that see no more than `width` positions.
    pub(super) fn n_near(&self, width: usize) -> usize {
        width.saturating_sub(self.first_pos).min(self.n_rows)
    }

    /// Panics where the part has rows outside its pages, or one of its pages from number `first` on outside a pool of so many.
    pub(super) fn check(&self, op: &str, first: usize, n_pages: usize) {
        let end = self.first_pos + self.n_rows;
        let n = end.div_ceil(KV_PAGE);
        assert!(n <= self.pages.len(), "{op}: {end} positions in {} pages", self.pages.len());
        let used = &self.pages[first..n];
        assert!(
            used.iter().all(|page| (*page as usize) < n_pages),
            "{op}: a page outside the pool"
        );
    }
}
