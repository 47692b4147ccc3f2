//! `kimi-k3`: Kimi Linear's mixers with bounded decays and gates, bounded FFNs, and experts that work in a
//! narrower space than the hidden rows.
//!
//! Its residual connections are attention over depth. At fixed intervals a layer's input rows are kept. Every
//! later layer reads a weighted mixture of the rows kept so far. They therefore cross every cut behind them,
//! beside the hidden rows.

use brigade_gguf::GgufError;
use brigade_spec::{
    Activation, BlockKind, BlockSpec, DepthSpec, HeadReads, HeadSpec, KdaGates, KdaSpec,
    LatentSpec, LayerSpec, MlaGate, MlaSpec, MlpSpec, ModelError, ModelSpec, MoeSpec, OUTPUT,
    Residual, SharedExpertSpec, Skeleton, Streams,
};

use crate::read::decoder::{ATTN_NORM, FFN_NORM};
use crate::read::{Hparams, experts, mla, model};
use brigade_shapes::GateBounds;

/// Score vectors of a layer's mixer, of its FFN, and of the head.
const MIXER_SCORE: &str = "attn_res_score.weight";
const FFN_SCORE: &str = "ffn_res_score.weight";
const HEAD_SCORE: &str = "output_res_score.weight";

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.need_f32("attention.layer_norm_rms_epsilon")?;
    if !hp.has_tensor(OUTPUT) {
        return Err(GgufError::MissingTensor { name: OUTPUT.to_owned() }.into());
    }
    let n_head = hp.need_per_layer("attention.head_count")?;
    if n_head.iter().any(|n| *n != n_head[0]) {
        return Err(hp.bad("attention.head_count", "must be the same in all layers"));
    }
    let activation = bounded_gate(hp)?;
    let streams = streams(hp)?;
    let n_kv_head = hp.need_per_layer("attention.head_count_kv")?;
    let n_dense = hp.u32("leading_dense_block_count")?.unwrap_or(0) as usize;
    let mut layers = Vec::with_capacity(hp.n_layer());
    for (il, n_kv_head) in n_kv_head.into_iter().enumerate().take(hp.n_layer()) {
        let mixer = match n_kv_head {
            0 => BlockKind::Kda(kda(hp, n_head[il], eps)?),
            _ => BlockKind::Mla(latent_attention(hp, il, eps)?),
        };
        let ffn =
            if il < n_dense { dense(hp, il, activation)? } else { moe(hp, il, activation, eps)? };
        let block =
            |norm, residual, kind| BlockSpec { residual, ..BlockSpec::new(norm, eps, kind) };
        let of_mixer = residual(streams, eps, MIXER_SCORE, streams.keeps(il));
        let of_ffn = residual(streams, eps, FFN_SCORE, false);
        layers.push(LayerSpec {
            blocks: vec![block(ATTN_NORM, of_mixer, mixer), block(FFN_NORM, of_ffn, ffn)],
        });
    }
    let reads = match streams {
        Streams::Kept { .. } => HeadReads::OverDepth(DepthSpec { score: HEAD_SCORE, eps }),
        _ => HeadReads::Stream,
    };
    Ok(ModelSpec {
        skeleton: Skeleton { streams, ..Skeleton::default() },
        head: HeadSpec { reads, ..HeadSpec::usual(eps) },
        ..model::usual(hp, layers, eps)?
    })
}

/// `attn_res.block_size`, where 0 means plain sums.
fn streams(hp: &Hparams<'_>) -> Result<Streams, ModelError> {
    Ok(match hp.need_u32("attn_res.block_size")? as usize {
        0 => Streams::One,
        every => Streams::Kept { every },
    })
}

/// Residual of a block whose tensor of scores is `score`.
fn residual(streams: Streams, eps: f32, score: &'static str, keeps: bool) -> Residual {
    match streams {
        Streams::Kept { .. } => Residual::OverDepth { mixture: DepthSpec { score, eps }, keeps },
        _ => Residual::Plain,
    }
}

