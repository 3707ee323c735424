//! Where the stores' programs are: the folders of `DUETIME_TEST_SERVERS` come before this machine's own servers.
//!
//! `integration-tests/newer` fills such folders with servers of a newer release, one folder a server.

use std::path::PathBuf;

use anyhow::{Result, ensure};

const FOLDERS: &str = "DUETIME_TEST_SERVERS";

/// The folders whose servers the tests use instead of this machine's, separated as in `PATH`.
pub fn server_folders() -> Result<Vec<PathBuf>> {
    let folders: Vec<PathBuf> =
        std::env::var_os(FOLDERS).iter().flat_map(std::env::split_paths).filter(|folder| *folder != *"").collect();
    for folder in &folders {
        // A mistyped folder would run the machine's own servers, and the result would speak of others.
        ensure!(folder.is_dir(), "{FOLDERS} names {}, which is not a folder", folder.display());
    }
    Ok(folders)
}

/// The folder that holds `program`, if one of `DUETIME_TEST_SERVERS` does.
pub(super) fn chosen_folder(program: &str) -> Result<Option<PathBuf>> {
    Ok(server_folders()?.into_iter().find(|folder| folder.join(program).exists()))
}

/// A program of this machine, as a shell would find it.
pub(super) fn on_path(program: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).map(|folder| folder.join(program)).find(|candidate| candidate.exists())
}
