//! The loop of the chat: reads input, asks the model, shows the answer, until the end.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use super::door::Door;
use super::events::{News, Usage};
use super::reader::{Read, Reader};
use super::talk::{Answer, Talk};
use super::typed::{self, Typed};
use crate::cli::printing::output;
use crate::cli::running::interrupt::Interrupted;

/// A chat at a terminal, or with lines from standard input.
pub struct Repl {
    door: Door,
    talk: Talk,
    reader: Reader,
    /// Ctrl-C while the terminal is an ordinary one.
    interrupt: Signal,
    screen: Screen,
}

/// Properties of the terminal that decide how answers look.
#[derive(Clone, Copy, Debug)]
struct Screen {
    /// Remarks and thoughts are told apart by their brightness.
    dims: bool,
    /// Whether a user types, who is shown the possible commands.
    greets: bool,
}

/// How an answer ended.
enum Outcome {
    Whole,
    /// The user stopped it with Ctrl-C.
    Stopped,
    Failed(anyhow::Error),
}

/// An answer as it comes.
struct Coming {
    answer: Answer,
    usage: Option<Usage>,
    /// Times of the first and the last piece.
    span: Option<(Instant, Instant)>,
    /// Whether reasoning is being printed now.
    thinks: bool,
}

impl Repl {
    /// A chat over `door`, with no request yet.
    ///
    /// # Errors
    /// Signals cannot be listened for.
    pub fn new(door: Door, talk: Talk, reader: Reader) -> Result<Self> {
        let interrupt = signal(SignalKind::interrupt()).context("cannot listen for signals")?;
        let screen = Screen {
            dims: io::stdout().is_terminal() && !super::super::no_color(),
            greets: reader.is_terminal(),
        };
        Ok(Self { door, talk, reader, interrupt, screen })
    }

    /// Chats until the end.
    ///
    /// # Errors
    /// Standard input or output fail. A refusal of the server is shown, and the chat goes on.
    pub async fn run(mut self) -> Result<()> {
        if self.screen.greets {
            let model = self.talk.model.as_deref().unwrap_or("the server's model");
            self.screen.remark(&format!("{model}; /help shows what can be typed"));
        }
        loop {
            let typed = match self.read().await? {
                Read::Input(input) => Typed::parse(&input),
                Read::Interrupted => {
                    self.screen.remark("Ctrl-D or /exit ends the chat");
                    continue;
                }
                Read::End => break,
            };
            match typed {
                Ok(Typed::Exit) => break,
                Ok(typed) => self.act(typed).await?,
                Err(error) => self.screen.remark(&error.to_string()),
            }
        }
        Ok(())
    }

    /// Waits for the next input. A signal ends the wait for a pipe; for a person at a terminal Ctrl-C is a key.
    async fn read(&mut self) -> Result<Read> {
        tokio::select! {
            read = self.reader.next() => read,
            _ = self.interrupt.recv(), if !self.screen.greets => Err(Interrupted.into()),
        }
    }

    async fn act(&mut self, typed: Typed) -> Result<()> {
        let screen = self.screen;
        match typed {
            Typed::Nothing | Typed::Exit => {}
            Typed::Say(text) => {
                self.talk.say(text);
                self.answer().await?;
            }
            Typed::Regen if self.talk.has_turns() => self.answer().await?,
            Typed::Regen => screen.remark("there is no message yet that could be answered again"),
            Typed::Clear => {
                self.talk.clear();
                screen.remark("the chat begins anew");
            }
            Typed::System(Some(text)) => {
                self.talk.system = Some(text);
                self.talk.clear();
                screen.remark("the system message is set; the chat begins anew");
            }
            Typed::System(None) => {
                screen.remark(self.talk.system.as_deref().unwrap_or("there is no system message"));
            }
            Typed::Settings => self.show_settings(),
            Typed::Set(name, Some(value)) => drop(self.talk.settings.insert(name, value)),
            Typed::Set(name, None) => drop(self.talk.settings.shift_remove(&name)),
            Typed::Help => screen.remark(typed::HELP),
            Typed::Save(file) => match self.save(Path::new(&file)) {
                Ok(()) => screen.remark(&format!("written: {file}")),
                Err(error) => screen.remark(&format!("{error:#}")),
            },
        }
        Ok(())
    }

    fn show_settings(&self) {
        if self.talk.settings.is_empty() {
            self.screen.remark("no field is set: the server's defaults apply");
        }
        for (name, value) in &self.talk.settings {
            self.screen.remark(&format!("{name} {value}"));
        }
    }

