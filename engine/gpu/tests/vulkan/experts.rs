//! The choice of experts, the lists of their rows, and their products, beside the CPU's, bit for bit.

use brigade_ops::ExpertRows;
use brigade_quant::{GgmlType, quantize_row};
use std::sync::Arc;

use brigade_engine::kernels::{
    self, Compute, ExpertChoice, ExpertGroups, ExpertWeights, PackedMatrix, Vector,
};
use brigade_gpu::{
    ExpertRoutes, ExpertTable, ExpertWork, FormedExpertProduct, Gpu, GpuBuffer, Purpose, Span,
    WeightType as W,
};

use crate::common::{Random, assert_same, compute, gpu, on, values_of};

/// The values of a list.
fn floats(gpu: &Gpu, list: Span<'_>) -> Vec<f32> {
    let mut copy = gpu.buffer(list.len(), Purpose::Activations).expect("room");
    gpu.copy(list, copy.span_mut());
    values_of(&copy)
}

/// The numbers of a list.
fn numbers(gpu: &Gpu, list: Span<'_>) -> Vec<u32> {
    floats(gpu, list).into_iter().map(f32::to_bits).collect()
}

/// Scores of a router: of a few values, so that many are equal, or of any.
fn probs(random: &mut Random, n: usize, is_coarse: bool) -> Vec<f32> {
    let value =
        |random: &mut Random| if is_coarse { random.below(5) as f32 / 4.0 } else { random.value() };
    (0..n).map(|_| value(random)).collect()
}

/// Chooses on both sides, and holds the device to the CPU.
fn check_choice(
    gpu: &Gpu,
    compute: &Compute,
    choice: &ExpertChoice<'_, &Vector>,
    probs: &[f32],
) -> ExpertRoutes {
    let ExpertChoice { n_expert, n_used, by, weights } = *choice;
    let what =
        format!("{n_used} of {n_expert}, {} rows, {by:?}, {weights:?}", probs.len() / n_expert);
    let on_gpu = choice.map_bias(|bias| gpu.vector(bias));
    let routes = gpu.route(&on_gpu, on(gpu, probs).span()).expect("room");
    let (ids, weights) = compute.choose_experts(&choice.map_bias(|bias| &bias[..]), probs);
    assert_eq!(numbers(gpu, routes.ids()), ids, "{what}");
    assert_same(&what, &floats(gpu, routes.weights()), &weights);
    assert_eq!(routes.on_host().0, ids, "{what}: on the host");
    assert_same(&what, routes.on_host().1, &weights);
    check_lists(gpu, &what, &routes, &ids, &weights, n_used);
    routes
}

/// Holds lists to what a plain sort gives.
fn check_lists(
    gpu: &Gpu,
    what: &str,
    routes: &ExpertRoutes,
    ids: &[u32],
    weights: &[f32],
    n_used: usize,
) {
    let mut sorted: Vec<usize> = (0..ids.len()).collect();
    sorted.sort_by_key(|i| ids[*i]);
    let list = |of: &dyn Fn(usize) -> u32| sorted.iter().map(|i| of(*i)).collect::<Vec<_>>();
    assert_eq!(numbers(gpu, routes.rows()), list(&|i| (i / n_used) as u32), "{what}: rows");
    let experts = list(&|i| ids[i]);
    assert_eq!(numbers(gpu, routes.experts()), experts, "{what}: experts");
    let of_pairs = list(&|i| weights[i].to_bits());
    assert_eq!(numbers(gpu, routes.pair_weights()), of_pairs, "{what}: weights of pairs");
    let pairs = numbers(gpu, routes.pairs());
    let back: Vec<usize> = pairs.iter().map(|pair| sorted[*pair as usize]).collect();
    assert_eq!(back, (0..ids.len()).collect::<Vec<_>>(), "{what}: pairs");
    check_pieces(gpu, what, routes.work(), &experts);
}

/// Holds the pieces of pairs, which are of these experts, to what products take.
fn check_pieces(gpu: &Gpu, what: &str, work: &ExpertWork, experts: &[u32]) {
    let pieces = numbers(gpu, work.pieces());
    let mut pieces: Vec<_> = pieces.chunks_exact(3).map(|p| [p[0], p[1], p[2]]).collect();
    let n_live = pieces.iter().filter(|piece| piece[2] > 0).count();
    let none = pieces.split_off(n_live);
    assert!(none.iter().all(|piece| *piece == [0; 3]), "{what}: {none:?}");
    let mut next = 0;
    for [expert, first, n] in pieces {
        assert_eq!(first, next, "{what}: pieces follow each other");
        next += n;
        assert!(n as usize <= work.piece_rows(), "{what}: a piece of {n}");
        let mine = &experts[first as usize..next as usize];
        assert!(mine.iter().all(|id| *id == expert), "{what}: a piece of expert {expert}");
        // It ends where the expert ends, or is full.
        let ends = experts.get(next as usize) != Some(&expert);
        assert!(ends || n as usize == work.piece_rows(), "{what}: a piece of {n}");
    }
    assert_eq!(next as usize, experts.len(), "{what}: all pairs are in pieces");
}

