//! The reasons why a command failed, with their exit codes.

use std::{io, net::SocketAddr};

use super::client::Failure;
use crate::{causes::explained, config, store, telemetry};

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
    #[error("cannot listen for signals")]
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
    Migrate(#[source] store::schema::Misfit),
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
    Call(Box<Failure>),
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
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::CheckUnreachable | Self::Broken(_) => 3,
            Self::Migrate(misfit) if misfit.is_unreachable() => 3,
            // The Job of the chart ends at once on this code, and tries again on 3.
            Self::Migrate(_) => 4,
            Self::Call(failure) if !failure.is_refusal() => 3,
            _ => 1,
        }
    }

    pub(super) fn explained(&self) -> String {
        match self {
            // One mistake a line, not one sentence.
            Self::Config(mistakes) => format!("{self}:\n{}", explained(mistakes)),
            _ => explained(self),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Call(Box::new(failure))
    }
}
