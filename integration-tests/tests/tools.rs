//! What `make` says before it installs or builds anything.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use integration_tests::page::root;

/// What `make stores` says with this `cargo`, and whether it goes on to install.
fn stores_with(cargo: &Path) -> (bool, String) {
    let mut make = Command::new("make");
    make.args(["--no-print-directory", "--directory"]).arg(root()).arg("stores").env("CARGO", cargo);
    // Those of the `make` that runs this test.
    let output = make.env_remove("MAKEFLAGS").env_remove("MFLAGS").output().expect("make is here");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_rust_that_is_missing_or_too_old_is_named_before_anything_is_installed() {
    let folder = tempfile::tempdir().expect("a folder");
    let cargo = folder.path().join("cargo");
    let (went_on, said) = stores_with(&cargo);
    assert!(!went_on && said.contains("no Rust") && said.contains("rustup"), "{said}");

    fs::write(&cargo, "#!/bin/sh\necho 'cargo 1.85.1 (d73d2caf9 2024-12-31)'\n").expect("written");
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect("executable");
    let (went_on, said) = stores_with(&cargo);
    assert!(!went_on && said.contains("Rust 1.85.1") && said.contains("rustup"), "{said}");
}
