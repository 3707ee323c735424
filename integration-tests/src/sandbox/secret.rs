//! Passwords and ports that a folder keeps, so that its processes can be started again.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use uuid::Uuid;

use super::{
    account::Account,
    port::{free_port, is_free},
    process,
};

/// 32 random hexadecimal digits.
pub fn random() -> String {
    Uuid::new_v4().simple().to_string()
}

/// The text kept in `file`. An empty one keeps nothing: this process was killed before it wrote, or the disk was full.
pub(super) fn kept(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok().filter(|known| !known.trim().is_empty())
}

/// The secret kept in `file`, made at the first call.
pub(super) fn remembered(file: &Path, account: &Account) -> Result<String> {
    if let Some(known) = kept(file) {
        return Ok(known);
    }
    let fresh = random();
    process::write_secret(file, &fresh, account)?;
    Ok(fresh)
}

/// Like `remembered`, for a secret of the current user.
pub fn remembered_own(file: &Path) -> Result<String> {
    remembered(file, &Account::Own)
}

/// The port kept in `file`, chosen at the first call. It is chosen anew when another program has taken it meanwhile.
/// So this is for a server that does not run.
pub fn remembered_port(file: &Path) -> Result<u16> {
    if let Some(known) = kept(file) {
        let known = known.trim().parse().with_context(|| format!("{} does not hold a port", file.display()))?;
        if is_free(known) {
            return Ok(known);
        }
    }
    let fresh = free_port();
    fs::write(file, fresh.to_string()).with_context(|| format!("writing {}", file.display()))?;
    Ok(fresh)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_empty_file_keeps_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (secret, port) = (folder.path().join("secret"), folder.path().join("port"));
        fs::write(&secret, "").unwrap();
        fs::write(&port, "").unwrap();
        let made = remembered_own(&secret).unwrap();
        assert_eq!(made.len(), random().len());
        assert_eq!(remembered_own(&secret).unwrap(), made);
        let chosen = remembered_port(&port).unwrap();
        assert_eq!(remembered_port(&port).unwrap(), chosen);
    }

    #[test]
    fn what_a_killed_process_left_of_a_secret_is_not_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        fs::write(secret.with_extension("new"), "half").unwrap();
        let made = remembered_own(&secret).unwrap();
        assert_eq!(made.len(), random().len());
        let files = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(files, 1);
    }

    #[test]
    fn a_port_that_another_program_has_taken_is_chosen_anew() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("port");
        let first = remembered_port(&file).unwrap();
        assert_eq!(remembered_port(&file).unwrap(), first);
        let other = TcpListener::bind(("127.0.0.1", first)).unwrap();
        let second = remembered_port(&file).unwrap();
        assert_ne!(second, first);
        drop(other);
        assert_eq!(remembered_port(&file).unwrap(), second);
    }
}
