//! `grovemoe`: qwen3moe's block, with an adjugate expert for each group of experts. (arXiv 2508.07785.)

use brigade_spec::{
    AdjugateSpec, AttentionSpec, BlockKind, ModelError, ModelSpec, MoeSpec, QkNorm,
};

use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder, experts};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let attention = AttentionSpec {
            qk_norm: Some(QkNorm::heads(eps)),
            output_bias: false,
            ..decoder::attention(hp, il)?
        };
        let experts = experts::read(hp, il, |_| 0)?;
        let adjugates = Some(adjugates(hp, experts.n_expert)?);
        let experts = MoeSpec { adjugates, ..experts };
        Ok(decoder::layer(eps, attention, FFN_NORM, BlockKind::Moe(experts)))
    };
    decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)
}

fn adjugates(hp: &Hparams<'_>, n_expert: usize) -> Result<AdjugateSpec, ModelError> {
    const GROUP: &str = "experts_per_group";
    const WIDTH: &str = "expert_chunk_feed_forward_length";
    let per_group = hp.need_u32(GROUP)? as usize;
    if per_group == 0 || !n_expert.is_multiple_of(per_group) {
        let problem = format!(
            "groups of {per_group} do not divide {n_expert} experts: convert the model again from its source"
        );
        return Err(hp.bad(GROUP, &problem));
    }
    let n_ff = hp.need_u32(WIDTH)? as usize;
    if n_ff == 0 {
        return Err(hp.bad(WIDTH, "must be positive: convert the model again from its source"));
    }
    Ok(AdjugateSpec { per_group, n_ff, scale: hp.need_f32("expert_group_scale")? })
}

#[cfg(test)]
mod tests {
    use crate::headers::refusal;

    #[test]
    fn groups_that_do_not_fit_and_missing_widths_are_refused() {
        let uneven = (3, "do not divide 8 experts");
        let without_width = (2, "expert_chunk_feed_forward_length");
        for (per_group, wanted) in [uneven, without_width] {
            let counts = [
                ("block_count", 4),
                ("context_length", 128),
                ("embedding_length", 32),
                ("attention.head_count", 2),
                ("expert_count", 8),
                ("expert_used_count", 3),
                ("expert_feed_forward_length", 16),
                ("experts_per_group", per_group),
            ];
            let epsilon = ("attention.layer_norm_rms_epsilon", 1e-5);
            let message = refusal("grovemoe", &counts, &[epsilon]);
            assert!(message.contains(wanted), "{message}");
        }
    }
}
