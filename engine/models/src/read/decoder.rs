//! Readers for the files of plain decoders. A layer is one attention and one FFN, each behind a norm. The metadata keys
//! that give their sizes are read here. A model's differences stand in its own file.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, BlockSpec, LayerSpec, MaskSpec, MlpSpec, ModelError,
    ModelSpec, MoeSpec, NormSpec, Residual, RopeSpec, Rotation, Router, SharedExpertSpec,
};

use super::attention::attention_spec;
use super::hparams::Hparams;
use super::{experts, model, rope};
use brigade_shapes::{RopeLayout, Window};

/// The norm before attention.
pub(crate) const ATTN_NORM: &str = "attn_norm.weight";
/// The norm before the FFN.
pub(crate) const FFN_NORM: &str = "ffn_norm.weight";
/// Name of a norm that is either that of attention's output or the one before the FFN. The model's other norms tell
/// which.
pub(crate) const POST_ATTENTION_NORM: &str = "post_attention_norm.weight";
/// The norm of the FFN's output.
pub(crate) const POST_FFN_NORM: &str = "post_ffw_norm.weight";

/// A model of the layers that `layer` gives, rotated by `rope` where there is one.
pub(crate) fn model(
    hp: &Hparams<'_>,
    eps: f32,
    rope: impl Into<Option<RopeSpec>>,
    layer: impl Fn(usize) -> Result<LayerSpec, ModelError>,
) -> Result<ModelSpec, ModelError> {
    let layers = (0..hp.n_layer()).map(layer).collect::<Result<_, _>>()?;
    Ok(ModelSpec { rope: rope.into(), ..model::usual(hp, layers, eps)? })
}

/// Attention, then an FFN behind the norm `ffn_norm`.
pub(crate) fn layer(
    eps: f32,
    attention: AttentionSpec,
    ffn_norm: &'static str,
    ffn: BlockKind,
) -> LayerSpec {
    let attention = BlockSpec::new(ATTN_NORM, eps, BlockKind::Attention(attention));
    LayerSpec { blocks: vec![attention, BlockSpec::new(ffn_norm, eps, ffn)] }
}