const BY_SCORE: kernels::ChooseBy<'static, &Vector> =
    kernels::ChooseBy::Score { bias: None, groups: None };

const SHAPES: [(usize, usize, usize); 12] = [
    (0, 8, 2),
    (1, 1, 1),
    (1, 8, 2),
    (3, 5, 5),
    (8, 60, 4),
    (9, 64, 8),
    (37, 130, 6),
    (300, 256, 8),
    (70, 4, 2),
    (90, 6, 3),
    (130, 4, 2),
    (5, 1024, 3),
];

#[test]
fn experts_are_chosen_by_their_scores() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(1));
    for (n_rows, n_expert, n_used) in SHAPES {
        for is_coarse in [false, true] {
            let probs = probs(&mut random, n_rows * n_expert, is_coarse);
            let bias: Vector = random.values(n_expert, 1.0).into();
            let biased = kernels::ChooseBy::Score { bias: Some(&bias), groups: None };
            for by in [BY_SCORE, biased] {
                for weights in [
                    ExpertWeights::Scaled(1.0),
                    ExpertWeights::Scaled(0.3),
                    ExpertWeights::Normed(2.5),
                    ExpertWeights::Softmax(0.7),
                ] {
                    let choice = ExpertChoice { n_expert, n_used, by, weights };
                    check_choice(&gpu, &compute, &choice, &probs);
                }
            }
        }
    }
}

#[test]
fn experts_are_chosen_of_the_best_groups() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(2));
    for (n_rows, n_expert, n_used, count, used) in [
        (1, 6, 2, 3, 1),
        (40, 256, 8, 8, 4),
        (9, 7, 3, 7, 5),
        (33, 12, 6, 1, 1),
        (5, 300, 30, 150, 20),
    ] {
        for is_coarse in [false, true] {
            let probs = probs(&mut random, n_rows * n_expert, is_coarse);
            let bias: Vector = random.values(n_expert, 1.0).into();
            for bias in [None, Some(&bias)] {
                let groups = Some(ExpertGroups { count, used });
                let by = kernels::ChooseBy::Score { bias, groups };
                let weights = ExpertWeights::Normed(1.0);
                let choice = ExpertChoice { n_expert, n_used, by, weights };
                check_choice(&gpu, &compute, &choice, &probs);
            }
        }
    }
}

/// A row may use an expert several times.
#[test]
fn groups_of_the_best_and_known_experts_may_repeat() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(3));
    for (n_rows, n_expert, n_used) in [(1, 8, 2), (50, 64, 6), (9, 12, 12), (300, 16, 4)] {
        let probs = probs(&mut random, n_rows * n_expert, false);
        let known: Vec<u32> = (0..n_rows * n_used).map(|_| random.below(n_expert) as u32).collect();
        let all = [
            kernels::ChooseBy::GroupsOfBest(1),
            kernels::ChooseBy::GroupsOfBest(4),
            kernels::ChooseBy::Known(&known),
        ];
        for by in all {
            let weights = ExpertWeights::Normed(1.5);
            let choice = ExpertChoice { n_expert, n_used, by, weights };
            check_choice(&gpu, &compute, &choice, &probs);
        }
    }
}

/// Weights as a router has them: none negative, some zero, some so small that their sum does not count.
#[test]
fn small_sums_do_not_blow_weights_up() {
    let Some(gpu) = gpu() else { return };
    let compute = compute();
    let probs = [0.0, 0.0, 1e-10, 3e-6, 0.0, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0, -0.0];
    let weights = ExpertWeights::Normed(1.0);
    let choice = ExpertChoice { n_expert: 4, n_used: 2, by: BY_SCORE, weights };
    check_choice(&gpu, &compute, &choice, &probs);
}

/// The matrices of experts on both sides.
struct Both {
    here: Vec<PackedMatrix>,
    there: ExpertTable,
    wants_blocks: bool,
}

