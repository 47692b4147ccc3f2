//! Attention over one span of pages, for the queries that share its reading.
//!
//! For each page it computes the scores of the page's positions, the greatest score so far, the weights
//! `exp(score - greatest)`, and the weighted sum of values. Sums of earlier pages are first scaled to the new
//! greatest score. The order of each sum is fixed:
//!
//! - Scores: lanes are positions, and the sum runs over the head's elements in order. Where keys are stored
//!   as rows, lanes are elements and are folded at the end.
//! - Weighted sum: lanes are elements, and the sum runs over positions in order.

use std::marker::PhantomData;
use std::ops::Range;

use super::kv_pages::{Element, PageType, Q8};
use crate::cpu::exp::{exp, tanh};
use crate::cpu::products::matmul_f32::{F16, F32};
use crate::cpu::{align_stack, run};
use crate::simd::{LANES, Op, Simd};
use crate::tiles::attention::chosen_blocks::SeenPage;
use crate::tiles::attention::paged::{AttendMerge, AttendTile, Query, STATE_HEAD, TILE_QUERIES};
use brigade_shapes::KV_PAGE;
use brigade_shapes::{KvType, ValuePlace};

/// Vectors of positions in a page.
const VECTORS: usize = KV_PAGE / LANES;

/// Fills the states of a tile's queries for its span.
pub(crate) fn attend<S: Simd>(tile: &mut AttendTile<'_>) {
    match tile.layout.ty {
        KvType::F32 => run::<S, _>(Span::<F32>(tile, PhantomData)),
        KvType::F16 => run::<S, _>(Span::<F16>(tile, PhantomData)),
        KvType::Q8_0 => run::<S, _>(Span::<Q8>(tile, PhantomData)),
    }
}

struct Span<'a, 'b, T>(&'a mut AttendTile<'b>, PhantomData<T>);

impl<T: PageType> Op for Span<'_, '_, T> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        align_stack();
        let tile = self.0;
        let state_len = STATE_HEAD + tile.layout.v_stride();
        for state in tile.states.chunks_exact_mut(state_len) {
            state.fill(0.0);
            state[0] = f32::NEG_INFINITY;
        }
        let q = Queries::new(tile);
        let n_visible = tile.queries.last().map_or(0, |query| query.n_visible);
        let mut wide = Vec::new();
        for place in 0..tile.pages.len() {
            let SeenPage { page, positions } = tile.pages.at(place);
            let block = tile.blocks[page].0 as usize;
            let head = tile.layout.head(tile.pool, block, tile.kv_head);
            // Queries whose windows begin behind this page come last: they see nothing of it.
            let behind = |query: &Query<'_>| query.first_visible < (page + 1) * KV_PAGE;
            let n_queries = tile.queries.partition_point(behind);
            let next = tile.pages.next(place).and_then(|next| tile.blocks.get(next));
            let next = next.map(|next| next.0 as usize);
            let next = next.map(|next| tile.layout.head(tile.pool, next, tile.kv_head));
            let ahead = fetch_next::<S, T>(s, head, next);
            let n_seen = (n_visible - page * KV_PAGE).min(KV_PAGE);
            let head = T::head(s, tile.layout, head, n_seen, &mut wide);
            let (k, v, v_stride) = match tile.layout.values {
                ValuePlace::InKeys => (head, head, tile.layout.k_stride()),
                ValuePlace::Apart => {
                    let (k, v) = head.split_at(tile.layout.head_dim_k * KV_PAGE);
                    (k, v, tile.layout.v_stride())
                }
            };
            let page = Page::<T::Read> {
                start: page * KV_PAGE,
                positions,
                k: k.as_chunks().0,
                v: v.as_chunks().0,
                v_stride: v_stride / LANES,
                scale: tile.scale,
                softcap: tile.softcap,
                state_len,
                ahead,
            };
            let mut at = 0;
            while at < n_queries {
                let queries = &tile.queries[at..n_queries];
                let states = &mut tile.states[at * state_len..];
                // Queries that see nothing of this page come first; then as many at once as there are.
                at += if queries[0].n_visible <= page.start {
                    1
                } else {
                    page.most(s, &q, at, queries, states)
                };
            }
        }
    }
}