/// As [`layer`], with norms of the outputs of attention and FFN; before them stand those of `before`.
pub(crate) fn layer_with_post_norms(
    eps: f32,
    before: [Option<&'static str>; 2],
    attention: AttentionSpec,
    ffn: BlockKind,
    after: [&'static str; 2],
) -> LayerSpec {
    let norm = |weight| NormSpec { weight, eps };
    let block = |i: usize, kind| BlockSpec {
        norm: before[i].map(norm),
        post_norm: Some(norm(after[i])),
        ..BlockSpec::bare(kind)
    };
    LayerSpec { blocks: vec![block(0, BlockKind::Attention(attention)), block(1, ffn)] }
}

/// Sums to which a block's output is added times `output`.
pub(crate) fn scaled_output(output: f32) -> Residual {
    Residual::Scaled { output, stream: 1.0 }
}

/// The model's rotation, of whole heads or of their beginnings.
pub(crate) fn rope(hp: &Hparams<'_>, layout: RopeLayout) -> Result<RopeSpec, ModelError> {
    rope_with(hp, layout, false)
}

/// As [`rope`], with the tensors of factors that the file has.
pub(crate) fn rope_with_factors(
    hp: &Hparams<'_>,
    layout: RopeLayout,
) -> Result<RopeSpec, ModelError> {
    rope_with(hp, layout, true)
}

/// The rotation of whole heads by the usual base, for models that know no other.
///
/// # Errors
/// The file has another base, or stretches the rotation.
pub(crate) fn plain_rope(hp: &Hparams<'_>, layout: RopeLayout) -> Result<RopeSpec, ModelError> {
    const USUAL_BASE: f32 = 10_000.0;
    let n_head = hp.need_per_layer("attention.head_count")?.into_iter().max().unwrap_or(0);
    let (head_dim, _) = hp.head_dims(n_head)?;
    if hp.f32("rope.freq_base")?.is_some_and(|base| base != USUAL_BASE) {
        return Err(hp.bad("rope.freq_base", &format!("must be {USUAL_BASE} in {}", hp.arch())));
    }
    if hp.f32("rope.scaling.factor")?.is_some_and(|factor| ![0.0, 1.0].contains(&factor)) {
        let problem = format!("the rotation of {} is not stretched", hp.arch());
        return Err(hp.bad("rope.scaling.factor", &problem));
    }
    if !head_dim.is_multiple_of(2) {
        return Err(hp.bad("attention.key_length", &format!("is {head_dim}; it must be even")));
    }
    Ok(RopeSpec::plain(layout, head_dim, USUAL_BASE))
}

fn rope_with(hp: &Hparams<'_>, layout: RopeLayout, factors: bool) -> Result<RopeSpec, ModelError> {
    let n_head = hp.need_per_layer("attention.head_count")?.into_iter().max().unwrap_or(0);
    let (head_dim, _) = hp.head_dims(n_head)?;
    rope::read(hp, layout, head_dim, factors)
}

/// `rope` with as many rotated values as `rope.dimension_count_swa` says, where the file has the key.
pub(crate) fn local_width(hp: &Hparams<'_>, rope: RopeSpec) -> Result<RopeSpec, ModelError> {
    const KEY: &str = "rope.dimension_count_swa";
    let Some(n_rot) = hp.u32(KEY)?.map(|n| n as usize) else { return Ok(rope) };
    let n_head = hp.need_per_layer("attention.head_count")?.into_iter().max().unwrap_or(0);
    let (head_dim, _) = hp.head_dims(n_head)?;
    if !n_rot.is_multiple_of(2) || n_rot == 0 || n_rot > head_dim {
        let problem = format!("is {n_rot}; it must be even and at most the head's {head_dim}");
        return Err(hp.bad(KEY, &problem));
    }
    Ok(RopeSpec { n_rot, ..rope })
}

/// `rope` without what stretches it over longer contexts.
pub(crate) fn unscaled(rope: &RopeSpec) -> RopeSpec {
    RopeSpec { freq_scale: 1.0, attn_factor: 1.0, yarn: None, ..rope.clone() }
}

/// The heads of layer `il`, rotated by the model's rotation.
pub(crate) fn attention(hp: &Hparams<'_>, il: usize) -> Result<AttentionSpec, ModelError> {
    Ok(AttentionSpec { rotation: Rotation::Model, ..attention_spec(hp, il)? })
}

/// The width of layer `il`'s dense FFN.
pub(crate) fn n_ff(hp: &Hparams<'_>, il: usize) -> Result<usize, ModelError> {
    match hp.need_per_layer("feed_forward_length")?[il] {
        0 => Err(hp.bad("feed_forward_length", "must be positive")),
        n_ff => Ok(n_ff),
    }
}

/// The dense FFN of layer `il`.
pub(crate) fn dense(
    hp: &Hparams<'_>,
    il: usize,
    activation: Activation,
) -> Result<BlockKind, ModelError> {
    Ok(BlockKind::Mlp(MlpSpec::new(n_ff(hp, il)?, activation)))
}

/// Layers before the first with experts.
pub(crate) fn n_dense(hp: &Hparams<'_>) -> Result<usize, ModelError> {
    Ok(hp.u32("leading_dense_block_count")?.unwrap_or(0) as usize)
}

/// The experts of layer `il` as DeepSeek's models have them. Router, norm and scale are as the keys say, and
/// a bias takes part in the choice where the file has one. There are `expert_shared_count` shared experts,
/// each as wide as `shared` or, without it, as the others.
pub(crate) fn deepseek_experts(
    hp: &Hparams<'_>,
    il: usize,
    router: Router,
    shared: Option<usize>,
) -> Result<MoeSpec, ModelError> {
    let experts = experts::read(hp, il, |n_used| n_ff(hp, il).unwrap_or(0) / n_used)?;
    let n_shared = hp.u32("expert_shared_count")?.unwrap_or(0) as usize;
    let n_ff = n_shared * shared.unwrap_or(experts.n_ff);
    Ok(MoeSpec {
        router: hp.expert_router()?.unwrap_or(router),
        selection_bias: experts::has_selection_bias(hp, il),
        norm_weights: hp.bool("expert_weights_norm")?.unwrap_or(false),
        weights_scale: hp.expert_weights_scale()?,
        shared: (n_ff > 0).then(|| SharedExpertSpec::new(n_ff, Activation::SwiGlu)),
        ..experts
    })
}

/// As [`deepseek_experts`], with one shared expert. It is as wide as `expert_shared_feed_forward_length` says or,
/// without that, as the others.
pub(crate) fn experts_beside_one(
    hp: &Hparams<'_>,
    il: usize,
    router: Router,
) -> Result<MoeSpec, ModelError> {
    let experts = deepseek_experts(hp, il, router, None)?;
    let n_shared = match hp.u32("expert_shared_feed_forward_length")?.unwrap_or(0) {
        0 => experts.n_ff,
        n => n as usize,
    };
    let shared = Some(SharedExpertSpec::new(n_shared, Activation::SwiGlu));
    Ok(MoeSpec { shared, ..experts })
}

/// A layer's FFN: `experts` where the file has a router for it, else a dense one.
pub(crate) fn experts_or_dense(
    hp: &Hparams<'_>,
    il: usize,
    experts: impl FnOnce() -> Result<MoeSpec, ModelError>,
) -> Result<BlockKind, ModelError> {
    if hp.has_tensor(&format!("blk.{il}.ffn_gate_inp.weight")) {
        Ok(BlockKind::Moe(experts()?))
    } else {
        dense(hp, il, Activation::SwiGlu)
    }
}

/// Sliding windows: which layers have one, how long it is, and the rotation in them.
pub(crate) struct Windows {
    layers: Vec<bool>,
    window: Option<u32>,
    /// The rotation of windowed layers, where it is another than the model's.
    pub local_rope: Option<RopeSpec>,
}

impl Windows {
    /// Reads the keys: windows in the first `period - 1` layers of each `period`, where the file does not say
    /// which; `local` rotates in them, with `rope.freq_base_swa` where the file has it.
    pub(crate) fn read(
        hp: &Hparams<'_>,
        window: Option<u32>,
        period: u32,
        rope: &RopeSpec,
        local: RopeSpec,
    ) -> Result<Self, ModelError> {
        Self::of_layers(hp, hp.windowed_layers(period)?, window, rope, local)
    }

    /// As [`Windows::read`], in the `layers` that the list says.
    pub(crate) fn of_layers(
        hp: &Hparams<'_>,
        layers: Vec<bool>,
        window: Option<u32>,
        rope: &RopeSpec,
        local: RopeSpec,
    ) -> Result<Self, ModelError> {
        let freq_base = hp.f32("rope.freq_base_swa")?.unwrap_or(local.freq_base);
        let local = RopeSpec { freq_base, ..local };
        let other = window.is_some() && local != *rope;
        Ok(Self { layers, window, local_rope: other.then_some(local) })
    }

    /// Whether layer `il` has a window.
    pub(crate) fn has(&self, il: usize) -> bool {
        self.window_of(il).is_some()
    }

    /// Refuses another rotation of layers with windows, for models in which one base serves all layers.
    pub(crate) fn one_base(&self, hp: &Hparams<'_>) -> Result<(), ModelError> {
        match &self.local_rope {
            Some(_) => {
                let problem = format!("{} rotates by rope.freq_base alone", hp.arch());
                Err(hp.bad("rope.freq_base_swa", &problem))
            }
            None => Ok(()),
        }
    }

    /// The window of layer `il`.
    pub(crate) fn window_of(&self, il: usize) -> Option<Window> {
        // Blocks behind the layers have none unless they are listed.
        let has = self.layers.get(il).copied().unwrap_or(false);
        self.window.filter(|_| has).map(Window::Sliding)
    }

    /// Rotation of layer `il`, in a model that rotates only its layers with windows.
    pub(crate) fn rotation(&self, il: usize) -> Rotation {
        if self.has(il) { Rotation::Model } else { Rotation::None }
    }

    /// `attention` with the window and the rotation of layer `il`.
    pub(crate) fn apply(&self, il: usize, attention: AttentionSpec) -> AttentionSpec {
        let Some(window) = self.window_of(il) else { return attention };
        let rotation = match (&self.local_rope, attention.rotation) {
            (Some(_), Rotation::Model) => Rotation::Local,
            (_, rotation) => rotation,
        };
        let mask = MaskSpec { window: Some(window), ..attention.mask };
        AttentionSpec { mask, rotation, ..attention }
    }
}

impl Hparams<'_> {
    /// Epsilon of RMS norms, `attention.layer_norm_rms_epsilon`.
    pub(crate) fn rms_eps(&self) -> Result<f32, ModelError> {
        Ok(self.need_f32("attention.layer_norm_rms_epsilon")?)
    }

    /// Epsilon of LayerNorms, `attention.layer_norm_epsilon`.
    pub(crate) fn layer_norm_eps(&self) -> Result<f32, ModelError> {
        Ok(self.need_f32("attention.layer_norm_epsilon")?)
    }
}
