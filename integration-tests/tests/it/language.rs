//! Programs in other languages beside the cluster. Their libraries lie in a folder that is kept between runs.

use std::{
    fs,
    io::Write,
    panic::Location,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use tokio::process::{Child, Command};

/// The limit of the first download: a few megabytes for each language.
const FETCHED_WITHIN: Duration = Duration::from_secs(300);

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a crate lies in its workspace").to_owned()
}

/// The folder for the downloads and builds of `name`; git ignores it.
pub(crate) fn kept(name: &str) -> Result<PathBuf> {
    let folder = root().join(".local/languages").join(name);
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    Ok(folder)
}

/// Whether `program` can be run here. Otherwise a scenario that needs it is skipped, and [`skipped`] notes that.
#[track_caller]
pub(crate) fn is_here(program: &str) -> bool {
    let found = std::process::Command::new("sh")
        .args([
            "-c",
            "command -v \"$0\" >/dev/null && \"$0\" --version >/dev/null 2>&1 || \"$0\" version >/dev/null 2>&1",
            program,
        ])
        .status();
    let is_here = found.is_ok_and(|status| status.success());
    if !is_here {
        skipped(&format!("{program} is not on this machine"));
    }
    is_here
}

/// Notes that the caller leaves a scenario out. The harness hides what a test prints when it passes, so the reason goes
/// to a file, which `integration-tests/scenarios` prints at its end.
#[track_caller]
pub(crate) fn skipped(why: &str) {
    let (folder, line) = (root().join(".local"), format!("{}: {why}\n", Location::caller().file()));
    fs::create_dir_all(&folder).expect("git ignores the folder");
    let mut notes = fs::File::options().create(true).append(true).open(folder.join("skipped")).expect("it is ours");
    notes.write_all(line.as_bytes()).expect("a line fits on the disk");
}

/// Runs a command to its end and returns its output; an error carries the output too.
pub(crate) async fn run(command: &mut Command) -> Result<String> {
    let output = tokio::time::timeout(FETCHED_WITHIN, command.stdin(Stdio::null()).kill_on_drop(true).output());
    let output = output.await.with_context(|| format!("{command:?} takes too long"))??;
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{command:?}: {}\n{out}\n{error}", output.status);
    Ok(out.into_owned())
}

/// Starts a command beside the scenario; it ends with its handle. Its output goes to `log`.
pub(crate) fn start(command: &mut Command, log: &Path) -> Result<Child> {
    let log = fs::File::options().create(true).append(true).open(log)?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
    command.spawn().with_context(|| format!("starting {command:?}"))
}

/// A virtual environment with exactly the packages of the requirements file; created again when the file changes.
pub(crate) async fn python(requirements: &Path, name: &str) -> Result<PathBuf> {
    let folder = kept(name)?;
    let (bin, mark) = (folder.join("bin"), folder.join("installed"));
    let wanted = fs::read_to_string(requirements)?;
    if fs::read_to_string(&mark).is_ok_and(|installed| installed == wanted) {
        return Ok(bin);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder)).await?;
    run(Command::new(bin.join("pip")).args(["install", "--quiet", "-r"]).arg(requirements)).await?;
    fs::write(&mark, wanted)?;
    Ok(bin)
}
