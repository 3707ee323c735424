//! The rules that a compiler does not check: which modules a room imports, which crates it mentions, what a file may
//! hold, which guards a write to a task has, and that an operation under a lock is whole.

#[path = "rooms/gates.rs"]
mod gates;
#[path = "rooms/imports.rs"]
mod imports;
#[path = "rooms/monitors.rs"]
mod monitors;
#[path = "rooms/walls.rs"]
mod walls;

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Longer files have two ideas in them.
const LINES: usize = 500;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// Every Rust file below a folder, with its path relative to it.
fn sources(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).expect("a readable folder") {
            let path = entry.expect("a readable entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(folder).expect("below it").to_string_lossy().into_owned();
                found.push((name, fs::read_to_string(&path).expect("UTF-8")));
            }
        }
    }
    assert!(!found.is_empty(), "{} has sources", folder.display());
    found
}

/// The code of a file: without comments.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")).map(|(at, line)| (at + 1, line))
}

fn is_test(name: &str) -> bool {
    name.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "simulation")) || name.ends_with("_tests.rs")
}

/// Files other than those under `rooms` that mention `word`.
fn strangers(word: &str, rooms: &[&str]) -> Vec<String> {
    sources(&root().join("scheduler-node/src"))
        .into_iter()
        .filter(|(name, _)| !is_test(name) && !rooms.iter().any(|room| name.starts_with(room)))
        .flat_map(|(name, text)| {
            let lines: Vec<String> = code(&text)
                .filter(|(_, line)| line.contains(word))
                .map(|(at, line)| format!("{name}:{at}: {}", line.trim()))
                .collect();
            lines
        })
        .collect()
}

#[test]
fn each_store_has_one_room_that_speaks_to_it() {
    for (word, rooms) in [
        ("sqlx::", ["store/"].as_slice()),
        ("etcd_client::", &["coordination/"]),
        ("lapin::", &["broker/"]),
        ("axum::", &["http/", "console/"]),
        ("reqwest::", &["cli/", "oidc/", "relay/", "traces/"]),
        ("opentelemetry", &["traces/"]),
    ] {
        assert_eq!(strangers(word, rooms), Vec::<String>::new(), "only {rooms:?} mention {word}");
    }
}

/// Axum's own extractors refuse with plain text, so one file of `http/` wraps each of them into a problem.
#[test]
fn what_the_api_refuses_is_a_problem() {
    for (word, file) in [("Path", "mod.rs"), ("Query", "query.rs")] {
        for (name, text) in sources(&root().join("scheduler-node/src/http")) {
            let product = text.split("#[cfg(test)]").next().expect("a text");
            let is_word = |line: &str| line.split(|c: char| !c.is_alphanumeric()).any(|part| part == word);
            let mention = code(product).find(|(_, line)| is_word(line));
            assert!(is_test(&name) || name == file || mention.is_none(), "http/{name} mentions {word}: {mention:?}");
        }
    }
}

#[test]
fn common_decides_and_does_nothing() {
    let manifest = fs::read_to_string(root().join("common/Cargo.toml")).expect("a manifest");
    let dependencies =
        manifest.split("[dependencies]").nth(1).expect("dependencies").split("\n[").next().expect("a section");
    let allowed = [
        "base64",
        "chrono",
        "chrono-tz",
        "croner",
        "serde",
        "serde_json",
        "serde_with",
        "sha2",
        "thiserror",
        "uuid",
        "xxhash-rust",
    ];
    for line in dependencies.lines().filter(|line| !line.trim().is_empty()) {
        let name = line.split(['.', ' ', '=']).next().expect("a name");
        assert!(allowed.contains(&name), "common may not depend on {name}: it does no I/O");
    }
    // A test may read the clock.
    for (name, text) in sources(&root().join("common/src")).into_iter().filter(|(name, _)| !is_test(name)) {
        for word in ["async fn", "Utc::now", "Instant::now", "SystemTime::now", "std::net", "std::fs"] {
            let mention = code(&text).find(|(_, line)| line.contains(word));
            assert_eq!(mention, None, "common/src/{name} says {word}");
        }
    }
}

#[test]
fn the_compiler_forbids_unsafe_code_in_each_crate() {
    let manifest = |path: &str| fs::read_to_string(root().join(path)).expect("a manifest");
    let workspace = manifest("Cargo.toml");
    assert!(workspace.contains("unsafe_code = \"forbid\""), "the lints of the workspace");
    let members = workspace.split_once("members = [").and_then(|(_, rest)| rest.split_once(']')).expect("members").0;
    for member in members.split(',').map(|member| member.trim().trim_matches('"')) {
        assert!(manifest(&format!("{member}/Cargo.toml")).contains("[lints]\nworkspace = true"), "{member}");
    }
}

#[test]
fn only_one_file_spells_the_keys_of_etcd() {
    for word in ["\"nodes/", "\"candidates/", "\"owners/", "/nodes/{", "/owners/{"] {
        // A path of the API may look like a key of etcd, and http/ never speaks to etcd.
        assert_eq!(strangers(word, &["coordination/keys.rs", "http/"]), Vec::<String>::new());
    }
}

#[test]
fn no_file_holds_two_ideas() {
    for folder in ["common/src", "scheduler-node/src", "integration-tests/src"] {
        for (name, text) in sources(&root().join(folder)) {
            let lines = text.lines().count();
            assert!(lines <= LINES, "{folder}/{name} has {lines} lines");
        }
    }
}
