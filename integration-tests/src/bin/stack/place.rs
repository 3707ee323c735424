//! The folder of `up`, and its record of running processes.

use std::{
    fs::{self, DirBuilder, Permissions},
    io::ErrorKind,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use integration_tests::sandbox::{HISTORY, Identity, all_may_enter, hex_sha256};
use serde::{Deserialize, Serialize};

/// Of the stores' folder: the stores' users must get through it.
const MODE: u32 = 0o711;

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

    /// Makes the folder of the stores' data. Any user may have made one of that name in `/var/tmp` before.
    pub(crate) fn make_stores(&self) -> Result<()> {
        if self.stores == self.folder { Ok(()) } else { make_own(&self.stores) }
    }

    /// The processes that were started here and may still run.
    pub(crate) fn running(&self) -> Result<Running> {
        match fs::read(self.state()) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| format!("reading {}", self.state().display())),
            Err(_) => Ok(Running::default()),
        }
    }

    pub(crate) fn remember(&self, running: &Running) -> Result<()> {
        // The record is whole whenever this process is killed.
        let fresh = self.state().with_extension("new");
        fs::write(&fresh, serde_json::to_vec_pretty(running)?)
            .and_then(|()| fs::rename(&fresh, self.state()))
            .with_context(|| format!("writing {}", self.state().display()))
    }

    /// Whether the whole stack runs. The file for `source` is written last: without it a start was broken off.
    pub(crate) fn is_whole(&self) -> Result<bool> {
        Ok(self.env_file.exists() && self.running()?.is_whole())
    }

    pub(crate) fn forget(&self) {
        fs::remove_file(self.state()).ok();
        fs::remove_file(&self.env_file).ok();
    }

    /// Removes the histories that nodes of earlier versions wrote here.
    pub(crate) fn remove_histories(&self) {
        for file in fs::read_dir(self.nodes()).into_iter().flatten().flatten() {
            if file.path().extension().is_some_and(|extension| extension == HISTORY) {
                fs::remove_file(file.path()).ok();
            }
        }
    }

    /// Removes all data.
    pub(crate) fn purge(&self) {
        fs::remove_dir_all(&self.stores).ok();
        fs::remove_dir_all(&self.folder).ok();
    }

    /// The folder of the nodes' files.
    pub(crate) fn nodes(&self) -> PathBuf {
        self.folder.join("nodes")
    }

    fn state(&self) -> PathBuf {
        self.folder.join("running.json")
    }
}

impl Running {
    /// Whether everything that was started is still running.
    fn is_whole(&self) -> bool {
        !self.nodes.is_empty() && self.stores.iter().chain(&self.nodes).all(Identity::is_running)
    }
}

/// Makes a folder that all users may enter and this one alone changes. One that is there already must be like that:
/// otherwise another user could put a link into it, and root would give away what it names.
fn make_own(folder: &Path) -> Result<()> {
    match DirBuilder::new().mode(MODE).create(folder) {
        // A umask may have taken the others' right to enter.
        Ok(()) => fs::set_permissions(folder, Permissions::from_mode(MODE))?,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).with_context(|| format!("making {}", folder.display())),
    }
    let found = fs::symlink_metadata(folder)?;
    let own = fs::metadata("/proc/self").context("looking at /proc/self")?.uid();
    ensure!(
        found.is_dir() && found.uid() == own && found.mode() & 0o022 == 0,
        "{} is a link, or another user may write there; remove it",
        folder.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    #[test]
    fn a_stack_without_the_file_that_is_written_last_is_not_whole() {
        let scratch = tempfile::tempdir().unwrap();
        let place = Place::new(scratch.path()).unwrap();
        let node = Identity::of("node-1", std::process::id()).unwrap();
        place.remember(&Running { stores: Vec::new(), nodes: vec![node] }).unwrap();
        assert!(!place.is_whole().unwrap());
        fs::write(&place.env_file, "").unwrap();
        assert!(place.is_whole().unwrap());
        place.forget();
        assert!(!place.is_whole().unwrap());
    }

    #[test]
    fn histories_of_nodes_are_removed_and_their_other_files_stay() {
        let scratch = tempfile::tempdir().unwrap();
        let place = Place::new(scratch.path()).unwrap();
        place.remove_histories();
        fs::create_dir(place.nodes()).unwrap();
        for name in ["node-1-1.history", "node-1.toml", "node-1.port"] {
            fs::write(place.nodes().join(name), "").unwrap();
        }
        place.remove_histories();
        assert_eq!(fs::read_dir(place.nodes()).unwrap().count(), 2);
    }

    #[test]
    fn only_a_folder_that_no_other_user_can_change_takes_the_stores() {
        let scratch = tempfile::tempdir().unwrap();
        let (own, link) = (scratch.path().join("own"), scratch.path().join("link"));
        make_own(&own).unwrap();
        assert_eq!(fs::metadata(&own).unwrap().mode() & 0o777, MODE);
        make_own(&own).unwrap();
        symlink(&own, &link).unwrap();
        assert!(make_own(&link).is_err());
        fs::set_permissions(&own, Permissions::from_mode(0o777)).unwrap();
        assert!(make_own(&own).is_err());
        fs::set_permissions(&own, Permissions::from_mode(MODE)).unwrap();
        // Only root can give a folder away.
        if chown(&own, Some(1), None).is_ok() {
            assert!(make_own(&own).is_err());
        }
    }
}
