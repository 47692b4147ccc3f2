//! Attention over pages against f64, and bit equality over tables, threads, cuts and neighbours.

use std::slice::from_ref as one;

use super::paged::Line;
use super::{Rng, close, same_bits, same_bits_everywhere};
use crate::reference::attention::{Variant, attend as plain_attend};
use crate::reference::kv::kept;
use brigade_kernels::PageId;
use brigade_kernels::Vector;
use brigade_kernels::{
    Attend, AttendPart, AttendVariant, Compute, DistanceBiases, KV_PAGE, KvLayout, KvRows, KvType,
    ValuePlace, Window,
};
use brigade_kernels_tables::available;

/// Distances that biases tell apart.
const REACH: usize = 40;

/// One sequence's queries, keys and values, and its pages in a pool shared with others.
struct Sequence {
    blocks: Vec<PageId>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    len: usize,
}

struct Case {
    layout: KvLayout,
    n_head: usize,
    scale: f32,
    window: Option<Window>,
    softcap: Option<f32>,
    sinks: Option<Vector>,
    slopes: Option<Vector>,
    /// By distance, `[n_head, 2 * REACH + 1]`.
    biases: Option<Vector>,
    both_ways: bool,
    sequences: Vec<Sequence>,
}

impl Case {
    /// Sequences of the given lengths with pages scattered over a pool.
    fn new(layout: KvLayout, n_head: usize, lens: &[usize]) -> Self {
        let mut rng = Rng::new(lens.iter().sum::<usize>() as u64);
        let n_pages: usize = lens.iter().map(|len| len.div_ceil(KV_PAGE)).sum();
        let mut free: Vec<_> = (0..n_pages as u32).map(PageId).collect();
        free.reverse();
        let mut sequences: Vec<Sequence> = lens
            .iter()
            .map(|&len| Sequence {
                blocks: Vec::new(),
                q: rng.values(len * n_head * layout.head_dim_k),
                k: rng.values(len * layout.n_kv_head * layout.head_dim_k),
                v: rng.values(len * layout.n_kv_head * layout.head_dim_v),
                len,
            })
            .collect();
        // Pages of all sequences interleave.
        while !free.is_empty() {
            for seq in sequences.iter_mut() {
                if seq.blocks.len() < seq.len.div_ceil(KV_PAGE) {
                    seq.blocks.extend(free.pop());
                }
            }
        }
        let scale = 1.3 / (layout.head_dim_k as f32).sqrt();
        Self {
            layout,
            n_head,
            scale,
            window: None,
            softcap: None,
            sinks: None,
            slopes: None,
            biases: None,
            both_ways: false,
            sequences,
        }
    }

    /// With rows that see those after them.
    fn both_ways(self) -> Self {
        Self { both_ways: true, ..self }
    }

    /// With scores that change with the distance, by a table of each head's own.
    fn biased(self) -> Self {
        let biases = Rng::new(7).values(self.n_head * (2 * REACH + 1));
        Self { biases: Some(biases.into()), ..self }
    }

    /// With a window, a bound on the scores, and sinks that differ.
    fn varied(self, window: Window) -> Self {
        let sinks = (0..self.n_head).map(|head| head as f32 - 1.0).collect();
        Self { window: Some(window), softcap: Some(0.7), sinks: Some(sinks), ..self }
    }

    /// With scores that fall with the distance, by a slope of each head's own.
    fn sloped(self) -> Self {
        let slopes = (0..self.n_head).map(|head| 0.5f32.powi(head as i32 + 1)).collect();
        Self { slopes: Some(slopes), ..self }
    }

    /// A pool full of NaN, as a recycled one may be.
    fn pool(&self) -> Vec<Line> {
        let pages: usize = self.sequences.iter().map(|seq| seq.blocks.len()).sum();
        vec![Line([0xff; 64]); pages * self.layout.page_bytes() / 64]
    }

