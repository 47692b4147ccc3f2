//! The command line: one file for each command, and beside them what they share: `options` to be told, `printing` to show,
//! and `running` for a line of their own.
//!
//! A command turns its arguments into typed requests to the rest of the crate, and prints what comes back.
//! Only these files print results, and only they use `anyhow`. They know nothing of schedules, sockets or
//! layers.

mod bench;
mod chat;
mod cluster;
mod completions;
pub mod config;
mod detokenize;
mod devices;
mod embed;
mod inspect;
mod key;
mod logits;
mod models;
mod options;
mod perplexity;
mod plan;
mod printing;
mod run;
mod running;
mod serve;
mod synth;
mod tokenize;
mod worker;

use std::ffi::OsString;
use std::io;

use anyhow::Result;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use options::args::{LineArgs, ModelArgs};
use options::security;
use running::interrupt;

pub use options::args;
pub use options::hub::arguments;
pub use printing::output;

const AFTER_HELP: &str = "\
Examples:
  brigade run                                  the built-in demo model over two local workers
  brigade run -m model.gguf -p 'Once upon'     your model, two local workers
  brigade run -hf USER/REPO:Q4_K_M             one of Hugging Face's, fetched once
  brigade chat -m model.gguf                   talk with it
  brigade serve -m model.gguf --workers 4      an OpenAI-compatible server on 127.0.0.1:8080
  brigade plan -m model.gguf --workers 3 --explain

RUST_LOG=brigade=debug shows more of what happens; every command has its own --help.";

/// Serve one large GGUF model from several machines.
#[derive(Debug, Parser)]
#[command(name = "brigade", version, about, after_help = AFTER_HELP, propagate_version = true)]
pub struct Cli {
    /// How log lines on stderr look
    #[arg(long, global = true, value_enum, default_value_t = args::LogFormat::Text)]
    pub log_format: args::LogFormat,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands; each documents itself in its file.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate text from one prompt
    Run(run::RunArgs),
    /// Chat with a model at a terminal
    Chat(chat::ChatArgs),
    /// Serve an OpenAI-compatible HTTP API
    Serve(Box<serve::ServeArgs>),
    /// Run one stage of a line for a coordinator
    Worker(worker::WorkerArgs),
    /// Make, list and revoke API keys of the HTTP server
    Key(key::KeyArgs),
    /// Fetch a model by name
    Pull(models::PullArgs),
    /// List the models on this machine
    Models(models::ModelsArgs),
    /// Delete a model that was fetched
    Rm(models::RmArgs),
    /// Delete fetched models that nobody uses
    Prune(models::PruneArgs),
    /// Show how a model's layers would be cut over workers
    Plan(plan::PlanArgs),
    /// Show what is in a GGUF file
    Inspect(inspect::InspectArgs),
    /// Measure prefill and decode beside the machine's limits
    Bench(bench::BenchArgs),
    /// Show what this machine can compute with
    Devices(devices::DevicesArgs),
    /// Make vectors of texts
    Embed(embed::EmbedArgs),
    /// Write the logits at every position of a prompt
    Logits(logits::LogitsArgs),
    /// Turn text into token ids
    Tokenize(tokenize::TokenizeArgs),
    /// Turn token ids into text
    Detokenize(detokenize::DetokenizeArgs),
    /// Measure how well a model predicts a text
    Perplexity(perplexity::PerplexityArgs),
    /// Write a seeded random model of a supported architecture
    Synth(synth::SynthArgs),
    /// Let a machine join the cluster
    Token(security::TokenArgs),
    /// List the machines that have joined the cluster
    Nodes(security::NodesArgs),
    /// Put a machine out of the cluster
    Revoke(security::RevokeArgs),
    /// See and change a running cluster
    Cluster(cluster::ClusterArgs),
    /// Check, show and write the file of options
    Config(config::ConfigArgs),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
}

impl Command {
    /// Work that must be done before the process has threads.
    pub fn prepare(&self) {
        if let Self::Worker(args) = self {
            worker::confine(args);
        }
    }

    /// Finds the model that the command names, fetched if need be, before anything else begins.
    ///
    /// # Errors
    /// There is no such model, or it cannot be had.
    pub fn find_model(&mut self) -> Result<()> {
        if let Self::Serve(args) = self {
            return args.all_models().try_for_each(|(model, line, joins)| find(model, line, joins));
        }
        let (model, line) = match self {
            Self::Run(args) => (&mut args.model, &args.line),
            // A server has its own model.
            Self::Chat(args) if args.url.is_some() => return Ok(()),
            Self::Chat(args) => (&mut args.model, &args.line),
            Self::Bench(args) => (&mut args.model, &args.line),
            Self::Embed(args) => (&mut args.model, &args.line),
            Self::Logits(args) => (&mut args.model, &args.line),
            Self::Perplexity(args) => (&mut args.model, &args.line),
            Self::Plan(args) => return args.model.describe(&args.line.data_dir),
            Self::Tokenize(args) => return args.model.describe(&args.data_dir),
            Self::Detokenize(args) => return args.model.describe(&args.data_dir),
            Self::Inspect(args) => return args.find(),
            Self::Synth(args) => return args.find(),
            _ => return Ok(()),
        };
        find(model, line, false)
    }