impl Both {
    fn new(
        gpu: &Gpu,
        compute: &Compute,
        types: (GgmlType, W),
        n_expert: usize,
        rows: usize,
        cols: usize,
        random: &mut Random,
    ) -> Self {
        let (ty, there) = types;
        let row_bytes = ty.row_bytes(cols).expect("whole blocks");
        let here = (0..n_expert).map(|e| {
            let mut bytes = vec![0; rows * row_bytes];
            for row in bytes.chunks_exact_mut(row_bytes) {
                quantize_row(ty, &random.values(cols, 1.0), row).expect("a type with a quantiser");
            }
            let matrix = PackedMatrix::pack(compute, ty, rows, cols, &bytes).expect("packs");
            matrix.scaled(1.0 + e as f32 / 8.0)
        });
        let here: Vec<_> = here.collect();
        let kept = |matrix: &PackedMatrix| Arc::new(gpu.keep(matrix.bytes()).expect("room"));
        let placed = here.iter().map(|matrix| (kept(matrix), matrix.scale())).collect();
        let table = gpu.expert_table(there, rows, cols, placed).expect("room");
        Self { here, there: table, wants_blocks: there.wants_blocks() }
    }

    /// Rows in the form that products read.
    fn rows(&self, gpu: &Gpu, x: &[f32]) -> GpuBuffer {
        let x_there = on(gpu, x);
        if !self.wants_blocks {
            return x_there;
        }
        let mut blocks =
            gpu.buffer(Gpu::quantized_bytes(x.len()), Purpose::Activations).expect("room");
        gpu.quantize(x_there.span(), blocks.span_mut());
        blocks
    }

    /// The products of the row of each pair with its expert.
    fn on_cpu(&self, compute: &Compute, rows: &[&[f32]], experts: &[u32]) -> Vec<f32> {
        let product = |(row, expert): (&&[f32], &u32)| {
            let w = &self.here[*expert as usize];
            let mut out = vec![f32::NAN; w.rows()];
            compute.multiply(w, row, &mut out);
            out
        };
        rows.iter().zip(experts).flat_map(product).collect()
    }
}

/// Two products beside each other of rows in both forms, for experts `n_expert`, of which each row uses `n_used`.
fn check_products(types: [(GgmlType, W); 2], shapes: &[(usize, usize, usize)], cols: usize) {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(4));
    for &(n_rows, n_expert, n_used) in shapes {
        let both = types.map(|ty| {
            let rows = if ty == types[0] { 37 } else { 64 };
            Both::new(&gpu, &compute, ty, n_expert, rows, cols, &mut random)
        });
        let weights = ExpertWeights::Normed(1.0);
        let choice = ExpertChoice { n_expert, n_used, by: BY_SCORE, weights };
        let probs = probs(&mut random, n_rows * n_expert, false);
        let routes = check_choice(&gpu, &compute, &choice, &probs);
        let x = random.values(n_rows * cols, 1.0);
        let of_rows: Vec<_> = numbers(&gpu, routes.rows());
        let of_pairs: Vec<&[f32]> =
            of_rows.iter().map(|row| &x[*row as usize * cols..][..cols]).collect();
        let experts = numbers(&gpu, routes.experts());
        let forms =
            both.each_ref().map(|both| [both.rows(&gpu, &x), both.rows(&gpu, &of_pairs.concat())]);
        for form in [0, 1] {
            let outs = both.each_ref().map(|both| {
                let n = routes.n_pairs() * both.here[0].rows();
                on(&gpu, &vec![f32::NAN; n])
            });
            let mut outs = outs;
            let jobs = both.iter().zip(&forms).zip(&mut outs).map(|((both, forms), out)| {
                let x = forms[form].span();
                let x = if form == 0 { ExpertRows::Routed(x) } else { ExpertRows::OfPairs(x) };
                FormedExpertProduct { w: &both.there, x, out: out.span_mut() }
            });
            gpu.expert_products(routes.work(), jobs);
            for ((both, out), ty) in both.iter().zip(&outs).zip(types) {
                let what =
                    format!("{:?}, {n_rows} rows, {n_used} of {n_expert}, form {form}", ty.1);
                let want = both.on_cpu(&compute, &of_pairs, &experts);
                assert_same(&what, &values_of(out), &want);
            }
        }
    }
}

/// Pieces of one row up to 64: kernels of few rows and of many.
const PIECES: [(usize, usize, usize); 9] = [
    (0, 4, 2),
    (1, 8, 2),
    (2, 4, 3),
    (4, 3, 2),
    (7, 9, 4),
    (20, 9, 3),
    (60, 7, 2),
    (61, 4, 2),
    (131, 4, 2),
];

#[test]
fn products_of_experts_with_minima_and_halves() {
    check_products([(GgmlType::Q4_K, W::Q4_K), (GgmlType::Q2_K, W::Q2_K)], &PIECES, 512);
}

#[test]
fn products_of_experts_of_other_types() {
    check_products([(GgmlType::MXFP4, W::MXFP4), (GgmlType::Q8_0, W::Q8_0)], &PIECES, 96);
}

