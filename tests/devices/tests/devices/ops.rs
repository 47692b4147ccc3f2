//! Every op that far memory has, beside the same on the host, bit for bit.

use std::collections::BTreeSet;
use std::sync::Arc;

use brigade_device_tests::{Far, OPS, WEIGHTS};
use brigade_engine::batch::PageId;
use brigade_engine::device::{Device, ExpertJob, Rows, product};
use brigade_engine::kernels::{
    ChooseBy, ExpertChoice, ExpertWeights, KvLayout, KvType, RopeLayout, RopeParams, RopeTable,
    SsdShape, StateAt, ValuePlace, Vector, unfused,
};
use brigade_engine::ops::{
    Attend, AttendOver, AttendPart, AttendVariant, Conv, ConvRows, Copy, ExpertRows, HeadColumns,
    KvRows, KvWrite, Routing, ScanPart, Ssd, SsdInput, SsdScan,
};
use brigade_engine::quant::GgmlType;

/// The ops that a case needs, and what it makes of values that are the same each time.
type Case = (&'static [&'static str], fn(&Device) -> Vec<f32>);

const CASES: [Case; 8] = [
    (&["Products"], products),
    (&["Combine", "Map"], elementwise),
    (&["Norm", "RmsNorm"], norms),
    (&["Copy", "CopySlot", "GatherRows", "HeadsApart", "HeadsTogether"], moves),
    (&["Attend", "KvWrite", "Rope"], attention),
    (&["Conv"], convolution),
    (&["Ssd"], scan),
    (
        &["AddExpertBiases", "AddPairs", "ExpertProducts", "Route", "RowsOfPairs", "WeighPairs"],
        experts,
    ),
];

/// Numbers without a pattern in -2..2, of both signs, the same for the same seed.
fn values(seed: u64, n: usize) -> Vec<f32> {
    let of = |i| (brigade_model_tests::golden::mix(seed << 32 | i) >> 40) as f32;
    (0..n as u64).map(|i| of(i) / (1 << 22) as f32 - 2.0).collect()
}

fn rows(device: &Device, seed: u64, n_rows: usize, cols: usize) -> Rows {
    let mut rows = device.scratch().take(n_rows, cols);
    rows.write(&values(seed, n_rows * cols));
    rows
}

fn vector(seed: u64, n: usize) -> Vector {
    values(seed, n).into()
}

/// Row-major weights of a type whose factors are numbers.
fn weights(ty: GgmlType, seed: u64, rows: usize, cols: usize) -> Vec<u8> {
    // Where factors in f16 lie in a block.
    let factors: &[usize] = match ty {
        GgmlType::Q4_K => &[0, 2],
        GgmlType::Q6_K => &[208],
        GgmlType::Q8_0 => &[0],
        _ => &[],
    };
    if ty == GgmlType::F32 {
        return bytemuck::cast_slice(&values(seed, rows * cols)).to_vec();
    }
    let len = rows * ty.row_bytes(cols).unwrap();
    let mut bytes: Vec<u8> =
        (0..len as u64).map(|i| brigade_model_tests::golden::mix(seed << 32 | i) as u8).collect();
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        // 1/16 to 1/8.
        factors.iter().for_each(|at| block[at + 1] = 0x2c | block[at + 1] & 3);
    }
    if ty == GgmlType::F16 {
        // Up to 2, of either sign.
        bytes.iter_mut().skip(1).step_by(2).for_each(|byte| *byte &= 0xbf);
    }
    bytes
}

fn products(device: &Device) -> Vec<f32> {
    let (n_rows, out, cols) = (5, 40, 512);
    let x = rows(device, 1, n_rows, cols);
    let mut all = Vec::new();
    for ty in WEIGHTS {
        let w = device.pack(ty, out, cols, &weights(ty, 2, out, cols)).unwrap().scaled(0.5);
        let mut y = device.scratch().take(n_rows, out);
        device.multiply(&w, &x, &mut y);
        all.extend_from_slice(&y.read());
        let mut some = device.scratch().take(2, out);
        device.products(vec![product(&w, &x, 3..5, some.to_write())]);
        assert_eq!(some.read()[..], y.read()[3 * out..], "{ty}: rows by themselves");
        all.extend_from_slice(&some.read());
    }
    all
}

fn elementwise(device: &Device) -> Vec<f32> {
    let (mut x, y, factors) = (rows(device, 3, 4, 33), rows(device, 4, 4, 33), vector(5, 33));
    device.silu(&mut x);
    device.add(&mut x, &y);
    device.silu_mul_inplace(&mut x, &y);
    device.scale_columns(&mut x, &factors);
    // The host's values may be read as well.
    device.add_bias(&mut x, &values(6, 33));
    device.softplus(&mut x);
    x.read().into_owned()
}

