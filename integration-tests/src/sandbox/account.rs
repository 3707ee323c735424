//! Which user runs a store. PostgreSQL refuses root, and RabbitMQ's scripts expect their own user.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::Path,
};

use anyhow::{Context, Result, bail};

/// The user a process runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Account {
    /// Whoever runs this.
    Own,
    Other {
        uid: u32,
        gid: u32,
    },
}

impl Account {
    /// Ourselves, unless we are root: then the first of `names` that this machine knows.
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

    /// Makes `path` and hands it to this user. Every folder above must let the user through.
    pub(super) fn own_folder(&self, path: &Path) -> Result<()> {
        fs::create_dir_all(path).with_context(|| format!("making {}", path.display()))?;
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

    /// What `setpriv` needs to become this user.
    pub(super) fn setpriv(&self) -> Vec<String> {
        match self {
            Self::Own => Vec::new(),
            Self::Other { uid, gid } => {
                vec![format!("--reuid={uid}"), format!("--regid={gid}"), "--init-groups".into()]
            }
        }
    }
}

/// Whether a process of any user gets through to `path`. Only root, who starts stores as others, need care.
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
