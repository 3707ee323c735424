//! `make bench` in small: each part runs once for a few seconds. Every task that it submitted arrived, and none early.
//! Its figures prove nothing here, because the build is not optimised and the time is short. A busy machine may make
//! copies with a mark.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::stack;

/// A liveness limit: on a busy machine the parts take six minutes together.
const WITHIN: Duration = Duration::from_secs(1_200);

/// The parts that judge what arrived, and the first words of their names in the report.
const PARTS: [(&str, &str); 7] = [
    ("lateness", "lateness"),
    ("throughput", "throughput"),
    ("burst", "burst"),
    ("submit", "submit"),
    ("calls", "calls"),
    ("result", "result"),
    ("first", "first tasks"),
];

/// The findings about tasks. A part says of each how many there were.
const FINDINGS: [&str; 7] = [
    "missing",
    "early",
    "copies without a mark",
    "stored twice",
    "unexpected answers",
    "refused",
    "not settled in the end",
];

/// Each of these figures exceeds its bound: a part that has measured no tasks finds nothing wrong with them.
const MEASURED: [(&str, &str, f64); 7] = [
    ("lateness 100/s confirm", "tasks due while measured", 100.0),
    ("raw RabbitMQ, 1 queue", "published, consumed and acked", 0.0),
    ("throughput, 1 queue, 1 database", "submitted, fired, consumed and acked", 0.0),
    ("submit, one by one", "tasks", 0.0),
    ("submit, in batches", "tasks", 0.0),
    ("submit over AMQP", "tasks", 0.0),
    ("submit in SQL", "tasks", 0.0),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_part_of_the_bench_accounts_for_its_tasks() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let parts = PARTS.map(|(part, _)| part).join(",");
    let args = format!(
        "bench --only raw,{parts} --seconds 2 --pending 500 --rate 100 --queues 1 --burst 2000 --calls-rate 60 --output json"
    );
    let stack::Printed { output, errors } = stack::run(folder.path(), args.split(' '), WITHIN).await?;
    let lines: Vec<Value> = serde_json::from_str(&output).with_context(|| output.clone())?;
    let mut judged = BTreeSet::new();
    for line in &lines {
        let (part, figure) = (line["part"].as_str().unwrap_or_default(), line["figure"].as_str().unwrap_or_default());
        if FINDINGS.iter().any(|finding| figure.ends_with(finding)) {
            ensure!(line["value"] == 0.0, "{line}\n{errors}");
            judged.extend(PARTS.iter().filter(|(_, name)| part.starts_with(name)).map(|(part, _)| *part));
        }
    }
    for (part, figure, least) in MEASURED {
        let measured = lines.iter().find(|line| line["part"] == part && line["figure"] == figure);
        let value = measured.and_then(|line| line["value"].as_f64());
        ensure!(value.is_some_and(|value| value > least), "{part}: {figure}: {value:?}\n{errors}");
    }
    ensure!(judged.len() == PARTS.len(), "only {judged:?} told what became of their tasks: {lines:#?}");
    Ok(())
}