fn norms(device: &Device) -> Vec<f32> {
    let (mut x, weight) = (rows(device, 7, 5, 48), vector(8, 48));
    let mut normed = device.scratch().take(5, 48);
    device.rms_norm(&x, &weight, 1e-5, &mut normed);
    device.l2_norm(&mut x, 16, 1e-6);
    device.group_rms_norm(&mut x, &weight, 24, 1e-5);
    device.softmax(&mut normed, 48);
    [x.read(), normed.read()].concat()
}

fn moves(device: &Device) -> Vec<f32> {
    let (x, scratch) = (rows(device, 9, 6, 20), device.scratch());
    let mut copy = scratch.zeros(6, 20);
    device.run(Copy { from: x.view(), to: copy.view_mut() });
    let mut picked = scratch.take(3, 20);
    device.gather_rows(&copy, &[5, 0, 3], &mut picked);
    let columns = HeadColumns { stride: 10, first: 2, width: 7 };
    let mut apart = scratch.take(12, 7);
    device.heads_apart(&copy, 2, columns, &mut apart);
    device.heads_together(&apart, 2, HeadColumns { first: 0, ..columns }, &mut copy);
    let mut states = device.memory::<f32>(60).unwrap();
    states.write(20, &values(10, 20));
    states.copy_part(20, 1, 2);
    states.clear(25..30);
    let parts: [&[f32]; 4] = [&picked.read(), &apart.read(), &copy.read(), &states.read(0..60)];
    parts.concat()
}

fn attention(device: &Device) -> Vec<f32> {
    let (n_head, n_kv_head, d, n_rows) = (4, 2, 16, 40);
    let (head_dim_k, head_dim_v) = (d, d);
    let (values, index_dim, ty) = (ValuePlace::Apart, 0, KvType::F16);
    let layout = KvLayout { n_kv_head, head_dim_k, head_dim_v, values, index_dim, ty };
    let pages = [PageId(2), PageId(0)];
    let mut pool = device.memory::<u8>(3 * layout.page_bytes()).unwrap();
    let parts = [AttendPart { pages: &pages, first_pos: 0, n_rows, first_row: 0 }];
    let [mut q, mut k, v] = [(11, n_head), (12, n_kv_head), (13, n_kv_head)]
        .map(|(seed, heads)| rows(device, seed, n_rows, heads * d));
    let params = RopeParams {
        layout: RopeLayout::Neox,
        n_rot: 12,
        freq_base: 10_000.0,
        freq_scale: 1.0,
        freq_factors: None,
        attn_factor: 1.0,
        yarn: None,
    };
    let positions: Vec<u32> = (0..n_rows as u32).collect();
    let table = RopeTable::new(device.host(), &params, &positions);
    device.rope(&mut q, d, &table);
    device.rope(&mut k, d, &table);
    let rows = KvRows { k: k.view(), v: Some(v.view()), index: None };
    device.run(KvWrite { layout: &layout, pool: pool.view_mut(), parts: &parts, rows });
    let mut out = device.scratch().take(n_rows, n_head * d);
    let (layout, parts, variant) = (&layout, &parts[..], AttendVariant::default());
    let over = AttendOver { layout, pool: pool.view(), parts, n_head, scale: 0.25, variant };
    device.run(Attend { over, q: q.view(), out: out.view_mut() });
    out.read().into_owned()
}

fn convolution(device: &Device) -> Vec<f32> {
    let (channels, taps, n_rows) = (24, 4, 7);
    let (weight, bias) = (vector(14, taps * channels), vector(15, channels));
    let conv = Conv { channels, taps, weight, bias, silu: true };
    let at = StateAt { per_slot: (taps - 1) * channels, first: 0 };
    let mut states = device.memory::<f32>(2 * at.per_slot).unwrap();
    let (x, mut out) =
        (rows(device, 16, n_rows, channels), device.scratch().take(n_rows, channels));
    let parts = [ScanPart::in_place(1, 0, 0, 3), ScanPart::in_place(0, 0, 3, 4)];
    let (conv, parts) = (&conv, &parts[..]);
    let (states_there, out_there) = (states.view_mut(), out.view_mut());
    let x = x.columns(0);
    device.run(ConvRows { conv, parts, states: states_there, at, x, out: out_there });
    [out.read(), states.read(0..2 * at.per_slot)].concat()
}

