//! `brigade chat` talks with a model at a terminal: over a line of its own, or with a server.
//!
//! Both are asked by OpenAI's requests (`door`), so that an answer here is the one that any client would get.

mod door;
mod events;
mod reader;
mod repl;
mod talk;
mod typed;

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use brigade_dialect::text_model::TextModel;
use brigade_http::{Fleet, Hosts, Origins, router};
use brigade_line::measured::metrics;
use clap::Args;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::serve;
use crate::cli::options::args::{KvArg, LineArgs, ModelArgs, TemplateArgs};
use crate::cli::options::input;
use crate::cli::options::sampling::SamplingArgs;
use crate::cli::options::speculate::SpeculateArgs;
use crate::cli::printing::output;
use crate::cli::running::session::{CtrlC, SessionOptions, with_session_until};
use door::{Door, Server};
use reader::Reader;
use repl::Repl;
pub use talk::Talk;
use typed::Typed;

/// The history's file in the data folder.
const HISTORY: &str = "chat-history";

/// The history is private to its user.
const HISTORY_FOLDER_MODE: u32 = 0o700;

/// Arguments of a line of one's own; a server has its line, and `--set` says how it draws.
const OF_OWN_LINE: [&str; 19] = [
    "chat_template",
    "ctx",
    "kv_type",
    "workers",
    "worker",
    "worker_cpus",
    "threads",
    "memory",
    "kernels",
    "wire_type",
    "insecure_network",
    "lora",
    "control_vector",
    "control_vector_layers",
    "full_windows",
    "ubatch",
    "balance",
    "tensor_split",
    "cuts",
];

fn of_own_line() -> impl Iterator<Item = &'static str> {
    OF_OWN_LINE.into_iter().chain(SamplingArgs::ids())
}

/// Chat with a model at a terminal.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade chat                                        the built-in demo over two local workers
  brigade chat -m model.gguf --system 'Answer briefly.'
  brigade chat --url http://127.0.0.1:8080
  brigade chat --url https://brigade.example --api-key bgd-... --ca ca.pem
  echo 'What is a bucket brigade?' | brigade chat -m model.gguf

Ctrl-C ends an answer, Ctrl-D the chat. /help lists the commands. Where standard input is no terminal, each line is
a message. Answers go to standard output, everything else to standard error.")]
pub struct ChatArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Chat with an OpenAI-compatible server instead of starting workers
    #[arg(long, value_name = "URL", conflicts_with_all = of_own_line())]
    pub(super) url: Option<String>,
    /// The server's key
    #[arg(
        long,
        value_name = "KEY",
        env = "BRIGADE_API_KEY",
        hide_env_values = true,
        requires = "url"
    )]
    api_key: Option<String>,
    /// Certificates of the authorities that may vouch for the server [default: this system's]
    #[arg(long, value_name = "FILE", requires = "url")]
    ca: Option<PathBuf>,
    /// Which of the server's models [default: the first]
    #[arg(long, value_name = "NAME", requires = "url")]
    model_name: Option<String>,
    /// A system message
    #[arg(long, alias = "system-prompt", value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Set a field of the requests, such as temperature=0.3 or max_tokens=200; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = field)]
    set: Vec<Field>,
    /// Do not read or write the history of what was typed [it is chat-history in the data folder]
    #[arg(long)]
    no_history: bool,
    #[command(flatten)]
    template: TemplateArgs,
    /// Positions of the context [default: what the model was trained on, as far as memory allows]
    #[arg(long, value_name = "N", aliases = ["ctx-size", "context-size", "context-length", "max-model-len", "num-ctx"])]
    ctx: Option<u32>,
    /// Type of the KV cache
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    kv_type: KvArg,
    #[command(flatten)]
    speculation: SpeculateArgs,
    #[command(flatten)]
    pub(super) line: LineArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// A field of the requests.
type Field = (String, Value);

fn field(text: &str) -> Result<Field, String> {
    let split = text.split_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty());
    let (name, value) = split.ok_or("NAME=VALUE is needed")?;
    match typed::setting(name, Some(value)).map_err(|error| error.to_string())? {
        Typed::Set(name, Some(value)) => Ok((name, value)),
        _ => Err("NAME=VALUE is needed".to_string()),
    }
}