/// The activation of all FFNs; a second bound that is not positive is none.
fn bounded_gate(hp: &Hparams<'_>) -> Result<Activation, ModelError> {
    let gate = hp.need_f32("activation.situ_beta")?;
    let linear = hp.need_f32("activation.situ_linear_beta")?;
    if !(gate.is_finite() && gate > 0.0) {
        return Err(hp.bad("activation.situ_beta", &format!("is {gate}, must be positive")));
    }
    if !linear.is_finite() {
        return Err(hp.bad("activation.situ_linear_beta", &format!("is {linear}")));
    }
    Ok(Activation::BoundedSilu(GateBounds { gate, linear: (linear > 0.0).then_some(linear) }))
}

pub(super) fn kda(hp: &Hparams<'_>, n_head: usize, eps: f32) -> Result<KdaSpec, ModelError> {
    let head_dim = hp.need_u32("kda.head_dim")? as usize;
    if n_head == 0 || head_dim == 0 {
        return Err(hp.bad("kda.head_dim", "there must be heads, and none may be empty"));
    }
    let bound = hp.f32("kda.gate_lower_bound")?.filter(|bound| *bound != f32::NEG_INFINITY);
    if let Some(bound) = bound.filter(|bound| bound.is_nan() || *bound >= 0.0) {
        return Err(hp.bad("kda.gate_lower_bound", &format!("is {bound}, must be below 0")));
    }
    Ok(KdaSpec {
        n_head,
        head_dim,
        conv_taps: hp.conv_taps("ssm.conv_kernel")?,
        eps,
        unit_eps: eps,
        decay_bound: bound,
        gates: KdaGates::FullOutput,
    })
}

fn latent_attention(hp: &Hparams<'_>, il: usize, eps: f32) -> Result<MlaSpec, ModelError> {
    let is_gated = hp.has_tensor(&format!("blk.{il}.attn_gate.weight"));
    let gate = is_gated.then_some(MlaGate::EachValue);
    Ok(MlaSpec { gate, ..mla::read(hp, il, eps)? })
}

fn dense(hp: &Hparams<'_>, il: usize, activation: Activation) -> Result<BlockKind, ModelError> {
    let n_ff = hp.need_per_layer("feed_forward_length")?[il];
    if n_ff == 0 {
        return Err(hp.bad("feed_forward_length", "must be positive"));
    }
    Ok(BlockKind::Mlp(MlpSpec::new(n_ff, activation)))
}

