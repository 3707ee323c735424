//! A private Prometheus: it scrapes the given targets, evaluates rules, and reports which alerts fire.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    account::Account,
    port::free_port,
    process::{self, Launch, Process, Signal, Tether},
};
use crate::http;

const START_WITHIN: Duration = Duration::from_secs(60);
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// One server on a fresh folder. It scrapes each second, as one job, and evaluates its rules as often.
#[derive(Debug)]
pub struct Prometheus {
    url: String,
    target_file: PathBuf,
    process: Process,
}

impl Prometheus {
    /// Scrapes `targets`, each `host:port`, with this token.
    pub async fn start(folder: &Path, targets: &[String], token: &str, rules: &str) -> Result<Self> {
        let program = program()?;
        let token_file = folder.join("prometheus-token");
        process::write_secret(&token_file, token, &Account::Own)?;
        let target_file = folder.join("targets.json");
        let rule_file = folder.join("rules.yaml");
        fs::write(&rule_file, rules)?;
        let config = json!({
            "global": { "scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s" },
            "rule_files": [rule_file],
            "scrape_configs": [{
                "job_name": "duetime",
                "authorization": { "credentials_file": token_file },
                "file_sd_configs": [{ "files": [target_file], "refresh_interval": "1s" }],
            }],
        });
        // JSON is valid YAML.
        let config_file = folder.join("prometheus.yaml");
        fs::write(&config_file, config.to_string())?;
        write_targets(&target_file, targets)?;
        let port = free_port();
        let process = Launch {
            name: "prometheus".into(),
            program,
            args: vec![
                format!("--config.file={}", config_file.display()),
                format!("--storage.tsdb.path={}", folder.join("prometheus").display()),
                format!("--web.listen-address=127.0.0.1:{port}"),
            ],
            env: Vec::new(),
            account: Account::Own,
            folder: folder.to_owned(),
            log: folder.join("prometheus.log"),
            tether: Tether::Tethered,
            on_death: Signal::Kill,
        }
        .start()?;
        let server = Self { url: format!("http://127.0.0.1:{port}/api/v1"), target_file, process };
        server.wait_ready().await?;
        Ok(server)
    }

    /// Replaces the targets; it takes some seconds to apply.
    pub fn scrape_only(&self, targets: &[String]) -> Result<()> {
        write_targets(&self.target_file, targets)
    }

    /// The alerts that fire, by name; one about a single queue as `<name> <queue>`.
    pub async fn firing(&self) -> Result<BTreeSet<String>> {
        let answer = self.ask("alerts").await?;
        let alerts = answer["data"]["alerts"].as_array().context("Prometheus lists no alerts")?;
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing").map(|alert| {
            let name = alert["labels"]["alertname"].as_str().unwrap_or_default();
            alert["labels"]["queue"].as_str().map_or_else(|| name.to_owned(), |queue| format!("{name} {queue}"))
        });
        Ok(firing.collect())
    }

    /// Whether no alert is firing or pending.
    pub async fn is_calm(&self) -> Result<bool> {
        let answer = self.ask("alerts").await?;
        Ok(answer["data"]["alerts"].as_array().context("Prometheus lists no alerts")?.is_empty())
    }

    /// The errors of the rules that it evaluates, one line each.
    pub async fn faults(&self) -> Result<Vec<String>> {
        let answer = self.ask("rules").await?;
        let groups = answer["data"]["groups"].as_array().context("Prometheus lists no rules")?;
        let rules = groups.iter().flat_map(|group| group["rules"].as_array().into_iter().flatten());
        Ok(rules
            .filter(|rule| rule["health"] == "err")
            .map(|rule| format!("{}: {}", rule["name"], rule["lastError"]))
            .collect())
    }

    /// How many series this query returns now.
    pub async fn count(&self, query: &str) -> Result<usize> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let answer = self.ask(&format!("query?query={encoded}")).await.with_context(|| query.to_owned())?;
        Ok(answer["data"]["result"].as_array().context("Prometheus answers no series")?.len())
    }

    async fn ask(&self, what: &str) -> Result<Value> {
        let answer = http::plain().get(format!("{}/{what}", self.url)).timeout(ANSWER_WITHIN).send().await?;
        ensure!(answer.status().is_success(), "Prometheus answers {}", answer.status());
        Ok(serde_json::from_str(&answer.text().await?)?)
    }

    /// Waits until it has scraped. That begins some seconds after it answers, and until then every series is absent.
    async fn wait_ready(&self) -> Result<()> {
        let deadline = Instant::now() + START_WITHIN;
        loop {
            let answer = self.ask("query?query=up").await;
            if answer.as_ref().is_ok_and(|answer| answer["data"]["result"].as_array().is_some_and(|up| !up.is_empty()))
            {
                return Ok(());
            }
            self.process.check()?;
            ensure!(Instant::now() < deadline, "Prometheus does not scrape: {answer:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Replaces the file as a whole, because Prometheus may read it at any moment.
fn write_targets(file: &Path, targets: &[String]) -> Result<()> {
    let fresh = file.with_extension("fresh");
    fs::write(&fresh, json!([{ "targets": targets }]).to_string())?;
    fs::rename(&fresh, file).with_context(|| format!("writing {}", file.display()))
}

fn program() -> Result<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths)
        .map(|folder| folder.join("prometheus"))
        .find(|candidate| candidate.exists())
        .context("Prometheus is not installed: run integration-tests/install prometheus")
}
