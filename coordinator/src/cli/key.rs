//! `brigade key`: API keys of the HTTP server, made, listed and revoked.

use std::time::Duration;

use anyhow::Result;
use brigade_line::clock;
use brigade_line::keys::record::{MAX_MODELS, MAX_NAME_BYTES};
use brigade_line::keys::{KeyFile, KeyRecord, Priority, Secret};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use crate::cli::options::data_dir::DataDirArgs;
use crate::cli::options::units;
use crate::cli::printing::output;

/// API keys of the HTTP server.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade key create alice
  brigade key create batch --priority low --tokens-per-minute 100000 --concurrent 4 --expires 30d
  brigade key create team --may-load
  brigade key create prometheus --admin
  brigade key revoke alice

As soon as there is a key, every request needs one. A server that runs sees changes within 2 s.")]
pub struct KeyArgs {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Make a key and print its secret, this once
    Create(Box<CreateArgs>),
    /// Show all keys, without their secrets
    List(ListArgs),
    /// Take a key out of force
    Revoke(RevokeArgs),
}

/// How large a key's share is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PriorityArg {
    /// Four times the share of normal
    High,
    /// The usual share
    Normal,
    /// A quarter of normal's share
    Low,
}

impl PriorityArg {
    fn priority(self) -> Priority {
        match self {
            Self::High => Priority::High,
            Self::Normal => Priority::Normal,
            Self::Low => Priority::Low,
        }
    }
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// Name of the key in lists and logs
    name: String,
    /// Tokens of prompts and answers in a minute, over time
    #[arg(long, value_name = "N")]
    tokens_per_minute: Option<u64>,
    /// Requests in a minute, over time
    #[arg(long, value_name = "N")]
    requests_per_minute: Option<u64>,
    /// Requests at once
    #[arg(long, value_name = "N")]
    concurrent: Option<u64>,
    /// Models that the key may use, as /v1/models names them [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    models: Vec<String>,
    /// The key's share of the line beside other keys
    #[arg(long, value_enum, default_value_t = PriorityArg::Normal)]
    priority: PriorityArg,
    /// How long the key is valid, such as 12h, 30d [default: until it is revoked]
    #[arg(long, value_name = "TIME", value_parser = units::some_time)]
    expires: Option<Duration>,
    /// Make a key for the admin listener (/metrics, /admin, /health with reasons) where that is beyond loopback, and
    /// for nothing else
    #[arg(long, conflicts_with_all = ["tokens_per_minute", "requests_per_minute", "concurrent", "models", "may_load"])]
    admin: bool,
    /// Let requests with this key have models fetched that are not on this machine, by names that the server opens with
    /// serve --allow-pull
    #[arg(long)]
    may_load: bool,
    /// Print the key as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    data_dir: DataDirArgs,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Print the keys as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    data_dir: DataDirArgs,
}

#[derive(Debug, Args)]
struct RevokeArgs {
    /// Name of the key
    name: String,
    #[command(flatten)]
    data_dir: DataDirArgs,
}

/// Runs the command.
pub fn execute(args: KeyArgs) -> Result<()> {
    match args.command {
        KeyCommand::Create(args) => create(&args),
        KeyCommand::List(args) => list(&args),
        KeyCommand::Revoke(args) => revoke(&args),
    }
}

fn create(args: &CreateArgs) -> Result<()> {
    let secret = Secret::new()?;
    let now = clock::unix_now();
    let record = KeyRecord {
        expires: args.expires.map(|after| now + after.as_secs()),
        tokens_per_minute: args.tokens_per_minute,
        requests_per_minute: args.requests_per_minute,
        concurrent: args.concurrent,
        models: models(&args.models)?,
        priority: args.priority.priority(),
        admin: args.admin,
        may_load: args.may_load,
        ..KeyRecord::new(&args.name, &secret, now)?
    };
    record.check_limits()?;
    let file = KeyFile::in_folder(&args.data_dir.path()?);
    file.add(record.clone())?;
    if args.json {
        let mut shown = shown(&record);
        shown["secret"] = json!(secret.reveal());
        return output::json(&shown);
    }
    output::line(format_args!("{}", secret.reveal()))?;
    output::remark(format_args!(
        "This is the only time that the key {} is shown; {} holds its hash.",
        record.name,
        file.path().display()
    ));
    Ok(())
}

fn models(names: &[String]) -> Result<Vec<String>> {
    if names.len() > MAX_MODELS {
        anyhow::bail!("--models names {} models: at most {MAX_MODELS}", names.len());
    }
    Ok(names.iter().filter(|name| !name.is_empty()).cloned().collect())
}

fn list(args: &ListArgs) -> Result<()> {
    let keys = KeyFile::in_folder(&args.data_dir.path()?).read()?;
    let keys = keys.map(|(keys, _)| keys).unwrap_or_default();
    if args.json {
        return output::json(&keys.iter().map(shown).collect::<Vec<_>>());
    }
    let head =
        ["name", "key", "made", "expires", "tokens/min", "requests/min", "at once", "share", "for"];
    output::table(&head, &keys.iter().map(row).collect::<Vec<_>>())
}

/// A key for programs: its record without its hash.
fn shown(key: &KeyRecord) -> serde_json::Value {
    json!({
        "name": key.name,
        "key": format!("{}...", key.shown),
        "created": key.created,
        "expires": key.expires,
        "expired": key.has_expired(clock::unix_now()),
        "tokens_per_minute": key.tokens_per_minute,
        "requests_per_minute": key.requests_per_minute,
        "concurrent": key.concurrent,
        "models": key.models,
        "priority": key.priority,
        "admin": key.admin,
        "may_load": key.may_load,
    })
}

fn row(key: &KeyRecord) -> Vec<String> {
    let or_dash = |n: Option<u64>| n.map_or("-".to_string(), |n| n.to_string());
    let expires = match key.expires {
        None => "-".to_string(),
        Some(_) if key.has_expired(clock::unix_now()) => "expired".to_string(),
        Some(at) => clock::date_time(at),
    };
    let models = match (key.admin, key.models.is_empty()) {
        (true, _) => "the admin listener".to_string(),
        (false, true) => "all models".to_string(),
        (false, false) => key.models.join(", "),
    };
    let opens = if key.may_load { format!("{models}, may load") } else { models };
    vec![
        format!("{:.MAX_NAME_BYTES$}", key.name),
        format!("{}...", key.shown),
        clock::date_time(key.created),
        expires,
        or_dash(key.tokens_per_minute),
        or_dash(key.requests_per_minute),
        or_dash(key.concurrent),
        key.priority.name().to_string(),
        opens,
    ]
}

fn revoke(args: &RevokeArgs) -> Result<()> {
    let file = KeyFile::in_folder(&args.data_dir.path()?);
    let key = file.remove(&args.name)?;
    output::line(format_args!(
        "revoked {} ({}...): servers refuse it within 2 s",
        key.name, key.shown
    ))
}