    fn save(&self, file: &Path) -> Result<()> {
        let is_json = file.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
        let mut out = File::create_new(file).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                anyhow::anyhow!("{} is there already: choose another name", file.display())
            }
            _ => anyhow::Error::from(error).context(format!("cannot write {}", file.display())),
        })?;
        let text = self.talk.saved(is_json);
        out.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Asks for an answer to the last message and shows it.
    async fn answer(&mut self) -> Result<()> {
        let mut coming = Coming::new();
        let outcome = self.follow(&mut coming).await?;
        coming.end_line(self.screen)?;
        let has_text = coming.span.is_some();
        match outcome {
            Outcome::Whole => self.screen.remark(&coming.figures()),
            Outcome::Stopped => self.screen.remark("stopped"),
            Outcome::Failed(error) => {
                self.screen.remark(&format!("error: {error:#}"));
                if !has_text {
                    self.screen.remark("the message was not added to the chat: send it again");
                }
            }
        }
        if has_text {
            self.talk.answered(coming.answer);
        } else {
            self.talk.refused();
        }
        Ok(())
    }

    /// Shows an answer while it comes. To end it, the request is dropped: the server then ends it too.
    async fn follow(&mut self, coming: &mut Coming) -> Result<Outcome> {
        let request = self.talk.request();
        let mut events = tokio::select! {
            asked = self.door.chat(&request) => match asked {
                Ok(events) => events,
                Err(error) => return Ok(Outcome::Failed(error)),
            },
            _ = self.interrupt.recv() => return Ok(Outcome::Stopped),
        };
        loop {
            let news = tokio::select! {
                news = events.next() => news,
                _ = self.interrupt.recv() => return Ok(Outcome::Stopped),
            };
            match news {
                Ok(Some(news)) => coming.show(news, self.screen)?,
                Ok(None) => return Ok(Outcome::Whole),
                Err(error) => return Ok(Outcome::Failed(error)),
            }
        }
    }
}

impl Screen {
    /// Says something that is no part of an answer.
    fn remark(self, text: &str) {
        if self.dims && io::stderr().is_terminal() {
            output::remark(format_args!("\x1b[2m{text}\x1b[0m"))
        } else {
            output::remark(format_args!("{text}"))
        }
    }

    fn text(self, text: &str, dim: bool) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if dim && self.dims {
            write!(out, "\x1b[2m{text}\x1b[0m")?
        } else {
            write!(out, "{text}")?
        }
        out.flush()
    }
}

impl Coming {
    fn new() -> Self {
        Self { answer: Answer::default(), usage: None, span: None, thinks: false }
    }

    fn show(&mut self, news: News, screen: Screen) -> io::Result<()> {
        self.usage = news.usage.or(self.usage);
        if news.text.is_empty() && news.reasoning.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        self.span = Some((self.span.map_or(now, |(first, _)| first), now));
        if !news.reasoning.is_empty() {
            screen.text(&news.reasoning, true)?;
            self.answer.reasoning.push_str(&news.reasoning);
            self.thinks = true;
        }
        if !news.text.is_empty() {
            if std::mem::take(&mut self.thinks) {
                screen.text("\n\n", false)?;
            }
            screen.text(&news.text, false)?;
            self.answer.text.push_str(&news.text);
        }
        Ok(())
    }

    /// Ends an unfinished line, so that the next text begins on its own line.
    fn end_line(&self, screen: Screen) -> io::Result<()> {
        let last = if self.thinks { &self.answer.reasoning } else { &self.answer.text };
        if last.is_empty() || last.ends_with('\n') { Ok(()) } else { screen.text("\n", false) }
    }

    /// The answer's figures: tokens and seconds. The speed is that of the pieces after the first.
    fn figures(&self) -> String {
        let Some(usage) = self.usage else {
            return "the server does not say how many tokens these were".to_string();
        };
        let seconds = self.span.map_or(0.0, |(first, last)| (last - first).as_secs_f64());
        let n = usage.completion_tokens;
        let speed = if seconds > 0.0 && n > 1 {
            format!(" at {:.1} tokens/s", f64::from(n - 1) / seconds)
        } else {
            String::new()
        };
        let reused = usage.prompt_tokens_details.and_then(|details| details.cached_tokens);
        format!("{n} tokens{speed}; prompt {}, reused {}", usage.prompt_tokens, reused.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::events::Details;
    use super::*;

    #[test]
    fn figures_count_what_came_after_the_first_piece() {
        let mut coming = Coming::new();
        assert!(coming.figures().contains("does not say"));
        let now = Instant::now();
        coming.span = Some((now, now + Duration::from_secs(2)));
        let cached = Some(Details { cached_tokens: Some(7) });
        coming.usage =
            Some(Usage { prompt_tokens: 9, completion_tokens: 5, prompt_tokens_details: cached });
        assert_eq!(coming.figures(), "5 tokens at 2.0 tokens/s; prompt 9, reused 7");
        coming.span = Some((now, now));
        assert_eq!(coming.figures(), "5 tokens; prompt 9, reused 7");
    }
}
