//! `docs/rules.md` names a test for each rule, and `docs/reliability.md` one for each fault mended: every one of them
//! exists.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The Rust files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("it can be read").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).expect("it can be read")
}

/// All the source below a folder, in one text.
fn source(folder: &Path) -> String {
    files_below(folder).iter().map(|file| read(file)).collect()
}

/// The words in backticks in the last column of the tables.
fn named(page: &str) -> Vec<String> {
    let last = |row: &str| row.trim_end().strip_suffix('|')?.rsplit_once('|').map(|(_, column)| column.to_owned());
    let columns = page.lines().filter(|line| line.starts_with('|')).filter_map(last);
    columns.flat_map(|column| column.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Names in the page's tables that no test, file or command has.
fn missing(page: &str, at_least: usize) -> Vec<String> {
    let page = std::fs::read_to_string(root().join(page)).expect("it can be read");
    let text: String = [
        "common/src",
        "common/tests",
        "scheduler-node/src",
        "scheduler-node/tests",
        "integration-tests/src",
        "integration-tests/tests",
    ]
    .into_iter()
    .map(|folder| source(&root().join(folder)))
    .collect();
    let named = named(&page);
    assert!(named.len() >= at_least, "the tables are read: {}", named.len());
    let exists = |name: &String| match name.as_str() {
        path if path.contains('/') => root().join(path).exists(),
        // A command, or a state.
        other if !other.contains('_') => true,
        test => text.contains(&format!("fn {test}(")),
    };
    named.into_iter().filter(|name| !exists(name)).collect()
}

/// `lasts` names the length of a fault, `until` and `flows` wait for what must happen. All three are in main.rs.
#[test]
fn no_scenario_sleeps_in_the_hope_that_something_has_happened() {
    let folder = root().join("integration-tests/tests/it");
    for file in files_below(&folder).into_iter().filter(|file| *file != folder.join("main.rs")) {
        let text = read(&file);
        assert!(["time::sleep", "thread::sleep"].iter().all(|sleep| !text.contains(sleep)), "{}", file.display());
    }
}

#[test]
fn every_test_that_a_rule_names_is_there() {
    assert_eq!(missing("docs/rules.md", 90), Vec::<String>::new());
}

#[test]
fn every_test_that_a_mended_fault_names_is_there() {
    assert_eq!(missing("docs/reliability.md", 20), Vec::<String>::new());
}
