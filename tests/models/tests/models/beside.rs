//! Values beside the residual stream. Gemma's small models have rows for the layers to come, keys and values that
//! layers lend, and other streams. Hunyuan 4, GLM-5.3, DeepSeek V4 and qwen4exp have other streams, the first two also
//! the positions or pools that an index chose. HRM-Text has the vector of the stack that waits, and Granite Switch the
//! adapters of rows. A cut carries the values that are read behind it, and no bit depends on its place.

use brigade_gguf::Gguf;
use brigade_model_tests::golden::Golden;
use brigade_model_tests::line::{Line, LineConfig};
use brigade_spec::{ModelSpec, StateSpec};

fn describe(model: &str) -> ModelSpec {
    brigade_models::describe(&Gguf::open(Golden::repository().named(model)).unwrap()).unwrap()
}

fn a_cut_carries_what_layers_behind_it_read() {
    let spec = describe("gemma4-small");
    assert_eq!((spec.n_layer(), spec.n_embd), (4, 32));
    // The first two layers lend what the last two borrow: one of each has a window, and narrower heads.
    let widths = (1..4).map(|cut| spec.boundary(cut).widths);
    let wanted = [[32, 24, 0, 0, 16, 16], [32, 16, 32, 32, 16, 16], [32, 8, 32, 32, 0, 0]];
    assert_eq!(widths.collect::<Vec<_>>(), wanted);
    let spec = describe("gemma3n");
    assert_eq!((spec.n_layer(), spec.n_embd), (24, 32));
    let widths = |cut: usize| spec.boundary(cut).widths;
    assert_eq!(widths(18), [32, 6 * 256, 0, 0, 0, 0, 32, 32, 32]);
    assert_eq!(widths(20), [32, 4 * 256, 32, 32, 32, 32, 32, 32, 32]);
    // The last layer has no window.
    assert_eq!(widths(23), [32, 256, 32, 32, 0, 0, 32, 32, 32]);
    // The second and the last layer attend to what the one before them chose: 16 positions.
    let spec = describe("hy_v4");
    let widths = (1..4).map(|cut| spec.boundary(cut).widths);
    assert_eq!(
        widths.collect::<Vec<_>>(),
        [vec![32, 32, 32, 32, 16], vec![32; 4], vec![32, 32, 32, 32, 16]]
    );
    // The last layer attends to what the second chose: four pools. The one between them has no attention.
    let spec = describe("glm5-next");
    let widths = (1..4).map(|cut| spec.boundary(cut).widths);
    let with_pools = vec![32, 32, 32, 32, 4];
    assert_eq!(widths.collect::<Vec<_>>(), [vec![32; 4], with_pools.clone(), with_pools]);
    // Twelve layers: two cycles of two passes through the low stack and one through the high one, two layers each. In
    // the last pass the other vector is not read any more.
    let spec = describe("hrm_text");
    let widths = (1..12).map(|cut| spec.boundary(cut).widths);
    assert_eq!(widths.collect::<Vec<_>>(), [vec![vec![32, 32]; 9], vec![vec![32, 0]; 2]].concat());
    let boundary = describe("graniteswitch").boundary(2);
    assert_eq!((boundary.widths, boundary.exact), (vec![32, 1], true));
}

/// A position leaves its key and a gate where an index pools keys.
fn only_layers_with_an_index_remember_its_keys() {
    let states = |model: &str| -> Vec<StateSpec> {
        describe(model).layers.iter().map(|layer| layer.blocks[0].kind.state()).collect()
    };
    let latent = |per_head, index| StateSpec::Paged { n_head: 1, per_head, index, window: None };
    let (with, without) = (latent([72, 0], 64), latent([72, 0], 0));
    assert_eq!(states("hy_v4"), [with, without, with, without]);
    let delta = StateSpec::Slot { conv: 3 * 3 * 32, scan: 2 * 16 * 16 };
    assert_eq!(states("glm5-next"), [delta, latent([64, 0], 2 * 64), delta, latent([64, 0], 0)]);
}

fn two_stages_give_the_same_bits_at_every_cut() {
    let prompt: Vec<u32> = (0..150).map(|i| 3 + i * i % 277).collect();
    let models = [
        "gemma4-small",
        "gemma3n",
        "hy_v4",
        "glm5-next",
        "deepseek4",
        "qwen4exp",
        "nanbeige",
        "hrm_text",
        "graniteswitch",
    ];
    for model in models {
        let logits = |cuts: Vec<usize>, n_ubatch: usize| -> Vec<u32> {
            let config = LineConfig { cuts, ..LineConfig::default() };
            let mut line = Line::open(&Golden::repository().named(model), &config);
            line.logits(&prompt, n_ubatch).into_iter().flatten().map(f32::to_bits).collect()
        };
        let whole = logits(Vec::new(), prompt.len());
        for cut in 1..describe(model).n_layer() {
            let n_ubatch = [1, 7, 64][cut % 3];
            assert!(logits(vec![cut], n_ubatch) == whole, "{model}: cut {cut}, ubatch {n_ubatch}");
        }
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        a_cut_carries_what_layers_behind_it_read,
        only_layers_with_an_index_remember_its_keys,
        two_stages_give_the_same_bits_at_every_cut;
];