fn scan(device: &Device) -> Vec<f32> {
    let shape = SsdShape { n_head: 4, head_dim: 16, n_state: 16, n_group: 2 };
    let a = values(17, 4).into_iter().map(|x| -x.abs()).collect();
    let ssd = Ssd { shape, a, d: vector(18, 4), dt_bias: vector(19, 4) };
    let (n_rows, n) = (5, shape.state_len());
    let mut states = device.memory::<f32>(n).unwrap();
    let [x, b, c, dt] = [(20, 64), (21, 32), (22, 32), (23, 4)]
        .map(|(seed, cols)| rows(device, seed, n_rows, cols));
    let [x, b, c, dt] = [&x, &b, &c, &dt].map(|rows| rows.columns(0));
    let mut out = device.scratch().take(n_rows, 64);
    let parts = &[ScanPart::in_place(0, 0, 0, n_rows)][..];
    let (states_there, input) = (states.view_mut(), SsdInput { x, b, c, dt });
    device.run(SsdScan { ssd: &ssd, parts, states: states_there, input, out: out.view_mut() });
    [out.read(), states.read(0..n)].concat()
}

fn experts(device: &Device) -> Vec<f32> {
    let (n_expert, n_used, n_rows, d, n_ff) = (6, 2, 9, 64, 32);
    let scratch = device.scratch();
    let of = |seed: u64, rows: usize, cols: usize| {
        let pack = |e: u64| {
            device.pack(GgmlType::Q8_0, rows, cols, &weights(GgmlType::Q8_0, seed + e, rows, cols))
        };
        device.experts((0..n_expert as u64).map(|e| Arc::new(pack(e).unwrap())).collect()).unwrap()
    };
    let (up, down) = (of(30, n_ff, d), of(40, d, n_ff));
    let (bias, biases) = (vector(50, n_expert), vector(51, n_expert * n_ff));
    let choice = ExpertChoice {
        n_expert,
        n_used,
        by: ChooseBy::Score { bias: Some(&bias), groups: None },
        weights: ExpertWeights::Normed(1.5),
    };
    let x = rows(device, 52, n_rows, d);
    let mut probs = rows(device, 53, n_rows, n_expert);
    device.sigmoid(&mut probs);
    let routing: Routing = device.route(&choice, &probs);
    let mut raised = scratch.take(routing.n_pairs(), n_ff);
    let mut jobs = [ExpertJob { w: &up, out: &mut raised }];
    device.expert_products(&scratch, &routing, ExpertRows::Routed(&x), &mut jobs);
    device.add_expert_biases(&routing, &biases, &mut raised);
    let mut lowered = scratch.take(routing.n_pairs(), d);
    let mut jobs = [ExpertJob { w: &down, out: &mut lowered }];
    device.expert_products(&scratch, &routing, ExpertRows::OfPairs(&raised), &mut jobs);
    let mut weighed = scratch.take(routing.n_pairs(), d);
    device.rows_of_pairs(&x, &routing, &mut weighed);
    device.weigh_pairs(&routing, &mut weighed);
    let mut out = scratch.zeros(n_rows, d);
    device.add_pairs(&mut out, &lowered, &routing, false);
    device.add_pairs(&mut out, &weighed, &routing, true);
    [raised.read(), lowered.read(), out.read()].concat()
}

fn every_op_has_the_bits_of_the_host() {
    let host = Device::cpu(unfused(), 1, None).unwrap();
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let mut shown = BTreeSet::new();
    for (ops, case) in CASES {
        let want = case(&host);
        let all_finite = want.iter().all(|x| x.is_finite());
        assert!(all_finite && want.iter().any(|x| *x != 0.0), "{ops:?}: numbers");
        let far = Arc::new(Far::without(&[]).unwrap());
        let there = Device::beside_host(far.clone(), "far", 1, None).unwrap();
        assert!(bits(case(&there)) == bits(want.clone()), "{ops:?}: other bits");
        let counts = far.take_counts();
        assert_eq!(counts.n_fell_back(), 0, "{counts:?}");
        assert!(ops.iter().all(|op| counts.ran.contains_key(op)), "{ops:?}: {counts:?}");
        shown.extend(ops);
        // The same where the host runs them.
        let far = Arc::new(Far::without(ops).unwrap());
        let there = Device::beside_host(far.clone(), "far", 1, None).unwrap();
        assert!(bits(case(&there)) == bits(want), "{ops:?} on copies: other bits");
        println!("{ops:?}: {} ran, {} fell back", counts.n_ran(), far.take_counts().n_fell_back());
    }
    assert_eq!(shown, BTreeSet::from(OPS), "a case for each op");
}

pub const TESTS: &[brigade_harness::Test] =
    brigade_harness::tests![computes: every_op_has_the_bits_of_the_host;];
