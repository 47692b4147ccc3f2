//! Every metric of the coordinator: its name, its help text, and one function for each thing that happens.
//!
//! `/metrics` renders them. In `run` and `bench` they are not recorded, and calling these functions costs nothing.
//!
//! Labels are stage numbers, workers' names and a few fixed words. Only so many names are told apart, so that
//! the number of series stays small.

mod by_model;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use brigade_draft::Source;
use brigade_proto::control::HealthReply;
use brigade_sched::{DRAFT_DEPTHS, DraftCounts, Micros, PrefixCounts, Stats};
use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

use thiserror::Error;

use crate::measured::record::UbatchRecord;

use by_model::ByModel;
pub use by_model::{of_model, of_same_model};

/// Bounds in seconds for the time to the first token.
const FIRST_TOKEN_BOUNDS: &[f64] =
    &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Bounds in seconds for the time between two tokens.
const NEXT_TOKEN_BOUNDS: &[f64] =
    &[0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.2, 0.4, 1.0, 2.0, 5.0];

/// Bounds in seconds for a ubatch's time on the wire, over all hops.
const WIRE_BOUNDS: &[f64] =
    &[5e-5, 1e-4, 2e-4, 4e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 1.0];

const PROMPT_TOKENS: &str = "brigade_prompt_tokens_total";
const REUSED_TOKENS: &str = "brigade_prompt_tokens_reused_total";
const REPLAYS: &str = "brigade_sequences_replayed_total";
const REPLAYED_TOKENS: &str = "brigade_tokens_replayed_total";
const MOVED_BYTES: &str = "brigade_state_bytes_moved_total";
const PUT_BACK: &str = "brigade_sequences_put_back_total";
const GENERATED_TOKENS: &str = "brigade_generated_tokens_total";
const REQUESTS: &str = "brigade_requests_total";
const FIRST_TOKEN: &str = "brigade_time_to_first_token_seconds";
const NEXT_TOKEN: &str = "brigade_inter_token_seconds";
const WAITING: &str = "brigade_requests_waiting";
const RUNNING: &str = "brigade_requests_running";
const KV_USED: &str = "brigade_kv_blocks_used";
const KV_TOTAL: &str = "brigade_kv_blocks";
const KEPT: &str = "brigade_kept_sequences";
const KEPT_PLACES: &str = "brigade_kept_sequences_limit";
const KEPT_BLOCKS: &str = "brigade_kept_kv_blocks";
const PREFIX_LOADS: &str = "brigade_prefixes_loaded_total";
const PREFIX_SAVED: &str = "brigade_prefix_states_saved_total";
const PREFIX_WRITTEN: &str = "brigade_prefix_bytes_written_total";
const PREFIX_READ: &str = "brigade_prefix_bytes_read_total";
const PREFIX_TOKENS: &str = "brigade_prefix_tokens_total";
const PREFIX_BYTES: &str = "brigade_prefix_bytes";
const PREFIX_BUNDLES: &str = "brigade_prefix_bundles";
const PREFIX_NODES: &str = "brigade_prefix_nodes";
const HELD: &str = "brigade_requests_waiting_for_reads";
const STATES_KEPT: &str = "brigade_states_kept_total";
const STATES_GONE: &str = "brigade_states_gone_total";
const SHARED_READS: &str = "brigade_shared_reads_total";
const ROWS_AVOIDED: &str = "brigade_shared_read_rows_avoided_total";
const DRAFTS: &str = "brigade_drafts_total";
const DRAFT_PARTS: &str = "brigade_draft_parts_cut_total";
const DRAWN_PARTS: &str = "brigade_drawn_parts_total";
const ROWS_IN_VAIN: &str = "brigade_rows_in_vain_total";
const STAGES_IN_VAIN: &str = "brigade_stages_in_vain_microseconds_total";
const OVERLAPPED: &str = "brigade_windows_overlapped_microseconds_total";
const IN_FLIGHT: &str = "brigade_ubatches_in_flight";
const GROUPS: &str = "brigade_decode_groups";
const UBATCHES: &str = "brigade_ubatches_total";
const UBATCH_ROWS: &str = "brigade_ubatch_rows_total";
const STAGE_BUSY: &str = "brigade_stage_busy_microseconds_total";
const STAGE_DRAFTING: &str = "brigade_stage_drafting_microseconds_total";
const STAGE_QUEUED: &str = "brigade_stage_queued_microseconds_total";
const STAGE_SHARE: &str = "brigade_stage_busy_share";
const STAGE_MEMORY: &str = "brigade_stage_memory_bytes";
const HOST_EXPERTS: &str = "brigade_stage_host_expert_bytes";
const EXPERTS_SENT: &str = "brigade_stage_expert_sent_bytes";
const EXPERT_TIME: &str = "brigade_stage_expert_seconds";
const EXPERT_ROWS: &str = "brigade_stage_expert_row_share";
const WORKERS: &str = "brigade_workers";
const WIRE_BYTES: &str = "brigade_wire_bytes_total";
const WIRE_SECONDS: &str = "brigade_wire_seconds";
const LINE_DOWN: &str = "brigade_line_down_total";
const LINE_UP: &str = "brigade_line_up";
const GRAMMARS: &str = "brigade_grammars_compiled_total";
const GRAMMAR_TIME: &str = "brigade_grammar_microseconds_total";
const HTTP: &str = "brigade_http_responses_total";

