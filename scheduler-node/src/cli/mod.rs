//! The commands of the one binary, `duetime`. Speaks to a person at a terminal, or to a script that reads exit codes.
//!
//! Results go to standard output, what went wrong to standard error. Exit codes: 0 done, 1 refused, 2 usage, 3 unreachable.

mod check;
mod migrate;
mod signals;
mod token;

pub mod settings;

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{
    config::{self, Config, keys},
    store, telemetry,
};

pub use self::{check::check, migrate::migrate, signals::stop_on_signal, token::token};

/// Holds tasks until they are due and hands each one to RabbitMQ, exactly on time.
#[derive(Debug, Parser)]
#[command(name = "duetime", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// What is to be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a node until SIGTERM or SIGINT; a second one exits at once.
    #[command(after_long_help = keys::table())]
    Node(ConfigFile),
    /// Bring the schema of every configured database to this version. Can be run again at any time.
    Migrate(Checked),
    /// Check the configuration and every connection, one line each.
    Check(Checked),
    /// Make a token, and the section that lets it in.
    Token(token::Wish),
}

/// Where the configuration is read from.
#[derive(Debug, Args)]
pub struct ConfigFile {
    /// TOML file with the configuration; without it, only variables `DUETIME_SECTION__NAME` are read.
    #[arg(long, value_name = "FILE", env = "DUETIME_CONFIG")]
    pub config: Option<PathBuf>,
}

/// A command that reads the configuration and prints what it found.
#[derive(Debug, Args)]
pub struct Checked {
    #[command(flatten)]
    pub file: ConfigFile,
    #[command(flatten)]
    pub output: Output,
}

/// In which form results are printed.
#[derive(Clone, Copy, Debug, Args)]
pub struct Output {
    /// Form of what is printed.
    #[arg(long, value_name = "FORM", value_enum, default_value_t = Form::Text)]
    pub output: Form,
}

/// For a person or for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    Text,
    Json,
}

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its message is complete by itself and may have several lines.
    #[error("the configuration is refused")]
    Config(#[source] config::Error),
    /// The configuration's own rules let it pass; the room that uses it does not.
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
    #[error("something that is needed was refused")]
    CheckRefused,
    #[error("something that is needed cannot be reached")]
    CheckUnreachable,
}

impl Error {
    fn exit_code(&self) -> u8 {
        match self {
            Self::CheckUnreachable => 3,
            Self::Migrate(misfit) if misfit.is_unreachable() => 3,
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

/// The error and its causes on one line, after colons. Many libraries' errors repeat their own causes; once is enough.
fn explained(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes
        .map(ToString::to_string)
        .fold(error.to_string(), |text, cause| if text.contains(&cause) { text } else { format!("{text}: {cause}") })
}

impl ConfigFile {
    /// Reads the configuration; everything that is wrong with it is in the error.
    pub fn load(&self) -> Result<Config, Error> {
        let config = Config::load(self.config.as_deref()).map_err(Error::Config)?;
        for (index, database) in config.databases.iter().enumerate() {
            let checked = settings::database(database, config.node.name.as_str()).check();
            checked.map_err(|source| Error::DatabaseUrl { index, source: source.into() })?;
        }
        Ok(config)
    }
}

/// Says on standard error what went wrong, if anything, and gives the exit code that stands for it.
pub fn end(done: Result<(), Error>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "this is where a command tells a person that it failed")]
            {
                eprintln!("duetime: {}", error.explained());
            }
            ExitCode::from(error.exit_code())
        }
    }
}

/// Prints one line of a result.
fn say(line: impl std::fmt::Display) {
    #[expect(clippy::print_stdout, reason = "this is where a command gives its result to a person or a script")]
    {
        println!("{line}");
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

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
    fn a_refused_configuration_is_told_in_full() {
        let file = ConfigFile { config: Some("/nowhere/duetime.toml".into()) };
        let error = file.load().expect_err("refused");
        assert_eq!(error.exit_code(), 1);
        assert!(error.explained().contains("/nowhere/duetime.toml"), "{}", error.explained());
    }
}
