//! The documentation as a reader follows it: every `sh` fence of these pages is typed into one shell, in order, beside a cluster such as
//! `make up` starts. Each command has to end well, and to print what the page shows in the `text` fence after it.

use std::{os::unix::fs::symlink, path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use integration_tests::{
    page::{Fence, Page, is_shown, root},
    sandbox::{Sandbox, binary, scratch},
};
use tokio::process::Command;

use crate::scenario;

/// A page takes a reader ten minutes, and a machine that does not read less than one.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(60);
/// Between what two fences print.
const MARK: char = '\u{1e}';

/// A fence that is run, and what the page shows after it.
struct Step {
    typed: String,
    shows: Option<String>,
}

fn steps(fences: Vec<Fence>) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    // An example of an output belongs to the fence right before it.
    let mut follows = false;
    for fence in fences {
        let runs = fence.language() == "sh" && fence.no_test().is_none();
        match steps.last_mut().filter(|_| follows && fence.language() == "text") {
            Some(step) => step.shows = Some(fence.text),
            None if runs => steps.push(Step { typed: fence.text, shows: None }),
            None => {}
        }
        follows = runs;
    }
    steps
}

/// A shell in a folder of its own, that knows where everything is as after `source .local/env`.
fn shell(sandbox: &Sandbox, folder: &Path) -> Result<Command> {
    let urls: Vec<String> = sandbox.nodes().iter().map(|node| node.url()).collect();
    symlink(root().join("examples"), folder.join("examples"))?;
    std::fs::copy(sandbox.node(0).file(), folder.join("duetime.toml"))?;
    let programs = binary()?.parent().context("a program lies in a folder")?.display();
    let mut shell = Command::new("bash");
    shell
        .args(["-euo", "pipefail", "typed.sh"])
        .current_dir(folder)
        .env("PATH", format!("{programs}:{}", std::env::var("PATH")?))
        .env("DUETIME_URLS", urls.join(","))
        .env("DUETIME_TOKEN", &sandbox.node(0).config().token)
        .env("AMQP_URL", sandbox.amqp_url())
        .env("DATABASE_URLS", sandbox.database_url(0))
        .env("ETCD_ENDPOINTS", sandbox.etcd().endpoints().join(","))
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(folder.join("said"))?)
        .stderr(std::fs::File::create(folder.join("complained"))?)
        .kill_on_drop(true);
    Ok(shell)
}

async fn follow(sandbox: &Sandbox, name: &str) -> Result<()> {
    let steps = steps(Page::read(name).fences());
    ensure!(!steps.is_empty(), "{name} has nothing to type");
    let folder = scratch().join(name.replace('/', "-"));
    std::fs::create_dir_all(&folder)?;
    let typed: String = steps.iter().map(|step| format!("printf '{MARK}'\n{}", step.typed)).collect();
    std::fs::write(folder.join("typed.sh"), typed)?;

    let mut running = shell(sandbox, &folder)?.spawn()?;
    let group = format!("-{}", running.id().context("it has just been started")?);
    let ended = tokio::time::timeout(FOLLOWED_WITHIN, running.wait()).await;
    // What a page that was broken off had started beside it; where nothing is left, there is nobody to tell.
    Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status().await?;
    let said = std::fs::read_to_string(folder.join("said"))?;
    let complained = std::fs::read_to_string(folder.join("complained"))?;
    let said: Vec<&str> = said.split(MARK).skip(1).collect();
    let last = said.len().checked_sub(1).and_then(|at| steps.get(at)).map_or("", |step| &step.typed);
    let ended = ended.with_context(|| format!("{name}: does not end:\n{last}\n{said:?}\n{complained}"))??;
    ensure!(ended.success(), "{name}: {ended}:\n{last}\n{:?}\n{complained}", said.last());
    ensure!(said.len() == steps.len(), "{name}: ends before its end");
    for (step, said) in steps.iter().zip(said) {
        let fits = step.shows.as_ref().is_none_or(|shows| is_shown(shows, said));
        ensure!(
            fits,
            "{name}:\n{}\nsays\n{said}\nand the page shows\n{}",
            step.typed,
            step.shows.as_deref().unwrap_or_default()
        );
    }
    Ok(())
}

/// A cluster of its own for each page: a reader of one has not read the others.
async fn page(name: &str) {
    scenario(Sandbox::builder(), async |sandbox| follow(sandbox, name).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_readme_can_be_followed() {
    page("README.md").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ten_minute_start_can_be_followed() {
    page("docs/start.md").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_concepts_can_be_followed() {
    page("docs/concepts.md").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_from_celery_can_be_followed() {
    page("docs/migrate-celery.md").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_from_cron_can_be_followed() {
    page("docs/migrate-cron.md").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operations_can_be_followed() {
    page("docs/operations.md").await;
}
