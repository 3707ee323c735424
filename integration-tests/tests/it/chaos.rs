//! A minute of chaos: faults by a fixed seed under a load of every feature, judged from the history that it wrote.

use std::time::Duration;

use anyhow::{Result, ensure};
use integration_tests::{
    chaos::{self, Plan},
    sandbox::fresh,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_minute_of_faults_under_a_load_of_every_feature_breaks_no_promise() -> Result<()> {
    let faults = ["kill-node", "kill-at-point", "cut-postgres", "end-sessions", "wipe-etcd", "close-connections"];
    let plan = Plan {
        seed: 7,
        time: Duration::from_secs(60),
        rate: 60,
        small: true,
        faults: faults.map(str::to_owned).to_vec(),
        folder: fresh("chaos"),
    };
    let verdict = chaos::run(&plan, |line| println!("{line}")).await?;
    println!("{verdict}");
    verdict.assert_holds();
    ensure!(verdict.delivered > 500, "{} tasks are no load", verdict.delivered);
    // The file alone leads to the same verdict.
    let again = chaos::judge(&plan.folder.join("history.ndjson"))?;
    ensure!(again.to_string() == verdict.to_string(), "{again}");
    Ok(())
}
