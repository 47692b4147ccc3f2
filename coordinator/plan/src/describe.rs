//! Turns a placement into a [`Plan`]: figures for each stage, and the reasons in words.

use std::ops::Range;

use super::cost::Costs;
use super::facts::{HostExperts, SequenceBytes, WorkerFacts};
use super::kept_weights;
use super::place::Placement;
use super::units::format_bytes;
use super::{Plan, StagePlan};

/// A stage within this of the slowest one counts as equally slow.
const AS_SLOW: f64 = 0.999;

/// Figures and reasons of a placement.
pub(super) fn describe(costs: &Costs, placement: Placement) -> Plan {
    let used: Vec<(usize, Range<usize>)> = placement
        .order
        .iter()
        .copied()
        .zip(placement.ranges.iter().cloned())
        .filter(|(_, range)| !range.is_empty())
        .collect();
    let unit = |(worker, range): &(usize, Range<usize>)| {
        costs.time(*worker, range, placement.capacity).unit_us(costs.settings)
    };
    let slowest = used.iter().map(unit).fold(0.0, f64::max);
    let stages: Vec<StagePlan> = used
        .iter()
        .map(|stage| stage_plan(costs, &placement, stage.0, &stage.1, unit(stage) / slowest))
        .collect();
    let mut unused: Vec<usize> = (0..costs.workers.len()).collect();
    unused.retain(|worker| stages.iter().all(|stage| stage.worker != *worker));
    let mut notes = notes(costs, &placement, &unused);
    notes.extend(kept_weights::note(costs, &used));
    notes.extend(costs.model.passes());
    Plan {
        model: costs.model.name.clone(),
        stages,
        unused,
        capacity: placement.capacity,
        sequence: SequenceBytes::of(&costs.model.layers, costs.settings.windows),
        wished_blocks: placement.wished_blocks,
        settings: *costs.settings,
        by_hand: placement.by_hand,
        notes,
    }
}

fn stage_plan(
    costs: &Costs,
    placement: &Placement,
    worker: usize,
    range: &Range<usize>,
    share: f64,
) -> StagePlan {
    let facts = &costs.workers[worker];
    let memory = costs.memory_on(worker, range, placement.capacity);
    let host_layers = costs.host_layers(worker, range, placement.capacity);
    let host = facts.host.and_then(|host| host.memory);
    let head = range.end == costs.n_layers();
    let mut stage = StagePlan {
        worker,
        name: facts.name.clone(),
        layers: range.clone(),
        embedding: range.start == 0,
        head,
        memory,
        stored: costs.stored(range),
        sequence: SequenceBytes::of(&costs.model.layers[range.clone()], costs.settings.windows),
        memory_left: facts.memory.saturating_sub(match host {
            None => memory.total(),
            Some(_) => memory.of_device(),
        }),
        host_layers,
        host_left: host.map(|host| host.saturating_sub(memory.of_host())),
        time: costs.time(worker, range, placement.capacity),
        ops_per_row: costs.model.layers[range.clone()].iter().map(|l| l.ops()).sum(),
        cut_bytes: if head { 0 } else { costs.model.cut_bytes[range.end] },
        share,
        reasons: Vec::new(),
    };
    stage.reasons = reasons(costs, placement, &stage);
    stage
}

fn reasons(costs: &Costs, placement: &Placement, stage: &StagePlan) -> Vec<String> {
    let mut reasons = Vec::new();
    let range = &stage.layers;
    if stage.share >= AS_SLOW {
        reasons.push("the slowest stage: it sets the pace".to_owned());
    } else if range.end < costs.n_layers() {
        let longer = range.start..range.end + 1;
        if let Some((needs, has)) = costs.lacks(stage.worker, &longer, placement.capacity) {
            let lacks = format_bytes(needs - has);
            reasons.push(format!("its memory limits it: one layer more lacks {lacks}"));
        }
    }
    let time = &stage.time;
    if stage.head {
        let head = costs.head_us(stage.worker);
        let layers = (time.decode_us - head) / range.len() as f64;
        reasons.push(format!("the head costs as much as {:.2} layers in decode", head / layers));
    }
    reasons.extend(beside_reason(costs.workers, stage));
    if time.sending_us(costs.settings) > time.computing_us(costs.settings) {
        reasons.push("its link is slower than its computing".to_owned());
    }
    reasons.extend(cut_reason(&costs.model.cut_bytes, range.end));
    reasons
}

