//! The commands of the one binary, `duetime`. The caller is a person at a terminal, or a script that reads exit
//! codes. Most commands act through a running node over HTTP.
//!
//! Results go to standard output, errors to standard error. Exit codes: 0 done, 1 refused, 2 usage, 3 unreachable or
//! outcome unknown.

mod access;
mod ask;
mod audit;
mod bulk;
mod check;
mod client;
mod cluster;
mod export;
mod filter;
mod import;
mod list;
mod migrate;
mod moment;
mod print;
mod progress;
mod queue;
mod relay;
mod schedule;
mod signals;
mod submit;
mod task;
mod token;
mod top;

use std::{
    io::{self, Write},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::{
    causes::explained,
    config::{self, Config, keys},
    settings, store, telemetry,
};

pub use self::{
    ask::{Ask, ask},
    check::check,
    migrate::migrate,
    relay::relay,
    signals::stop_on_signal,
    token::token,
};

/// Holds tasks until they are due and hands each one to RabbitMQ, exactly on time.
#[derive(Debug, Parser)]
#[command(name = "duetime", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a node until SIGTERM or SIGINT; a second one exits at once.
    #[command(after_long_help = keys::table())]
    Node(ConfigFile),
    /// Bring the schema of every configured database to this version; safe to run again at any time.
    Migrate(Checked),
    /// Check the configuration and every connection, one line each.
    Check(Checked),
    /// Turn a queue's tasks into HTTP calls or runs of a command, and report how each ended.
    #[command(after_help = "Examples:\n  \
        duetime relay --queue orders --to https://shop.example/hooks --secret-file hooks.secret\n  \
        duetime relay --queue reports --command /usr/local/bin/report -- --format pdf")]
    Relay(Box<relay::Wish>),
    /// Tokens: for the configuration, or made and revoked while the cluster runs.
    Token(Box<token::Wish>),
    #[command(flatten)]
    Ask(Box<Ask>),
    /// Print the completion script of a shell.
    #[command(after_help = "Example:\n  duetime completions bash > /etc/bash_completion.d/duetime")]
    Completions {
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

/// Where the configuration comes from.
#[derive(Debug, Args)]
pub struct ConfigFile {
    /// TOML file with the configuration; without it, only variables `DUETIME_SECTION__NAME` are read.
    #[arg(long, value_name = "FILE", env = "DUETIME_CONFIG")]
    pub config: Option<PathBuf>,
}

/// A command that reads the configuration and prints its findings.
#[derive(Debug, Args)]
pub struct Checked {
    #[command(flatten)]
    pub file: ConfigFile,
    #[command(flatten)]
    pub output: Output,
}

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

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The message is complete by itself and may have several lines.
    #[error("the configuration is refused")]
    Config(#[source] config::Error),
    /// The configuration's own rules accept the URL, but the database driver does not.
    #[error("the configuration is refused: `database[{index}].url` cannot be used")]
    DatabaseUrl {
        index: usize,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("cannot start logging")]
    Telemetry(#[from] telemetry::Error),
    #[error("cannot listen for SIGTERM and SIGINT")]
    Signals(#[source] std::io::Error),
    #[error("cannot listen on {address} (`http.listen`)")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("the node stopped")]
    Node(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("cannot migrate")]
    Migrate(#[source] store::migrate::Misfit),
    /// Every line of the check has been printed.
    #[error("a required server refused the check")]
    CheckRefused,
    #[error("a required server cannot be reached")]
    CheckUnreachable,
    /// A mistake of the caller that shows only after the arguments were parsed.
    #[error("{0}")]
    Usage(String),
    #[error("cannot create an HTTP client")]
    Client(#[source] reqwest::Error),
    #[error(transparent)]
    Call(Box<client::Failure>),
    /// Each refusal has been reported.
    #[error("{refused} of {all} were refused")]
    SomeRefused { refused: usize, all: usize },
    /// A node refused everything that was left of a longer operation.
    #[error("{0}")]
    Refused(String),
    /// During a longer operation no node answered any more, or the outcome of the rest is unknown.
    #[error("{0}")]
    Broken(String),
    #[error("cannot be written as JSON")]
    Unwritable(#[source] serde_json::Error),
    #[error("cannot draw on the terminal")]
    Terminal(#[source] io::Error),
}

impl Error {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::CheckUnreachable | Self::Broken(_) => 3,
            Self::Migrate(misfit) if misfit.is_unreachable() => 3,
            Self::Call(failure) if !failure.is_refusal() => 3,
            _ => 1,
        }
    }

    fn explained(&self) -> String {
        match self {
            // One mistake a line, not one sentence.
            Self::Config(mistakes) => format!("{self}:\n{}", explained(mistakes)),
            _ => explained(self),
        }
    }
}

impl ConfigFile {
    /// Reads the configuration; the error lists everything that is wrong with it.
    pub fn load(&self) -> Result<Config, Error> {
        let config = Config::load(self.config.as_deref()).map_err(Error::Config)?;
        for (index, database) in config.databases.iter().enumerate() {
            let checked = settings::database(database, config.node.name.as_str()).check();
            checked.map_err(|source| Error::DatabaseUrl { index, source: source.into() })?;
        }
        Ok(config)
    }
}

/// Prints an error, if any, to standard error and returns the matching exit code.
pub fn end(done: Result<(), Error>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(error.explained());
            ExitCode::from(error.exit_code())
        }
    }
}

/// Prints one line of a result. Ends the process when the reader has closed the pipe.
fn say(line: impl std::fmt::Display) {
    if writeln!(io::stdout(), "{line}").is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        std::process::exit(0);
    }
}

/// Prints to standard error that part of the operation failed.
fn complain(line: impl std::fmt::Display) {
    #[expect(clippy::print_stderr, reason = "this is where a command tells a person what went wrong")]
    {
        eprintln!("duetime: {line}");
    }
}

/// Prints a warning about an operation that succeeded.
fn warn(line: impl std::fmt::Display) {
    complain(format_args!("warning: {line}"));
}

/// Prints the completion script of `shell`.
pub fn completions(shell: clap_complete::Shell) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "duetime", &mut script);
    say(String::from_utf8_lossy(&script).trim_end());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_long_help_of_node_lists_every_key_with_its_variable() {
        let mut command = Cli::command();
        let help = command.find_subcommand_mut("node").expect("the command").render_long_help().to_string();
        for key in keys::KEYS {
            assert!(help.contains(key.path), "{} is missing", key.path);
            assert!(help.contains(&key.variable()), "{} is missing", key.variable());
        }
    }

    #[test]
    fn every_command_that_asks_a_node_has_an_example() {
        let mut command = Cli::command();
        command.build();
        let names = ["queue", "schedule", "token", "cluster"];
        let (families, single): (Vec<_>, Vec<_>) =
            command.get_subcommands().partition(|command| names.contains(&command.get_name()));
        assert_eq!(families.len(), names.len());
        let asking = single.into_iter().chain(families.into_iter().flat_map(clap::Command::get_subcommands));
        for command in asking.filter(|command| command.get_arguments().any(|arg| arg.get_id() == "token_file")) {
            let example = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(example.contains("duetime "), "{} has none", command.get_name());
        }
    }

    #[test]
    fn every_shell_gets_a_script() {
        for shell in clap_complete::Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "duetime", &mut script);
            assert!(String::from_utf8_lossy(&script).contains("submit"), "{shell}");
        }
    }

    #[test]
    fn a_refused_configuration_is_told_in_full() {
        let file = ConfigFile { config: Some("/nowhere/duetime.toml".into()) };
        let error = file.load().expect_err("refused");
        assert_eq!(error.exit_code(), 1);
        assert!(error.explained().contains("/nowhere/duetime.toml"), "{}", error.explained());
    }
}
