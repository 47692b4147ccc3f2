//! A page of keys and values: [`KV_PAGE`] positions of one layer of one sequence.
//!
//! Heads lie one after the other. A head has its keys as `[head_dim_k, KV_PAGE]`: lanes are positions, so
//! that scores need no sum across lanes. Then come its values as `[KV_PAGE, head_dim_v]`, with rows filled up
//! to whole lanes. Where values are the beginnings of keys (latent attention), a head has keys alone, as
//! rows. Behind the heads come the keys of an index, where there is one: they lie as the keys of one head do. Pages hold
//! no pointers and no positions. So a byte copy of a page is a copy of its content, and that is how sequences are copied
//! and saved.
//!
//! In `Q8_0` the elements are signed bytes. A position's key is cut into blocks of [`SCALE_ELEMS`] elements
//! with a scale each, and its value likewise. The last block is shorter where a head is no multiple of that.
//! The scales follow the elements in f16, as `[blocks, KV_PAGE]` for the keys and then for the values.

use std::ops::Range;

use super::LANES;

/// Positions in a KV page. Attention accumulates page by page, so this is part of the arithmetic.
pub const KV_PAGE: usize = 64;

/// Element type in which keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// 32-bit floats, without loss.
    F32,
    /// Rounded to half precision, to nearest even.
    F16,
    /// In blocks of 32 elements of a head, as ggml's type of this name. The scale (f16) is the greatest
    /// magnitude over 127. An element is the nearest multiple of it, from -127 to 127 times. A block with an
    /// element that is infinite, NaN or more than an f16 scale reaches (8.3 million) reads as NaN.
    Q8_0,
}

/// Elements of a [`KvType::Q8_0`] block.
pub const SCALE_ELEMS: usize = 32;

impl KvType {
    /// Bytes of `n` elements of a position.
    #[inline]
    pub fn bytes_of(self, n: usize) -> usize {
        n * self.code_bytes() + self.scales(n) * size_of::<u16>()
    }

    /// Bytes of an element without its part of a scale.
    #[inline]
    pub fn code_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Q8_0 => 1,
        }
    }

    /// Scales of `n` elements of a position.
    fn scales(self, n: usize) -> usize {
        match self {
            Self::F32 | Self::F16 => 0,
            Self::Q8_0 => n.div_ceil(SCALE_ELEMS),
        }
    }
}

/// Place of the values in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValuePlace {
    /// In rows of their own beside the keys.
    Apart,
    /// In the keys: a value is the first `head_dim_v` elements of its key (MLA).
    InKeys,
}

/// The shape of a layer's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvLayout {
    /// Heads of keys and values.
    pub n_kv_head: usize,
    /// Elements of a key head.
    pub head_dim_k: usize,
    /// Elements of a value head.
    pub head_dim_v: usize,
    /// Place of the values.
    pub values: ValuePlace,
    /// Elements of an index's key, and of the gate by which it is pooled, which attention does not read and all heads
    /// share; 0: there is none.
    pub index_dim: usize,
    /// Element type of keys and values.
    pub ty: KvType,
}

impl KvLayout {
    /// Bytes of a page; a multiple of 64, so that pages of one allocation stay aligned.
    #[inline]
    pub fn page_bytes(&self) -> usize {
        self.n_kv_head * self.head_bytes() + self.index_bytes()
    }

    /// Bytes of one head in a page.
    #[inline]
    pub fn head_bytes(&self) -> usize {
        let (k, v) = self.widths();
        (self.ty.bytes_of(k) + self.ty.bytes_of(v)) * KV_PAGE
    }

    /// Bytes of the keys of an index in a page.
    fn index_bytes(&self) -> usize {
        if self.index_dim == 0 { 0 } else { self.of_index().head_bytes() }
    }

    /// The shape of a page's keys of an index: one head that has keys alone, which lie as the other keys do.
    #[inline]
    pub fn of_index(&self) -> Self {
        Self { n_kv_head: 1, head_dim_k: self.index_dim, head_dim_v: 0, index_dim: 0, ..*self }
    }

