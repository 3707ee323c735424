//! The configuration of commands that read it themselves.

use std::path::PathBuf;

use clap::Args;

use super::{error::Error, output::Output};
use crate::{config::Config, settings};

/// Where the configuration comes from.
#[derive(Clone, Debug, Args)]
pub struct ConfigFile {
    /// TOML file with the configuration; without it, only variables `DUETIME_SECTION__NAME` are read.
    #[arg(long, value_name = "FILE", env = "DUETIME_CONFIG")]
    pub config: Option<PathBuf>,
}

/// A command that reads the configuration and prints its findings.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    #[command(flatten)]
    pub file: ConfigFile,
    #[command(flatten)]
    pub output: Output,
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

    /// Reads the configuration while the node runs; the error says what is wrong in the words of a start.
    pub fn reload(&self) -> Result<Config, String> {
        self.load().map_err(|error| error.explained())
    }
}
