//! Requests that a program generates from the OpenAPI document, good ones and bad ones, against a real node. No
//! answer is a 5xx or outside the document. No request that violates the document is accepted, and a valid one is
//! refused only for a documented reason.

use std::process::Stdio;

use anyhow::{Context, ensure};
use integration_tests::sandbox::Sandbox;
use tokio::process::Command;

use crate::{language, scenario};

/// The limit of the run, in seconds: two minutes are enough on two cores of their own.
const WITHIN_S: u64 = 600;

#[tokio::test(flavor = "multi_thread")]
async fn made_up_requests_are_answered_as_the_document_says() {
    let root = language::root();
    let program = root.join(".local/schemathesis/bin/st");
    if !program.exists() {
        language::skipped("schemathesis is not installed; see integration-tests/install schemathesis");
        return;
    }
    scenario(Sandbox::builder(), async |sandbox| {
        let folder = root.join("integration-tests/schemathesis");
        let client = sandbox.client(0);
        let reports = tempfile::tempdir()?;
        let ran = Command::new(&program)
            .arg("--config-file")
            .arg(folder.join("schemathesis.toml"))
            .args(["--no-color", "run"])
            .arg(root.join("scheduler-node/src/http/openapi.json"))
            .args(["--url", client.base()])
            .current_dir(reports.path())
            .env("SCHEMATHESIS_HOOKS", folder.join("hooks.py"))
            .env("DUETIME_TOKEN", client.token())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let ran = tokio::time::timeout(std::time::Duration::from_secs(WITHIN_S), ran).await;
        let ran = ran.context("schemathesis does not end")?.context("starting schemathesis")?;
        let told = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        ensure!(ran.status.success(), "{told}");
        Ok(())
    })
    .await;
}