    /// Elements that a head's page has of a position: in keys, and in values beside them.
    fn widths(&self) -> (usize, usize) {
        match self.values {
            ValuePlace::Apart => (self.head_dim_k, self.v_stride()),
            ValuePlace::InKeys => (self.k_stride(), 0),
        }
    }

    /// Elements from one row beside the keys to the next.
    #[inline]
    pub fn beside_stride(&self) -> usize {
        self.widths().1
    }

    /// Byte ranges in a head's page: the codes of keys, the codes of values, the scales of keys and the scales of
    /// values.
    #[inline]
    pub fn planes(&self) -> [Range<usize>; 4] {
        let (k, v) = self.widths();
        let codes = |n: usize| n * KV_PAGE * self.ty.code_bytes();
        let scales = |n: usize| self.ty.scales(n) * KV_PAGE * size_of::<u16>();
        let k_codes = 0..codes(k);
        let v_codes = k_codes.end..k_codes.end + codes(v);
        let k_scales = v_codes.end..v_codes.end + scales(k);
        let v_scales = k_scales.end..k_scales.end + scales(v);
        [k_codes, v_codes, k_scales, v_scales]
    }

    /// Elements from one key row to the next, where keys are rows.
    #[inline]
    pub fn k_stride(&self) -> usize {
        self.head_dim_k.next_multiple_of(LANES)
    }

    /// Makes positions `from..` of a page zero: these bytes belong to no sequence, or to an earlier one.
    #[inline]
    pub fn clear_tail(&self, page: &mut [u8], from: usize) {
        let [k, v, k_scales, v_scales] = self.planes();
        let (heads, index) = page.split_at_mut(self.n_kv_head * self.head_bytes());
        for head in heads.chunks_exact_mut(self.head_bytes()) {
            match self.values {
                ValuePlace::InKeys => clear_rows(&mut head[k.clone()], from),
                ValuePlace::Apart => clear_across(&mut head[k.clone()], from, self.ty.code_bytes()),
            }
            clear_rows(&mut head[v.clone()], from);
            clear_across(&mut head[k_scales.start..v_scales.end], from, size_of::<u16>());
        }
        if !index.is_empty() {
            self.of_index().clear_tail(index, from);
        }
    }

    /// Elements of a head that a position brings into a page beside its key.
    #[inline]
    pub fn v_width(&self) -> usize {
        match self.values {
            ValuePlace::Apart => self.head_dim_v,
            ValuePlace::InKeys => 0,
        }
    }

    /// Elements from one value row to the next.
    #[inline]
    pub fn v_stride(&self) -> usize {
        self.head_dim_v.next_multiple_of(LANES)
    }

    /// Byte range of head `head` of page `page` in a pool of pages; the head behind the last is the index's.
    #[inline]
    pub fn head_range(&self, page: usize, head: usize) -> Range<usize> {
        let start = page * self.page_bytes() + head * self.head_bytes();
        let is_index = head == self.n_kv_head;
        start..start + if is_index { self.index_bytes() } else { self.head_bytes() }
    }

    /// Head `head` of page `page` of `pool`.
    #[inline]
    pub fn head<'a>(&self, pool: &'a [u8], page: usize, head: usize) -> &'a [u8] {
        &pool[self.head_range(page, head)]
    }

    /// Keys of an index in page `page` of `pool`, as [`Self::of_index`] has them.
    #[inline]
    pub fn index<'a>(&self, pool: &'a [u8], page: usize) -> &'a [u8] {
        self.head(pool, page, self.n_kv_head)
    }
}

/// Makes positions `from..` zero where a position's elements lie side by side.
fn clear_rows(plane: &mut [u8], from: usize) {
    let row = plane.len() / KV_PAGE;
    plane[from * row..].fill(0);
}

/// Makes positions `from..` zero where an element's positions lie side by side, `size` bytes each.
fn clear_across(plane: &mut [u8], from: usize, size: usize) {
    for positions in plane.chunks_exact_mut(KV_PAGE * size) {
        positions[from * size..].fill(0);
    }
}
