//! The `brigade` binary: it parses the command line, sets up logs, and runs one command.

use std::process::ExitCode;

use brigade_coordinator::cli::{
    Cli, args::LogFormat, arguments, config, config::Refused, correct, hint, is_interrupt,
    is_unread, no_color, output,
};
use brigade_process::Lines;
use brigade_proto::net::with_causes;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Exit code where options are wrong, as clap has it.
const WRONG_ARGUMENTS: u8 = 2;

/// Exit code after a signal, as shells have it for SIGINT.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let args = arguments(std::env::args_os());
    let mut cli = match config::parse(&args) {
        Ok(cli) => cli,
        Err(Refused::Arguments(mut error, remarks)) => {
            correct(&mut error, &args);
            return refused(&error, &remarks);
        }
        Err(Refused::File(problems)) => {
            config::complain(&problems);
            return ExitCode::from(WRONG_ARGUMENTS);
        }
    };
    set_up_logs(&cli);
    cli.command.prepare();
    if let Err(error) = cli.command.find_model() {
        output::remark(format_args!("error: {}", with_causes(error.as_ref())));
        return ExitCode::FAILURE;
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::remark(format_args!("error: cannot start the runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(cli.command.execute());
    // Threads that wait for standard input cannot be ended; they must not keep the process.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_unread(&error) => ExitCode::SUCCESS,
        Err(error) if is_interrupt(&error) => ExitCode::from(INTERRUPTED),
        Err(error) => {
            output::remark(format_args!("error: {}", with_causes(error.as_ref())));
            ExitCode::FAILURE
        }
    }
}

/// Prints the error in the arguments, or the help or version that was asked for.
fn refused(error: &clap::Error, remarks: &[String]) -> ExitCode {
    // Failures to write are ignored.
    let _ = error.print();
    for remark in remarks {
        output::remark(format_args!("note: {remark}"));
    }
    if let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg)
        && error.kind() == ErrorKind::UnknownArgument
        && let Some(hint) = hint(argument)
    {
        output::remark(format_args!("\nhint: {hint}"));
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1))
}

/// Logs go to standard error: RUST_LOG decides, otherwise the command's own level.
fn set_up_logs(cli: &Cli) {
    cli.log_format.remember();
    let lines = match cli.log_format {
        LogFormat::Text => Lines::Text { colours: !no_color() },
        LogFormat::Json => Lines::Json,
    };
    brigade_process::set_up_logs(cli.command.default_log(), lines);
}
