//! How often the host waits for a GPU in a forward pass: once, for what leaves the stage. Where an op has no kernel, the host
//! waits for what it reads. Machines without a Vulkan driver skip.

use brigade_engine::arch;
use brigade_engine::batch::{SeqOp, SeqPart, SlotId, Want};
use brigade_engine::device::gpus;
use brigade_engine::gguf::Gguf;
use brigade_tests::golden::Golden;
use brigade_tests::line::{Line, LineConfig};

/// Models of which every op has its kernel, some of each kind of block and of residual.
const ALL_THERE: [&str; 1] = ["llama"];

/// Rows of a prompt's ubatch.
const N_ROWS: usize = 20;

/// How often each stage waits in a pass over a prompt's rows, and in one over a single row; both were run before.
fn waits(line: &mut Line, tokens: &[u32]) -> [Vec<u64>; 2] {
    let mut pos = 0;
    let mut run = |line: &mut Line, ops: Vec<SeqOp>, n: usize, want: Want| {
        let (slot, tokens) = (SlotId(0), tokens[..n].to_vec());
        let before: Vec<u64> = line.stages().iter().map(|stage| stage.n_waits()).collect();
        line.run(ops, vec![SeqPart { slot, pos, tokens, want, mu: None }]);
        pos += n as u32;
        let after = line.stages().iter().map(|stage| stage.n_waits());
        after.zip(before).map(|(after, before)| after - before).collect()
    };
    let open = vec![Line::open_slot(0, Some(Line::greedy()))];
    run(line, open, N_ROWS, Want::Sample);
    run(line, Vec::new(), 1, Want::Sample);
    [N_ROWS, 1].map(|n| run(line, Vec::new(), n, Want::Sample))
}

#[test]
fn the_host_waits_once_in_a_pass() {
    if let Err(reason) = gpus() {
        println!("skipped: {reason}");
        return;
    }
    let golden = Golden::repository();
    let mut more = Vec::new();
    for name in ALL_THERE {
        let path = golden.model(&golden.manifest.models[name]);
        let n_layer = arch::describe(&Gguf::open(&path).unwrap()).unwrap().n_layer();
        for cuts in [Vec::new(), Line::even_cuts(n_layer, 2)] {
            let n_stages = cuts.len() + 1;
            let config = LineConfig { cuts, kernels: Some("vulkan:0"), ..LineConfig::default() };
            let found = waits(&mut Line::open(&path, &config), &golden.manifest.tokens);
            println!("{name}: {found:?}");
            if found != [vec![1; n_stages], vec![1; n_stages]] {
                more.push(format!("{name}: {found:?}"));
            }
        }
    }
    assert!(more.is_empty(), "stages that wait for more than what leaves them: {more:#?}");
}
