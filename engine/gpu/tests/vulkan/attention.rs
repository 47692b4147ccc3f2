//! Attention over pages on the GPU beside the CPU's, bit for bit.

use brigade_engine::kernels as cpu;
use brigade_gpu::{AttendPages, Gpu, KV_PAGE, KvLayout, KvType, Purpose, ValuePlace, Window};
use brigade_ops::{AttendPart, AttendVariant, DistanceBiases, PageId, Vector};

use crate::common::{
    KV_TYPES as TYPES, Random, all_pairs, assert_same, compute, gpu, in_turn, on, shapes_in_turn,
    values_of,
};

/// One attention: its shape, its parts as (first position, rows), and what is unusual of it.
#[derive(Clone)]
struct Case {
    n_head: usize,
    n_kv_head: usize,
    dims: (usize, usize),
    values: ValuePlace,
    ty: KvType,
    parts: Vec<(usize, usize)>,
    window: Option<Window>,
    softcap: Option<f32>,
    sinks: bool,
    slopes: bool,
    biases: bool,
    both_ways: bool,
}

/// Distances that biases tell apart.
const REACH: usize = 5;

impl Case {
    fn new(n_head: usize, n_kv_head: usize, dim: usize, parts: &[(usize, usize)]) -> Self {
        Self {
            n_head,
            n_kv_head,
            dims: (dim, dim),
            values: ValuePlace::Apart,
            ty: KvType::F32,
            parts: parts.to_vec(),
            window: None,
            softcap: None,
            sinks: false,
            slopes: false,
            biases: false,
            both_ways: false,
        }
    }

    fn check(&self, gpu: &Gpu, what: &str) {
        let mut random = Random(11);
        let ((dk, dv), layout) = (self.dims, self.layout());
        let (tables, n_pages) = self.tables();
        let mut pool = vec![0u64; layout.page_bytes() / 8 * n_pages + 8];
        let skip = pool.as_ptr().align_offset(64);
        let pool = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut pool)[8 * skip..];
        let pool = &mut pool[..layout.page_bytes() * n_pages];
        let compute = compute();
        self.fill(&compute, &layout, &tables, &mut random, pool);
        let n_rows: usize = self.parts.iter().map(|part| part.1).sum();
        let q = random.values(n_rows * self.n_head * dk, 1.0);
        let sinks: Vector = random.values(self.n_head, 2.0).into();
        let slopes: Vector = random.values(self.n_head, 0.1).into();
        let of_heads: Vector = random.values(self.n_head * (2 * REACH + 1), 1.0).into();
        let scale = 1.0 / (dk as f32).sqrt();
        let mut want = vec![0.0; n_rows * self.n_head * dv];
        let parts: Vec<_> = self.parts(&tables, n_rows).collect();
        let attend = cpu::Attend {
            layout: &layout,
            pool,
            parts: &parts,
            n_head: self.n_head,
            scale,
            variant: self.variant(&sinks, &slopes, &of_heads),
        };
        compute.attend(&attend, &q, &mut want);
        let mut on_gpu = gpu.buffer(pool.len(), Purpose::States).expect("room for the pages");
        on_gpu.write(0, pool);
        let q = on(gpu, &q);
        let mut out = on(gpu, &vec![f32::NAN; want.len()]);
        let over = AttendPages {
            layout: &layout,
            pool: on_gpu.span(),
            parts: &parts,
            n_head: self.n_head,
            scale,
            variant: self.variant(&sinks, &slopes, &of_heads),
        };
        gpu.attend(&over, q.span(), out.span_mut()).expect("room for the spans");
        assert_same(what, &values_of(&out), &want);
    }

    /// The model's changes to attention, for the host or for the GPU.
    fn variant<'a, L>(
        &self,
        sinks: &'a Vector,
        slopes: &'a Vector,
        of_heads: &'a Vector,
    ) -> AttendVariant<'a, L> {
        AttendVariant {
            window: self.window,
            softcap: self.softcap,
            sinks: self.sinks.then_some(sinks),
            slopes: self.slopes.then_some(slopes),
            biases: self.biases.then_some(DistanceBiases { of_heads, reach: REACH }),
            both_ways: self.both_ways,
            blocks: None,
        }
    }

    fn layout(&self) -> KvLayout {
        KvLayout {
            n_kv_head: self.n_kv_head,
            head_dim_k: self.dims.0,
            head_dim_v: self.dims.1,
            values: self.values,
            index_dim: 0,
            ty: self.ty,
        }
    }

    /// Pages of each part's sequence, dealt out in turn, and how many there are.
    fn tables(&self) -> (Vec<Vec<PageId>>, usize) {
        let n = |part: &(usize, usize)| (part.0 + part.1).div_ceil(KV_PAGE);
        let most = self.parts.iter().map(n).max().unwrap_or(0);
        let count = self.parts.len();
        let table = |(i, part): (usize, &(usize, usize))| {
            (0..n(part)).map(|page| PageId(((most - 1 - page) * count + i) as u32)).collect()
        };
        (self.parts.iter().enumerate().map(table).collect(), most * count)
    }

    fn parts<'a>(
        &'a self,
        tables: &'a [Vec<PageId>],
        n_rows: usize,
    ) -> impl Iterator<Item = AttendPart<'a>> {
        let mut first_row = 0;
        self.parts.iter().zip(tables).map(move |(&(first_pos, n), blocks)| {
            let part = AttendPart { pages: blocks, first_pos, n_rows: n, first_row };
            first_row += n;
            assert!(first_row <= n_rows);
            part
        })
    }

    /// Writes keys and values of all positions that rows see.
    fn fill(
        &self,
        compute: &cpu::Compute,
        layout: &KvLayout,
        tables: &[Vec<PageId>],
        random: &mut Random,
        pool: &mut [u8],
    ) {
        for (&(first, n), blocks) in self.parts.iter().zip(tables) {
            let n = first + n;
            let k = random.values(n * self.n_kv_head * self.dims.0, 2.0);
            let v = match self.values {
                ValuePlace::Apart => random.values(n * self.n_kv_head * self.dims.1, 1.0),
                ValuePlace::InKeys => Vec::new(),
            };
            let part = AttendPart { pages: blocks, first_pos: 0, n_rows: n, first_row: 0 };
            compute.kv_write(
                layout,
                pool,
                &[part],
                &cpu::KvRows { k: &k, v: Some(&v), index: None },
            );
        }
    }
}

