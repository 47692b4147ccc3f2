//! `brigade plan` shows where the layers of a model would go, and why. It starts and loads nothing.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use brigade_cluster::worker_facts;
use brigade_engine::kernels::KV_PAGE;
use brigade_line::model::Model;
use brigade_plan::{
    Checkpoint, DEFAULT_MAX_SEQS, Keep, ModelFacts, Plan, PlanSettings, Prediction, WorkerFacts,
    format_bytes, parse_cluster_file, plan, plan_by_hand,
};
use clap::Args;
use serde::Serialize;

use super::serve;
use crate::cli::options::args::{KvArg, LineArgs, ModelArgs};
use crate::cli::options::input;
use crate::cli::options::security::Security;
use crate::cli::printing::output;
use crate::cli::running::session;

/// Show how a model's layers would be cut over workers.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade plan -m model.gguf --workers 3 --explain
  brigade plan -m model.gguf --workers 2 --balance prefill
  brigade plan -m model.gguf --tensor-split 3,1,1     a cut by hand beside the planner's own
  brigade plan -m model.gguf --worker 10.0.0.2:7070 --worker 10.0.0.3:7070 --insecure-network
  brigade plan -m model.gguf --cluster machines.toml --json
  brigade plan --fleet brigade.toml --cluster machines.toml

A cluster file describes workers that need not exist yet:
  [[worker]]
  name = \"big\"
  memory = \"64G\"
  gbps = 80.0        # memory read, 10^9 bytes a second
  gops = 2000.0      # matrix products with 4-bit weights, 10^9 operations a second
  link = { gbps = 1.2, latency_us = 150.0 }
  count = 2")]
pub struct PlanArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Workers from a file
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = ["workers", "worker"])]
    cluster: Option<PathBuf>,
    /// For each model of this file of options: which workers of --cluster it would be lent by serve --control, and
    /// which models would take turns
    #[arg(long, value_name = "FILE.toml", requires = "cluster", conflicts_with_all = ["model", "explain"])]
    fleet: Option<PathBuf>,
    /// Say why each stage holds what it holds
    #[arg(long)]
    explain: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Positions of a sequence [default: what the model was trained on, as far as memory allows]
    #[arg(long, value_name = "N", aliases = ["ctx-size", "context-size", "context-length", "max-model-len", "num-ctx"])]
    ctx: Option<u32>,
    /// Sequences at once
    #[arg(long, aliases = ["parallel", "max-num-seqs"], value_name = "N", default_value_t = DEFAULT_MAX_SEQS)]
    max_seqs: u32,
    /// Memory for states that are kept for later requests [default: as brigade serve]
    #[arg(long, value_name = "SIZE")]
    keep: Option<Keep>,
    /// Type of the KV cache
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    kv_type: KvArg,
    /// As in serve: room for copies of streams' states
    #[arg(long, value_enum, default_value_t = Checkpoint::Off, value_name = "WHERE")]
    checkpoint: Checkpoint,
    #[command(flatten)]
    pub(super) line: LineArgs,
}

/// The meaning of the table's columns.
const LEGEND: &str = "\
layers: from..to, the last one not included; memory: what the stage takes with its KV cache, states and work memory;
free: what the worker has left; busy at best: share of the slowest stage's time, 100 % sets the pace";

/// Runs the command.
pub async fn execute(args: PlanArgs) -> Result<()> {
    if let (Some(file), Some(machines)) = (&args.fleet, &args.cluster) {
        return serve::planned::show(file, &described(machines)?, args.json);
    }
    let path = args.model.path()?;
    let open = |path: &Path| args.line.open(path, Model::open_header_only_with);
    let model = input::open_model(&path, open)?;
    model.check_ctx(args.ctx)?;
    let workers = match &args.cluster {
        Some(path) => described(path)?,
        None => probe(&args).await?,
    };
    let max_rows = args.line.ubatch.unwrap_or(model.default_rows(args.ctx));
    let windows = !args.line.full_windows && model.gains_by_windows(args.ctx, max_rows);
    let settings = PlanSettings {
        ctx: model.ctx(args.ctx),
        least_ctx: model.least_ctx(args.ctx),
        share_ctx: model.least_ctx(args.ctx),
        max_seqs: args.max_seqs,
        keep: model.keep(args.keep, args.max_seqs, windows),
        windows,
        block_positions: KV_PAGE as u32,
        max_rows,
        prompt_per_generated: args.line.balance.prompt_per_generated(),
        checkpoint: args.checkpoint,
        ..PlanSettings::default()
    };
    model.notes().iter().for_each(|note| tracing::warn!("{note}"));
    let facts = model.facts(args.kv_type.engine())?;
    let own = plan(&facts, &workers, &settings);
    let Some(cut) = args.line.hand_cut() else {
        return show(&args, &facts, &workers, own?);
    };
    let by_hand = plan_by_hand(&facts, &workers, &settings, cut)?;
    compare(&args, &facts, &workers, by_hand, own?)
}

/// Workers from a file.
fn described(path: &Path) -> Result<Vec<WorkerFacts>> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(parse_cluster_file(&text)?)
}

/// Prints the planner's cut.
fn show(args: &PlanArgs, facts: &ModelFacts, workers: &[WorkerFacts], plan: Plan) -> Result<()> {
    if args.json {
        return output::json(&Predicted::new(plan, facts, workers)?);
    }
    if args.explain {
        output::line(format_args!("{}", plan.explain()))?;
        return print_predictions(&predict(&plan, facts, workers)?);
    }
    print_plan(args, facts, &plan)
}

