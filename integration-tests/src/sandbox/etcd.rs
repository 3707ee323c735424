//! A private etcd of one or several members.

mod maintenance;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    account::Account,
    process::{Launch, Process, Signal, Tether},
    programs, secret,
};
use crate::http;

const START_WITHIN: Duration = Duration::from_secs(60);

/// One etcd cluster. Its members survive `kill` and come back on the same ports with the same data.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    tether: Tether,
}

#[derive(Debug)]
struct Member {
    name: String,
    folder: PathBuf,
    client_port: u16,
    peer_port: u16,
    process: Mutex<Option<Process>>,
}

impl Etcd {
    /// Sets up `members` in `folder`, or starts those that already exist there.
    pub async fn start(folder: &Path, members: usize, tether: Tether) -> Result<Self> {
        let cluster = Self::launched(folder, members, tether)?;
        if let Err(error) = cluster.restart_all().await {
            cluster.kill_all();
            return Err(error);
        }
        Ok(cluster)
    }

    /// Like `start`, but does not wait for the first answers, as [`Self::restart_all`] does.
    pub fn launched(folder: &Path, members: usize, tether: Tether) -> Result<Self> {
        let members = (0..members).map(|number| Member::in_folder(folder, number)).collect::<Result<_>>()?;
        let cluster = Self { members, tether };
        cluster.members.iter().try_for_each(Member::remove_unfinished)?;
        if let Err(error) = cluster.launch_ended() {
            cluster.kill_all();
            return Err(error);
        }
        Ok(cluster)
    }

    /// One client URL for each member.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(Member::url).collect()
    }

    /// The ports behind [`Self::endpoints`].
    pub fn ports(&self) -> Vec<u16> {
        self.members.iter().map(|member| member.client_port).collect()
    }

    pub fn pids(&self) -> Vec<u32> {
        self.members.iter().filter_map(|member| member.process.lock().as_ref().map(Process::pid)).collect()
    }

    /// The member that leads, when all run.
    pub async fn leader(&self) -> Result<usize> {
        let mut statuses = Vec::new();
        for member in &self.members {
            statuses.push(member.status().await?);
        }
        let leads = |status: &Value| status["leader"] == status["header"]["member_id"];
        statuses.iter().position(leads).context("no member of etcd leads")
    }

    /// Kills a member with SIGKILL.
    pub fn kill(&self, member: usize) {
        if let Some(process) = self.members[member].process.lock().take() {
            process.kill();
        }
    }

    pub fn kill_all(&self) {
        for member in 0..self.members.len() {
            self.kill(member);
        }
    }

    /// Stops a member with SIGSTOP: connections stay open and silent.
    pub fn pause(&self, member: usize) -> Result<()> {
        self.members[member].signal(Signal::Stop)
    }

    pub fn resume(&self, member: usize) -> Result<()> {
        self.members[member].signal(Signal::Cont)
    }

    /// Starts a member that was killed.
    pub fn restart(&self, member: usize) -> Result<()> {
        let member = &self.members[member];
        let mut process = member.process.lock();
        if process.as_ref().is_none_or(|process| !process.is_running()) {
            *process = Some(self.launch(member)?);
        }
        Ok(())
    }

    /// Starts the members that do not run, and waits until all answer.
    pub async fn restart_all(&self) -> Result<()> {
        self.launch_ended()?;
        for member in &self.members {
            member.wait_healthy().await?;
        }
        Ok(())
    }

    fn launch_ended(&self) -> Result<()> {
        (0..self.members.len()).try_for_each(|number| self.restart(number))
    }

    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// Kills all members and removes all that they hold. [`Self::restart_all`] then starts an empty cluster.
    pub fn wipe(&self) -> Result<()> {
        self.kill_all();
        for member in &self.members {
            let data = member.data();
            std::fs::remove_dir_all(&data).with_context(|| format!("removing {}", data.display()))?;
        }
        Ok(())
    }

    fn launch(&self, member: &Member) -> Result<Process> {
        let args = [
            ("--name", member.name.clone()),
            ("--data-dir", member.data().display().to_string()),
            ("--listen-client-urls", member.url()),
            ("--advertise-client-urls", member.url()),
            ("--listen-peer-urls", member.peer_url()),
            ("--initial-advertise-peer-urls", member.peer_url()),
            ("--initial-cluster", self.initial_cluster()),
            ("--initial-cluster-state", "new".into()),
            ("--log-level", "warn".into()),
        ];
        Launch {
            name: format!("etcd {}", member.name),
            program: program("etcd")?,
            args: args.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect(),
            env: Vec::new(),
            account: Account::Own,
            folder: member.folder.clone(),
            log: member.folder.join("log"),
            tether: self.tether,
            on_death: Signal::Kill,
        }
        .start()
    }
}

impl Etcd {
    /// All members with their addresses for each other, as etcd's options take them.
    fn initial_cluster(&self) -> String {
        let members: Vec<String> =
            self.members.iter().map(|member| format!("{}={}", member.name, member.peer_url())).collect();
        members.join(",")
    }
}

impl Member {
    fn in_folder(folder: &Path, number: usize) -> Result<Self> {
        let name = format!("etcd-{}", number + 1);
        let folder = folder.join(&name);
        Account::Own.own_folder(&folder)?;
        Ok(Self {
            client_port: secret::remembered_port(&folder.join("client-port"))?,
            peer_port: secret::remembered_port(&folder.join("peer-port"))?,
            name,
            folder,
            process: Mutex::new(None),
        })
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// It is there since the member was healthy for the first time.
    fn healthy(&self) -> PathBuf {
        self.folder.join("healthy")
    }

    /// Removes the data of a start that was broken off. An etcd that is killed between the making of its log and the
    /// note of its members there never elects a leader.
    fn remove_unfinished(&self) -> Result<()> {
        let data = self.data();
        if data.exists() && !self.healthy().exists() {
            std::fs::remove_dir_all(&data).with_context(|| format!("removing {}", data.display()))?;
        }
        Ok(())
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.client_port)
    }

    async fn status(&self) -> Result<Value> {
        self.post("maintenance/status", &serde_json::json!({})).await
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let url = format!("{}/v3/{path}", self.url());
        let answer = http::plain().post(&url).body(body.to_string()).timeout(Duration::from_secs(30)).send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        anyhow::ensure!(status.is_success(), "{url}: {status} {text}");
        Ok(serde_json::from_str(&text)?)
    }

    fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer_port)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        self.process.lock().as_ref().with_context(|| format!("{} does not run", self.name))?.signal(signal)
    }

    /// A healthy member answers and knows a leader.
    async fn wait_healthy(&self) -> Result<()> {
        let deadline = Instant::now() + START_WITHIN;
        let url = format!("{}/health", self.url());
        loop {
            if let Ok(answer) = http::plain().get(&url).timeout(Duration::from_secs(2)).send().await
                && answer.status().is_success()
            {
                return Ok(std::fs::write(self.healthy(), "")?);
            }
            self.process
                .lock()
                .as_ref()
                .with_context(|| format!("{} was killed while it started", self.name))?
                .check()?;
            if Instant::now() >= deadline {
                bail!("{} is not healthy after {START_WITHIN:?}", self.name);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// One of etcd's programs.
fn program(name: &str) -> Result<PathBuf> {
    if let Some(folder) = programs::chosen_folder(name)? {
        return Ok(folder.join(name));
    }
    programs::on_path(name)
        .or_else(|| Some(PathBuf::from("/usr/bin").join(name)).filter(|usual| usual.exists()))
        .with_context(|| format!("{name} is not installed: run integration-tests/install tests"))
}
