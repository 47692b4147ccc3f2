//! How often the host waits for a GPU in a forward pass: once, for what leaves the stage. Where it needs to look at
//! something to go on, it waits for that. Machines without a Vulkan driver skip.

use brigade_engine::arch;
use brigade_engine::batch::{SeqOp, SeqPart, SlotId, Want};
use brigade_engine::device::gpus;
use brigade_engine::gguf::Gguf;
use brigade_tests::golden::Golden;
use brigade_tests::line::{Line, LineConfig};

/// Models, and how often the host waits at most: some of each kind of block and of residual.
const AT_MOST: [(&str, u64); 34] = [
    ("apertus", 1),
    ("arwkv7", 1),
    ("bitnet", 1),
    ("chameleon", 1),
    ("cogvlm", 1),
    ("cohere2", 1),
    ("deci", 1),
    ("deepseek4", 1),
    ("exaone4", 1),
    ("falcon-h1", 1),
    ("gemma3n", 1),
    ("gemma4-small", 1),
    ("gpt2", 1),
    ("granitehybrid", 1),
    ("hrm_text", 1),
    ("jais2", 1),
    ("kimi-k3", 1),
    ("kimi-linear", 1),
    ("lfm2", 1),
    ("llama", 1),
    ("mamba", 1),
    ("mamba2", 1),
    ("minicpm3", 1),
    ("mpt", 1),
    ("nemotron_h", 1),
    ("plamo2", 1),
    ("qwen35", 1),
    ("qwen3next", 1),
    ("qwen4exp", 1),
    ("rwkv6", 1),
    ("rwkv6qwen2", 1),
    ("rwkv7", 1),
    ("talkie", 1),
    // Which adapters there are to multiply with is the host's to know.
    ("graniteswitch", 4),
];

/// Rows of a prompt's ubatch.
const N_ROWS: usize = 20;

/// How often the host waits in a pass over a prompt's rows, and in one over a single row; both were run before.
fn waits(line: &mut Line, tokens: &[u32]) -> [u64; 2] {
    let mut pos = 0;
    let mut run = |line: &mut Line, ops: Vec<SeqOp>, n: usize, want: Want| {
        let (slot, tokens) = (SlotId(0), tokens[..n].to_vec());
        // Stages in one process share the device.
        let before = line.stages()[0].n_waits();
        line.run(ops, vec![SeqPart { slot, pos, tokens, want, mu: None }]);
        pos += n as u32;
        line.stages()[0].n_waits() - before
    };
    let open = vec![Line::open_slot(0, Some(Line::greedy()))];
    run(line, open, N_ROWS, Want::Logits);
    run(line, Vec::new(), 1, Want::Sample);
    [run(line, Vec::new(), N_ROWS, Want::Logits), run(line, Vec::new(), 1, Want::Sample)]
}

#[test]
fn the_host_waits_once_in_a_pass() {
    if let Err(reason) = gpus() {
        println!("skipped: {reason}");
        return;
    }
    let golden = Golden::repository();
    let mut more = Vec::new();
    for (name, at_most) in AT_MOST {
        let path = golden.model(&golden.manifest.models[name]);
        let n_layer = arch::describe(&Gguf::open(&path).unwrap()).unwrap().n_layer();
        for cuts in [Vec::new(), Line::even_cuts(n_layer, 2)] {
            let at_most = at_most + cuts.len() as u64;
            let config = LineConfig { cuts, kernels: Some("vulkan:0"), ..LineConfig::default() };
            let found = waits(&mut Line::open(&path, &config), &golden.manifest.tokens);
            println!("{name}, {} cuts: {found:?}", config.cuts.len());
            if found.iter().any(|found| !(1..=at_most).contains(found)) {
                more.push(format!("{name}: {found:?}, not {at_most}"));
            }
        }
    }
    assert!(more.is_empty(), "stages that wait for more than what leaves them: {more:#?}");
}
