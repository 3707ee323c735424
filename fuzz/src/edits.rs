//! Runs targets with their seeds and with edits of these, on any toolchain. The tests of each crate with fuzzed
//! parsers call it.

use std::path::Path;

use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

/// Bytes that parsers stumble over.
const HARD: [&[u8]; 12] = [
    b"\0",
    b"\"",
    b"\\",
    b"{",
    b"]",
    b",",
    b"\xff\xff\xff\xff",
    b"\xc3",
    b"1e999",
    b"\\ud800",
    b"[[[[[[[[",
    b"\x7f\xff",
];
const CASES: u32 = 500;

type Target = (&'static str, fn(&[u8]), &'static [&'static [u8]]);

fn edited() -> impl Strategy<Value = Vec<(prop::sample::Index, usize, usize)>> {
    prop::collection::vec((any::<prop::sample::Index>(), 0..9_usize, 0..=HARD.len()), 0..6)
}

/// A runner with the same cases each time; `SEED=<number>` gives other cases.
fn runner() -> TestRunner {
    let seed: u64 = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(11);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

pub(crate) fn drive(targets: &[Target]) {
    for (name, target, seeds) in targets {
        if let Some(corpus) = std::env::var_os("FUZZ_CORPUS") {
            keep_seeds(&Path::new(&corpus).join(name), seeds);
        }
        seeds.iter().for_each(|seed| target(seed));
        let tried = std::cell::Cell::new(0);
        let strategy = (prop::sample::select(*seeds), edited());
        let ran = runner().run(&strategy, |(seed, edits)| {
            let mut input = seed.to_vec();
            for (at, cut, hard) in edits {
                let from = at.index(input.len() + 1);
                let to = (from + cut).min(input.len());
                let with = HARD.get(hard).copied().unwrap_or_default();
                input.splice(from..to, with.iter().copied());
            }
            target(&input);
            tried.set(tried.get() + 1);
            Ok(())
        });
        ran.unwrap_or_else(|failure| panic!("{name}: {failure}"));
        assert_eq!(tried.get(), CASES, "{name}");
    }
}

/// Writes the seeds from which libFuzzer starts.
fn keep_seeds(folder: &Path, seeds: &[&[u8]]) {
    std::fs::create_dir_all(folder).expect("a folder for the seeds");
    for (number, seed) in seeds.iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{number}")), seed).expect("the seed is written");
    }
}

/// Checks that `folder` has one file for each target, as `cargo fuzz` needs it. The file calls the function under the
/// path `exported`.
pub(crate) fn check_files(targets: &[Target], folder: &str, exported: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).expect("a manifest");
    for (name, ..) in targets {
        let text =
            std::fs::read_to_string(root.join(folder).join(format!("{name}.rs"))).expect("a file for the target");
        let line = format!("libfuzzer_sys::fuzz_target!(|data: &[u8]| {exported}::{name}(data));");
        assert_eq!(text, format!("#![no_main]\n{line}\n"));
        assert!(manifest.contains(&format!("name = \"{name}\"\npath = \"{folder}/{name}.rs\"")), "{name}");
    }
    let files = std::fs::read_dir(root.join(folder)).expect("a folder").count();
    assert_eq!(files, targets.len(), "each file is a target");
}
