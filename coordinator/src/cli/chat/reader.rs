//! Reads inputs from a terminal or a pipe, one at a time.
//!
//! A thread of its own reads, because reading waits. It reads only when it is asked to, so that the terminal is an
//! ordinary one while the model answers.

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;
use std::sync::mpsc as std_mpsc;

use anyhow::{Context, Result};
use nix::sys::termios::{self, SetArg, Termios};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{CompletionType, Config, Context as At, Editor, Helper};
use tokio::sync::mpsc;

use super::typed;

/// The prompt of the line editor.
const PROMPT: &str = "> ";

/// Inputs that are remembered.
const MAX_HISTORY: usize = 1000;

/// Commands, for the Tab key.
const COMMANDS: [&str; 7] = ["/clear", "/exit", "/help", "/regen", "/save ", "/set ", "/system "];

/// An input, or the reason why there is none.
#[derive(Debug)]
pub enum Read {
    /// A complete input.
    Input(String),
    /// Ctrl-C, which threw away what stood there.
    Interrupted,
    /// Nothing more will come.
    End,
}

/// The receiver of inputs.
#[derive(Debug)]
pub struct Reader {
    ask: std_mpsc::Sender<()>,
    reads: mpsc::Receiver<Result<Read>>,
    /// The terminal as it was, if it is one.
    terminal: Option<Termios>,
}

impl Reader {
    /// Reads standard input: with a line editor and a history if it is a terminal, else line by line.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub fn start(history: Option<PathBuf>) -> Result<Self> {
        let stdin = std::io::stdin();
        let is_terminal = stdin.is_terminal();
        let terminal = is_terminal.then(|| termios::tcgetattr(&stdin)).transpose();
        let terminal = terminal.context("the terminal")?;
        let mut source: Box<dyn FnMut() -> Result<Read> + Send> = if is_terminal {
            let mut lines = Lines::open(history)?;
            Box::new(move || lines.next())
        } else {
            Box::new(piped)
        };
        let (ask, asked) = std_mpsc::channel();
        let (send, reads) = mpsc::channel(1);
        std::thread::spawn(
            move || {
                while asked.recv().is_ok() && send.blocking_send(source()).is_ok() {}
            },
        );
        Ok(Self { ask, reads, terminal })
    }

    /// Whether a person types.
    pub fn is_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// Waits for the next input.
    ///
    /// # Errors
    /// Standard input cannot be read, or is no UTF-8.
    pub async fn next(&mut self) -> Result<Read> {
        // A thread that has ended sends nothing.
        let _ = self.ask.send(());
        self.reads.recv().await.unwrap_or(Ok(Read::End))
    }
}

impl Drop for Reader {
    /// A signal may end the chat while the editor has the terminal.
    fn drop(&mut self) {
        if let Some(was) = &self.terminal {
            // A terminal that cannot be restored now is not worth another failure.
            let _ = termios::tcsetattr(std::io::stdin(), SetArg::TCSADRAIN, was);
        }
    }
}

/// Lines of a pipe, until they are something whole.
fn piped() -> Result<Read> {
    let mut input = String::new();
    loop {
        let n = std::io::stdin().lock().read_line(&mut input).context("standard input")?;
        let text = input.strip_suffix('\n').unwrap_or(&input);
        match n {
            0 if input.is_empty() => return Ok(Read::End),
            n if n == 0 || typed::is_whole(text) => return Ok(Read::Input(text.to_string())),
            _ => {}
        }
    }
}

/// The line editor, on its own thread.
struct Lines {
    editor: Editor<Help, FileHistory>,
    /// Where the history is kept.
    file: Option<PathBuf>,
}

impl Lines {
    fn open(file: Option<PathBuf>) -> Result<Self> {
        let config = Config::builder()
            .max_history_size(MAX_HISTORY)?
            .history_ignore_space(true)
            .completion_type(CompletionType::List)
            .build();
        let history = FileHistory::with_config(&config);
        let mut editor = Editor::with_history(config, history)?;
        editor.set_helper(Some(Help));
        if let Some(file) = file.as_ref().filter(|file| file.exists()) {
            let loaded = editor.load_history(file);
            loaded.with_context(|| format!("the history {}", file.display()))?;
        }
        Ok(Self { editor, file })
    }

    fn next(&mut self) -> Result<Read> {
        match self.editor.readline(PROMPT) {
            Ok(input) => {
                self.remember(&input)?;
                Ok(Read::Input(input))
            }
            Err(ReadlineError::Interrupted) => Ok(Read::Interrupted),
            Err(ReadlineError::Eof) => Ok(Read::End),
            Err(error) => Err(error).context("the terminal"),
        }
    }

    /// Written at once: the chat may end in any way. The file is for its owner alone.
    fn remember(&mut self, input: &str) -> Result<()> {
        let is_new = self.editor.add_history_entry(input)?;
        match &self.file {
            Some(file) if is_new => {
                let kept = self.editor.append_history(file);
                kept.with_context(|| format!("the history {}", file.display()))
            }
            _ => Ok(()),
        }
    }
}

/// The editor's helper, for completion and for input of several lines.
struct Help;

impl Helper for Help {}

impl Highlighter for Help {}

impl Hinter for Help {
    type Hint = String;
}

impl Validator for Help {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if typed::is_whole(context.input()) {
            ValidationResult::Valid(None)
        } else {
            ValidationResult::Incomplete
        })
    }
}

impl Completer for Help {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &At<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let begun = line.get(..at).filter(|begun| begun.starts_with('/'));
        let fits = |begun| COMMANDS.iter().filter(move |command| command.starts_with(begun));
        Ok((0, begun.into_iter().flat_map(fits).map(ToString::to_string).collect()))
    }
}
