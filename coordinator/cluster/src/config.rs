//! The settings of a cluster: where its workers come from, what every stage is told, how patient it is.

use std::sync::Arc;

use std::time::Duration;

use brigade_plan::{Balance, Checkpoint, HandCut, Keep};
use brigade_proto::address::Address;
use brigade_proto::control::{KvType, WireType};
use brigade_proto::net::Network;

use crate::local::LocalOptions;
use crate::pki::Pki;

/// Where workers come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Children of this process.
    Local(Box<LocalOptions>),
    /// Workers that listen somewhere, in the line's order.
    Remote(Vec<Address>),
    /// Workers come only by joining.
    JoinOnly,
}

/// How to treat workers that cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Give up at once: the user of a command is waiting.
    FailFast,
    /// Try again with growing pauses, and build the line from the other workers where they suffice: a server.
    Forever,
}

/// Settings that every stage gets.
#[derive(Clone, Debug)]
pub struct StageOptions {
    /// Type of KV cache values.
    pub kv_type: KvType,
    /// Type of the activations that one stage sends to the next.
    pub wire_type: WireType,
    /// Positions a sequence may have; `None`: what the model was trained on, or what fits.
    pub ctx: Option<u32>,
    /// The shortest context that may be planned where `ctx` is `None`; `None`: the planner's smallest useful one.
    pub least_ctx: Option<u32>,
    /// Limit of sequences that run at once.
    pub max_seqs: u32,
    /// What is kept for later requests, besides sequences that run; `None`: what suits the model.
    pub keep: Option<Keep>,
    /// Whether layers with a window keep all positions, and not only those in the window.
    pub full_windows: bool,
    /// Whether the model's own blocks of drafts are loaded, where it has some and all workers know them.
    pub own_drafts: bool,
    /// Rows of the largest ubatch.
    pub max_rows: u32,
    /// Kernel table all stages must use.
    pub kernels: Option<String>,
    /// The goal for which cuts are balanced.
    pub balance: Balance,
    /// Where copies of sequences' states go.
    pub checkpoint: Checkpoint,
    /// Bytes that each other model of the fleet needs at least on a worker. Where `ctx` is `None`, room for them is left on nodes
    /// of several stages.
    pub others: Arc<[u64]>,
    /// Cuts by hand, instead of the planner's. Stages go to workers that are named, in that order, and then to others in the
    /// order in which they joined. While there are fewer workers than stages, no line is built. Workers beyond the stages are
    /// spare.
    pub cut: Option<HandCut>,
}

/// A command that brings a machine into the cluster, shown while workers are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinHint {
    /// A command that makes a token.
    Token(String),
    /// A command to type on the new machine.
    Join(String),
}

impl JoinHint {
    /// The command for so many machines.
    pub fn for_machines(&self, n: usize) -> String {
        match self {
            Self::Token(command) if n > 1 => format!("{command} --uses {n}"),
            Self::Token(command) | Self::Join(command) => command.clone(),
        }
    }
}

/// Settings of the supervisor.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Where workers come from.
    pub source: Source,
    /// The address at which more workers may join.
    pub control: Option<Address>,
    /// The number of workers that must be connected before the first line is placed, joined ones included.
    pub expect: usize,
    /// How this process speaks with workers.
    pub network: Network,
    /// The authority that admits workers; `None`: the cluster has none.
    pub pki: Option<Arc<Pki>>,
    /// The command shown while machines are missing; `None`: machines cannot join.
    pub how_to_join: Option<JoinHint>,
    /// How long workers that cannot be reached are waited for.
    pub patience: Patience,
    /// How long a worker that was lost is waited for before the others go on without it.
    pub replace_after: Duration,
    /// Whether layers are cut anew for workers that joined or became slower, where that pays.
    pub rebalance: bool,
    /// How long a worker must be slower than planned to lose layers.
    pub slow_after: Duration,
    /// Settings of every stage.
    pub stage: StageOptions,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_for_several_machines_is_one_with_as_many_uses() {
        let token = JoinHint::Token("brigade token create".to_owned());
        assert_eq!(token.for_machines(1), "brigade token create");
        assert_eq!(token.for_machines(3), "brigade token create --uses 3");
        let join = JoinHint::Join("brigade worker".to_owned());
        assert_eq!(join.for_machines(3), "brigade worker");
    }
}