/// Experts behind a router that reads the model's width, as does the shared expert where there is one.
fn moe(
    hp: &Hparams<'_>,
    il: usize,
    activation: Activation,
    eps: f32,
) -> Result<BlockKind, ModelError> {
    let experts = experts::read(hp, il, |_| 0)?;
    let Some(router) = hp.expert_router()? else {
        return Err(hp.bad("expert_gating_func", "must be present"));
    };
    let has = |part: &str| hp.has_tensor(&format!("blk.{il}.ffn_{part}.weight"));
    let latent = hp.u32("expert_latent_length")?.filter(|&width| width > 0).map(|width| {
        let norm_eps = has("routed_norm").then_some(eps);
        LatentSpec { width: width as usize, stem: "routed", norm_eps }
    });
    let n_shared = hp.need_u32("expert_shared_count")?.max(1) as usize;
    let shared = SharedExpertSpec::new(n_shared * experts.n_ff, activation);
    Ok(BlockKind::Moe(MoeSpec {
        activation,
        router,
        selection_bias: true,
        norm_weights: hp.bool("expert_weights_norm")?.unwrap_or(false),
        weights_scale: hp.expert_weights_scale()?,
        latent,
        shared: has("gate_shexp").then_some(shared),
        ..experts
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use brigade_gguf::{Gguf, GgufWriter};
    use brigade_quant::GgmlType;
    use brigade_spec::TOKEN_EMBD;

    /// One KDA layer with experts, with one number of the metadata replaced.
    fn describe_with(key: &str, value: f32) -> Result<ModelSpec, ModelError> {
        let counts = [
            ("block_count", 1),
            ("embedding_length", 16),
            ("context_length", 64),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 0),
            ("ssm.conv_kernel", 4),
            ("kda.head_dim", 8),
            ("expert_count", 4),
            ("expert_used_count", 2),
            ("expert_feed_forward_length", 8),
            ("expert_shared_count", 1),
            ("expert_latent_length", 8),
            ("expert_gating_func", 2),
            ("attn_res.block_size", 3),
        ];
        let numbers = [
            ("attention.layer_norm_rms_epsilon", 1e-5),
            ("kda.gate_lower_bound", -5.0),
            ("activation.situ_beta", 4.0),
            ("activation.situ_linear_beta", 25.0),
        ];
        let mut writer = GgufWriter::new();
        writer.set("general.architecture", "kimi-k3").unwrap();
        for (name, count) in counts {
            let count = if name == key { value as u32 } else { count };
            writer.set(&format!("kimi-k3.{name}"), &count).unwrap();
        }
        for (name, number) in numbers {
            let number = if name == key { value } else { number };
            writer.set(&format!("kimi-k3.{name}"), &number).unwrap();
        }
        for name in [TOKEN_EMBD, OUTPUT] {
            writer.tensor(name, GgmlType::F32, &[16, 8]).unwrap();
        }
        let mut stream = writer.start(Vec::new()).unwrap();
        for _ in 0..2 {
            stream.write(&[0; 4 * 16 * 8]).unwrap();
        }
        let bytes = Arc::from(stream.finish().unwrap());
        crate::describe(&Gguf::from_bytes(bytes, "test").unwrap())
    }

    #[test]
    fn keys_say_what_a_layer_is_made_of() {
        let spec = describe_with("", 0.0).unwrap();
        let [mixer, ffn] = &spec.layers[0].blocks[..] else { panic!("{:?}", spec.layers) };
        let BlockKind::Kda(kda) = &mixer.kind else { panic!("{mixer:?}") };
        assert_eq!((kda.decay_bound, kda.gates), (Some(-5.0), KdaGates::FullOutput));
        let BlockKind::Moe(moe) = &ffn.kind else { panic!("{ffn:?}") };
        assert_eq!(moe.latent, Some(LatentSpec { width: 8, stem: "routed", norm_eps: None }));
        assert_eq!((moe.norm_weights, moe.weights_scale, &moe.shared), (false, 1.0, &None));
        let bounds = GateBounds { gate: 4.0, linear: Some(25.0) };
        assert_eq!(moe.activation, Activation::BoundedSilu(bounds));
    }

    #[test]
    fn parts_are_switched_off_by_their_keys() {
        let spec = describe_with("attn_res.block_size", 0.0).unwrap();
        assert_eq!(spec.skeleton.streams, Streams::One);
        assert!(spec.layers[0].blocks.iter().all(|block| block.residual == Residual::Plain));
        let activation = |spec: ModelSpec| match &spec.layers[0].blocks[1].kind {
            BlockKind::Moe(moe) => moe.activation,
            other => panic!("{other:?}"),
        };
        let spec = describe_with("activation.situ_linear_beta", 0.0).unwrap();
        let bounds = GateBounds { gate: 4.0, linear: None };
        assert_eq!(activation(spec), Activation::BoundedSilu(bounds));
        let spec = describe_with("kda.gate_lower_bound", f32::NEG_INFINITY).unwrap();
        let BlockKind::Kda(kda) = &spec.layers[0].blocks[0].kind else { panic!("no mixer") };
        assert_eq!(kda.decay_bound, None);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_key() {
        for (key, value) in [
            ("activation.situ_beta", 0.0),
            ("activation.situ_linear_beta", f32::INFINITY),
            ("kda.gate_lower_bound", 0.5),
            ("kda.gate_lower_bound", f32::NAN),
            ("kda.head_dim", 0.0),
            ("expert_gating_func", 0.0),
            ("expert_used_count", 5.0),
        ] {
            let message = describe_with(key, value).unwrap_err().to_string();
            assert!(message.contains(key), "{message}");
        }
    }
}
