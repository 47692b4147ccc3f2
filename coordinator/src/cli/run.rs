//! `brigade run` prints the continuation of one prompt on standard output.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use brigade_dialect::text_model::{Chat, TextModel};
use brigade_line::generation::{End, Generation, Part};
use brigade_line::handle::Failure;
use brigade_line::measured::meter::{Stretch, summarise};
use brigade_line::request::{Drawing, Guiding, Request};
use brigade_plan::{Keep, ModelFacts};
use brigade_text::TextError;
use clap::Args;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::chat::{self, Talk};
use super::config::ConfigFile;
use crate::cli::options::args::{KvArg, LineArgs, ModelArgs, TemplateArgs};
use crate::cli::options::input;
use crate::cli::options::sampling::{self, SamplingArgs};
use crate::cli::options::speculate::SpeculateArgs;
use crate::cli::options::units::{TokenIds, token_ids};
use crate::cli::printing::output;
use crate::cli::printing::progress::Bar;
use crate::cli::running::session::{Session, SessionOptions, with_session};
use crate::cli::running::state_file;

/// Tokens generated where -n is not given.
const DEFAULT_N: u32 = 128;

/// Sequences of a guided run.
const GUIDED_SEQS: u32 = 2;

/// The demo model's prompt where none is given.
const DEMO_PROMPT: &str = "In the beginning";

/// How long a run of the demo model waits for a prompt on a pipe that may never have one.
const DEMO_PIPE_WITHIN: Duration = Duration::from_secs(1);

/// A prompt that takes longer than this has its progress shown ...
const SHOWN_AFTER: Duration = Duration::from_millis(400);

/// ... and that as often.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Generate text from one prompt.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade run                                         the built-in demo over two local workers
  brigade run -m model.gguf -p 'Once upon a time' -n 64
  brigade run -m model.gguf --chat -p 'What is a bucket brigade?'
  brigade run -m model.gguf --chat                    a chat at the terminal, as brigade chat
  brigade run -m model.gguf --tokens 1,15043 -n 8 --temp 0 --ids
  brigade run -m model.gguf 'Once upon a time'
  echo 'A haiku:' | brigade run -m model.gguf
  brigade run -m model.gguf -f long.txt -n 1 --state-out long.state

The text goes to standard output, everything else to standard error; on a terminal the prompt is
shown before its continuation. The chat template is applied only with --chat; otherwise the prompt
is continued as it is.")]
pub struct RunArgs {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// The prompt; - is standard input, which is also read where there is no prompt
    #[arg(value_name = "PROMPT", conflicts_with_all = ["prompt", "file", "tokens"])]
    text: Option<String>,
    /// The prompt
    #[arg(short, long, allow_hyphen_values = true, conflicts_with_all = ["file", "tokens"])]
    prompt: Option<String>,
    /// Read the prompt from a file; - is standard input
    #[arg(short, long, conflicts_with = "tokens")]
    file: Option<PathBuf>,
    /// The prompt as token ids, e.g. 1,2,3; nothing is added to them
    #[arg(long, value_parser = token_ids)]
    tokens: Option<TokenIds>,
    /// Tokens to generate at most
    #[arg(
        short,
        long,
        aliases = ["predict", "max-tokens", "max-new-tokens", "num-predict"],
        value_name = "N",
        default_value_t = DEFAULT_N
    )]
    n_predict: u32,
    #[command(flatten)]
    template: TemplateArgs,
    /// Treat the prompt as a user's message and apply the model's chat template
    #[arg(long, conflicts_with = "tokens")]
    chat: bool,
    /// A system message before it
    #[arg(
        long,
        alias = "system-prompt",
        value_name = "TEXT",
        allow_hyphen_values = true,
        requires = "chat"
    )]
    system: Option<String>,
    /// Guide the answer away from this text (classifier-free guidance): it takes the prompt's place in a second
    /// sequence, with --chat the system message's place [default: the prompt's last token]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, requires = "guidance_scale")]
    negative_prompt: Option<String>,
    /// How strongly to guide: 1 is off, 1.5 is usual; a second sequence is computed
    #[arg(long, value_name = "X")]
    guidance_scale: Option<f32>,
    /// End where this text would come; repeatable
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Go on after end-of-generation tokens
    #[arg(long)]
    ignore_eos: bool,
    /// Print the generated token ids as a JSON list instead of text; implies --ignore-eos, so that
    /// exactly N are printed
    #[arg(long, conflicts_with = "json")]
    ids: bool,
    /// Print one JSON object with text, ids and figures at the end
    #[arg(long)]
    json: bool,
    /// Positions of the context [default: what the model was trained on, as far as memory allows]
    #[arg(long, value_name = "N", aliases = ["ctx-size", "context-size", "context-length", "max-model-len", "num-ctx"])]
    ctx: Option<u32>,
    /// Save the sequence's state when it ends: a later run continues from it without computing it
    #[arg(long, value_name = "FILE")]
    state_out: Option<PathBuf>,
    /// Begin with a state saved by --state-out; the prompt must start with its tokens
    #[arg(long, value_name = "FILE")]
    state_in: Option<PathBuf>,
    /// Type of the KV cache
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    kv_type: KvArg,
    /// Write a timeline of the last 20000 ubatches through all stages, for ui.perfetto.dev or
    /// chrome://tracing
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    speculation: SpeculateArgs,
    #[command(flatten)]
    pub(super) line: LineArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Runs the command.
