//! Finds the node's program, and runs it to its end.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::OnceLock,
};

use anyhow::{Context, Result, bail};
use tokio::io::AsyncWriteExt;

/// What the names of variables begin with that `duetime` and the programs of etcd and RabbitMQ read, and those of libpq
/// and of OpenTelemetry, which `duetime` and the stores' programs read.
const PREFIXES: [&str; 5] = ["DUETIME_", "PG", "OTEL_", "ETCD", "RABBITMQ_"];
/// Where programs look for authorities. A store of a scenario is trusted by its own.
const TRUST: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];
/// What the programs of the sandbox take from this process all the same: tests run with a seeded bug by the first, and
/// etcd 3.4 starts on ARM by the second only.
const KEPT: [&str; 2] = ["DUETIME_SEEDED_BUG", "ETCD_UNSUPPORTED_ARCH"];

/// The program in `DUETIME_BIN`, or the one built beside this test, built now if it is missing.
pub fn binary() -> Result<&'static Path> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match FOUND.get_or_init(|| find().map_err(|error| format!("{error:#}"))) {
        Ok(path) => Ok(path),
        Err(error) => bail!("{error}"),
    }
}

/// The last release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    pub version: String,
    /// The version of its schema.
    pub schema: i64,
    /// Its `duetime`. `None`: it was not built, because this clone does not have its commit.
    pub program: Option<PathBuf>,
}

/// The last release that `integration-tests/releases` names. `integration-tests/build-last-release` builds its program.
pub fn last_release() -> Result<Release> {
    let line = include_str!("../../releases").lines().rfind(|line| !line.starts_with('#') && !line.is_empty());
    let mut words = line.context("there is a release")?.split_whitespace();
    let (version, _commit, schema) = (words.next(), words.next(), words.next());
    let version = version.context("a version")?.to_owned();
    let schema = schema.context("the newest migration")?.parse().context("the newest migration")?;
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.local/releases").join(&version).join("duetime");
    Ok(Release { version, schema, program: program.exists().then_some(program) })
}

/// `duetime`, to be started by a scenario, without the variables of this process.
pub fn command() -> Result<tokio::process::Command> {
    let mut command = tokio::process::Command::new(binary()?);
    hide_variables(command.as_std_mut());
    Ok(command)
}

/// Hides this process's variables for `duetime` and for the stores from `command`, before that gets its own. The shell
/// of a developer may name another cluster, whose database `duetime migrate` would migrate, or demand TLS.
pub fn hide_variables(command: &mut Command) {
    let inherited = std::env::vars_os().map(|(name, _)| name);
    for name in inherited.filter(|name| is_hidden(name)) {
        command.env_remove(name);
    }
}

fn is_hidden(name: &OsStr) -> bool {
    let begins = |prefix: &str| name.as_encoded_bytes().starts_with(prefix.as_bytes());
    let is_among = |names: [&str; 2]| names.into_iter().any(|other| name == other);
    (PREFIXES.into_iter().any(begins) || is_among(TRUST)) && !is_among(KEPT)
}

/// Runs `duetime` with these arguments and waits for it.
pub async fn run(words: &[&str]) -> Result<Output> {
    run_with(words, &[], "").await
}

/// Like `run`, with these variables and this standard input.
pub async fn run_with(words: &[&str], env: &[(&str, &str)], input: &str) -> Result<Output> {
    run_program(binary()?, words, env, input).await
}

/// Like `run_with`, with another `duetime`.
pub(super) async fn run_program(program: &Path, words: &[&str], env: &[(&str, &str)], input: &str) -> Result<Output> {
    let name = format!("duetime {}", words.join(" "));
    let mut command = tokio::process::Command::new(program);
    hide_variables(command.as_std_mut());
    let mut child = command
        .args(words)
        .envs(env.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting {name}"))?;
    let mut stdin = child.stdin.take().context("a pipe to it")?;
    // The program may end, or print, before it has read everything.
    let (_, output) = tokio::join!(
        async move {
            stdin.write_all(input.as_bytes()).await.ok();
            drop(stdin);
        },
        child.wait_with_output()
    );
    output.with_context(|| format!("running {name}"))
}

fn find() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("DUETIME_BIN") {
        let path = PathBuf::from(path);
        if !path.exists() {
            bail!("DUETIME_BIN names {}, which does not exist", path.display());
        }
        return Ok(path);
    }
    let own = std::env::current_exe().context("asking for our own path")?;
    let mut folder = own.parent().context("a program lies in a folder")?;
    if folder.ends_with("deps") || folder.ends_with("examples") {
        folder = folder.parent().context("target/<profile>/deps has a parent")?;
    }
    let path = folder.join("duetime");
    if !path.exists() {
        build(folder)?;
    }
    if !path.exists() {
        bail!("cargo built no {}", path.display());
    }
    Ok(path)
}

/// Cargo, which this process runs under, or `make` has named: the path of a program, or words such as `cargo +stable`.
fn cargo(named: &str) -> Command {
    if Path::new(named).exists() {
        return Command::new(named);
    }
    let mut words = named.split_whitespace();
    let mut cargo = Command::new(words.next().unwrap_or("cargo"));
    cargo.args(words);
    cargo
}

/// Fail points are for tests: a release build never has them.
fn build(folder: &Path) -> Result<()> {
    let mut cargo = cargo(&std::env::var("CARGO").unwrap_or_default());
    cargo.args(["build", "--package", "scheduler-node", "--bin", "duetime"]);
    if folder.ends_with("release") {
        cargo.arg("--release");
    } else {
        cargo.args(["--features", "scheduler-node/failpoints"]);
    }
    cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let status = cargo.stdin(Stdio::null()).status().context("running cargo")?;
    if !status.success() {
        bail!("cargo could not build the node: {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_is_a_path_or_several_words() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("my cargo");
        std::fs::write(&program, "").unwrap();
        for (named, words) in [
            ("", vec!["cargo"]),
            ("cargo +stable", vec!["cargo", "+stable"]),
            (program.to_str().unwrap(), vec![program.to_str().unwrap()]),
        ] {
            let cargo = cargo(named);
            let found: Vec<&OsStr> = [cargo.get_program()].into_iter().chain(cargo.get_args()).collect();
            assert_eq!(found, words);
        }
    }
}