#[test]
fn products_of_experts_in_floats() {
    check_products([(GgmlType::F32, W::F32), (GgmlType::BF16, W::BF16)], &PIECES, 70);
    check_products([(GgmlType::F16, W::F16), (GgmlType::F32, W::F32)], &PIECES[4..], 300);
}

#[test]
fn rows_of_a_table_are_added_by_a_list() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(5));
    for (n_table, d, n) in [(1, 1, 1), (3, 17, 5), (9, 64, 40), (128, 300, 257), (4, 8, 0)] {
        let (table, mut x) = (random.values(n_table * d, 1.0), random.values(n * d, 1.0));
        let list: Vec<u32> = (0..n).map(|_| random.below(n_table) as u32).collect();
        let (mut there, list_there) = (on(&gpu, &x), crate::common::words_on(&gpu, &list));
        gpu.add_listed_rows(there.span_mut(), d, on(&gpu, &table).span(), list_there.span());
        for (row, of) in x.chunks_exact_mut(d).zip(&list) {
            compute.add_bias(row, &table[*of as usize * d..][..d]);
        }
        assert_same(&format!("{n} rows of {d}"), &values_of(&there), &x);
    }
}

/// Products of the pairs of some rows, through a few columns, are added to those of all pairs, as adapters do.
#[test]
fn pairs_of_some_rows_are_multiplied_by_themselves() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(6));
    let cases = [
        (4, 8, 2, 0..4),
        (9, 5, 3, 2..7),
        (40, 60, 4, 39..40),
        (131, 4, 2, 3..128),
        (70, 300, 8, 1..69),
        (6, 3, 1, 2..2),
    ];
    for (types, (n_rows, n_expert, n_used, rows)) in
        [[(GgmlType::F32, W::F32); 2], [(GgmlType::Q8_0, W::Q8_0); 2]]
            .into_iter()
            .flat_map(|types| cases.clone().map(|case| (types, case)))
    {
        let what = format!("{:?}, {rows:?} of {n_rows} rows, {n_used} of {n_expert}", types[0].1);
        let choice =
            ExpertChoice { n_expert, n_used, by: BY_SCORE, weights: ExpertWeights::Scaled(1.0) };
        let probs = probs(&mut random, n_rows * n_expert, false);
        let routes = check_choice(&gpu, &compute, &choice, &probs);
        let work = gpu.work_of_rows(&routes, rows.clone()).expect("room");

        let (ids, pairs) = (numbers(&gpu, routes.ids()), numbers(&gpu, routes.pairs()));
        let mut mine: Vec<usize> = (rows.start * n_used..rows.end * n_used).collect();
        mine.sort_by_key(|i| ids[*i]);
        let list: Vec<u32> = mine.iter().map(|i| pairs[*i]).collect();
        let experts: Vec<u32> = mine.iter().map(|i| ids[*i]).collect();
        assert_eq!(numbers(&gpu, work.rows()), list, "{what}: pairs");
        check_pieces(&gpu, &what, &work, &experts);

        let (cols, rank, width) = (96, 32, 70);
        let a = Both::new(&gpu, &compute, types[0], n_expert, rank, cols, &mut random);
        let b = Both::new(&gpu, &compute, types[1], n_expert, width, rank, &mut random);
        let x = random.values(routes.n_pairs() * cols, 1.0);
        let mut want = random.values(routes.n_pairs() * width, 1.0);
        let mut out = on(&gpu, &want);
        let mut low = on(&gpu, &vec![f32::NAN; list.len() * rank]);
        let mut added = on(&gpu, &vec![f32::NAN; list.len() * width]);
        let (w, x_there) = (&a.there, a.rows(&gpu, &x));
        let job =
            FormedExpertProduct { w, x: ExpertRows::Routed(x_there.span()), out: low.span_mut() };
        gpu.expert_products(&work, [job]);
        let (w, low) = (&b.there, b.rows(&gpu, &values_of(&low)));
        let job =
            FormedExpertProduct { w, x: ExpertRows::OfPairs(low.span()), out: added.span_mut() };
        gpu.expert_products(&work, [job]);
        gpu.add_to_listed(out.span_mut(), width, added.span(), work.rows(), 0.7);

        let of_pairs: Vec<&[f32]> =
            list.iter().map(|pair| &x[*pair as usize * cols..][..cols]).collect();
        let low = a.on_cpu(&compute, &of_pairs, &experts);
        let low: Vec<&[f32]> = low.chunks_exact(rank).collect();
        let added = b.on_cpu(&compute, &low, &experts);
        for (pair, added) in list.iter().zip(added.chunks_exact(width)) {
            compute.add_scaled(&mut want[*pair as usize * width..][..width], added, 0.7);
        }
        assert_same(&what, &values_of(&out), &want);
    }
}