/// Bytes from here to what is read next, which is asked for meanwhile; where pages are widened, it is asked for now.
#[inline(always)]
pub(super) fn fetch_next<S: Simd, T: PageType>(s: S, here: &[u8], next: Option<&[u8]>) -> usize {
    match next {
        Some(next) if T::READ_IN_PLACE => next.as_ptr().addr().wrapping_sub(here.as_ptr().addr()),
        Some(next) => {
            s.prefetch(next, 0, next.len());
            0
        }
        None => 0,
    }
}

/// One head of one page.
struct Page<'a, E: Element> {
    /// First position of the span.
    start: usize,
    /// Bit `i`: whether any query sees position `i`.
    positions: u64,
    /// `[head_dim_k][VECTORS]`; where keys are rows, `[KV_PAGE][v_stride]`.
    k: &'a [[E::Bits; LANES]],
    /// `[KV_PAGE][v_stride]`, of which the first vectors are the value.
    v: &'a [[E::Bits; LANES]],
    v_stride: usize,
    scale: f32,
    softcap: Option<f32>,
    /// Values of a query's state.
    state_len: usize,
    /// Bytes from here to this head of the next page, 0 where there is none. The next page is prefetched element by
    /// element while this one is read. All at once would be more than the core can wait for.
    ahead: usize,
}

/// A tile's queries in the order in which they meet keys.
enum Queries {
    /// See [`columns`].
    Columns(Vec<[f32; TILE_QUERIES]>),
    /// One after the other in whole vectors, `[n][k_stride / LANES]`, as keys that are rows.
    Rows(Vec<[f32; LANES]>),
}

impl Queries {
    fn new(tile: &AttendTile<'_>) -> Self {
        match tile.layout.values {
            ValuePlace::Apart => {
                let queries = tile.queries.iter().map(|query| query.q);
                Self::Columns(columns(queries, tile.layout.head_dim_k))
            }
            ValuePlace::InKeys => {
                let vectors = tile.layout.k_stride() / LANES;
                let mut q = vec![[0.0; LANES]; tile.queries.len() * vectors];
                for (to, query) in q.chunks_exact_mut(vectors).zip(tile.queries) {
                    to.as_flattened_mut()[..query.q.len()].copy_from_slice(query.q);
                }
                Self::Rows(q)
            }
        }
    }
}

/// Results of a page's scores for the weighted sum of its values.
struct Weights<const R: usize> {
    /// Weight of each position.
    p: [[f32; KV_PAGE]; R],
    /// Factor on the sums so far.
    correction: [f32; R],
}