/// Runs the command.
pub async fn execute(args: ChatArgs) -> Result<()> {
    match &args.url {
        Some(url) => far(&args, url).await,
        None => {
            let mut settings = args.sampling.fields();
            settings.extend(args.set.iter().cloned());
            let mut options = SessionOptions::command(&args.model, &args.line, args.kv_type);
            options.ctx = args.ctx;
            options.speculate = args.speculation.speculate();
            options.max_windows = args.speculation.max_windows();
            options.chat_template = args.template.source()?;
            let talk = Talk::new(args.system.clone(), settings);
            near(options, talk, history(&args.line, args.no_history)?).await
        }
    }
}

/// Chats with a server.
async fn far(args: &ChatArgs, url: &str) -> Result<()> {
    let server = Server::new(url, args.api_key.as_deref(), args.ca.as_deref())?;
    if server.is_plain_beyond_this_machine() {
        output::remark(format_args!(
            "warning: {url} is plain HTTP: the chat and its key can be read on the way"
        ));
    }
    let door = Door::There(Box::new(server));
    let models = door.models().await?;
    let model = match &args.model_name {
        Some(name) if !models.is_empty() && !models.contains(name) => {
            bail!("--model-name {name}: the server has {}", models.join(", "))
        }
        Some(name) => Some(name.clone()),
        None => models.into_iter().next(),
    };
    let settings = args.set.iter().cloned().collect();
    let mut talk = Talk::new(args.system.clone(), settings);
    talk.model = model;
    let reader = Reader::start(history(&args.line, args.no_history)?)?;
    Repl::new(door, talk, reader)?.run().await
}

/// Chats over a line of this process. The next turn begins where the last one ended.
pub async fn near(
    mut options: SessionOptions,
    mut talk: Talk,
    history: Option<PathBuf>,
) -> Result<()> {
    (options.keep, options.marks) = (None, true);
    // An answer with a companion is two sequences.
    if talk.has_companion() {
        options.max_seqs = options.max_seqs.max(2);
    }
    let model = options.model.path()?;
    let gguf = options.model.open()?;
    // Checked before anything is started.
    if options.chat_template.is_none() {
        let text = input::open_model(&model, |_| TextModel::from_gguf(String::new(), &gguf))?;
        text.check_template().map_err(|error| {
            anyhow!("{error}: give --chat-template chatml, or a file with the model's template")
        })?;
    }
    drop(gguf);
    let max_seqs = options.max_seqs;
    with_session_until(options, CtrlC::OfTheBody, async |session| {
        let metrics = metrics::install().context("cannot install the metrics recorder")?;
        let door = Arc::new(brigade_http::Door::of_this_process(metrics, CancellationToken::new()));
        let app = serve::app_of(session, door, max_seqs);
        talk.model = Some(session.model.text.name().to_string());
        let router = router(Fleet::of_one(app), Hosts::of_this_process(), Origins::default());
        Repl::new(Door::Here(router), talk, Reader::start(history)?)?.run().await
    })
    .await
}

/// Where the history is kept; `None`: nowhere.
pub fn history(line: &LineArgs, not: bool) -> Result<Option<PathBuf>> {
    let Some(folder) = line.data_dir.find().filter(|_| !not) else { return Ok(None) };
    let made = std::fs::DirBuilder::new().recursive(true).mode(HISTORY_FOLDER_MODE).create(&folder);
    made.with_context(|| format!("cannot make {}: give --no-history", folder.display()))?;
    Ok(Some(folder.join(HISTORY)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        chat: ChatArgs,
    }

    fn parse(line: &str) -> Result<ChatArgs, clap::Error> {
        Line::try_parse_from(line.split(' ')).map(|line| line.chat)
    }

    #[test]
    fn a_server_has_its_own_line_and_sampling() {
        let args = parse("chat --url http://h --api-key k --set temperature=0.5 --system s");
        assert_eq!(args.unwrap().set, [("temperature".to_string(), json!(0.5))]);
        for wrong in [
            "chat --url http://h --workers 2",
            "chat --url http://h --temp 0.5",
            "chat --url http://h --ctx 64",
            "chat --url http://h --lora a.gguf",
            "chat --api-key k",
            "chat --set temperature",
            "chat --set stream=false",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