    /// Runs the rows `ranges[i]` of sequence `i`, all in one call; returns outputs in that order.
    fn step(
        &self,
        compute: &Compute,
        pool: &mut [Line],
        ranges: &[std::ops::Range<usize>],
    ) -> Vec<f32> {
        let (mut q, mut k, mut v, mut parts) = (vec![], vec![], vec![], vec![]);
        let mut first_row = 0;
        for (seq, range) in self.sequences.iter().zip(ranges) {
            let rows = |x: &[f32]| {
                let row = x.len() / seq.len;
                x[range.start * row..range.end * row].to_vec()
            };
            q.extend(rows(&seq.q));
            k.extend(rows(&seq.k));
            if self.layout.values == ValuePlace::Apart {
                v.extend(rows(&seq.v));
            }
            let (first_pos, n_rows) = (range.start, range.len());
            parts.push(AttendPart { pages: &seq.blocks, first_pos, n_rows, first_row });
            first_row += n_rows;
        }
        parts.retain(|part| part.n_rows > 0);
        let pool: &mut [u8] = bytemuck::cast_slice_mut(pool);
        compute.kv_write(&self.layout, pool, &parts, &KvRows { k: &k, v: Some(&v), index: None });
        let mut out = vec![f32::NAN; first_row * self.n_head * self.layout.head_dim_v];
        let attend = Attend {
            layout: &self.layout,
            pool,
            parts: &parts,
            n_head: self.n_head,
            scale: self.scale,
            variant: AttendVariant {
                window: self.window,
                softcap: self.softcap,
                sinks: self.sinks.as_ref(),
                slopes: self.slopes.as_ref(),
                biases: self
                    .biases
                    .as_ref()
                    .map(|of_heads| DistanceBiases { of_heads, reach: REACH }),
                both_ways: self.both_ways,
                blocks: None,
            },
        };
        compute.attend(&attend, &q, &mut out);
        out
    }

    /// All rows of all sequences at once.
    fn whole(&self, compute: &Compute) -> Vec<f32> {
        let ranges: Vec<_> = self.sequences.iter().map(|seq| 0..seq.len).collect();
        self.step(compute, &mut self.pool(), &ranges)
    }

    /// Expected outputs of sequence `s`.
    fn plain(&self, s: usize) -> Vec<f64> {
        let (seq, layout) = (&self.sequences[s], &self.layout);
        let head = |x: &[f32], dim: usize, row: usize, head: usize| -> Vec<f32> {
            let at = (row * layout.n_kv_head + head) * dim;
            kept(layout.ty, &x[at..at + dim])
        };
        let group = self.n_head / layout.n_kv_head;
        let mut out = Vec::new();
        for row in 0..seq.len {
            for h in 0..self.n_head {
                let q = &seq.q[(row * self.n_head + h) * layout.head_dim_k..][..layout.head_dim_k];
                let end = if self.both_ways { seq.len } else { row + 1 };
                let end = self.window.map_or(end, |window| window.n_visible(row, end));
                let rows = self.window.map_or(0, |window| window.first_visible(row))..end;
                let own = Some(row - rows.start);
                let k: Vec<_> =
                    rows.clone().map(|r| head(&seq.k, layout.head_dim_k, r, h / group)).collect();
                let value = |r| match layout.values {
                    ValuePlace::Apart => head(&seq.v, layout.head_dim_v, r, h / group),
                    ValuePlace::InKeys => {
                        let key = head(&seq.k, layout.head_dim_k, r, h / group);
                        key[..layout.head_dim_v].to_vec()
                    }
                };
                let v: Vec<_> = rows.map(value).collect();
                let sink = self.sinks.as_ref().map(|sinks| sinks[h]);
                let slope = self.slopes.as_ref().map(|slopes| slopes[h]);
                let n = 2 * REACH + 1;
                let biases = self.biases.as_ref().map(|biases| &biases[h * n..][..n]);
                let variant = Variant { softcap: self.softcap, sink, slope, biases, own };
                out.extend(plain_attend(q, &k, &v, self.scale, variant));
            }
        }
        out
    }
}

fn layout(n_kv_head: usize, head_dim_k: usize, head_dim_v: usize, ty: KvType) -> KvLayout {
    KvLayout { n_kv_head, head_dim_k, head_dim_v, values: ValuePlace::Apart, index_dim: 0, ty }
}

/// Pages of keys alone.
fn in_keys(layout: KvLayout) -> KvLayout {
    KvLayout { values: ValuePlace::InKeys, ..layout }
}

const TYPES: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Q8_0];

/// Values lie in -1..1, scores within a few units: a weight carries the errors of a sum over the
/// head, and the weighted mean of values below 1 keeps them.
const BOUND: f64 = 4e-6;

#[test]
fn attention_matches_f64() {
    for ty in TYPES {
        for (kv, heads, dk, dv) in
            [(1, 1, 8, 8), (2, 8, 64, 64), (2, 6, 80, 80), (1, 7, 20, 36), (3, 3, 128, 96)]
        {
            let case = Case::new(layout(kv, dk, dv, ty), heads, &[150, 1, 64, 65]);
            let out = same_bits_everywhere("attention", |compute| case.whole(compute));
            let want = (0..case.sequences.len()).flat_map(|s| case.plain(s));
            for (got, want) in out.iter().zip(want) {
                close("attention", *got, want, BOUND);
            }
        }
    }
}