/// The reason why experts lie with the host beside a GPU, with their number.
fn beside_reason(workers: &[WorkerFacts], stage: &StagePlan) -> Option<String> {
    let host = workers[stage.worker].host?;
    let memory = &stage.memory;
    if memory.host_experts == 0 {
        return None;
    }
    let layers = &stage.host_layers;
    let bytes = [memory.host_experts, memory.of_device()].map(format_bytes);
    let why = match host.experts {
        HostExperts::Auto => "they do not fit on the GPU",
        HostExperts::All | HostExperts::Layers(_) => "as ordered",
    };
    Some(format!(
        "experts of layers {}..{} lie in the host's memory and are computed there ({why}): {}; all else is the GPU's: {}",
        layers.start, layers.end, bytes[0], bytes[1]
    ))
}

/// The bytes that cross the cut before layer `cut`, where they depend on the cut.
fn cut_reason(cut_bytes: &[u64], cut: usize) -> Option<String> {
    let bytes = *cut_bytes.get(cut)?;
    if cut_bytes[1..].iter().all(|other| *other == bytes) {
        return None;
    }
    let row = format!("a row sends {} over the cut before layer {cut}", format_bytes(bytes));
    let larger = (cut..).zip(&cut_bytes[cut..]).find(|(_, other)| **other > bytes);
    Some(match larger {
        Some((at, more)) => {
            format!("{row}; from layer {at} on it would be {}", format_bytes(*more))
        }
        None => row,
    })
}

fn notes(costs: &Costs, placement: &Placement, unused: &[usize]) -> Vec<String> {
    let mut notes = Vec::new();
    let settings = costs.settings;
    if let Some(cut) = &placement.by_hand {
        notes.push(format!("cut as ordered: {cut}"));
    }
    if !placement.order.is_sorted() {
        notes.push("workers were reordered: in the given order the model does not fit, or not on all of them"
                .to_owned());
    }
    let full = settings.ctx.div_ceil(settings.block_positions);
    if placement.capacity.n_blocks < full {
        let ctx = placement.capacity.n_blocks.saturating_mul(settings.block_positions);
        notes.push(format!(
            "a context of {ctx} positions instead of the model's {}: memory is short; another worker, more --memory or \
             --kv-type q8_0 makes room",
            settings.ctx
        ));
    } else if placement.capacity.n_blocks < placement.wished_blocks {
        let positions =
            u64::from(placement.capacity.n_blocks) * u64::from(settings.block_positions);
        notes.push(format!(
            "KV cache for {positions} positions instead of {} sequences of {}: memory is short; \
             sequences wait when it is full",
            settings.max_seqs,
            settings.share_ctx.min(settings.ctx)
        ));
    }
    notes.extend(costs.keep.shortage(settings, costs.model));
    if placement.capacity.n_kept < costs.keep.states {
        notes.push(format!(
            "{} sequences are kept for later requests that begin alike instead of {}: memory is short; \
             their states go before anything else does",
            placement.capacity.n_kept, costs.keep.states
        ));
    }
    for &worker in unused {
        let name = &costs.workers[worker].name;
        notes.push(match &placement.by_hand {
            Some(cut) => format!("{name} holds nothing: {cut} leaves it out"),
            None => format!("{name} holds nothing: no cut that fits is faster with it"),
        });
    }
    notes
}
