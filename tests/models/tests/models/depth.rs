//! Residual attention over depth: rows that are kept on the way through the layers cross every cut, and no
//! bit depends on where the cut is.

use std::path::PathBuf;

use brigade_gguf::Gguf;
use brigade_model_tests::golden::Golden;
use brigade_model_tests::line::{Line, LineConfig};
use brigade_spec::Streams;

/// More than one ubatch of 512.
const PROMPT: u32 = 600;

fn path() -> PathBuf {
    Golden::repository().folder.join("kimi-k3.gguf")
}

fn logits(cuts: &[usize], n_ubatch: usize) -> Vec<u32> {
    let config = LineConfig { cuts: cuts.to_vec(), ..LineConfig::default() };
    let prompt: Vec<u32> = (0..PROMPT).map(|i| 3 + i * i % 277).collect();
    let rows = Line::open(&path(), &config).logits(&prompt, n_ubatch);
    rows.into_iter().flatten().map(f32::to_bits).collect()
}

fn a_cut_carries_the_stream_and_what_was_kept_before_it() {
    let spec = brigade_models::describe(&Gguf::open(path()).unwrap()).unwrap();
    assert_eq!((spec.n_layer(), spec.skeleton.streams), (9, Streams::Kept { every: 2 }));
    let rows = (1..9).map(|cut| spec.boundary(cut).widths.len());
    assert_eq!(rows.collect::<Vec<_>>(), [2, 2, 3, 3, 4, 4, 5, 5]);
    assert_eq!(spec.widest_row(), 5 * spec.n_embd);
}

fn two_stages_give_the_same_bits_at_every_cut() {
    let whole = logits(&[], PROMPT as usize);
    for cut in 1..9 {
        for n_ubatch in [1, 64, 512] {
            assert!(logits(&[cut], n_ubatch) == whole, "cut at {cut}, ubatch {n_ubatch}");
        }
    }
}

fn three_stages_give_the_same_bits_at_every_pair_of_cuts() {
    let whole = logits(&[], PROMPT as usize);
    for first in 1..8 {
        for second in first + 1..9 {
            let n_ubatch = [1, 64, 512][(first + second) % 3];
            let same = logits(&[first, second], n_ubatch) == whole;
            assert!(same, "cuts at {first} and {second}, ubatch {n_ubatch}");
        }
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        a_cut_carries_the_stream_and_what_was_kept_before_it,
        two_stages_give_the_same_bits_at_every_cut,
        three_stages_give_the_same_bits_at_every_pair_of_cuts;
];