    /// The log level without RUST_LOG: servers log their actions, other commands only problems.
    pub fn default_log(&self) -> &'static str {
        match self {
            Self::Serve(_) | Self::Worker(_) => "info",
            _ => "warn",
        }
    }

    /// Runs the command to its end.
    pub async fn execute(self) -> Result<()> {
        match self {
            Self::Run(args) => run::execute(args).await,
            Self::Chat(args) => chat::execute(args).await,
            Self::Serve(args) => serve::execute(*args).await,
            Self::Worker(args) => worker::execute(args).await,
            Self::Key(args) => key::execute(args),
            Self::Pull(args) => models::pull(&args),
            Self::Models(args) => models::models(&args),
            Self::Rm(args) => models::rm(&args),
            Self::Prune(args) => models::prune(&args),
            Self::Plan(args) => plan::execute(args).await,
            Self::Inspect(args) => inspect::execute(args),
            Self::Bench(args) => bench::execute(args).await,
            Self::Devices(args) => devices::execute(args),
            Self::Embed(args) => embed::execute(args).await,
            Self::Logits(args) => logits::execute(args).await,
            Self::Tokenize(args) => tokenize::execute(args),
            Self::Detokenize(args) => detokenize::execute(args),
            Self::Perplexity(args) => perplexity::execute(args).await,
            Self::Synth(args) => synth::execute(args),
            Self::Token(args) => security::token(args),
            Self::Nodes(args) => security::nodes(&args).await,
            Self::Revoke(args) => security::revoke(&args),
            Self::Cluster(args) => cluster::execute(args).await,
            Self::Config(args) => config::execute(args),
            Self::Completions(args) => completions::execute(args),
        }
    }
}

/// Finds a model for a line, whose workers may come by themselves if `joins`.
fn find(model: &mut ModelArgs, line: &LineArgs, joins: bool) -> Result<()> {
    if line.is_elsewhere() || (joins && line.lora.is_empty()) {
        model.find_for_others(&line.data_dir)
    } else {
        model.find(&line.data_dir)
    }
}

/// Whether a command ended because of a signal: nothing needs to be said then.
pub fn is_interrupt(error: &anyhow::Error) -> bool {
    error.is::<interrupt::Interrupted>()
}

/// Whether a command ended because its output was closed, as in `brigade inspect | head`.
pub fn is_unread(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let in_json = cause.downcast_ref::<serde_json::Error>().and_then(|e| e.io_error_kind());
        kind.or(in_json) == Some(io::ErrorKind::BrokenPipe)
    })
}

/// Words of other programs' command lines, with brigade's equivalents.
const HINTS: &[(&[&str], &str)] = &[
    (&["--host", "--port"], "--listen HOST:PORT says where a server listens"),
    (
        &["--n-gpu-layers", "--gpu-layers", "--main-gpu", "--no-gpu"],
        "--device says what computes: auto, cpu or vulkan:N",
    ),
    (
        &["--tensor-parallel-size", "--pipeline-parallel-size", "--tp", "--pp"],
        "--workers N cuts the layers over N workers",
    ),
    (
        &["--gpu-memory-utilization", "--mem"],
        "--memory SIZE says how much each local worker may use",
    ),
    (
        &["--cache-type-k", "--cache-type-v", "--kv-cache-dtype", "--dtype"],
        "--kv-type says how keys and values are kept",
    ),
    (&["--batch-size", "-b"], "--ubatch N says how many rows the largest ubatch has"),
    (&["--n-parallel"], "--max-seqs N says how many sequences run at once"),
    (&["-c"], "--ctx N says how long the context is"),
    (&["-t"], "--threads N says how many threads each local worker has"),
    (
        &["--flash-attn", "--cont-batching", "--jinja", "--no-mmap", "--mlock"],
        "it is always so here: leave it out",
    ),
    (&["--mmproj", "--image"], "models run on texts alone here: leave it out"),
    (
        &["--grammar", "--grammar-file", "--json-schema", "-j"],
        "requests to a server have it: grammar, json_schema, response_format",
    ),
    (&["--interactive", "-i", "--conversation"], "brigade chat talks with a model"),
    (&["--reverse-prompt", "-r"], "--stop TEXT ends an answer"),
    (&["--verbose", "-v"], "RUST_LOG=brigade=debug shows more"),
    (&["--data_dir"], "--data-dir DIR"),
];

