//! Loads ahead of a planned change: while the line runs, its workers and spares get what the next line needs of them.
//!
//! A spare loads its stage as for any line, in an epoch of its own. A worker that computes loads what it lacks beside
//! its stage, where it can ([`Feature::LoadAhead`]) and has the memory. Weights that could not be loaded ahead are
//! loaded when the line has stopped, as without this.

use std::ops::Range;
use std::sync::Arc;

use brigade_plan::HandCut;
use brigade_proto::control::{Feature, LoadRequest};
use tokio::task::JoinSet;

use crate::building::load;
use crate::building::place::{self, PlaceError, Placement};
use crate::config::StageOptions;
use crate::members::conn::Conn;
use crate::members::facts;
use crate::members::placed_stage::Identity;
use crate::progress::{Phase, Progress};
use crate::reconcile::MemberId;
use crate::weights::prepare::{StageOrder, prepare};
use brigade_line::model::Model;

/// A line that was ordered: it is built once, while all of its members are there.
#[derive(Clone, Debug)]
pub struct Ordered {
    /// Members, first stage first.
    pub who: Vec<MemberId>,
    /// Place of the cut.
    pub cut: HandCut,
}

/// The next line to load ahead, and the line that runs beside it.
#[derive(Debug)]
pub struct Order {
    /// The workers of the next line, in its order; those that the plan needs.
    pub conns: Vec<(MemberId, Conn)>,
    /// The model to load.
    pub model: Arc<Model>,
    /// Settings of every stage of the next line.
    pub options: StageOptions,
    /// The line that runs: its members and their layers.
    pub running: Vec<(MemberId, Range<usize>)>,
    /// Epoch of the line that runs.
    pub running_epoch: u64,
    /// All workers that are there, which may have weights.
    pub holders: Vec<Conn>,
    /// Epoch of spares that load, above that one.
    pub identity: Identity,
}

/// The result of loading ahead.
#[derive(Debug)]
pub struct Ahead {
    /// The next line, as it was planned.
    pub line: Ordered,
    /// Bytes of weights that were read.
    pub read_bytes: u64,
    /// Keeps the spares ours until the line is built.
    pub placement: Placement,
}

/// Plans the next line and loads what it needs.
///
/// # Errors
/// The workers do not suffice.
pub async fn load(order: Order) -> Result<Ahead, PlaceError> {
    let Order { conns, model, options, running, running_epoch, holders, identity } = order;
    let placement = place::placed(&model, conns, &options, identity).await?;
    let progress = Progress::beside_a_line();
    let mut loading = JoinSet::new();
    for mut order in place::orders(&model, &placement, &options, &holders)? {
        let layers = &order.stage.layers;
        let on_line = running.iter().find(|(member, _)| *member == order.stage.member);
        if let Some((_, has)) = on_line {
            let lacks = layers.start < has.start || has.end < layers.end;
            let can = facts::knows(order.stage.conn.capabilities(), Feature::LoadAhead);
            if !lacks || !can {
                continue;
            }
            order.ahead = true;
            order.request.epoch = running_epoch;
        }
        loading.spawn(one(model.clone(), order, progress.clone()));
    }
    let mut read_bytes = 0;
    while let Some(loaded) = loading.join_next().await {
        // A task that was ended early, with this one.
        read_bytes += loaded.unwrap_or(0);
    }
    let who = placement.stages.iter().map(|stage| stage.member).collect();
    let borders = placement.stages.iter().skip(1).map(|stage| stage.layers.start).collect();
    Ok(Ahead { line: Ordered { who, cut: HandCut::Borders(borders) }, read_bytes, placement })
}

/// Prepares and loads a stage; returns the bytes that were read. A failure is no error here: the load is done later.
async fn one(model: Arc<Model>, order: StageOrder, progress: Progress) -> u64 {
    let (conn, ahead) = (order.stage.conn.clone(), order.ahead);
    let (epoch, coordinator_id) = (order.request.epoch, order.request.coordinator_id.clone());
    let part = progress.part(Phase::Loading, order.stage.weight_bytes);
    if let Err(why) = prepare(model, order, progress).await {
        tracing::info!(worker = conn.name(), %why, "it does not load the next line's layers ahead");
        return 0;
    }
    let request = LoadRequest { epoch, coordinator_id };
    match load::load_stage(&conn, request, ahead, part).await {
        Ok(facts) => facts.read_bytes,
        Err(why) => {
            tracing::info!(worker = conn.name(), %why, "it does not load the next line's layers ahead");
            0
        }
    }
}
