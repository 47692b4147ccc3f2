//! Boundaries in smaller types. f32 changes no bit. The others change the same bits as encoding and decoding by hand
//! between two stages.
//!
//! `--nocapture` shows the loss by each type: the relative error of the logits, and how often the most probable token
//! is the same. `brigade perplexity --wire-type` measures it on a text.

use std::path::Path;

use brigade_engine::batch::{Boundary, SeqPart, SlotId, UBatch, Want};
use brigade_engine::stage::StageOutput;
use brigade_gguf::npy;
use brigade_model_tests::line::{Line, LineConfig, into_logits};
use brigade_proto::control::WireType;
use brigade_proto::frame::{BoundaryShape, wire_row_bytes};
use brigade_quant::GgmlType;
use brigade_tests::process::{run, synth};
use brigade_worker::executor::wire::{BufferPool, boundary_from_wire, boundary_to_wire};

/// Names on the command line, and the format that has the same values.
const TYPES: [(&str, WireType, GgmlType); 4] = [
    ("f32", WireType::F32, GgmlType::F32),
    ("f16", WireType::F16, GgmlType::F16),
    ("bf16", WireType::Bf16, GgmlType::BF16),
    ("q8_0", WireType::Q80, GgmlType::Q8_0),
];

const TOKENS: [u32; 24] =
    [1, 9, 30, 4, 77, 12, 3, 100, 55, 8, 9, 10, 11, 90, 45, 23, 6, 7, 81, 82, 83, 2, 19, 64];

/// The values after encoding and decoding in a format; whole blocks only.
fn by_hand(values: &[f32], format: GgmlType) -> Vec<f32> {
    let blocks = values.len() / format.block_elems();
    let mut bytes = vec![0; blocks * format.block_bytes()];
    brigade_quant::quantize_row(format, values, &mut bytes).unwrap();
    let mut out = vec![0.0; values.len()];
    brigade_quant::dequantize_row(format, "boundary", &bytes, &mut out).unwrap();
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn rows_become_what_their_format_makes_of_them_whatever_is_beside_them() {
    const WIDTH: usize = 70;
    const N_ROWS: usize = 3;
    // Rows of very different size; 70 values are two blocks and a part.
    let value = |i: usize| {
        let size = [1.0, 300.0, 0.01][i / WIDTH];
        size * ((i * 7919 % 1013) as f32 / 500.0 - 1.0)
    };
    let data: Vec<f32> = (0..N_ROWS * WIDTH).map(value).collect();
    let pool = BufferPool::default();
    for (name, wire_type, format) in TYPES {
        let through = |n_rows: usize, data: &[f32]| {
            let boundary = Boundary { n_rows, data: data.to_vec() };
            let sent = boundary_to_wire(boundary, WIDTH as u32, wire_type, &pool).unwrap();
            assert_eq!(sent.data.len(), n_rows * wire_row_bytes(wire_type, WIDTH).unwrap());
            let shape = BoundaryShape { n_rows, width: WIDTH, dtype: wire_type };
            boundary_from_wire(&sent.data, shape, &pool).data
        };
        let got = through(N_ROWS, &data);
        assert_eq!(got.len(), data.len(), "{name}");
        for (row, got) in data.chunks(WIDTH).zip(got.chunks(WIDTH)) {
            let mut padded = row.to_vec();
            padded.resize(WIDTH.next_multiple_of(format.block_elems()), 0.0);
            assert_eq!(bits(got), bits(&by_hand(&padded, format)[..WIDTH]), "{name}");
            assert_eq!(bits(got), bits(&through(1, row)), "{name} alone");
        }
    }
}

/// Logits of two stages with a boundary that went through a format by hand.
fn two_stages(model: &Path, cut: usize, format: GgmlType) -> Vec<f32> {
    let config = LineConfig { cuts: vec![cut], ..LineConfig::default() };
    let mut line = Line::open(model, &config);
    let part = SeqPart {
        slot: SlotId(0),
        pos: 0,
        tokens: TOKENS.to_vec(),
        want: Want::Logits,
        mu: None,
        ahead: None,
    };
    let ubatch = UBatch { id: 0, ops: vec![Line::open_slot(0, None)], parts: vec![part] };
    let [first, last] = line.stages() else { panic!("two stages") };
    let StageOutput::Boundary(sent) = first.forward(&ubatch, None).unwrap() else {
        panic!("a first stage makes a boundary");
    };
    let data = by_hand(&sent.data, format);
    let received = Boundary { n_rows: sent.n_rows, data };
    let StageOutput::Rows(rows) = last.forward(&ubatch, Some(received)).unwrap() else {
        panic!("a last stage makes rows");
    };
    rows.into_iter().flat_map(into_logits).collect()
}

/// Logits as a command of two workers writes them.
fn two_workers(model: &Path, wire_type: &str) -> Vec<f32> {
    let out =
        std::env::temp_dir().join(format!("brigade-wire-{}-{wire_type}.npy", std::process::id()));
    let tokens = TOKENS.map(|t| t.to_string()).join(",");
    let output = run(&[
        "logits",
        "-m",
        model.to_str().unwrap(),
        "--workers",
        "2",
        // A busy machine may measure speeds at which one worker gets all layers.
        "--tensor-split",
        "1,1",
        "--threads",
        "1",
        "--tokens",
        &tokens,
        "--wire-type",
        wire_type,
        "--force",
        "--out",
        out.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = npy::read(&out).unwrap();
    std::fs::remove_file(&out).unwrap();
    rows.data
}

fn top(row: &[f32]) -> usize {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap()
}

fn f32_changes_no_bit_and_the_others_what_they_say() {
    let model = synth("qwen3", "tiny");
    let mut exact = Vec::new();
    for (name, _, format) in TYPES {
        let got = two_workers(&model, name);
        // The planner chooses the command's cut.
        let cuts: Vec<_> = (1..4).map(|cut| bits(&two_stages(&model, cut, format))).collect();
        let equal = cuts.iter().filter(|expected| **expected == bits(&got)).count();
        if name == "f32" {
            assert_eq!(equal, cuts.len(), "f32 depends on the cut");
            exact = got;
            continue;
        }
        assert!(equal >= 1, "{name}: not what any cut by hand gives");
        assert!(cuts[0] != cuts[1] && bits(&got) != bits(&exact), "{name} changes nothing");
        let n_vocab = exact.len() / TOKENS.len();
        let rows = || got.chunks(n_vocab).zip(exact.chunks(n_vocab));
        let same = rows().filter(|(a, b)| top(a) == top(b)).count();
        let off: f32 = got.iter().zip(&exact).map(|(a, b)| (a - b).powi(2)).sum();
        let error = (off / exact.iter().map(|b| b * b).sum::<f32>()).sqrt();
        println!("{name}: error {error:.2e}, top token equal at {same} of {}", TOKENS.len());
        assert!(error < 0.02, "{name}: {error}");
    }
    std::fs::remove_file(model).unwrap();
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: f32_changes_no_bit_and_the_others_what_they_say;
    computes: rows_become_what_their_format_makes_of_them_whatever_is_beside_them;
];