#[test]
fn every_length_shape_and_type_has_the_bits_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    // The first shape with every type.
    let shapes = [((4, 2), 16), ((3, 1), 24), ((2, 2), 80), ((8, 2), 128)];
    let more = TYPES.map(|ty| (shapes[0], ty)).into_iter().skip(1);
    // Few rows and many have kernels of their own.
    let parts = [vec![vec![(0, 70), (699, 1), (64, 5)]], vec![vec![(0, 1)]], vec![vec![(62, 3)]]];
    for (i, (((n_head, n_kv_head), dim), ty)) in in_turn(&shapes).chain(more).enumerate() {
        for parts in shapes_in_turn(&gpu, i, &parts) {
            let case = Case { ty, ..Case::new(n_head, n_kv_head, dim, parts) };
            case.check(
                &gpu,
                &format!("{ty:?}, {n_head} heads over {n_kv_head} of {dim}, {parts:?}"),
            );
        }
    }
    Case::new(4, 1, 64, &[(5000, 2), (1023, 2)]).check(&gpu, "several spans");
}

#[test]
fn values_in_keys_have_the_bits_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let wide = ((576, 512), KvType::F16);
    for (dims, ty) in TYPES.map(|ty| ((24, 16), ty)).into_iter().chain([wide]) {
        let case = Case::new(4, 1, dims.0, &[(0, 5), (1100, 3)]);
        let case = Case { dims, values: ValuePlace::InKeys, ty, ..case };
        case.check(&gpu, &format!("{ty:?}, values in keys, {dims:?}"));
    }
}

/// Values so wide that a workgroup has no two elements of them for each invocation.
#[test]
fn wide_values_have_the_bits_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let types = if all_pairs(&gpu) { &TYPES[..] } else { &[KvType::Q8_0] };
    for &ty in types {
        let case = Case { dims: (24, 528), ty, ..Case::new(2, 1, 24, &[(0, 70), (130, 1)]) };
        case.check(&gpu, &format!("{ty:?}, values of 528"));
    }
}

#[test]
fn every_variant_has_the_bits_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let all = all_pairs(&gpu);
    // Parts for one size of tiles, or for three.
    let parts = if all { vec![(0, 70), (1500, 3), (130, 1)] } else { vec![(0, 70), (1500, 9)] };
    let case = || Case::new(4, 2, 32, &parts);
    let sliding = [1, 20, 63, 100].map(Window::Sliding);
    for window in sliding.into_iter().chain([64, 96].map(Window::Chunk)) {
        Case { window: Some(window), ..case() }.check(&gpu, &format!("{window:?}"));
        if all {
            let case = Case { sinks: true, softcap: Some(3.0), window: Some(window), ..case() };
            case.check(&gpu, &format!("{window:?} with sinks and a bound"));
        }
    }
    // With fewer rows, for which there is another kernel.
    for window in [Window::Sliding(63), Window::Chunk(96)] {
        let case = Case::new(4, 2, 32, &[(1500, 3), (130, 3)]);
        let case = Case { sinks: true, softcap: Some(3.0), window: Some(window), ..case };
        case.check(&gpu, &format!("{window:?} with sinks and a bound"));
    }
    Case { sinks: true, ..case() }.check(&gpu, "sinks");
    Case { slopes: true, ..case() }.check(&gpu, "slopes");
    Case { biases: true, ..case() }.check(&gpu, "biases");
    let whole = Case { both_ways: true, ..Case::new(4, 4, 32, &[(0, 130), (0, 9)]) };
    whole.check(&gpu, "both ways");
    let around = Case { window: Some(Window::Around(20)), biases: true, ..whole };
    around.check(&gpu, "both ways, around, with biases");
}
