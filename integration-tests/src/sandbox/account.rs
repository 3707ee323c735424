//! The user that runs a store. PostgreSQL refuses root, and RabbitMQ's scripts expect their own user.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::Path,
};

use anyhow::{Context, Result, bail, ensure};

/// The user that a process runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Account {
    /// The user of this process.
    Own,
    Other {
        uid: u32,
        gid: u32,
    },
}

impl Account {
    /// The current user, unless that is root: then the first of `names` that this machine knows.
    pub(super) fn unprivileged(names: &[&str]) -> Result<Self> {
        if !is_root()? {
            return Ok(Self::Own);
        }
        let passwd = fs::read_to_string("/etc/passwd").context("reading /etc/passwd")?;
        for name in names {
            for line in passwd.lines() {
                let fields: Vec<&str> = line.split(':').collect();
                if let [user, _, uid, gid, ..] = fields[..]
                    && user == *name
                {
                    return Ok(Self::Other { uid: uid.parse()?, gid: gid.parse()? });
                }
            }
        }
        bail!("none of the users {names:?} exists; integration-tests/install sets them up")
    }

    /// Makes `path` and gives it to this user. Every folder above must let the user through. A link is refused: it
    /// would give away the folder that it names.
    pub(super) fn own_folder(&self, path: &Path) -> Result<()> {
        fs::create_dir_all(path).with_context(|| format!("making {}", path.display()))?;
        ensure!(fs::symlink_metadata(path)?.is_dir(), "{} is a link, not a folder", path.display());
        self.own(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
        Ok(())
    }

    pub(super) fn own(&self, path: &Path) -> Result<()> {
        if let Self::Other { uid, gid } = self {
            chown(path, Some(*uid), Some(*gid)).with_context(|| format!("giving {} to user {uid}", path.display()))?;
        }
        Ok(())
    }

    /// The arguments with which `setpriv` becomes this user.
    pub(super) fn setpriv(&self) -> Vec<String> {
        match self {
            Self::Own => Vec::new(),
            Self::Other { uid, gid } => {
                vec![format!("--reuid={uid}"), format!("--regid={gid}"), "--init-groups".into()]
            }
        }
    }
}

/// Whether processes of any user can reach `path`. This matters to root only, who starts stores as other users.
pub fn all_may_enter(path: &Path) -> bool {
    let Ok(path) = path.canonicalize() else { return false };
    !is_root().unwrap_or(false)
        || path
            .ancestors()
            .all(|folder| fs::metadata(folder).is_ok_and(|folder| folder.permissions().mode() & 0o001 != 0))
}

fn is_root() -> Result<bool> {
    Ok(fs::metadata("/proc/self").context("looking at /proc/self")?.uid() == 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_folder_behind_a_link_is_not_given_away() {
        let folder = tempfile::tempdir().unwrap();
        let (aim, link) = (folder.path().join("aim"), folder.path().join("link"));
        fs::create_dir(&aim).unwrap();
        fs::set_permissions(&aim, fs::Permissions::from_mode(0o755)).unwrap();
        symlink(&aim, &link).unwrap();
        assert!(Account::Own.own_folder(&link).is_err());
        assert_eq!(fs::metadata(&aim).unwrap().permissions().mode() & 0o777, 0o755);
        Account::Own.own_folder(&aim).unwrap();
        assert_eq!(fs::metadata(&aim).unwrap().permissions().mode() & 0o777, 0o700);
    }
}
