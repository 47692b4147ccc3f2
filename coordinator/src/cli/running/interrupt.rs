//! The signals that end a command.

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

/// The command was interrupted by a signal.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// SIGINT, SIGTERM or SIGHUP, listened for from its creation on.
#[derive(Debug)]
pub struct Interrupt {
    signals: [tokio::signal::unix::Signal; 3],
    /// SIGHUP means something else.
    without_hangup: bool,
    /// Whether SIGINT is left to the body.
    without_ctrl_c: bool,
}

impl Interrupt {
    /// Starts listening; from now on these signals do not end the process by themselves.
    ///
    /// # Errors
    /// The system refuses the handlers.
    pub fn listen() -> Result<Self> {
        let on = |kind| signal(kind).context("cannot listen for signals");
        let signals =
            [on(SignalKind::interrupt())?, on(SignalKind::terminate())?, on(SignalKind::hangup())?];
        Ok(Self { signals, without_hangup: false, without_ctrl_c: false })
    }

    /// Leaves SIGINT to others.
    pub fn leave_ctrl_c(&mut self) {
        self.without_ctrl_c = true;
    }

    /// Leaves SIGHUP to others.
    pub fn leave_hangup(&mut self) {
        self.without_hangup = true;
    }

    /// Ready when one of them comes.
    pub async fn received(&mut self) {
        self.is_terminate().await;
    }

    /// Ready when one of them comes: whether it is SIGTERM.
    pub async fn is_terminate(&mut self) -> bool {
        let [int, term, hup] = &mut self.signals;
        tokio::select! {
            _ = int.recv(), if !self.without_ctrl_c => false,
            _ = term.recv() => true,
            _ = hup.recv(), if !self.without_hangup => false,
        }
    }
}