/// Why nothing is counted.
#[derive(Debug, Error)]
pub enum InstallError {
    /// The exporter refuses one of its settings.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A recorder of metrics is installed already.
    #[error("the process has a recorder of metrics already")]
    Twice,
}

/// Installs the process's recorder and returns what renders it.
///
/// # Errors
/// [`InstallError`].
pub fn install() -> Result<PrometheusHandle, InstallError> {
    let full = |name: &str| Matcher::Full(name.to_string());
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(full(FIRST_TOKEN), FIRST_TOKEN_BOUNDS)?
        .set_buckets_for_metric(full(NEXT_TOKEN), NEXT_TOKEN_BOUNDS)?
        .set_buckets_for_metric(full(WIRE_SECONDS), WIRE_BOUNDS)?
        .build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(ByModel(recorder)).map_err(|_| InstallError::Twice)?;
    describe();
    for status in STATUSES {
        counter!(HTTP, "status" => status.to_string()).increment(0);
    }
    Ok(handle)
}

/// How a sequence can end, as a label.
const OUTCOMES: [&str; 6] = ["stop", "length", "logits", "error", "cancelled", "rejected"];

/// Statuses of most responses; others begin when they are first sent.
const STATUSES: [u16; 6] = [200, 400, 404, 429, 500, 503];

/// Every counter of a line is there at 0 from the start: a rate over one that appears with its first event does not
/// see that event.
pub fn begin() {
    gauge!(LINE_UP).set(0.0);
    let replays = [REPLAYS, REPLAYED_TOKENS, MOVED_BYTES];
    let others = [PROMPT_TOKENS, REUSED_TOKENS, GENERATED_TOKENS, UBATCHES, UBATCH_ROWS, LINE_DOWN];
    for name in replays.into_iter().chain(others).chain([GRAMMARS, GRAMMAR_TIME]) {
        counter!(name).increment(0);
    }
    for outcome in OUTCOMES {
        counter!(REQUESTS, "outcome" => outcome).increment(0);
    }
}

/// Worker names that are told apart in one process's life; addresses may change with every restart of a worker.
const MAX_WORKER_NAMES: usize = 256;

/// The name of all others.
const OTHER_WORKERS: &str = "other";

/// Workers of the lines, by their models, and all names that were ever used.
#[derive(Debug, Default)]
struct Workers {
    lines: BTreeMap<Option<Arc<str>>, Vec<Arc<str>>>,
    names: BTreeSet<Arc<str>>,
}

