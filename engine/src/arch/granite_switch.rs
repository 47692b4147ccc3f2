//! `graniteswitch`: granite, dense, with adapters inside the file that tokens switch on ([`SwitchSpec`]). Before the first
//! layer's blocks stands one without weights, which finds the adapter of each row.

use super::granite;
use super::{
    Beside, BlockKind, BlockSpec, Hparams, ModelSpec, Skeleton, SwitchRouterSpec, SwitchSpec,
};
use crate::error::ModelError;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let mut spec = granite::describe_switched(hp)?;
    let switch = SwitchSpec::read(hp, spec.n_vocab)?;
    let router = SwitchRouterSpec { gain: switch.gain, n_places: switch.n_places };
    if let Some(first) = spec.layers.first_mut() {
        first.blocks.insert(0, BlockSpec::bare(BlockKind::Switch(router)));
    }
    let skeleton =
        Skeleton { beside: Beside::Adapters, switch: Some(switch), ..spec.skeleton.clone() };
    Ok(ModelSpec { skeleton, ..spec })
}
