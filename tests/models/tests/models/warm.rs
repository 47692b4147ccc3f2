//! A stage that is warm asks the system for no more buffers, and keeps no more than it had. Checked with every golden model of the
//! repository, whole and cut, over ubatches of the same sizes.

use brigade_engine::batch::{SeqOp, SeqPart, SlotId, Want};
use brigade_gguf::Gguf;
use brigade_model_tests::golden::Golden;
use brigade_model_tests::line::{Line, LineConfig};

/// Rows of a prompt's ubatches.
const N_ROWS: usize = 24;

/// Rounds of a prompt's ubatch and a decode step before buffers are counted.
const WARM_ROUNDS: usize = 4;

fn no_buffer_is_asked_for_after_the_first_ubatches() {
    let golden = Golden::repository();
    let mut grown = Vec::new();
    for (name, entry) in &golden.manifest.models {
        let path = golden.model(entry);
        let n_layer = brigade_models::describe(&Gguf::open(&path).unwrap()).unwrap().n_layer();
        let mut line = Line::open(
            &path,
            &LineConfig { cuts: Line::even_cuts(n_layer, 2), ..LineConfig::default() },
        );
        let tokens: Vec<u32> = golden.manifest.tokens[..N_ROWS].to_vec();
        let (slot, mut pos) = (SlotId(0), 0);
        // A prompt's ubatch and a decode step, the same once more, and so on.
        let mut run = |line: &mut Line, ops: Vec<SeqOp>, n: usize| {
            let part = SeqPart {
                slot,
                pos,
                tokens: tokens[..n].to_vec(),
                want: Want::Sample,
                mu: None,
                ahead: None,
            };
            line.run(ops, vec![part]);
            pos += n as u32;
            line.stages()
                .iter()
                .map(|s| [s.n_buffers_grown(), s.n_buffers_spare()])
                .collect::<Vec<_>>()
        };
        let open = vec![Line::open_slot(0, Some(Line::greedy()))];
        run(&mut line, open, N_ROWS);
        // Some rounds, since a decode step may grow a small buffer where a prompt's was free.
        run(&mut line, Vec::new(), 1);
        for _ in 0..WARM_ROUNDS - 1 {
            run(&mut line, Vec::new(), N_ROWS);
            run(&mut line, Vec::new(), 1);
        }
        run(&mut line, Vec::new(), N_ROWS);
        let warm = run(&mut line, Vec::new(), 1);
        for round in 0..3 {
            for n in [N_ROWS, 1] {
                let now = run(&mut line, Vec::new(), n);
                if now != warm {
                    grown.push(format!("{name}, round {round}, {n} rows: {warm:?}, then {now:?}"));
                }
            }
        }
        assert!(warm.iter().flatten().sum::<usize>() > 0, "{name}: nothing is counted");
    }
    assert!(grown.is_empty(), "{grown:#?}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes: no_buffer_is_asked_for_after_the_first_ubatches;
];