#[test]
fn windows_caps_and_sinks_match_f64() {
    // Shorter than a page, at its edges, longer than a page, longer than the prompt.
    let windows = [1, 3, 63, 64, 65, 100, 500].map(Window::Sliding);
    for window in windows.into_iter().chain([1, 48, 64, 100].map(Window::Chunk)) {
        for ty in TYPES {
            let case = Case::new(layout(2, 20, 36, ty), 6, &[150, 1, 64, 65]).varied(window);
            let out = same_bits_everywhere("attention", |compute| case.whole(compute));
            let want = (0..case.sequences.len()).flat_map(|s| case.plain(s));
            for (got, want) in out.iter().zip(want) {
                close(&format!("attention {window:?}"), *got, want, BOUND);
            }
        }
    }
}

#[test]
fn slopes_match_f64() {
    for ty in TYPES {
        let plain = || Case::new(layout(2, 20, 36, ty), 6, &[150, 1, 64, 65]).sloped();
        let in_keys = Case::new(in_keys(layout(2, 36, 20, ty)), 6, &[150, 1, 64, 65]).sloped();
        let varied = plain().varied(Window::Sliding(100));
        for case in [plain(), varied, in_keys] {
            let out = same_bits_everywhere("attention", |compute| case.whole(compute));
            let want = (0..case.sequences.len()).flat_map(|s| case.plain(s));
            for (got, want) in out.iter().zip(want) {
                close("attention with slopes", *got, want, BOUND);
            }
        }
    }
    // Far positions weigh nothing, in spans of their own.
    long_context(&Case::new(layout(1, 16, 16, KvType::F16), 2, &[2200]).sloped(), 2190);
}

#[test]
fn rows_that_see_all_of_their_text_match_f64() {
    for ty in TYPES {
        let plain = || Case::new(layout(2, 20, 36, ty), 6, &[150, 1, 64, 65]).both_ways();
        let windows = [1, 2, 63, 64, 65, 128, 500].map(Window::Around);
        let varied = windows.map(|window| plain().varied(window));
        let others = [plain(), plain().sloped(), plain().biased()];
        for case in varied.into_iter().chain(others) {
            let out = same_bits_everywhere("attention both ways", |compute| case.whole(compute));
            let want = (0..case.sequences.len()).flat_map(|s| case.plain(s));
            for (got, want) in out.iter().zip(want) {
                close(&format!("attention both ways, {:?}", case.window), *got, want, BOUND);
            }
        }
    }
    // More than two spans: a row sees nothing of those beyond its window.
    for window in [None, Some(Window::Around(100)), Some(Window::Around(2100))] {
        let case = Case::new(layout(1, 16, 16, KvType::F16), 2, &[3300]).both_ways();
        long_context(&Case { window, ..case }, 3300);
    }
}

#[test]
fn biases_match_f64_without_rows_ahead() {
    let case = Case::new(layout(2, 20, 36, KvType::F32), 6, &[150, 1, 64, 65]).biased();
    let out = same_bits_everywhere("attention with biases", |compute| case.whole(compute));
    let want = (0..case.sequences.len()).flat_map(|s| case.plain(s));
    for (got, want) in out.iter().zip(want) {
        close("attention with biases", *got, want, BOUND);
    }
}

/// The rows beside a text, and whether they are there, change no bit of it.
#[test]
fn texts_beside_a_text_change_no_bit_of_it() {
    let case = Case::new(layout(2, 64, 64, KvType::F32), 6, &[200, 90, 129]).both_ways().sloped();
    for kernels in crate::all_tables() {
        let compute = super::compute(kernels, 2);
        let whole = case.whole(&compute);
        let mut pool = case.pool();
        let mut alone = Vec::new();
        for s in 0..case.sequences.len() {
            let ranges: Vec<_> = case
                .sequences
                .iter()
                .enumerate()
                .map(|(i, seq)| if i == s { 0..seq.len } else { 0..0 })
                .collect();
            alone.extend(case.step(&compute, &mut pool, &ranges));
        }
        same_bits("texts together and alone", &whole, &alone);
    }
}

#[test]
fn windows_over_long_contexts_leave_spans_out() {
    for window in [Window::Sliding(100), Window::Sliding(1500), Window::Chunk(1000)] {
        let case = Case::new(layout(1, 16, 16, KvType::F16), 2, &[3300]).varied(window);
        long_context(&case, 3290);
    }
}

#[test]
fn values_in_keys_match_f64() {
    let check = |layout: KvLayout, heads: usize, lens: &[usize]| {
        let case = Case::new(in_keys(layout), heads, lens);
        let out = same_bits_everywhere("attention", |compute| case.whole(compute));
        let want = (0..case.sequences.len()).flat_map(|s| case.plain(s));
        for (got, want) in out.iter().zip(want) {
            close("attention", *got, want, BOUND);
        }
    };
    for ty in TYPES {
        for (kv, heads, dk, dv) in [(1, 1, 8, 8), (1, 3, 40, 32), (2, 6, 36, 20), (1, 11, 72, 64)] {
            check(layout(kv, dk, dv, ty), heads, &[150, 1, 64, 65]);
        }
    }
    // As in DeepSeek's models, with fewer heads.
    for ty in [KvType::F16, KvType::Q8_0] {
        check(layout(1, 576, 512, ty), 9, &[66]);
    }
}