impl<E: Element> Page<'_, E> {
    /// [`Page::step`] of as many queries from `at` on as the registers hold sums for: sixteen, or six where a vector takes
    /// more than one. Returns how many.
    #[inline(always)]
    fn most<S: Simd>(
        &self,
        s: S,
        q: &Queries,
        at: usize,
        queries: &[Query<'_>],
        states: &mut [f32],
    ) -> usize {
        // Conditions that are constants come first: steps that a set does not take are not compiled for it.
        if const { S::TILE >= 8 } {
            match queries.len() {
                8.. => self.step::<S, 8, 2>(s, q, at, queries, states),
                4.. => self.step::<S, 4, 4>(s, q, at, queries, states),
                2.. => self.step::<S, 2, 4>(s, q, at, queries, states),
                _ => self.step::<S, 1, 4>(s, q, at, queries, states),
            }
        } else if const { S::TILE > 1 } {
            match queries.len() {
                6.. => self.step::<S, 6, 1>(s, q, at, queries, states),
                4.. => self.step::<S, 4, 1>(s, q, at, queries, states),
                2.. => self.step::<S, 2, 2>(s, q, at, queries, states),
                _ => self.step::<S, 1, 4>(s, q, at, queries, states),
            }
        } else {
            self.step::<S, 1, 4>(s, q, at, queries, states)
        }
    }

    /// Adds this page to the states of the queries `at..at + R` of `q`, all of which see some of
    /// it; `G` vectors of each are kept in registers at once. Returns `R`.
    #[inline(always)]
    fn step<S: Simd, const R: usize, const G: usize>(
        &self,
        s: S,
        q: &Queries,
        at: usize,
        queries: &[Query<'_>],
        states: &mut [f32],
    ) -> usize {
        let state_len = self.state_len;
        let first: &[Query<'_>; R] = queries.first_chunk().expect("at least R queries");
        let mut visible = [0; R];
        for (visible, query) in visible.iter_mut().zip(first) {
            *visible = (query.n_visible - self.start).min(KV_PAGE);
        }
        let mut weights = Weights { p: [[0.0; KV_PAGE]; R], correction: [0.0; R] };
        match q {
            Queries::Columns(q) => {
                for g in (0..VECTORS).step_by(G) {
                    products::<S, E, R, G>(s, self.k, self.ahead, &q[..], at, g, &mut weights.p);
                }
            }
            Queries::Rows(q) => {
                self.row_scores(s, &q[at * self.v_stride..], &visible, &mut weights.p)
            }
        }
        for r in 0..R {
            let state = &mut states[r * state_len..];
            let (m, l) = (state[0], state[1]);
            let seen = first[r].first_visible.saturating_sub(self.start)..visible[r];
            let p = &mut weights.p[r];
            let ahead = self.start as isize - first[r].pos as isize;
            let (slope, biases) = (first[r].slope, first[r].biases);
            let (scale, softcap, positions) = (self.scale, self.softcap, self.positions);
            let scoring = Scoring { scale, softcap, positions, ahead, slope, biases };
            let (m, l, correction) = soften(s, p, seen, scoring, m, l);
            (state[0], state[1], weights.correction[r]) = (m, l, correction);
        }
        // Queries come by ascending position: what the first sees, all see.
        let (shared, vectors) = (visible[0], self.v_vectors());
        let whole = vectors - vectors % G;
        for g in (0..whole).step_by(G) {
            self.values::<S, R, G>(s, &weights, shared, g, states);
        }
        for g in whole..vectors {
            self.values::<S, R, 1>(s, &weights, shared, g, states);
        }
        for r in 0..R {
            self.rest(s, &weights.p[r], shared..visible[r], &mut states[r * state_len..]);
        }
        R
    }

    /// Scores of the positions that any query sees, where keys are rows, without the scale.
    #[inline(always)]
    fn row_scores<S: Simd, const R: usize>(
        &self,
        s: S,
        q: &[[f32; LANES]],
        visible: &[usize; R],
        out: &mut [[f32; KV_PAGE]; R],
    ) {
        let n = self.v_stride;
        for (pos, key) in self.k.chunks_exact(n).enumerate().take(visible[R - 1]) {
            let mut sums = [s.zero(); R];
            for (g, key) in key.iter().enumerate() {
                let [key] = load_all::<S, E, 1>(s, std::slice::from_ref(key), self.ahead);
                for r in 0..R {
                    sums[r] = s.fma(key, s.load(&q[r * n + g]), sums[r]);
                }
            }
            for r in 0..R {
                out[r][pos] = s.sum(sums[r]);
            }
        }
    }

    /// Adds the weighted values of vectors `g..g + G` at the positions that all `R` queries see.
    #[allow(clippy::needless_range_loop, reason = "loops over constants unroll into registers")]
    #[inline(always)]
    fn values<S: Simd, const R: usize, const G: usize>(
        &self,
        s: S,
        weights: &Weights<R>,
        shared: usize,
        g: usize,
        states: &mut [f32],
    ) {
        let at = |r: usize, i: usize| r * self.state_len + STATE_HEAD + (g + i) * LANES;
        let mut sums = [[s.zero(); G]; R];
        for r in 0..R {
            let correction = s.splat(weights.correction[r]);
            for i in 0..G {
                let old = states[at(r, i)..].first_chunk().expect("a state is whole vectors");
                sums[r][i] = s.mul(s.load(old), correction);
            }
        }
        let rows = self.v[g..].chunks(self.v_stride);
        for (pos, v) in rows.enumerate().take(shared.min(KV_PAGE)) {
            let v = load_all::<S, E, G>(s, v, self.ahead);
            let mut p = [0.0; R];
            for r in 0..R {
                p[r] = weights.p[r][pos];
            }
            sums = outer(s, sums, v, &p);
        }
        for r in 0..R {
            for i in 0..G {
                let to = states[at(r, i)..].first_chunk_mut().expect("a state is whole vectors");
                s.store(sums[r][i], to);
            }
        }
    }

    /// Adds the weighted values of the positions `range` to one query's state: those that it sees
    /// and the first of its tile does not.
    #[inline(always)]
    fn rest<S: Simd>(&self, s: S, p: &[f32; KV_PAGE], range: Range<usize>, state: &mut [f32]) {
        let (sums, _) = state[STATE_HEAD..][..self.v_vectors() * LANES].as_chunks_mut::<LANES>();
        for pos in range {
            let p = s.splat(p[pos]);
            for (sum, v) in sums.iter_mut().zip(&self.v[pos * self.v_stride..]) {
                let next = s.fma(E::load(s, v), p, s.load(sum));
                s.store(next, sum);
            }
        }
    }

    /// Vectors of a value.
    fn v_vectors(&self) -> usize {
        (self.state_len - STATE_HEAD) / LANES
    }
}

/// Products of the queries `at..at + R` with the keys at the positions of vectors `g..g + G`. Keys are
/// `[head_dim][VECTORS]`; those `ahead` bytes from them are asked for.
#[inline(always)]
pub(super) fn products<S: Simd, E: Element, const R: usize, const G: usize>(
    s: S,
    keys: &[[E::Bits; LANES]],
    ahead: usize,
    q: &[[f32; TILE_QUERIES]],
    at: usize,
    g: usize,
    out: &mut [[f32; KV_PAGE]; R],
) {
    let mut sums = [[s.zero(); G]; R];
    for (q, k) in q.iter().zip(keys.as_chunks::<VECTORS>().0) {
        let k = load_all::<S, E, G>(s, &k[g..], ahead);
        let q: &[f32; R] = q[at..].first_chunk().expect("R of the tile's queries");
        sums = outer(s, sums, k, q);
    }
    for r in 0..R {
        let (out, _) = out[r].as_chunks_mut::<LANES>();
        for i in 0..G {
            s.store(sums[r][i], &mut out[g + i]);
        }
    }
}

/// Queries side by side, `[head_dim][TILE_QUERIES]`: an element of a key meets all of them at once.
pub(super) fn columns<'a>(
    queries: impl Iterator<Item = &'a [f32]>,
    head_dim: usize,
) -> Vec<[f32; TILE_QUERIES]> {
    let mut columns = vec![[0.0; TILE_QUERIES]; head_dim];
    for (r, query) in queries.enumerate() {
        for (to, from) in columns.iter_mut().zip(query) {
            to[r] = *from;
        }
    }
    columns
}

/// `sums[r][i] + a[i] * b[r]`. Plain loops over constants: they unroll, and the sums stay in
/// registers.
#[inline(always)]
fn outer<S: Simd, const R: usize, const G: usize>(
    s: S,
    mut sums: [[S::F; G]; R],
    a: [S::F; G],
    b: &[f32; R],
) -> [[S::F; G]; R] {
    for r in 0..R {
        let b = s.splat(b[r]);
        for i in 0..G {
            sums[r][i] = s.fma(a[i], b, sums[r][i]);
        }
    }
    sums
}

/// The first `G` vectors of `x`; those `ahead` bytes from them are asked for.
#[inline(always)]
fn load_all<S: Simd, E: Element, const G: usize>(
    s: S,
    x: &[[E::Bits; LANES]],
    ahead: usize,
) -> [S::F; G] {
    let x = &x[..G];
    s.prefetch(bytemuck::cast_slice(x), ahead, size_of_val(x));
    let mut out = [s.zero(); G];
    for i in 0..G {
        out[i] = E::load(s, &x[i]);
    }
    out
}

/// Scale, bound and biases that turn a product into a score.
struct Scoring<'a> {
    scale: f32,
    softcap: Option<f32>,
    /// Bit `i`: whether position `i` is seen at all.
    positions: u64,
    /// Distance from the row's own position to the page's first.
    ahead: isize,
    /// Slope: a score loses so much for every position of distance. Distances are whole numbers below 2^24, so that f32
    /// holds them exactly.
    slope: Option<f32>,
    /// Biases that scores gain by the distance.
    biases: Option<&'a [f32]>,
}