pub async fn execute(args: RunArgs) -> Result<()> {
    let mut options = SessionOptions::command(&args.model, &args.line, args.kv_type);
    options.ctx = args.ctx;
    options.trace.clone_from(&args.trace);
    options.speculate = args.speculation.speculate();
    options.max_windows = args.speculation.max_windows();
    options.chat_template = args.template.source()?;
    if args.state_in.is_some() || args.state_out.is_some() {
        options.keep = Some(Keep::States(state_file::KEEP));
    }
    if args.is_guided() {
        options.max_seqs = GUIDED_SEQS;
    }
    if args.is_talk() {
        let talk = args.talk();
        return chat::near(options, talk, chat::history(&args.line, false)?).await;
    }
    // A missing model is reported before the user types a prompt.
    args.model.open()?;
    let prompt = args.prompt()?;
    with_session(options, async |session| generate(session, &args, prompt).await).await
}

/// A prompt before the tokenizer has seen it.
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

impl RunArgs {
    /// The model is in this file; `None`: the demo model.
    pub fn set_model(&mut self, file: Option<PathBuf>) {
        self.model.model = file;
    }

    /// Whether the command is a chat: no prompt, none of the options for a single prompt, and a terminal.
    fn is_talk(&self) -> bool {
        let has_prompt = self.text.is_some() || self.prompt.is_some() || self.file.is_some();
        let of_one_prompt =
            self.json || self.ids || self.state_in.is_some() || self.state_out.is_some();
        self.chat && !has_prompt && !of_one_prompt && io::stdin().is_terminal()
    }

    /// Whether a second sequence is computed.
    fn is_guided(&self) -> bool {
        self.guidance_scale.is_some_and(|scale| scale != 1.0)
    }

    /// The tokens that the answer is guided away from.
    fn guiding(&self, text: &TextModel, chat: Option<&Chat>) -> Result<Option<Guiding>> {
        let Some(scale) = self.guidance_scale.filter(|_| self.is_guided()) else { return Ok(None) };
        let negative = self.negative_prompt.as_ref().map(|negative| match chat {
            Some(chat) => Ok(text.encode_chat(&chat.with_system(negative))?.tokens),
            None => text.encode_prompt(negative),
        });
        Ok(Some(Guiding { scale, negative: negative.transpose()?.map(Arc::from) }))
    }

    /// A chat as these arguments want it.
    fn talk(&self) -> Talk {
        let mut settings = self.sampling.fields();
        settings.insert("max_tokens".to_string(), json!(self.n_predict));
        if !self.stop.is_empty() {
            settings.insert("stop".to_string(), json!(self.stop));
        }
        if self.ignore_eos {
            settings.insert("ignore_eos".to_string(), json!(true));
        }
        let scale = self.guidance_scale.map(sampling::number);
        settings.extend(scale.map(|scale| ("guidance_scale".to_string(), scale)));
        let negative = self.negative_prompt.as_ref().map(|text| json!(text));
        settings.extend(negative.map(|text| ("negative_prompt".to_string(), text)));
        Talk::new(self.system.clone(), settings)
    }

