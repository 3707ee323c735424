//! Why a configuration is refused.

use std::path::PathBuf;

use super::complaint::Complaints;

/// Why there is no valid configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the configuration file {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the configuration file {} is not TOML: {reason}", path.display())]
    Syntax { path: PathBuf, reason: String },
    /// Every mistake, one a line.
    #[error("{0}")]
    Refused(Complaints),
}
