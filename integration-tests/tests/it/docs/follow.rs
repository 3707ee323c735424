//! A reader at a shell: types a page's commands, in order, and compares the output with the page.

use std::{collections::BTreeMap, os::unix::fs::symlink, path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use integration_tests::{
    page::{Fence, Page, is_shown, root},
    sandbox::{Node, Sandbox, binary, hide_variables, scratch},
};
use tokio::process::Command;

/// A page takes a reader ten minutes, and this program, which does not read, less than one. A busy machine needs
/// longer.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(300);
/// Separates the outputs of two fences.
const MARK: char = '\u{1e}';
/// Marks a fence whose commands run until they are stopped.
const STAYS: &str = "stays";
/// Marks a fence that is typed while no node runs.
const NODES_STOPPED: &str = "nodes-stopped";
/// Words in capitals that a reader replaces by their own values, with a port if one follows.
const PLACES: [&str; 6] = ["FIRST", "ID", "NAME", "NODE", "QUEUE", "SECOND"];

/// Such a command gets a terminal, must still run after 3 s, and ends on a signal.
const RUN_THAT_STAYS: &str = r#"
duetime() {
    local ended=0
    script --quiet --return --command "timeout --foreground --kill-after=10 3 $(printf '%q ' duetime "$@")" /dev/null || ended=$?
    [ $ended -eq 124 ]
}
"#;

/// A fence that is run, and the output that the page shows after it.
struct Step {
    typed: String,
    shows: Option<String>,
}

/// The text of a fence to type; `None` for one that is only to be read. `counts` holds how often each place has been
/// filled on this page.
fn typed(fence: &Fence, counts: &mut BTreeMap<&'static str, usize>) -> Option<String> {
    match fence.language() {
        _ if !fence.is_typed() => None,
        "sql" => Some(format!("psql -qAt -v ON_ERROR_STOP=1 \"$DATABASE_URLS\" <<'SQL'\n{}SQL\n", fence.text)),
        _ if fence.says(STAYS) => Some(format!("{RUN_THAT_STAYS}{}unset -f duetime\n", filled(&fence.text, counts))),
        _ => Some(filled(&fence.text, counts)),
    }
}

/// Puts `${ID[n]}` for the page's `ID` number n, or `$ID` where that is not set; the other places likewise.
fn filled(text: &str, counts: &mut BTreeMap<&'static str, usize>) -> String {
    let (mut filled, mut rest, mut before) = (String::new(), text, ' ');
    while let Some(next) = rest.chars().next() {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len()).max(next.len_utf8());
        let (word, after) = rest.split_at(end);
        let place = PLACES.iter().find(|place| **place == word);
        match place.filter(|_| !"${".contains(before) && !after.starts_with('=')) {
            Some(place) => {
                let count = counts.entry(place).or_default();
                filled.push_str(&format!("${{{place}[{count}]:-${place}}}"));
                *count += 1;
                rest = after.strip_prefix(":8080").unwrap_or(after);
            }
            None => {
                filled.push_str(word);
                rest = after;
            }
        }
        before = word.chars().last().unwrap_or(before);
    }
    filled
}

fn steps(fences: &[Fence]) -> Vec<Step> {
    let (mut steps, mut counts): (Vec<Step>, _) = (Vec::new(), BTreeMap::new());
    // An example of an output belongs to the fence right before it.
    let mut follows = false;
    for fence in fences {
        let typed = typed(fence, &mut counts);
        let runs = typed.is_some();
        match steps.last_mut().filter(|_| follows && fence.language() == "text") {
            Some(step) => step.shows = Some(fence.text.clone()),
            None => steps.extend(typed.map(|typed| Step { typed, shows: None })),
        }
        follows = runs;
    }
    steps
}

/// Prepares a reader's folder, with the configuration of the one node that does not run.
fn furnish(sandbox: &Sandbox, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let spare = sandbox.nodes().iter().find(|node| !node.is_running()).context("a node is left to be started")?;
    std::fs::copy(spare.file(), folder.join("duetime.toml"))?;
    symlink(root().join("examples"), folder.join("examples"))?;
    sandbox.rabbit().programs(&folder.join("bin"), sandbox.vhost())
}

/// A shell with the variables of all addresses, as after `source .local/env`.
fn shell(sandbox: &Sandbox, folder: &Path) -> Result<Command> {
    let urls: Vec<String> = sandbox.nodes().iter().filter(|node| node.is_running()).map(Node::url).collect();
    let programs = binary()?.parent().context("a program lies in a folder")?.display();
    let mut shell = Command::new("bash");
    hide_variables(shell.as_std_mut());
    shell
        .args(["-euo", "pipefail", "typed.sh"])
        .current_dir(folder)
        .env("PATH", format!("{}:{programs}:{}", folder.join("bin").display(), std::env::var("PATH")?))
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

/// Follows a page in the shell of a reader who has done what `before` says: either the fences to type while no node
/// runs, or all others.
pub(super) async fn follow(sandbox: &Sandbox, name: &str, before: &str) -> Result<()> {
    let mut fences = Page::read(name).fences();
    let nodes_run = sandbox.nodes().iter().any(Node::is_running);
    fences.retain(|fence| fence.says(NODES_STOPPED) != nodes_run);
    let steps = steps(&fences);
    ensure!(!steps.is_empty(), "{name} has nothing to type");
    let folder = scratch().join(name.replace('/', "-"));
    if !folder.exists() {
        furnish(sandbox, &folder)?;
    }
    let typed: String = steps.iter().map(|step| format!("printf '{MARK}'\n{}", step.typed)).collect();
    std::fs::write(folder.join("typed.sh"), format!("{before}\n{typed}"))?;

    let mut running = shell(sandbox, &folder)?.spawn()?;
    let group = format!("-{}", running.id().context("it has just been started")?);
    let ended = tokio::time::timeout(FOLLOWED_WITHIN, running.wait()).await;
    // Kills processes that an interrupted page has left behind; `kill` may find none.
    Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status().await?;
    let said = std::fs::read_to_string(folder.join("said"))?;
    let complained = std::fs::read_to_string(folder.join("complained"))?;
    let said: Vec<&str> = said.split(MARK).skip(1).collect();
    let last = said.len().checked_sub(1).and_then(|at| steps.get(at)).map_or(before, |step| &step.typed);
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

#[test]
fn places_are_filled_one_after_another() {
    let mut counts = BTreeMap::new();
    let text = "ID=$(duetime a ID) $ID VALID http://NODE:8080/x\n";
    let first = "ID=$(duetime a ${ID[0]:-$ID}) $ID VALID http://${NODE[0]:-$NODE}/x\n";
    assert_eq!(filled(text, &mut counts), first);
    assert_eq!(filled("b ID ID …\n", &mut counts), "b ${ID[1]:-$ID} ${ID[2]:-$ID} …\n");
}