    fn prompt(&self) -> Result<Prompt> {
        if let Some(TokenIds(ids)) = &self.tokens {
            return Ok(Prompt::Tokens(ids.clone()));
        }
        let text = self.prompt.as_ref().or(self.text.as_ref());
        let text = match (text, &self.file) {
            (Some(text), _) if text != "-" || self.prompt.is_some() => text.clone(),
            (Some(_), _) => input::read_text(Path::new("-"))?,
            (None, Some(path)) => input::read_text(path)?,
            (None, None) => self.piped()?,
        };
        Ok(Prompt::Text(text))
    }

    /// The prompt where none was given: the piped text, or the demo model's own prompt.
    fn piped(&self) -> Result<String> {
        match self.model.model {
            None => {
                let piped = input::piped_text(Some(DEMO_PIPE_WITHIN))?;
                Ok(piped.unwrap_or_else(|| DEMO_PROMPT.to_string()))
            }
            Some(_) => match input::piped_text(None)? {
                Some(text) => Ok(text),
                None => bail!(
                    "no prompt: give one as text, with -f FILE, as --tokens 1,2,3 or on standard input"
                ),
            },
        }
    }

    fn request(&self, session: &Session, prompt: Prompt) -> Result<Request> {
        let text = &session.model.text;
        let mut chat = None;
        let tokens = match prompt {
            Prompt::Tokens(ids) => ids,
            Prompt::Text(user) if self.chat => {
                let prompt = text.encode_chat(chat.insert(self.chat_of(user)));
                let prompt = prompt.map_err(|error| match error {
                    TextError::NoTemplate | TextError::BadTemplate(_) => {
                        anyhow!("{error}, with --chat-template chatml")
                    }
                    other => other.into(),
                })?;
                prompt.tokens
            }
            Prompt::Text(plain) => text.encode_prompt(&plain)?,
        };
        let stop_tokens = if self.ids || self.ignore_eos { Arc::from([]) } else { text.eog() };
        let drawing = Drawing {
            max_tokens: Some(self.n_predict),
            params: self.sampling.params(session.limits.now().n_ctx),
            seed: self.sampling.seed.unwrap_or_else(brigade_line::random::u64),
            top_logprobs: None,
            stop_tokens,
            companion: self.guiding(text, chat.as_ref())?,
            drafts: Some([].into()),
            ..Drawing::default()
        };
        Ok(Request::generate(tokens, drawing, &session.limits.now())?)
    }

    fn chat_of(&self, user: String) -> Chat {
        let message = |role: &str, content: &str| json!({ "role": role, "content": content });
        let system = self.system.iter().map(|s| message("system", s));
        Chat { messages: system.chain([message("user", &user)]).collect(), ..Chat::default() }
    }
}

async fn generate(session: &Session, args: &RunArgs, prompt: Prompt) -> Result<()> {
    let echo = match &prompt {
        Prompt::Text(text) if !args.chat && !args.ids && !args.json => text.clone(),
        _ => String::new(),
    };
    let request = args.request(session, prompt)?;
    let n_prompt = request.tokens.len();
    if let Some(path) = &args.state_in {
        state_file::load(session, path, &request.tokens).await?;
    }
    let sequence = session.submit(request).await?;
    let mut generation = Generation::new(session.model.text.clone(), sequence, &args.stop)?;
    let shows_text = !args.ids && !args.json;
    let mut out = io::stdout();
    let mut next = first_part(session, &mut generation, n_prompt).await;
    if shows_text && io::stdout().is_terminal() {
        write!(out, "{echo}")?;
        out.flush()?;
    }
    let (mut text, mut ids) = (String::new(), Vec::new());
    let end = loop {
        match next? {
            Part::Piece(piece) => {
                if shows_text {
                    write!(out, "{}", piece.text)?;
                    out.flush()?;
                }
                text.push_str(&piece.text);
                ids.extend(piece.tokens.iter().map(|t| t.id));
            }
            Part::End(end) => break end,
        }
        next = generation.next().await;
    };
    let figures = Figures::new(session, n_prompt, &end, args.kv_type)?;
    if let Some(path) = &args.state_out {
        let id = generation.id();
        drop(generation);
        state_file::save(session, id, path).await?;
    }
    if args.ids {
        output::line(format_args!("{}", serde_json::to_string(&ids)?))?;
    } else if args.json {
        let mut object = figures.json();
        object["text"] = json!(text);
        object["ids"] = json!(ids);
        output::json(&object)?;
    } else {
        writeln!(out)?;
    }
    output::remark(format_args!("{}", figures.line()));
    Ok(())
}

