//! Writing keys and values to pages.

use crate::compute::Compute;
use crate::tiles::attention::kv_pages::KvRow;
use crate::tiles::attention::paged::AttendPart;
use crate::tiles::out_rows::Rows;
use brigade_shapes::{KV_PAGE, KvLayout};

/// Keys and values that rows write to their pages, in the host's memory.
pub type KvRows<'a> = brigade_ops::KvRows<&'a [f32]>;

impl Compute {
    /// Writes keys and values of every row of `parts` into their pages, and their keys of an index.
    ///
    /// `pool` holds a layer's pages one after the other and starts on a multiple of 64 bytes; block id `b`
    /// names the page at `b * layout.page_bytes()`. Rows are as the parts number them.
    ///
    /// # Panics
    /// If shapes disagree, a part lies outside its blocks, or a block outside the pool.
    pub fn kv_write(
        &self,
        layout: &KvLayout,
        pool: &mut [u8],
        parts: &[AttendPart<'_>],
        rows: &KvRows<'_>,
    ) {
        let (dk, dv, n_head) = (layout.head_dim_k, layout.v_width(), layout.n_kv_head);
        let KvRows { k, v, index } = *rows;
        let [v, index] = [v, index].map(Option::unwrap_or_default);
        assert_eq!(k.len() * dv, v.len() * dk, "kv_write: rows of k and of v");
        let (k_row, index_dim) = (n_head * dk, layout.index_dim);
        assert_eq!(k.len() * index_dim, index.len() * k_row, "kv_write: rows of k and of an index");
        let n_rows: usize = parts.iter().map(|part| part.n_rows).sum();
        let write = self.kernels().kv_write;
        let (of_index, bytes) = (layout.of_index(), Rows::new(pool, 1));
        let planes = n_head + usize::from(index_dim > 0);
        self.for_rows(planes, n_rows * (dk + dv), &|heads| {
            for (head, part) in heads.flat_map(|h| parts.iter().map(move |part| (h, part))) {
                for i in 0..part.n_rows {
                    let (pos, row) = (part.first_pos + i, part.first_row + i);
                    let page = part.pages[pos / KV_PAGE].0 as usize;
                    // SAFETY: `for_rows` hands out each head once, a head of a page overlaps no
                    // other head of any page, and the slice is dropped before the next is made.
                    let to = unsafe { bytes.rows(layout.head_range(page, head)) };
                    let pos = pos % KV_PAGE;
                    let at = row * n_head + head;
                    write(&mut if head == n_head {
                        let k = &index[row * index_dim..][..index_dim];
                        KvRow { layout: &of_index, pos, k, v: &[], to }
                    } else {
                        KvRow { layout, pos, k: &k[at * dk..][..dk], v: &v[at * dv..][..dv], to }
                    });
                }
            }
        });
    }
}