/// A suggestion for an argument that the command does not know.
pub fn hint(argument: &str) -> Option<&'static str> {
    let name = argument.split('=').next().unwrap_or(argument);
    HINTS.iter().find(|(names, _)| names.contains(&name)).map(|(_, hint)| *hint)
}

/// Corrects clap's error about an argument that a command does not know. clap counts the argument that it suggests among
/// those that were given, and shows a usage that has it alone. And it suggests what is spelled alike where a hint knows
/// what is meant.
pub fn correct(error: &mut clap::Error, args: &[OsString]) {
    if error.kind() != ErrorKind::UnknownArgument {
        return;
    }
    let is_known = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) => hint(argument).is_some(),
        _ => false,
    };
    if is_known {
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::Suggested);
    }
    error.insert(ContextKind::Usage, ContextValue::StyledStr(usage(args)));
}

/// The usage of the command that these arguments name.
fn usage(args: &[OsString]) -> StyledStr {
    let mut command = Cli::command();
    command.build();
    for arg in args.iter().skip(1) {
        if let Some(named) = command.find_subcommand(arg).cloned() {
            command = named;
        }
    }
    command.render_usage()
}

/// Whether the user wants plain text on terminals, as <https://no-color.org> has it.
pub fn no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_unknown_argument_shows_the_commands_own_usage_and_no_other_option() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let told = |line: &str| {
            let mut error = Cli::try_parse_from(words(line)).unwrap_err();
            correct(&mut error, &words(line));
            error.to_string()
        };
        let mut seen = 0;
        let mut root = Cli::command();
        root.build();
        for command in root.get_subcommands_mut() {
            let line = format!("brigade {}", command.get_name());
            let usage = command.render_usage().to_string();
            if command.has_subcommands() {
                continue;
            }
            for (names, _) in HINTS {
                for name in names.iter().filter(|name| name.starts_with("--")) {
                    let Err(error) = Cli::try_parse_from(words(&format!("{line} {name} 1"))) else {
                        continue;
                    };
                    if error.kind() == ErrorKind::UnknownArgument {
                        let said = told(&format!("{line} {name} 1"));
                        assert!(said.contains(&usage) && !said.contains("similar"), "{said}");
                        seen += 1;
                    }
                }
            }
        }
        assert!(seen > 100, "{seen} arguments");
        // What is only misspelled is still suggested.
        let said = told("brigade serve --conttrol 1");
        assert!(said.contains("'--control'") && said.contains("brigade serve [OPTIONS]"), "{said}");
        let said = told("brigade cluster load --exprts 1");
        assert!(said.contains("brigade cluster load [OPTIONS]"), "{said}");
    }

    #[test]
    fn the_documented_forms_parse() {
        for line in [
            "brigade run",
            "brigade run -m m.gguf --tokens 1,2,3 -n 4 --temp 0 --ids --workers 3 --kv-type f32",
            "brigade run -m m.gguf -p hello --worker 10.0.0.1:7000 --worker 10.0.0.2:7000 --insecure-network",
            "brigade serve -m m.gguf --listen 127.0.0.1:0 --control 127.0.0.1:0 --max-seqs 8 --ctx 4096",
            "brigade worker --listen 127.0.0.1:0 --join 127.0.0.1:7 --advertise 127.0.0.1:8 --memory 12G --threads 2 --kernels avx2",
            "brigade plan -m m.gguf --cluster c.toml --explain --json",
            "brigade chat -m m.gguf --system s --set max_tokens=9 --temp 0 --workers 3 --ctx 64 --no-history",
            "brigade chat --url http://127.0.0.1:8080/v1 --api-key k --ca c.pem --model-name m",
            "brigade inspect m.gguf --json",
            "brigade logits -m m.gguf --tokens 1,2,3 --workers 3 --ubatch 7 --out x.npy",
            "brigade embed -m m.gguf -f texts.txt --pooling cls --json --workers 3",
            "brigade tokenize -m m.gguf hello --no-bos --no-special",
            "brigade detokenize -m m.gguf 1,2,3",
            "brigade perplexity -m m.gguf -f text.txt --ctx 512",
            "brigade run --repeat-last-n -1 --repeat-penalty 1.1",
            "brigade run -m m.gguf hello --chat --chat-template chatml --tensor-split 3,0,1",
            "brigade serve -m m.gguf --cuts 12,24 --chat-template x.jinja",
            "brigade serve --listen 0.0.0.0:8443 --tls-cert c.pem --tls-key k.pem --admin-listen 127.0.0.1:0",
            "brigade serve --data-dir d --audit-log a.jsonl --audit-content --audit-size 10M --no-auth",
            "brigade key create me --tokens-per-minute 9 --requests-per-minute 2 --concurrent 1 --models a,b --priority low --expires 30d --data-dir d",
            "brigade key list --json",
            "brigade key revoke me",
            "brigade logits -m m.gguf --tokens 1 --cuts 12,24 --out x.npy --force",
            "brigade bench -m m.gguf --workers 2 --worker-cpus 0/1 --threads 1 --prompt 512 --gen 128 --parallel 1,8 --ubatch 64 --repeat 3 --json",
            "brigade synth --arch llama --size 0.6b --quant Q4_K_M --header-only --out x.gguf",
            "brigade completions bash",
            "brigade serve -m m.gguf --control 10.0.0.1:7000 --data-dir d --new-ca --cluster-cert-ttl 1h",
            "brigade serve --cluster-cert c.pem --cluster-key k.pem --cluster-ca ca.pem",
            "brigade worker --join 10.0.0.1:7000 --token t --data-dir d --name lab",
            "brigade worker --join 10.0.0.1:7000 --cluster-cert c.pem --cluster-key k.pem --cluster-ca ca.pem",
            "brigade token create --ttl 1h --uses 2 --data-dir d --join 10.0.0.1:7000",
            "brigade nodes --json --data-dir d",
            "brigade revoke lab --data-dir d",
            "brigade cluster status --json",
            "brigade cluster drain 10.0.0.2:7070 --port 8080",
            "brigade cluster add 10.0.0.4:7070",
            "brigade cluster undrain lab",
            "brigade token list --json --data-dir d",
            "brigade worker --join 10.0.0.1:7000 --token-file -",
            "brigade serve --allow-host chat.example --allow-host *.lab.example",
            "brigade cluster rebalance --data-dir /x",
            "brigade pull hf:u/r:Q4_K_M --data-dir d --download-dir m --offline --private-host lab:80 --json",
            "brigade models --json --data-dir d",
            "brigade rm hf:u/r:Q4_K_M ollama:x:1b",
            "brigade prune --unused-since 30d --yes --json",
            "brigade inspect hf:u/r:Q4_K_M --offline",
            "brigade tokenize -m hf:u/r hello --data-dir d",
            "brigade serve --allow-pull hf:u/* --allow-pull hf:v/*-GGUF:Q4_* --pull-budget 200G",
            "brigade key create me --may-load --models hf:u/r:Q4_K_M",
        ] {
            Cli::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
    }

    #[test]
    fn names_that_people_type_mean_what_they_mean_elsewhere() {
        for line in [
            "brigade run -m m.gguf --temperature 0 --max-tokens 4 --ctx-size 64 --repetition-penalty 1.1 --typ-p 1",
            "brigade run --num-predict 4 --num-ctx 64",
            "brigade run --predict=3",
            "brigade run -m m.gguf -p -5 -n 2",
            "brigade run -p --stop --stop -- --negative-prompt -x --guidance-scale 2",
            "brigade run --chat --system -quiet hello",
            "brigade run -- -5",
            "brigade chat --system-prompt - --temperature 0.5",
            "brigade serve -m m.gguf --max-model-len 64 --parallel 2 --alias x --chat-template-file t.jinja",
            "brigade logits -m m.gguf -p -5 --out x.npy",
            "brigade tokenize -m m.gguf -- -5",
        ] {
            Cli::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
        assert!(hint("--port=80").unwrap().contains("--listen") && hint("--nonsense").is_none());
        // No hint names what a command takes.
        for (names, _) in HINTS {
            for name in names.iter().filter(|name| **name != "-j") {
                let known = Cli::try_parse_from(["brigade", "run", name]).unwrap_err();
                let is_unknown = known.kind() == clap::error::ErrorKind::UnknownArgument;
                assert!(is_unknown, "{name}: {known}");
            }
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for line in [
            "brigade run --workers 2 --worker 127.0.0.1:1",
            "brigade run -p a --tokens 1",
            "brigade worker --listen 127.0.0.1:0 --advertise 127.0.0.1:8",
            "brigade plan --workers 2 --cluster c.toml",
            "brigade run --cuts 1 --tensor-split 1,1",
            "brigade run hello -p hello",
            "brigade serve --new-ca",
            "brigade serve --cluster-cert c.pem",
            "brigade worker --listen 127.0.0.1:0 --token t",
            "brigade logits --tokens 1,x --out x.npy",
            "brigade serve --tls-cert c.pem",
            "brigade serve --audit-content",
            "brigade key create",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
