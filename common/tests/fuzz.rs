//! The fuzz targets on any toolchain: their seeds, and edits of these. `make fuzz` looks for longer, guided by what the code does.

#[path = "../../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "the fuzz crate exports them to its targets")]
mod targets;

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

fn edited() -> impl Strategy<Value = Vec<(prop::sample::Index, usize, usize)>> {
    prop::collection::vec((any::<prop::sample::Index>(), 0..9_usize, 0..=HARD.len()), 0..6)
}

/// The same runs each time; `SEED=<number>` makes others.
fn runner() -> TestRunner {
    let seed: u64 = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(11);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

#[test]
fn no_parser_breaks_at_its_seeds_or_at_edits_of_them() {
    for (name, target, seeds) in targets::TARGETS {
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

#[test]
fn each_target_is_one_line_over_its_function() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    for (name, ..) in targets::TARGETS {
        let text = std::fs::read_to_string(folder.join(format!("fuzz_targets/{name}.rs"))).unwrap();
        let line = format!("libfuzzer_sys::fuzz_target!(|data: &[u8]| duetime_fuzz::{name}(data));");
        assert_eq!(text, format!("#![no_main]\n{line}\n"));
        assert!(manifest.contains(&format!("name = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"")), "{name}");
    }
    let files = std::fs::read_dir(folder.join("fuzz_targets")).unwrap().count();
    assert_eq!(files, targets::TARGETS.len(), "each file is a target");
}
