//! The folder of `up`, and its record of running processes.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use integration_tests::sandbox::{Identity, all_may_enter, hex_sha256};
use serde::{Deserialize, Serialize};

/// The folder of one stack.
#[derive(Debug)]
pub(crate) struct Place {
    pub folder: PathBuf,
    /// The stores' data. It lies beside the rest, unless the stores' users cannot get there.
    pub stores: PathBuf,
    /// The file for `source`.
    pub env_file: PathBuf,
}

/// The running processes, in the order of their start.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Running {
    pub stores: Vec<Identity>,
    pub nodes: Vec<Identity>,
}

impl Place {
    pub(crate) fn new(base: &Path) -> Result<Self> {
        let folder = base.join("stack");
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let folder = folder.canonicalize()?;
        let stores = if all_may_enter(&folder) {
            folder.clone()
        } else {
            // As root the stores run as users of their own, and this folder lies where only root may go.
            let mark = hex_sha256(&folder.display().to_string());
            PathBuf::from("/var/tmp").join(format!("duetime-stack-{}", &mark[..12]))
        };
        Ok(Self { env_file: base.join("env"), stores, folder })
    }

    /// The processes that were started here and may still run.
    pub(crate) fn running(&self) -> Result<Running> {
        match fs::read(self.state()) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| format!("reading {}", self.state().display())),
            Err(_) => Ok(Running::default()),
        }
    }

    pub(crate) fn remember(&self, running: &Running) -> Result<()> {
        fs::write(self.state(), serde_json::to_vec_pretty(running)?)
            .with_context(|| format!("writing {}", self.state().display()))
    }

    pub(crate) fn forget(&self) {
        fs::remove_file(self.state()).ok();
        fs::remove_file(&self.env_file).ok();
    }

    /// Removes all data.
    pub(crate) fn purge(&self) {
        fs::remove_dir_all(&self.stores).ok();
        fs::remove_dir_all(&self.folder).ok();
    }

    fn state(&self) -> PathBuf {
        self.folder.join("running.json")
    }
}

impl Running {
    /// Whether everything that was started is still running.
    pub(crate) fn is_whole(&self) -> bool {
        !self.nodes.is_empty() && self.stores.iter().chain(&self.nodes).all(Identity::is_running)
    }
}
