//! The temporary folder of this process, and its removal.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use anyhow::{Context, Result};

use super::account;

/// Runs slightly longer than this process. Its standard input ends when this process does; it then retries until the
/// folder can be removed, unless a file `keep` says otherwise.
const JANITOR: &str = r#"
cat >/dev/null
[ -e "$1/keep" ] && exit 0
tries=0
until rm -rf -- "$1" 2>/dev/null && [ ! -e "$1" ]; do
    tries=$((tries + 1))
    [ "$tries" -gt 50 ] && exit 1
    sleep 0.2
    # A server may have had a file system of its own.
    grep -o " $1/[^ ]*" /proc/mounts | xargs -r umount 2>/dev/null
done
"#;

struct Scratch {
    path: PathBuf,
    /// Held for its standard input: it ends when this process does, however it ends.
    _janitor: Child,
}

static SCRATCH: OnceLock<Scratch> = OnceLock::new();
static BASE: OnceLock<PathBuf> = OnceLock::new();
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Puts [`scratch`] below `base` and not in the system's temporary folder, if the stores' users can get there. Only
/// before its first call.
pub fn scratch_below(base: &Path) -> Result<()> {
    fs::create_dir_all(base).with_context(|| format!("making {}", base.display()))?;
    if account::all_may_enter(base) {
        BASE.set(base.to_owned()).ok();
    }
    Ok(())
}

/// This process's temporary folder, made at the first call and removed after the process has ended.
pub fn scratch() -> &'static Path {
    &SCRATCH
        .get_or_init(|| {
            let base = BASE.get().cloned().unwrap_or_else(std::env::temp_dir);
            let path = tempfile::Builder::new()
                .prefix("duetime-")
                .tempdir_in(base)
                .expect("a temporary folder can be made")
                .keep();
            // The stores' users must get through to their own folders inside.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the folder is ours");
            let janitor = Command::new("sh")
                .args(["-c", JANITOR, "janitor"])
                .arg(&path)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .process_group(0)
                .spawn()
                .expect("sh can be started");
            if std::env::var_os("DUETIME_KEEP").is_some() {
                keep(&path);
            }
            Scratch { path, _janitor: janitor }
        })
        .path
}

/// A fresh folder below [`scratch`].
pub fn fresh(name: &str) -> PathBuf {
    let path = scratch().join(format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    fs::create_dir_all(&path).expect("the folder is ours");
    path
}

/// Leaves the temporary folder behind for inspection; `DUETIME_KEEP=1` does so from outside.
pub(super) fn keep(path: &Path) {
    fs::write(path.join("keep"), "").ok();
}
