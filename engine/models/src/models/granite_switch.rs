//! `graniteswitch`: granite, dense, with adapters inside the file that tokens switch on
//! ([`SwitchSpec`](brigade_spec::SwitchSpec)). Before the first layer's blocks stands one without weights, which finds the
//! adapter of each row.

use brigade_spec::{
    Beside, BlockKind, BlockSpec, ModelError, ModelSpec, Skeleton, SwitchRouterSpec,
};

use super::granite;
use crate::read::{Hparams, switch};

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let mut spec = granite::describe_switched(hp)?;
    let switch = switch::read(hp, spec.n_vocab)?;
    let router = SwitchRouterSpec { gain: switch.gain, n_places: switch.n_places };
    if let Some(first) = spec.layers.first_mut() {
        first.blocks.insert(0, BlockSpec::bare(BlockKind::Switch(router)));
    }
    let skeleton =
        Skeleton { beside: Beside::Adapters, switch: Some(switch), ..spec.skeleton.clone() };
    Ok(ModelSpec { skeleton, ..spec })
}