impl Scoring<'_> {
    /// 1 at the positions of vector `g` that are seen, 0 at the others.
    #[inline(always)]
    fn is_seen(&self, g: usize) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = (self.positions >> (g * LANES + i) & 1) as f32;
        }
        lanes
    }

    /// Biases of the positions of vector `g` by their distances. Distances beyond the table have the bias of the
    /// farthest.
    #[inline(always)]
    fn biases_of(&self, biases: &[f32], g: usize) -> [f32; LANES] {
        let (reach, last) = ((biases.len() / 2) as isize, biases.len() as isize - 1);
        let mut lanes = [0.0; LANES];
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = biases[(self.ahead + reach + (g * LANES + i) as isize).clamp(0, last) as usize];
        }
        lanes
    }
}

/// Turns the scores of a page into weights: of the positions `seen`, scaled, then capped, then lowered by their
/// distance. Takes and returns the greatest score and the sum of weights so far, and returns the factor on
/// earlier sums.
#[inline(always)]
fn soften<S: Simd>(
    s: S,
    p: &mut [f32; KV_PAGE],
    seen: Range<usize>,
    scoring: Scoring<'_>,
    m_old: f32,
    l_old: f32,
) -> (f32, f32, f32) {
    const LANE: [f32; LANES] =
        [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
    let (p, _) = p.as_chunks_mut::<LANES>();
    let lane = s.load(&LANE);
    let mut scores = [s.zero(); VECTORS];
    for g in 0..VECTORS {
        let end = s.splat(seen.end as f32 - (g * LANES) as f32);
        let mut scaled = s.mul(s.load(&p[g]), s.splat(scoring.scale));
        if let Some(cap) = scoring.softcap {
            scaled = s.mul(tanh(s, s.mul(scaled, s.splat(1.0 / cap))), s.splat(cap));
        }
        if let Some(slope) = scoring.slope {
            let ahead = s.add(lane, s.splat((scoring.ahead + (g * LANES) as isize) as f32));
            let distance = s.max(ahead, s.sub(s.zero(), ahead));
            scaled = s.fma(s.sub(s.zero(), distance), s.splat(slope), scaled);
        }
        if let Some(biases) = scoring.biases {
            scaled = s.add(scaled, s.load(&scoring.biases_of(biases, g)));
        }
        scores[g] = s.select_gt(end, lane, scaled, s.splat(f32::NEG_INFINITY));
        if seen.start > 0 {
            let start = s.splat(seen.start as f32 - (g * LANES) as f32);
            scores[g] = s.select_gt(start, lane, s.splat(f32::NEG_INFINITY), scores[g]);
        }
        if scoring.positions != u64::MAX {
            let is_seen = s.load(&scoring.is_seen(g));
            scores[g] = s.select_gt(is_seen, s.zero(), scores[g], s.splat(f32::NEG_INFINITY));
        }
    }
    let top = s.max(s.max(scores[0], scores[1]), s.max(scores[2], scores[3]));
    let top = s.max_lane(top);
    let m = if top > m_old { top } else { m_old };
    let mut weights = [s.zero(); VECTORS];
    for g in 0..VECTORS {
        weights[g] = exp(s, s.sub(scores[g], s.splat(m)));
        s.store(weights[g], &mut p[g]);
    }
    let sum = s.add(s.add(weights[0], weights[1]), s.add(weights[2], weights[3]));
    let correction = first_lane(s, exp(s, s.splat(m_old - m)));
    (m, s.fma_one(l_old, correction, s.sum(sum)), correction)
}

#[inline(always)]
fn first_lane<S: Simd>(s: S, v: S::F) -> f32 {
    let mut lanes = [0.0; LANES];
    s.store(v, &mut lanes);
    lanes[0]
}

/// Merges the spans of one query in order and divides by the sum of weights.
pub(crate) fn merge<S: Simd>(merge: &mut AttendMerge<'_>) {
    run::<S, _>(Merge(merge));
}

struct Merge<'a, 'b>(&'a mut AttendMerge<'b>);

impl Op for Merge<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let AttendMerge { states, stride, n_spans, sink, out } = self.0;
        let span = |i: usize| &states[i * *stride..];
        let m = (0..*n_spans)
            .map(|i| span(i)[0])
            .fold(sink.unwrap_or(f32::NEG_INFINITY), |a, b| if b > a { b } else { a });
        let mut weights = vec![0.0; *n_spans];
        let mut total = 0.0f32;
        for (i, weight) in weights.iter_mut().enumerate() {
            *weight = first_lane(s, exp(s, s.splat(span(i)[0] - m)));
            total = s.fma_one(span(i)[1], *weight, total);
        }
        if let Some(sink) = *sink {
            total += first_lane(s, exp(s, s.splat(sink - m)));
        }
        for (g, out) in out.chunks_mut(LANES).enumerate() {
            let mut sum = s.zero();
            for (i, weight) in weights.iter().enumerate() {
                let values = span(i)[STATE_HEAD + g * LANES..].first_chunk();
                let values = s.load(values.expect("a state is whole vectors"));
                sum = s.fma(values, s.splat(*weight), sum);
            }
            s.store_part(s.div(sum, s.splat(total)), out);
        }
    }
}