/// A cut by hand beside the planner's own.
fn compare(
    args: &PlanArgs,
    facts: &ModelFacts,
    workers: &[WorkerFacts],
    by_hand: Plan,
    own: Plan,
) -> Result<()> {
    let (by_hand, own) =
        (Predicted::new(by_hand, facts, workers)?, Predicted::new(own, facts, workers)?);
    if args.json {
        return output::json(&Compared { by_hand, own });
    }
    let name = by_hand.plan.by_hand.clone().unwrap_or_default();
    for (title, predicted) in [(name.as_str(), &by_hand), ("the planner's own cut", &own)] {
        output::line(format_args!("{title}:"))?;
        if args.explain {
            output::line(format_args!("{}", predicted.plan.explain()))?;
        } else {
            print_plan(args, facts, &predicted.plan)?;
            output::line(format_args!(""))?;
        }
    }
    output::line(format_args!("tokens/s by simulation at these speeds:"))?;
    let pairs = by_hand.predictions.iter().zip(&own.predictions);
    let rows: Vec<Vec<String>> = pairs
        .map(|(ours, theirs)| {
            let ratio = ours.tokens_per_second / theirs.tokens_per_second;
            let speed = |p: &Prediction| format!("{:.1}", p.tokens_per_second);
            let (test, parallel) = (ours.test.to_string(), ours.parallel.to_string());
            vec![test, parallel, speed(ours), speed(theirs), format!("{ratio:.2}")]
        })
        .collect();
    output::table(&["test", "parallel", "by hand", "planner's", "ratio"], &rows)
}

fn print_plan(args: &PlanArgs, facts: &ModelFacts, plan: &Plan) -> Result<()> {
    let rows: Vec<Vec<String>> = plan
        .stages
        .iter()
        .enumerate()
        .map(|(i, s)| {
            vec![
                i.to_string(),
                s.name.clone(),
                format!("{}..{}", s.layers.start, s.layers.end),
                match s.memory.of_host() {
                    0 => format_bytes(s.memory.total()),
                    host => format!(
                        "{} + {} of the host's",
                        format_bytes(s.memory.of_device()),
                        format_bytes(host)
                    ),
                },
                format_bytes(s.memory_left),
                format!("{:.0} %", s.share * 100.0),
            ]
        })
        .collect();
    output::table(&["stage", "worker", "layers", "memory", "free", "busy at best"], &rows)?;
    output::line(format_args!("{LEGEND}"))?;
    output::line(format_args!("balanced for {}: {}", args.line.balance, plan.describe_balance()))?;
    output::line(format_args!("room: {}", plan.describe_room()))?;
    for note in &plan.notes {
        output::line(format_args!("note: {note}"))?;
    }
    output::line(format_args!("a sequence: {}", plan.sequence))?;
    if let Some(planes) = plan.describe_planes() {
        output::line(format_args!("planes for drafts: {planes}"))?;
    }
    if let Some(passes) = facts.passes() {
        output::line(format_args!("{passes}"))?;
    }
    Ok(())
}

/// The plan and its predictions, for `--json`.
#[derive(Serialize)]
struct Predicted {
    #[serde(flatten)]
    plan: Plan,
    /// Predictions by simulation at the workers' measured speeds.
    predictions: Vec<Prediction>,
}

impl Predicted {
    fn new(plan: Plan, facts: &ModelFacts, workers: &[WorkerFacts]) -> Result<Self> {
        let predictions = predict(&plan, facts, workers)?;
        Ok(Self { plan, predictions })
    }
}

/// The same for a cut by hand, with the planner's own cut beside it.
#[derive(Serialize)]
struct Compared {
    #[serde(flatten)]
    by_hand: Predicted,
    /// The plan without the cut by hand.
    own: Predicted,
}

fn predict(plan: &Plan, facts: &ModelFacts, workers: &[WorkerFacts]) -> Result<Vec<Prediction>> {
    plan.predict(facts, workers).map_err(|what| anyhow!("the simulated scheduler failed: {what}"))
}

fn print_predictions(predictions: &[Prediction]) -> Result<()> {
    output::line(format_args!("by simulation at these speeds:"))?;
    let rows: Vec<Vec<String>> = predictions
        .iter()
        .map(|p| {
            let busy: Vec<_> = p.stage_busy.iter().map(|b| format!("{:.0}", b * 100.0)).collect();
            vec![
                p.test.to_string(),
                p.parallel.to_string(),
                format!("{:.1}", p.tokens_per_second),
                p.gap_p50_ms.map_or("-".to_owned(), |ms| format!("{ms:.1}")),
                p.gap_p99_ms.map_or("-".to_owned(), |ms| format!("{ms:.1}")),
                busy.join(" "),
            ]
        })
        .collect();
    output::table(
        &["test", "parallel", "tokens/s", "gap p50 ms", "p99 ms", "busy % by stage"],
        &rows,
    )
}

/// Asks real workers what they can do: those named, or local ones started for the question.
async fn probe(args: &PlanArgs) -> Result<Vec<WorkerFacts>> {
    let source = session::source(&args.line, false, "error")?;
    let asked = brigade_cluster::ask(source, &Security::of_command(&args.line)?.network).await?;
    Ok(worker_facts(asked.iter().map(|(name, caps)| (name.as_str(), caps))))
}
