//! `brigade completions SHELL` prints a script that completes brigade's commands in that shell.

use std::io::{self, Write};

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;

/// Print a completion script for a shell.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  brigade completions bash > ~/.local/share/bash-completion/completions/brigade"
)]
pub struct CompletionsArgs {
    /// Which shell
    shell: Shell,
}

/// Runs the command.
pub fn execute(args: CompletionsArgs) -> Result<()> {
    // To memory first: the library would panic if the output is closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "brigade", &mut script);
    io::stdout().write_all(&script)?;
    Ok(())
}
