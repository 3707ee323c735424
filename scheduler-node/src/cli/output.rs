//! Where and in which form results, errors and warnings are printed.

use std::io::{self, Write};

use clap::{Args, ValueEnum};

/// The form in which results are printed.
#[derive(Clone, Copy, Debug, Args)]
pub struct Output {
    /// Form of the output.
    #[arg(long, value_name = "FORM", value_enum, default_value_t = Form::Text)]
    pub output: Form,
}

/// Output for a person or for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    Text,
    Json,
    /// One JSON value a line, for lists.
    Jsonl,
}

/// Prints one line of a result. Ends the process when the reader has closed the pipe.
pub(super) fn say(line: impl std::fmt::Display) {
    if writeln!(io::stdout(), "{line}").is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        std::process::exit(0);
    }
}

/// Prints to standard error that part of the operation failed.
pub(super) fn complain(line: impl std::fmt::Display) {
    #[expect(clippy::print_stderr, reason = "this is where a command tells a person what went wrong")]
    {
        eprintln!("duetime: {line}");
    }
}

/// Prints a warning about an operation that succeeded.
pub(super) fn warn(line: impl std::fmt::Display) {
    complain(format_args!("warning: {line}"));
}