static ON_THE_LINE: Mutex<Workers> =
    Mutex::new(Workers { lines: BTreeMap::new(), names: BTreeSet::new() });

fn on_the_line() -> MutexGuard<'static, Workers> {
    // A panic elsewhere leaves whole names behind.
    ON_THE_LINE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Workers {
    /// A worker's label: its address, or for local ones, whose ports change, its number.
    fn label(&mut self, name: &str) -> Arc<str> {
        let name = name.strip_prefix("worker ").unwrap_or(name);
        let name = name.split(" (").next().unwrap_or(name);
        if let Some(known) = self.names.get(name) {
            return known.clone();
        }
        if self.names.len() >= MAX_WORKER_NAMES {
            return OTHER_WORKERS.into();
        }
        let label: Arc<str> = name.into();
        self.names.insert(label.clone());
        label
    }

    /// Labels of a stage.
    fn of(&self, stage: usize) -> [(&'static str, String); 2] {
        let line = self.lines.get(&by_model::current());
        let worker = line.and_then(|line| line.get(stage)).map_or(OTHER_WORKERS, |name| &**name);
        [("stage", stage.to_string()), ("worker", worker.to_string())]
    }
}

fn describe_prefixes() {
    describe_counter!(
        PREFIX_TOKENS,
        "Prompt tokens of admitted requests, by whether their states were kept or were computed"
    );
    describe_gauge!(
        PREFIX_BYTES,
        Unit::Bytes,
        "Bytes of kept prefixes: in the memory of all stages, and of records in each worker's memory and on its disk"
    );
    describe_gauge!(
        PREFIX_BUNDLES,
        "Bundles of each worker's records of kept prefixes: a file each on disk, its equal in memory"
    );
    describe_gauge!(
        PREFIX_NODES,
        "Nodes of the tree of kept prompts, where a prompt ends or several part"
    );
    describe_gauge!(
        HELD,
        "Requests that wait while another one computes the beginning that they share"
    );
    describe_counter!(PREFIX_LOADS, "Loads of kept states from workers' records, by outcome");
    describe_counter!(PREFIX_SAVED, "Kept states that were written to workers' records");
    describe_counter!(
        PREFIX_WRITTEN,
        Unit::Bytes,
        "Bytes of such records written to workers' disks; beginnings that states share are written once"
    );
    describe_counter!(
        PREFIX_READ,
        Unit::Bytes,
        "Bytes that each worker read from its records, at most"
    );
    describe_counter!(STATES_KEPT, "States that were kept");
    describe_counter!(
        STATES_GONE,
        "Kept states that were evicted, or lost their last pages, by cause"
    );
    describe_counter!(
        SHARED_READS,
        "Requests that waited until another one had computed the beginning that they share"
    );
    describe_counter!(
        ROWS_AVOIDED,
        "Prompt tokens that waiting requests did not have to compute again"
    );
}

fn describe_drafts() {
    describe_counter!(
        DRAFTS,
        "Drafted tokens that were right or wrong, by their source and by how far ahead they were"
    );
    describe_counter!(
        DRAWN_PARTS,
        "Parts of ubatches from which tokens were to be drawn, stale ones included"
    );
    describe_counter!(
        ROWS_IN_VAIN,
        "Rows computed in vain: drafts that gave no token, and rows that were computed again"
    );
    describe_counter!(
        STAGES_IN_VAIN,
        Unit::Microseconds,
        "Time of all stages together that rows computed in vain took"
    );
    describe_counter!(
        OVERLAPPED,
        Unit::Microseconds,
        "Time in which a sequence had two windows or more in flight that gave tokens"
    );
    describe_counter!(
        DRAFT_PARTS,
        "Parts with drafts that followed a wrong draft, or lacked a mask"
    );
    describe_counter!(
        STAGE_DRAFTING,
        Unit::Microseconds,
        "Part of the computing time in which the model's own blocks drafted"
    );
}

fn describe() {
    super::models::describe();
    describe_counter!(PROMPT_TOKENS, "Prompt tokens of requests that reached their first token");
    describe_counter!(REUSED_TOKENS, "Prompt tokens whose states were reused");
    describe_counter!(REPLAYS, "Times that a sequence went on after its line was lost");
    describe_counter!(REPLAYED_TOKENS, "Positions that were computed again after a line was lost");
    describe_counter!(
        MOVED_BYTES,
        "Bytes of states that moved from one worker to another when streams were restored"
    );
    describe_counter!(GENERATED_TOKENS, "Tokens drawn");
    describe_counter!(REQUESTS, "Sequences by how they ended");
    describe_histogram!(FIRST_TOKEN, Unit::Seconds, "From submission to the first token");
    describe_histogram!(NEXT_TOKEN, Unit::Seconds, "Between two tokens of a sequence");
    describe_gauge!(WAITING, "Sequences not yet admitted");
    describe_gauge!(RUNNING, "Sequences admitted, by phase");
    describe_gauge!(KV_USED, "KV pages that admitted sequences use, equal on every stage");
    describe_gauge!(KV_TOTAL, "KV pages there are");
    describe_gauge!(KEPT, "States kept for later requests that begin alike");
    describe_gauge!(
        KEPT_PLACES,
        "States that may be kept now, idle places of running sequences included"
    );
    describe_gauge!(KEPT_BLOCKS, "KV pages held for kept states until others need them");
    describe_prefixes();
    describe_drafts();
    describe_gauge!(IN_FLIGHT, "Ubatches sent and not back");
    describe_gauge!(GROUPS, "Decode groups that keep the stages busy");
    describe_counter!(UBATCHES, "Ubatches that came back");
    describe_counter!(UBATCH_ROWS, "Rows computed, over all ubatches");
    describe_counter!(STAGE_BUSY, Unit::Microseconds, "Time that a stage computed");
    describe_counter!(STAGE_QUEUED, Unit::Microseconds, "Time that ubatches waited at a stage");
    describe_gauge!(WORKERS, "Workers, by their place (on the line, spare, missing)");
    describe_gauge!(STAGE_SHARE, "Share of the last second that a stage computed");
    describe_gauge!(STAGE_MEMORY, Unit::Bytes, "Resident memory of a stage's process");
    describe_gauge!(HOST_EXPERTS, Unit::Bytes, "Routed experts in the host's memory beside a GPU");
    describe_gauge!(
        EXPERTS_SENT,
        Unit::Bytes,
        "Weights of experts that were sent from the host to the GPU since loading"
    );
    describe_gauge!(
        EXPERT_TIME,
        Unit::Seconds,
        "Time since loading that a GPU's host waited for rows of experts (waited) and computed them (computed)"
    );
    describe_gauge!(EXPERT_ROWS, "Share of the rows of routed experts since loading, by place");
    describe_counter!(WIRE_BYTES, Unit::Bytes, "Bytes of ubatch frames received by a stage");
    describe_histogram!(WIRE_SECONDS, Unit::Seconds, "A ubatch's trip less computing and waiting");
    describe_counter!(LINE_DOWN, "Times that the line broke");
    describe_gauge!(LINE_UP, "1 while requests can run");
    describe_counter!(
        GRAMMARS,
        "Grammars and schemas of requests that were compiled to be checked"
    );
    describe_counter!(
        GRAMMAR_TIME,
        Unit::Microseconds,
        "Time that compiling grammars and schemas took"
    );
    describe_counter!(HTTP, "Responses by status");
}

fn seconds(us: Micros) -> f64 {
    us as f64 / 1e6
}

/// A request drew its first token.
pub fn first_token(n_prompt: usize, since_submission: Micros) {
    counter!(PROMPT_TOKENS).increment(n_prompt as u64);
    counter!(GENERATED_TOKENS).increment(1);
    histogram!(FIRST_TOKEN).record(seconds(since_submission));
}

/// Grammars were compiled for a request.
pub fn compiled(grammars: u32, took: Duration) {
    counter!(GRAMMARS).increment(grammars.into());
    counter!(GRAMMAR_TIME).increment(took.as_micros() as u64);
}

/// A request begins with a kept sequence of so many tokens.
pub fn reused(tokens: u32) {
    counter!(REUSED_TOKENS).increment(tokens.into());
}

/// A sequence goes on after its line was lost, and computes so many positions again.
pub fn replayed(tokens: u32) {
    counter!(REPLAYS).increment(1);
    counter!(REPLAYED_TOKENS).increment(tokens.into());
}

/// A sequence's state was put back from copies, of which so many bytes went from one worker to another; `None`: it could
/// not be.
pub fn put_back(moved_bytes: Option<u64>) {
    let outcome = if moved_bytes.is_some() { "done" } else { "failed" };
    counter!(PUT_BACK, "outcome" => outcome).increment(1);
    counter!(MOVED_BYTES).increment(moved_bytes.unwrap_or(0));
}

/// A kept state was written below the stages' memory: so many bytes were not there yet.
pub fn prefix_saved(nbytes: u64) {
    counter!(PREFIX_SAVED).increment(1);
    counter!(PREFIX_WRITTEN).increment(nbytes);
}

/// A state of so many bytes was loaded from there; `None`: it could not be.
pub fn prefix_loaded(nbytes: Option<u64>) {
    let outcome = if nbytes.is_some() { "done" } else { "failed" };
    counter!(PREFIX_LOADS, "outcome" => outcome).increment(1);
    counter!(PREFIX_READ).increment(nbytes.unwrap_or(0));
}

/// A request drew another token.
pub fn next_token(since_last: Micros) {
    counter!(GENERATED_TOKENS).increment(1);
    histogram!(NEXT_TOKEN).record(seconds(since_last));
}

/// A sequence ended; `how` is one of a few fixed words.
pub fn request_ended(how: &'static str) {
    counter!(REQUESTS, "outcome" => how).increment(1);
}

/// A ubatch came back.
pub fn ubatch(record: &UbatchRecord) {
    counter!(UBATCHES).increment(1);
    counter!(UBATCH_ROWS).increment(record.n_rows.into());
    let mut at_stages = 0;
    let workers = on_the_line();
    for (stage, time) in record.stages.iter().enumerate() {
        let labels = workers.of(stage);
        counter!(STAGE_BUSY, &labels).increment(time.compute_us);
        if time.drafting_us > 0 {
            counter!(STAGE_DRAFTING, &labels).increment(time.drafting_us);
        }
        counter!(STAGE_QUEUED, &labels).increment(time.queued_us);
        let bytes = record.wire_bytes.get(stage).copied().unwrap_or(0);
        counter!(WIRE_BYTES, &labels).increment(bytes.into());
        at_stages += time.compute_us + time.queued_us;
    }
    let trip = record.done.saturating_sub(record.sent);
    histogram!(WIRE_SECONDS).record(seconds(trip.saturating_sub(at_stages)));
}

/// Publishes the scheduler's counts.
pub fn scheduler(stats: &Stats) {
    gauge!(WAITING).set(stats.waiting as f64);
    gauge!(RUNNING, "phase" => "prefill").set(stats.prefilling as f64);
    gauge!(RUNNING, "phase" => "decode").set(stats.decoding as f64);
    gauge!(KV_USED).set(stats.blocks_used);
    gauge!(KV_TOTAL).set(stats.blocks_total);
    gauge!(KEPT).set(stats.kept);
    gauge!(KEPT_PLACES).set(stats.kept_total);
    gauge!(KEPT_BLOCKS).set(stats.blocks_kept);
    gauge!(PREFIX_NODES).set(stats.nodes as f64);
    gauge!(HELD).set(stats.held as f64);
    prefixes(&stats.prefixes);
    gauge!(IN_FLIGHT).set(stats.in_flight as f64);
    gauge!(GROUPS).set(stats.groups as f64);
    drafts(&stats.drafts);
}

/// Publishes counts of reused prompts and of kept states that are gone.
fn prefixes(counts: &PrefixCounts) {
    counter!(STATES_KEPT).absolute(counts.kept);
    for (cause, n) in [
        ("places", counts.evicted_for_places),
        ("pages", counts.evicted_for_pages),
        ("shortened", counts.shortened),
        ("failed", counts.spoilt),
        ("covered", counts.covered),
        ("dropped", counts.dropped),
    ] {
        counter!(STATES_GONE, "cause" => cause).absolute(n);
    }
    let computed = counts.prompt_tokens.saturating_sub(counts.reused_tokens);
    for (outcome, n) in [("reused", counts.reused_tokens), ("computed", computed)] {
        counter!(PREFIX_TOKENS, "outcome" => outcome).absolute(n);
    }
    counter!(SHARED_READS).absolute(counts.waits);
    counter!(ROWS_AVOIDED).absolute(counts.rows_avoided);
}

/// Publishes counts of drafts by their source. Known answers are left out, since no server drafts from them.
fn drafts(counts: &DraftCounts) {
    for source in Source::ALL.into_iter().filter(|source| *source != Source::Forced) {
        for (depth, [right, wrong]) in DRAFT_DEPTHS.into_iter().zip(counts.by_depth(source)) {
            for (outcome, n) in [("right", right), ("wrong", wrong)] {
                counter!(DRAFTS, "outcome" => outcome, "source" => source.name(), "depth" => depth)
                    .absolute(n);
            }
        }
    }
    counter!(DRAWN_PARTS).absolute(counts.parts);
    counter!(ROWS_IN_VAIN).absolute(counts.rows_in_vain);
    counter!(STAGES_IN_VAIN).absolute(counts.vain_us);
    counter!(OVERLAPPED).absolute(counts.overlapped_us);
    for (why, n) in [("stale", counts.stale), ("unmasked", counts.unmasked)] {
        counter!(DRAFT_PARTS, "cut" => why).absolute(n);
    }
}

/// Publishes the bytes of kept states in the memory of all stages together.
pub fn prefixes_in_memory(nbytes: u64) {
    gauge!(PREFIX_BYTES, "tier" => "memory").set(nbytes as f64);
}

/// A heartbeat of a stage; `busy_share` is of the time since the one before.
pub fn heartbeat(stage: usize, health: &HealthReply, busy_share: f64) {
    let labels = on_the_line().of(stage);
    gauge!(STAGE_SHARE, &labels).set(busy_share);
    gauge!(STAGE_MEMORY, &labels).set(health.memory_used as f64);
    gauge!(HOST_EXPERTS, &labels).set(health.host_expert_bytes as f64);
    gauge!(EXPERTS_SENT, &labels).set(health.expert_bytes_sent as f64);
    expert_time(&labels, [health.expert_wait_us, health.host_expert_us]);
    let others = health.expert_rows.saturating_sub(health.copied_expert_rows);
    let (copies, host) = (health.copied_expert_rows, health.host_expert_rows);
    expert_rows(&labels, ExpertRows { device: others, copies, host });
    if let Some(records) = &health.prefix_records {
        let of_tier = |tier: &'static str| {
            let [stage, worker] = labels.clone();
            [stage, worker, ("tier", tier.to_owned())]
        };
        gauge!(PREFIX_BYTES, &of_tier("ram")).set(records.ram_bytes as f64);
        gauge!(PREFIX_BYTES, &of_tier("disk")).set(records.disk_bytes as f64);
        gauge!(PREFIX_BUNDLES, &labels).set(records.bundles as f64);
    }
}

