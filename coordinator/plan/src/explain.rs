//! Writes a plan as text, for `plan --explain` and the log.

use std::fmt::Write;

use super::units::format_bytes;
use super::{Balance, Capacity, Plan, StagePlan};

impl Plan {
    /// A table of the stages, then the reasons.
    pub fn explain(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_table(&mut text);
        let _ = self.write_reasons(&mut text);
        text
    }

    /// The plan for a log: who holds what, and the room that there is.
    pub fn in_a_line(&self) -> String {
        let stage = |s: &StagePlan| {
            let [memory, left] = [s.memory.of_device(), s.memory_left].map(format_bytes);
            let (first, end) = (s.layers.start, s.layers.end);
            let host = match s.memory.of_host() {
                0 => String::new(),
                nbytes => format!(", {} of the host's memory for experts", format_bytes(nbytes)),
            };
            format!("{} layers {first}..{end}, {memory} of memory, {left} free{host}", s.name)
        };
        let stages: Vec<String> = self.stages.iter().map(stage).collect();
        format!("plan of {}: {}; {}", self.model, stages.join("; "), self.describe_room())
    }

    /// `1.88x of 2 in prefill, 1.99x in decode`: how many of its stages' worth the line is in either.
    pub fn describe_balance(&self) -> String {
        let n = self.stages.len();
        let [prefill, decode] =
            [Balance::PREFILL, Balance::DECODE].map(|work| self.balance_of(work) * n as f64);
        format!("{prefill:.2}x of {n} in prefill, {decode:.2}x in decode")
    }

    /// `KV cache for 65536 positions: 16 sequences of up to 4096 at once, 64 kept beside them`.
    pub fn describe_room(&self) -> String {
        let Capacity { n_slots, n_kept, .. } = self.capacity;
        let (ctx, positions) = (self.ctx(), self.positions());
        let full = positions / u64::from(ctx);
        let at_once = if full < u64::from(n_slots) {
            format!("{full} sequences of {ctx} at once, or up to {n_slots} shorter ones")
        } else {
            format!("{n_slots} sequences of up to {ctx} at once")
        };
        match self.sequence.kv_bytes_per_token + self.sequence.window_bytes {
            // States alone: how long a sequence is makes no difference.
            0 => format!("states of {n_slots} sequences at once, {n_kept} kept beside them"),
            _ => {
                format!("KV cache for {positions} positions: {at_once}, {n_kept} kept beside them")
            }
        }
    }

    /// The states that a stream keeps beside its own when it runs ahead, in words: `up to 4 states of 12.00 MiB each,
    /// in the places of sequences that do not run`. `None` where sequences have no states.
    pub fn describe_planes(&self) -> Option<String> {
        let state = self.sequence.conv_bytes + self.sequence.scan_bytes;
        let n = self.capacity.n_slots.saturating_sub(1);
        let each = format_bytes(state);
        (state > 0).then(|| {
            format!("up to {n} states of {each} each, in the places of sequences that do not run")
        })
    }

    /// Positions there are KV pages for.
    fn positions(&self) -> u64 {
        u64::from(self.capacity.n_blocks) * u64::from(self.settings.block_positions)
    }

    fn write_table(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "| stage | worker | layers | weights | KV cache | states | scratch | free \
             | GOP a row | decode us | prefill us | busy at best |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|---|---|---|---|---|")?;
        for (i, stage) in self.stages.iter().enumerate() {
            let StagePlan { memory, time, .. } = stage;
            writeln!(
                out,
                "| {i} | {} | {} | {} | {} | {} | {} | {} | {:.3} | {:.0} | {:.0} | {:.0} % |",
                stage.name,
                stage.contents(),
                format_bytes(memory.weights),
                format_bytes(memory.kv),
                format_bytes(memory.state),
                format_bytes(memory.scratch),
                format_bytes(stage.memory_left),
                stage.ops_per_row * 1e-9,
                time.decode_us,
                time.prefill_us,
                stage.share * 100.0
            )?;
        }
        Ok(())
    }

    fn write_reasons(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "{}: {} stages, balanced to {:.2}x of {} ({}); {}",
            self.model,
            self.stages.len(),
            self.balance() * self.stages.len() as f64,
            self.stages.len(),
            self.describe_balance(),
            self.describe_room()
        )?;
        writeln!(out, "a sequence: {}", self.sequence)?;
        if let Some(planes) = self.describe_planes() {
            writeln!(out, "planes for drafts: {planes}")?;
        }
        for (i, stage) in self.stages.iter().enumerate() {
            writeln!(out, "stage {i} ({}): of a sequence {}", stage.name, stage.sequence)?;
            if stage.memory.copies > 0 {
                let copies = format_bytes(stage.memory.copies);
                writeln!(out, "stage {i} ({}): copies of states {copies}", stage.name)?;
            }
            for reason in &stage.reasons {
                writeln!(out, "stage {i} ({}): {reason}", stage.name)?;
            }
        }
        for note in &self.notes {
            writeln!(out, "note: {note}")?;
        }
        Ok(())
    }
}

impl StagePlan {
    /// `embedding + 0..17`, `17..32 + head`.
    fn contents(&self) -> String {
        let embedding = if self.embedding { "embedding + " } else { "" };
        let head = if self.head { " + head" } else { "" };
        format!("{embedding}{}..{}{head}", self.layers.start, self.layers.end)
    }
}
