//! The commands of the one binary, `duetime`. The caller is a person at a terminal, or a script that reads exit
//! codes. Most commands act through a running node over HTTP.
//!
//! Results go to standard output, errors to standard error. Exit codes: 0 done, 1 refused, 2 usage, 3 unreachable or
//! outcome unknown.

mod access;
mod audit;
mod bulk;
mod check;
mod client;
mod cluster;
mod config_file;
mod database;
mod distinct;
mod error;
mod export;
mod filter;
mod import;
mod invocation;
mod list;
mod migrate;
mod moment;
mod node_command;
mod output;
mod pages;
mod print;
mod progress;
mod queue;
mod relay;
mod schedule;
mod shard;
mod signals;
mod submit;
mod task;
mod token;
mod top;
mod wait;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use self::output::{complain, say};

pub use self::{
    check::check,
    config_file::{ConfigArgs, ConfigFile},
    error::Error,
    migrate::migrate,
    node_command::NodeCommand,
    relay::relay,
    signals::{reload_on_signal, stop_on_signal},
    token::token,
};
use crate::config::keys;

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
    Migrate(migrate::Args),
    /// Check the configuration and every connection, one line each.
    Check(ConfigArgs),
    /// Turn a queue's tasks into HTTP calls or runs of a command, and report how each ended.
    #[command(after_help = "Examples:\n  \
        duetime relay --queue orders --to https://shop.example/hooks --secret-file hooks.secret\n  \
        duetime relay --queue reports --command /usr/local/bin/report -- --format pdf")]
    Relay(Box<relay::Args>),
    /// Tokens: for the configuration, or made and revoked while the cluster runs.
    Token(Box<token::Args>),
    #[command(flatten)]
    OnNode(Box<NodeCommand>),
    /// Print the completion script of a shell.
    #[command(after_help = "Example:\n  duetime completions bash > /etc/bash_completion.d/duetime")]
    Completions {
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

/// Prints an error, if any, to standard error and returns the matching exit code.
pub fn end(done: Result<(), Error>) -> ExitCode {
    match done {
        Ok(()) if output::is_lost() => ExitCode::from(output::UNPRINTED),
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(error.explained());
            ExitCode::from(error.exit_code())
        }
    }
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
    use clap::ValueEnum;

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
        let names = ["queue", "schedule", "token", "cluster", "shard", "database"];
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