/// The number of a stage and the name of its worker.
type StageLabels = [(&'static str, String); 2];

/// Rows that experts of a stage computed, by where.
#[derive(Clone, Copy, Default)]
struct ExpertRows {
    device: u64,
    copies: u64,
    host: u64,
}

/// Publishes the shares of a stage's expert rows by place: on the device with its own experts, on the device with
/// copies of the host's experts, and on the host.
fn expert_rows(labels: &StageLabels, rows: ExpertRows) {
    let ExpertRows { device, copies, host } = rows;
    let all = device.saturating_add(copies).saturating_add(host).max(1);
    for (place, rows) in [("device", device), ("copy", copies), ("host", host)] {
        let [stage, worker] = labels.clone();
        let labels = [stage, worker, ("place", place.to_owned())];
        gauge!(EXPERT_ROWS, &labels).set(rows as f64 / all as f64);
    }
}

/// Publishes the microseconds that a stage's host waited for rows of experts and computed them.
fn expert_time(labels: &StageLabels, us: [u64; 2]) {
    for (what, us) in ["waited", "computed"].into_iter().zip(us) {
        let [stage, worker] = labels.clone();
        gauge!(EXPERT_TIME, &[stage, worker, ("what", what.to_owned())]).set(us as f64 / 1e6);
    }
}

/// A line over these workers is ready, first stage first: their counters begin. Gauges of the last line's stages are
/// removed.
pub fn line_up(names: impl Iterator<Item = String>) {
    let mut workers = on_the_line();
    let model = by_model::current();
    for stage in 0..workers.lines.get(&model).map_or(0, Vec::len) {
        let labels = workers.of(stage);
        gauge!(STAGE_SHARE, &labels).set(0.0);
        gauge!(STAGE_MEMORY, &labels).set(0.0);
        gauge!(HOST_EXPERTS, &labels).set(0.0);
        gauge!(EXPERTS_SENT, &labels).set(0.0);
        expert_time(&labels, [0; 2]);
        expert_rows(&labels, ExpertRows::default());
    }
    let line: Vec<_> = names.map(|name| workers.label(&name)).collect();
    let n_stages = line.len();
    workers.lines.insert(model, line);
    for stage in 0..n_stages {
        let labels = workers.of(stage);
        for name in [STAGE_BUSY, STAGE_QUEUED, WIRE_BYTES] {
            counter!(name, &labels).increment(0);
        }
    }
    gauge!(LINE_UP).set(1.0);
}

/// Workers on the line, beside it, and wanted but not there.
pub fn workers(line: usize, spare: usize, missing: usize) {
    for (state, n) in [("line", line), ("spare", spare), ("missing", missing)] {
        gauge!(WORKERS, "state" => state).set(n as f64);
    }
}

/// The line broke: counts it, and removes the stages' gauges.
pub fn line_down() {
    gauge!(LINE_UP).set(0.0);
    counter!(LINE_DOWN).increment(1);
}

/// A response was sent.
pub fn http_response(status: u16) {
    counter!(HTTP, "status" => status.to_string()).increment(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_have_names_and_there_is_an_end_to_them() {
        let mut workers = Workers::default();
        assert_eq!(&*workers.label("worker 10.0.0.2:7070"), "10.0.0.2:7070");
        assert_eq!(&*workers.label("local worker 1 (127.0.0.1:4711)"), "local worker 1");
        assert_eq!(&*workers.label("local worker 1 (127.0.0.1:4712)"), "local worker 1");
        for port in 0..2 * MAX_WORKER_NAMES {
            workers.label(&format!("worker 10.0.0.3:{port}"));
        }
        assert_eq!(workers.names.len(), MAX_WORKER_NAMES);
        assert_eq!(&*workers.label("worker 10.0.0.4:1"), OTHER_WORKERS);
        assert_eq!(&*workers.label("worker 10.0.0.2:7070"), "10.0.0.2:7070");
    }
}
