//! The walls: which rooms a room may import. The tables stand in ARCHITECTURE.md, where people read them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use super::{
    imports::{Module, imports},
    root,
};

/// The table of a crate's rooms: each with the rooms that it may import.
fn walls(of: &str) -> Vec<(String, BTreeSet<String>)> {
    let map = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("a map");
    let title = format!("`{of}/src/`, from the bottom up:\n\n```text\n");
    let (_, table) = map.split_once(&title).unwrap_or_else(|| panic!("ARCHITECTURE.md has a table under {title}"));
    let (table, _) = table.split_once("```").expect("the table ends");
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
    table
        .lines()
        .map(|line| match line.split_once(" -> ") {
            Some((room, allowed)) => (room.trim().to_owned(), words(allowed)),
            None => (line.trim().to_owned(), BTreeSet::new()),
        })
        .collect()
}

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

fn check(of: &str) {
    let (walls, edges) = (walls(of), edges(of));
    let mut below = BTreeSet::new();
    for (room, allowed) in &walls {
        // Everything that a room may import stands on an earlier line, so there are no circles.
        let later: Vec<_> = allowed.difference(&below).collect();
        assert!(later.is_empty(), "{of}: {later:?} do not stand before {room} in the table");
        below.insert(room.clone());
        let imported = edges.get(room).unwrap_or_else(|| panic!("{of}: {room} of the table does not exist"));
        let crossed: Vec<_> = imported.difference(allowed).collect();
        assert!(crossed.is_empty(), "{of}: {room} imports {crossed:?}, which the table does not allow");
        let unused: Vec<_> = allowed.difference(imported).collect();
        assert!(unused.is_empty(), "{of}: the table allows {room} to import {unused:?}, which it does not need");
    }
    let found: BTreeSet<String> = edges.into_keys().collect();
    assert_eq!(found, below, "{of}: the table has every room, and no other");
}

#[test]
fn rooms_of_the_node_import_only_the_rooms_that_they_may() {
    check("scheduler-node");
}

#[test]
fn rooms_of_common_import_only_the_rooms_that_they_may() {
    check("common");
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
