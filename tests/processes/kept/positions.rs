//! A model with a table of positions ends with it: a longer context is refused before there is any work.

use std::path::PathBuf;

use brigade_line::model::Model;
use brigade_model_tests::golden::Golden;

/// Positions of the table that `synth` gives the golden sizes.
const LEARNED: u32 = 4096;

fn gpt2() -> PathBuf {
    Golden::repository().named("gpt2")
}

fn a_context_beyond_the_table_is_refused_before_a_worker_starts() {
    let model = Model::open_header_only(&gpt2()).unwrap();
    for fits in [None, Some(1), Some(LEARNED)] {
        model.check_ctx(fits).unwrap();
    }
    let message = model.check_ctx(Some(LEARNED + 1)).unwrap_err().to_string();
    for word in ["4097", "4096", "gpt2", "--ctx"] {
        assert!(message.contains(word), "{message}");
    }
    let rotated = Golden::repository().named("starcoder2");
    Model::open_header_only(&rotated).unwrap().check_ctx(Some(1 << 20)).unwrap();
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes: a_context_beyond_the_table_is_refused_before_a_worker_starts;
];