/// Waits for the first part, with the prompt's progress on a terminal.
async fn first_part(
    session: &Session,
    generation: &mut Generation,
    n_prompt: usize,
) -> Result<Part, Failure> {
    let before = session.meter.prompt_rows();
    let bar = Bar::new();
    let mut look = tokio::time::interval_at(Instant::now() + SHOWN_AFTER, LOOK_EVERY);
    loop {
        // `next` may be dropped and called again: it takes one event at a time.
        tokio::select! {
            part = generation.next() => return part,
            _ = look.tick() => {
                let total = (n_prompt as u64).saturating_sub(generation.n_reused().into());
                let done = session.meter.prompt_rows().saturating_sub(before);
                bar.rows("computing the prompt", done, total);
            }
        }
    }
}

/// The summary of a run.
struct Figures {
    /// Number of prompt tokens that were computed.
    n_prompt: usize,
    /// Prompt tokens whose state was there.
    n_restored: u32,
    n_generated: u32,
    prefill_per_second: f64,
    decode_per_second: f64,
    gb_per_second: f64,
    stretch: Stretch,
}

impl Figures {
    fn new(session: &Session, n_prompt: usize, end: &End, kv: KvArg) -> Result<Self> {
        let stretch = summarise(&session.meter.take());
        let (prefill, decode) = (end.to_first.as_secs_f64(), end.after_first.as_secs_f64());
        let rate = |n: f64, seconds: f64| if seconds > 0.0 { n / seconds } else { 0.0 };
        let facts = session.model.facts(kv.engine())?;
        let n_prompt = n_prompt.saturating_sub(end.n_reused as usize);
        let n_decoded = f64::from(end.n_generated.saturating_sub(1));
        Ok(Self {
            n_prompt,
            n_restored: end.n_reused,
            n_generated: end.n_generated,
            prefill_per_second: rate(n_prompt as f64, prefill),
            decode_per_second: rate(n_decoded, decode),
            gb_per_second: rate(n_decoded * bytes_of_a_row(&facts), decode) / 1e9,
            stretch,
        })
    }

    fn line(&self) -> String {
        let busy: Vec<String> =
            self.stretch.stage_busy.iter().map(|b| format!("{:.0} %", b * 100.0)).collect();
        let busy = if busy.is_empty() { "-".to_string() } else { busy.join(", ") };
        let restored = match self.n_restored {
            0 => String::new(),
            n => format!("restored {n} tokens, "),
        };
        format!(
            "{restored}prefill {} tokens at {:.1} t/s, decode {} tokens at {:.1} t/s ({:.2} GB/s), stages busy {busy}",
            self.n_prompt,
            self.prefill_per_second,
            self.n_generated,
            self.decode_per_second,
            self.gb_per_second,
        )
    }

    fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.n_prompt as u64 + u64::from(self.n_restored),
            "restored_tokens": self.n_restored,
            "generated_tokens": self.n_generated,
            "prefill_tokens_per_second": self.prefill_per_second,
            "decode_tokens_per_second": self.decode_per_second,
            "gb_per_second": self.gb_per_second,
            "stage_busy": self.stretch.stage_busy,
        })
    }
}

/// Bytes of weights that one decoded row reads on its way through all stages.
fn bytes_of_a_row(facts: &ModelFacts) -> f64 {
    let layers: f64 = facts.layers.iter().map(|l| l.read_bytes(1.0)).sum();
    layers + facts.head_bytes as f64
}
