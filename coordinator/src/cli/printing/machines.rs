//! Prints the machines of a cluster: their states, the ages of their heartbeats, their devices and speeds.

use anyhow::Result;
use brigade_line::admin::{ClusterStatus, DiskUse, NodeMemory, NodeState, NodeStatus, StageBytes};
use brigade_line::clock;
use brigade_plan::format_bytes;

use crate::cli::options::units;
use crate::cli::printing::output;

/// A worker that was seen to be so many times slower than it says is shown with that.
const SLOW: f64 = 1.1;

/// The cell of a table for an unknown value.
const NOTHING: &str = "-";

/// Prints a cluster's state.
pub fn show(status: &ClusterStatus) -> Result<()> {
    match (status.up, &status.waiting) {
        (true, _) => output::line(format_args!("line {} is up", status.epoch))?,
        (false, Some(waiting)) => {
            output::line(format_args!("there is no line: {}", output::plain(waiting)))?;
        }
        (false, None) => output::line(format_args!("there is no line"))?,
    }
    if let Some(changing) = &status.changing {
        output::line(format_args!("it changes: {changing}"))?;
    }
    if !status.nodes.is_empty() {
        let head = [
            "node", "address", "state", "layers", "heard", "busy", "memory", "disk", "speed",
            "device",
        ];
        let now = clock::unix_now();
        let rows: Vec<_> = status.nodes.iter().map(|node| row(node, now)).collect();
        output::table(&head, &rows)?;
    }
    for node in &status.nodes {
        if let Some(why) = &node.why {
            output::line(format_args!("{}: {}", node.name, output::plain(why)))?;
        }
    }
    match &status.next {
        Some(next) => output::line(format_args!("to add a machine: {next}")),
        None => Ok(()),
    }
}

fn row(node: &NodeStatus, now: u64) -> Vec<String> {
    let nothing = || NOTHING.to_owned();
    let layers = node.layers.as_ref().map(|layers| format!("{}..{}", layers.start, layers.end));
    let memory = node.memory_limit.map(|limit| match node.memory_used {
        Some(used) => format!("{} of {}", format_bytes(used), format_bytes(limit)),
        None => format_bytes(limit),
    });
    let memory = memory.map(|memory| memory + &of_node(node) + &with_host(node.bytes.as_ref()));
    let speed = node.gb_per_second.zip(node.gop_per_second).map(|(gbps, gops)| {
        let slow = node.slowdown.filter(|times| *times >= SLOW);
        let slow = slow.map_or(String::new(), |times| format!(", {times:.1} times slower"));
        format!("{gbps:.0} GB/s {gops:.0} GOP/s{slow}")
    });
    vec![
        node.name.clone(),
        if node.address.is_empty() { nothing() } else { node.address.clone() },
        state(node, now),
        layers.unwrap_or_else(nothing),
        node.heard_ms_ago.map_or_else(nothing, heard),
        node.busy_share.map_or_else(nothing, |share| format!("{:.0} %", share * 100.0)),
        memory.unwrap_or_else(nothing),
        node.disk.as_ref().map_or_else(nothing, disk),
        speed.unwrap_or_else(nothing),
        node.device.clone().unwrap_or_else(nothing),
    ]
}

/// What the stages of a worker's node have of its memory.
fn of_node(node: &NodeStatus) -> String {
    let Some(NodeMemory { limit, granted }) = node.node_memory else { return String::new() };
    format!(", its node {} of {}", format_bytes(granted), format_bytes(limit))
}

/// What loaded stages have pinned in the cache, of its limit, and what checkpoints take.
fn disk(disk: &DiskUse) -> String {
    let DiskUse { pinned, limit, checkpoints, checkpoints_limit } = *disk;
    let pinned = format!("pinned {} of {}", format_bytes(pinned), format_bytes(limit));
    match checkpoints_limit {
        0 => pinned,
        limit => {
            let (checkpoints, limit) = (format_bytes(checkpoints), format_bytes(limit));
            format!("{pinned}, checkpoints {checkpoints} of {limit}")
        }
    }
}

