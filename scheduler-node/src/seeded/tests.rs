//! Runs the tests of each seeded bug with the bug, and demands that they fail for the reason that is expected.
#![expect(clippy::print_stdout, reason = "a table for the person who runs `make seeded-bugs`")]

mod seeds;

use std::{
    collections::BTreeSet,
    process::Stdio,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use tokio::process::Command;

use self::seeds::{SEEDS, Seed};
use super::{
    Bug,
    bug::VARIABLE,
    edits::{EDITS, edited},
};
use crate::store::tests::fixture::{LENT_TEMPLATE, template_url};

/// The processes at a time. Each has stores of its own, and two keep two cores busy.
const AT_ONCE: usize = 2;

/// The longest run of a test with its bug. The tests have deadlines of a minute, and stores have to start.
const ENDS_WITHIN: Duration = Duration::from_secs(150);

/// The longest run of all tests without a bug.
const ALL_END_WITHIN: Duration = Duration::from_secs(600);

/// The result of some tests in a process of their own.
struct Run {
    passed: bool,
    output: String,
    took: Duration,
}

impl Run {
    /// Whether the test failed, and said what it is expected to say.
    fn is_caught(&self, seed: &Seed) -> bool {
        let failed = self.output.contains(&format!("test {} ... FAILED", seed.test));
        !self.passed && failed && self.output.contains(seed.says)
    }

    /// The last lines of the output.
    fn tail(&self) -> String {
        let lines: Vec<&str> = self.output.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }
}

/// Runs these tests of this program again, with `bug` in the environment.
async fn run(tests: &BTreeSet<&str>, bug: &str, within: Duration) -> Run {
    let template = template_url().await;
    let began = Instant::now();
    let program = std::env::current_exe().expect("the path of this program");
    let mut command = Command::new(program);
    command
        .arg("--exact")
        .arg("--test-threads=2")
        .args(tests)
        .env(VARIABLE, bug)
        .env("RUST_BACKTRACE", "0")
        .env(LENT_TEMPLATE, template);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let ended = tokio::time::timeout(within, command.output()).await;
    let (passed, output) = match ended {
        Ok(output) => {
            let output = output.expect("this program starts");
            let text = [output.stdout, output.stderr].concat();
            (output.status.success(), String::from_utf8_lossy(&text).into_owned())
        }
        Err(_) => (false, format!("not ended within {within:?}")),
    };
    Run { passed, output, took: began.elapsed() }
}

fn bug_name(bug: Bug) -> &'static str {
    Bug::ALL.iter().find(|(of, _)| *of == bug).expect("every bug has a name").1
}

fn row(seed: &Seed, run: &Run) -> String {
    let test = seed.test.rsplit("::").next().unwrap_or(seed.test);
    let caught = if run.is_caught(seed) { test } else { "NOTHING" };
    format!(
        "{:<24} {:<4} {:>5.1} s  {caught}\n{:>40}{}",
        bug_name(seed.bug),
        seed.guarantee,
        run.took.as_secs_f64(),
        "",
        seed.rule
    )
}

#[tokio::test]
#[ignore = "starts stores for each bug: make seeded-bugs"]
async fn each_seeded_bug_is_caught() {
    let began = Instant::now();
    let tests: BTreeSet<&str> = SEEDS.iter().map(|seed| seed.test).collect();
    let without = run(&tests, "", ALL_END_WITHIN).await;
    let all_ran = without.output.contains(&format!("test result: ok. {} passed", tests.len()));
    assert!(without.passed && all_ran, "without a bug, {} tests pass:\n{}", tests.len(), without.output);
    println!("without a bug, {} tests pass in {:.1} s\n", tests.len(), without.took.as_secs_f64());

    let runs = stream::iter(SEEDS).map(async |seed| {
        let run = run(&BTreeSet::from([seed.test]), bug_name(seed.bug), ENDS_WITHIN).await;
        println!("{}", row(seed, &run));
        (seed, run)
    });
    let runs: Vec<(&Seed, Run)> = runs.buffer_unordered(AT_ONCE).collect().await;
    let escaped = runs.iter().filter(|(seed, run)| !run.is_caught(seed));
    let escaped: Vec<String> = escaped
        .map(|(seed, run)| {
            let name = bug_name(seed.bug);
            format!("{name} escapes {}, which does not say \"{}\":\n{}\n", seed.test, seed.says, run.tail())
        })
        .collect();
    println!(
        "\n{} of {} bugs caught in {:.0} s",
        runs.len() - escaped.len(),
        runs.len(),
        began.elapsed().as_secs_f64()
    );
    assert!(escaped.is_empty(), "{}", escaped.concat());
}

#[test]
fn each_bug_has_a_test_and_each_edit_finds_its_guard() {
    let queries = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/queries");
    for edit in EDITS {
        let file = queries.join(edit.statement).with_extension("sql");
        let text = std::fs::read_to_string(file).expect("a statement file");
        assert_ne!(edited(edit.bug, edit.statement, &text), text);
    }
    for (bug, name) in Bug::ALL {
        assert!(SEEDS.iter().any(|seed| seed.bug == *bug), "{name} has a test");
    }
}

#[test]
fn the_documentation_names_each_bug_with_its_rule_and_its_test() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/reliability.md")).expect("a page");
    let map = std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("a page");
    for seed in SEEDS {
        let (name, test) = (bug_name(seed.bug), seed.test.rsplit("::").next().expect("a name"));
        let begins = format!("| `{name}` | {} | {} | `{test}` |", seed.guarantee, seed.rule);
        assert!(page.lines().any(|line| line.starts_with(&begins)), "docs/reliability.md has the row {begins}");
        let promise = format!("| {} |", seed.guarantee);
        let names = |line: &str| line.starts_with(&promise) && line.contains(&format!("`{name}`"));
        assert!(map.lines().any(names), "ARCHITECTURE.md names {name} beside {}", seed.guarantee);
    }
}
