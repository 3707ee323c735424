//! The walls: which rooms a room may import. ARCHITECTURE.md draws them from the same tables.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    path::PathBuf,
};

use super::{
    imports::{Module, imports},
    root,
};

/// A room, and the rooms that it may import. They all stand above it in the table, so there are no circles.
type Walls = &'static [(&'static str, &'static [&'static str])];

const COMMON: Walls = &[
    ("ids", &[]),
    ("time", &[]),
    ("field", &[]),
    ("json", &[]),
    ("labelled", &[]),
    ("outcome", &[]),
    ("priority", &[]),
    ("limit", &["field", "labelled"]),
    ("retry", &["time", "field", "json"]),
    ("queue", &["ids", "field", "priority", "limit", "retry"]),
    ("access", &["ids", "field", "labelled", "limit", "queue"]),
    ("grant", &["access"]),
    ("shard", &["ids", "time", "queue"]),
    ("cluster", &["ids", "time", "shard"]),
    ("task", &["ids", "time", "field", "json", "labelled", "limit", "retry", "queue"]),
    ("delay", &["ids", "time", "task"]),
    ("schedule", &["ids", "time", "field", "retry", "queue", "task"]),
    ("relay", &["time", "task"]),
    (
        "wire",
        &["ids", "time", "field", "json", "limit", "retry", "queue", "access", "shard", "cluster", "task", "schedule"],
    ),
];

const NODE: Walls = &[
    ("address", &[]),
    ("alarm", &[]),
    ("audit", &[]),
    ("causes", &[]),
    ("clock", &[]),
    ("internal", &[]),
    ("receipt", &[]),
    ("seal", &[]),
    ("supervise", &[]),
    ("config", &["address"]),
    ("access", &["config"]),
    ("telemetry", &["config"]),
    ("coordination", &["supervise"]),
    ("broker", &["causes", "supervise"]),
    ("store", &["address", "audit", "clock", "receipt", "access"]),
    ("metrics", &["supervise", "store"]),
    ("traces", &["clock", "supervise", "config"]),
    ("relay", &["causes", "clock", "broker"]),
    ("oidc", &["address", "causes", "seal", "config"]),
    ("working_set", &["store"]),
    (
        "loops",
        &[
            "alarm",
            "audit",
            "clock",
            "receipt",
            "supervise",
            "config",
            "access",
            "coordination",
            "broker",
            "store",
            "metrics",
            "traces",
            "working_set",
        ],
    ),
    ("readiness", &["supervise", "broker", "working_set", "loops"]),
    (
        "desk",
        &[
            "audit",
            "clock",
            "internal",
            "supervise",
            "access",
            "coordination",
            "store",
            "metrics",
            "traces",
            "loops",
            "readiness",
        ],
    ),
    ("intake", &["audit", "supervise", "broker", "store", "metrics", "working_set", "loops", "desk"]),
    ("http", &["address", "audit", "internal", "supervise", "access", "readiness", "desk"]),
    ("console", &["audit", "clock", "internal", "receipt", "seal", "config", "oidc", "desk", "http"]),
    ("settings", &["config", "coordination", "broker", "store", "http"]),
    (
        "cli",
        &[
            "causes",
            "clock",
            "supervise",
            "config",
            "access",
            "telemetry",
            "coordination",
            "broker",
            "store",
            "relay",
            "settings",
        ],
    ),
    (
        "node",
        &[
            "audit",
            "clock",
            "receipt",
            "supervise",
            "config",
            "access",
            "coordination",
            "broker",
            "store",
            "metrics",
            "traces",
            "oidc",
            "working_set",
            "loops",
            "readiness",
            "desk",
            "intake",
            "http",
            "console",
            "settings",
        ],
    ),
    ("fuzz", &["config", "store", "oidc", "http", "console"]),
];

fn folder(of: &str) -> PathBuf {
    root().join(of).join("src")
}

/// The rooms that each room of a crate imports.
fn edges(of: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, paths) in imports(&folder(of)) {
        let Some(room) = module.first() else { continue };
        let others = paths.iter().filter_map(|path| path.first()).filter(|other| *other != room);
        edges.entry(room.clone()).or_default().extend(others.cloned());
    }
    edges
}

fn check(of: &str, walls: Walls) {
    let mut above = BTreeSet::new();
    for (room, allowed) in walls {
        for other in *allowed {
            assert!(above.contains(other), "{of}: {other} does not stand above {room} in the table");
        }
        above.insert(*room);
    }
    let walls: BTreeMap<&str, BTreeSet<String>> =
        walls.iter().map(|(room, allowed)| (*room, allowed.iter().map(|&other| other.to_owned()).collect())).collect();
    let edges = edges(of);
    let found: BTreeSet<&str> = edges.keys().map(String::as_str).collect();
    assert_eq!(found, walls.keys().copied().collect(), "{of}: the table has every room, and no other");
    for (room, imported) in &edges {
        let allowed = &walls[room.as_str()];
        let crossed: Vec<_> = imported.difference(allowed).collect();
        assert!(crossed.is_empty(), "{of}: {room} imports {crossed:?}, which the table does not allow");
        let unused: Vec<_> = allowed.difference(imported).collect();
        assert!(unused.is_empty(), "{of}: the table allows {room} to import {unused:?}, which it does not need");
    }
}

#[test]
fn rooms_of_the_node_import_only_the_rooms_that_they_may() {
    check("scheduler-node", NODE);
}

#[test]
fn rooms_of_common_import_only_the_rooms_that_they_may() {
    check("common", COMMON);
}

/// The table as ARCHITECTURE.md draws it.
fn drawn(walls: Walls) -> String {
    let width = walls.iter().map(|(room, _)| room.len()).max().unwrap_or_default();
    walls.iter().fold(String::new(), |mut text, (room, allowed)| {
        let arrow = if allowed.is_empty() { "" } else { " -> " };
        writeln!(text, "{}", format!("{room:width$}{arrow}{}", allowed.join(" ")).trim_end()).expect("a string");
        text
    })
}

#[test]
fn the_map_shows_the_walls() {
    let map = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("a map");
    for walls in [COMMON, NODE] {
        assert!(map.contains(&drawn(walls)), "ARCHITECTURE.md shows this table:\n{}", drawn(walls));
    }
}

/// In each folder of a crate, the neighbours that import each other, directly or through others.
fn circles(of: &str) -> Vec<String> {
    let mut folders: BTreeMap<Module, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (module, paths) in imports(&folder(of)) {
        for path in paths {
            let shared = module.iter().zip(&path).take_while(|(one, other)| one == other).count();
            let (Some(from), Some(to)) = (module.get(shared), path.get(shared)) else { continue };
            let folder = folders.entry(module[..shared].to_vec()).or_default();
            folder.entry(from.clone()).or_default().insert(to.clone());
        }
    }
    let mut circles = Vec::new();
    for (folder, edges) in folders {
        let reached = |from: &String| {
            let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
            while let Some(next) = open.pop() {
                open.extend(edges.get(next).into_iter().flatten().filter(|to| reached.insert((*to).clone())));
            }
            reached
        };
        let in_circle: Vec<&String> = edges.keys().filter(|module| reached(module).contains(*module)).collect();
        if !in_circle.is_empty() {
            circles.push(format!("{}: {in_circle:?}", folder.join("::")));
        }
    }
    circles
}

#[test]
fn no_neighbours_import_each_other() {
    for of in ["common", "scheduler-node"] {
        assert_eq!(circles(of), Vec::<String>::new(), "modules of one folder that import each other, in {of}");
    }
}