/// The bytes of a stage that lie with the host beside its GPU, and the share of its experts' rows that the host
/// computes.
fn with_host(bytes: Option<&StageBytes>) -> String {
    let Some(bytes) = bytes.filter(|bytes| bytes.host_experts > 0) else { return String::new() };
    let [here, there] = bytes.expert_rows;
    let share = match here.saturating_add(there) {
        0 => String::new(),
        all => {
            let percent = |rows: u64| rows as f64 / all as f64 * 100.0;
            let copies = match bytes.copied_expert_rows {
                0 => String::new(),
                rows => format!(", {:.0} % by copies on the GPU", percent(rows)),
            };
            let [waited, computed] = [bytes.expert_wait_us, bytes.host_expert_us];
            let times = match waited + computed {
                0 => String::new(),
                _ => format!("; it waited {} for rows, computed {}", time(waited), time(computed)),
            };
            format!(" ({:.0} % of their rows{copies}{times})", percent(there))
        }
    };
    format!(", experts {} with the host{share}", format_bytes(bytes.host_experts))
}

/// Microseconds, in seconds.
fn time(us: u64) -> String {
    format!("{:.1} s", us as f64 / 1e6)
}

fn heard(ms_ago: u64) -> String {
    format!("{:.1} s ago", ms_ago as f64 / 1e3)
}

/// Where a machine stands, in words.
pub fn state(node: &NodeStatus, now: u64) -> String {
    match (node.state, node.stage) {
        (NodeState::Serves, Some(stage)) => format!("stage {stage}"),
        (NodeState::Draining, Some(stage)) => format!("stage {stage}, is drained"),
        (NodeState::Serves | NodeState::Draining, None) => "serves".to_owned(),
        (NodeState::Spare, _) => "spare".to_owned(),
        (NodeState::Drained, _) => "drained".to_owned(),
        (NodeState::Waiting, _) => "waits for the line".to_owned(),
        (NodeState::Missing, _) => "missing".to_owned(),
        (NodeState::Refused, _) => "refused".to_owned(),
        (NodeState::Lost, _) => lost(node.lost_seconds_ago, now),
    }
}

fn lost(seconds_ago: Option<u64>, now: u64) -> String {
    match seconds_ago {
        Some(ago) => {
            let at = clock::date_time(now.saturating_sub(ago));
            format!("lost since {at} ({})", units::span(ago))
        }
        None => "lost".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_machine_says_since_when_and_what_is_unknown_is_a_dash() {
        let node = NodeStatus {
            name: "lab".to_owned(),
            address: "10.0.0.2:7070".to_owned(),
            state: NodeState::Lost,
            lost_seconds_ago: Some(90),
            ..NodeStatus::default()
        };
        let cells = row(&node, 1_709_251_290);
        assert_eq!(cells[..3], ["lab", "10.0.0.2:7070", "lost since 2024-03-01T00:00:00Z (90 s)"]);
        assert!(cells[3..].iter().all(|cell| cell == "-"), "{cells:?}");
    }

    #[test]
    fn a_machine_that_serves_is_shown_with_its_load() {
        let node = NodeStatus {
            state: NodeState::Serves,
            stage: Some(1),
            layers: Some(4..8),
            heard_ms_ago: Some(420),
            busy_share: Some(0.63),
            memory_used: Some(3 << 30),
            memory_limit: Some(12 << 30),
            node_memory: Some(NodeMemory { limit: 36 << 30, granted: 20 << 30 }),
            disk: Some(DiskUse {
                pinned: 3 << 30,
                limit: 64 << 30,
                checkpoints: 1 << 30,
                checkpoints_limit: 64 << 30,
            }),
            bytes: Some(StageBytes {
                host_experts: 2 << 30,
                expert_rows: [100, 300],
                copied_expert_rows: 80,
                expert_wait_us: 1_250_000,
                host_expert_us: 40_000_000,
                ..StageBytes::default()
            }),
            gb_per_second: Some(40.0),
            gop_per_second: Some(900.0),
            slowdown: Some(2.0),
            device: Some("avx2, 8 threads".to_owned()),
            ..NodeStatus::default()
        };
        let cells = row(&node, 0);
        let (speed, memory) = (
            "40 GB/s 900 GOP/s, 2.0 times slower",
            "3.00 GiB of 12.00 GiB, its node 20.00 GiB of 36.00 GiB, experts 2.00 GiB with the host (75 % of their rows, 20 % by copies on the GPU; \
             it waited 1.2 s for rows, computed 40.0 s)",
        );
        let device = "avx2, 8 threads";
        let disk = "pinned 3.00 GiB of 64.00 GiB, checkpoints 1.00 GiB of 64.00 GiB";
        let expected = ["stage 1", "4..8", "0.4 s ago", "63 %", memory, disk, speed, device];
        assert_eq!(cells[2..], expected);
    }
}