#[test]
fn long_contexts_merge_their_spans() {
    for layout in [
        layout(1, 16, 16, KvType::F16),
        in_keys(layout(1, 24, 16, KvType::F16)),
        layout(1, 16, 16, KvType::Q8_0),
    ] {
        long_context(&Case::new(layout, 2, &[2200]), 2190);
    }
}

/// More than two spans of 1024 positions; the last rows one by one, the others at once.
fn long_context(case: &Case, n_at_once: usize) {
    let out = same_bits_everywhere("long attention", |compute| {
        let mut pool = case.pool();
        let mut out = case.step(compute, &mut pool, one(&(0..n_at_once)));
        for row in n_at_once..case.sequences[0].len {
            out.extend(case.step(compute, &mut pool, one(&(row..row + 1))));
        }
        out
    });
    for (got, want) in out.iter().zip(case.plain(0)) {
        close("long attention", *got, want, BOUND);
    }
}

#[test]
fn any_cut_and_any_company_give_the_same_bits() {
    for ty in [KvType::F16, KvType::Q8_0] {
        for layout in [layout(2, 64, 64, ty), in_keys(layout(2, 72, 64, ty))] {
            let case = || Case::new(layout, 6, &[200, 90, 129]);
            any_cut(&case());
            any_cut(&case().varied(Window::Sliding(70)));
            any_cut(&case().varied(Window::Chunk(30)));
            any_cut(&case().sloped());
        }
    }
}

fn any_cut(case: &Case) {
    for kernels in crate::all_tables() {
        let compute = super::compute(kernels, 2);
        let whole = case.whole(&compute);
        for step in [1, 7, 64, 100] {
            let mut pool = case.pool();
            let mut outs = vec![Vec::new(); case.sequences.len()];
            let mut at = 0;
            while at < 200 {
                let ranges: Vec<_> = case
                    .sequences
                    .iter()
                    .map(|seq| at.min(seq.len)..(at + step).min(seq.len))
                    .collect();
                let mut out = case.step(&compute, &mut pool, &ranges);
                for (outs, range) in outs.iter_mut().zip(&ranges) {
                    let rest = out.split_off(range.len() * 6 * 64);
                    outs.extend(std::mem::replace(&mut out, rest));
                }
                at += step;
            }
            same_bits(&format!("{} in steps of {step}", kernels.name), &outs.concat(), &whole);
        }
    }
}

#[test]
fn later_positions_never_leak_back() {
    // The second run has infinities at later positions, in the same tile and page.
    for layout in [
        layout(1, 32, 32, KvType::F32),
        in_keys(layout(1, 32, 32, KvType::F32)),
        layout(1, 32, 32, KvType::Q8_0),
        in_keys(layout(1, 32, 32, KvType::Q8_0)),
    ] {
        let mut case = Case::new(layout, 2, &[70]);
        for kernels in crate::all_tables() {
            let compute = super::compute(kernels, 1);
            let clean = case.whole(&compute);
            let saved = (case.sequences[0].k.clone(), case.sequences[0].v.clone());
            case.sequences[0].k[66 * 32..67 * 32].fill(f32::INFINITY);
            case.sequences[0].v[66 * 32..67 * 32].fill(f32::NAN);
            let dirty = case.whole(&compute);
            let row = 2 * 32;
            same_bits(kernels.name, &dirty[..66 * row], &clean[..66 * row]);
            assert!(dirty[66 * row..].iter().all(|x| x.is_nan()), "{}", kernels.name);
            (case.sequences[0].k, case.sequences[0].v) = saved;
        }
    }
}

#[test]
fn a_copied_page_is_a_copied_context() {
    for ty in TYPES {
        copied_page(layout(2, 32, 32, ty));
    }
}

fn copied_page(layout: KvLayout) {
    let case = Case::new(layout, 4, &[100]);
    let compute = super::compute(available()[0], 1);
    let mut pool = case.pool();
    let out = case.step(&compute, &mut pool, one(&(0..100)));
    // The same pages, moved: page bytes know nothing of where they are.
    let lines = case.layout.page_bytes() / 64;
    let (first, second) = pool.split_at_mut(lines);
    first.swap_with_slice(second);
    let mut moved = Case::new(case.layout, 4, &[100]);
    moved.sequences[0].blocks.reverse();
    let last = moved.step(&compute, &mut pool, one(&(99..100)));
    same_bits("the last row", &last, &out[99 * 4 * 32..]);
}
