//! What an operator does with etcd: changes its leader, compacts it, saves it and puts it back, and meets its alarm.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{Etcd, program};
use crate::sandbox::{hide_variables, process};

/// The alarms of etcd, as it spells them.
const NO_SPACE: &str = "NOSPACE";
const CORRUPT: &str = "CORRUPT";

impl Etcd {
    /// Makes another member the leader, when all run.
    pub async fn move_leader(&self) -> Result<()> {
        let leader = self.leader().await?;
        let next = self.members[(leader + 1) % self.members.len()].status().await?;
        let target = json!({ "targetID": next["header"]["member_id"] });
        self.members[leader].post("maintenance/transfer-leadership", &target).await.map(drop)
    }

    /// The size of the first member's data, with the room in it that is free.
    pub async fn data_bytes(&self) -> Result<i64> {
        let status = self.members[0].status().await?;
        let bytes = status["dbSize"].as_str().context("etcd states the size of its data as a text")?;
        bytes.parse().with_context(|| format!("`dbSize` is {bytes}"))
    }

    /// Forgets all former values of keys, so that a watch of an old revision is refused. Where no key has changed since
    /// the last time, there is nothing to forget, and etcd refuses to.
    pub async fn compact(&self) -> Result<()> {
        let status = self.members[0].status().await?;
        let request = json!({ "revision": status["header"]["revision"] });
        match self.members[0].post("kv/compaction", &request).await {
            Err(error) if error.to_string().contains("has been compacted") => Ok(()),
            compacted => compacted.map(drop),
        }
    }

    /// Raises the alarm that a member raises when its quota is used up: from then on all members refuse to write.
    pub async fn raise_no_space(&self) -> Result<()> {
        self.set_alarm("ACTIVATE", NO_SPACE).await
    }

    /// Compacts and defragments all members, then disarms the alarm.
    pub async fn clear_no_space(&self) -> Result<()> {
        self.compact().await?;
        for member in &self.members {
            member.post("maintenance/defragment", &json!({})).await?;
        }
        self.set_alarm("DEACTIVATE", NO_SPACE).await
    }

    /// Raises the alarm that is raised when the data of members differ: from then on all members refuse to write and to
    /// compact.
    pub async fn raise_corrupt(&self) -> Result<()> {
        self.set_alarm("ACTIVATE", CORRUPT).await
    }

    pub async fn clear_corrupt(&self) -> Result<()> {
        self.set_alarm("DEACTIVATE", CORRUPT).await
    }

    async fn set_alarm(&self, action: &str, alarm: &str) -> Result<()> {
        let status = self.members[0].status().await?;
        let member = &status["header"]["member_id"];
        let request = json!({ "action": action, "memberID": member, "alarm": alarm });
        self.members[0].post("maintenance/alarm", &request).await.map(drop)
    }

    /// Saves all that a member holds to a file.
    pub async fn save(&self, file: &Path) -> Result<()> {
        let mut save = tokio::process::Command::new(program("etcdctl")?);
        hide_variables(save.as_std_mut());
        save.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", self.members[0].url()));
        save.args(["snapshot", "save"]).arg(file);
        process::run("etcdctl snapshot save", save).await.map(drop)
    }

    /// Kills all members and gives each what the file holds. [`Self::restart_all`] then starts a cluster of that time.
    pub async fn put_back(&self, file: &Path) -> Result<()> {
        ensure!(file.exists(), "{} was not saved", file.display());
        self.wipe()?;
        // From etcd 3.6 on only the second program can restore.
        let restorer = program("etcdutl").or_else(|_| program("etcdctl"))?;
        for member in &self.members {
            let mut restore = tokio::process::Command::new(&restorer);
            hide_variables(restore.as_std_mut());
            restore.env("ETCDCTL_API", "3").args(["snapshot", "restore"]).arg(file);
            restore.arg(format!("--name={}", member.name));
            restore.arg(format!("--data-dir={}", member.data().display()));
            restore.arg(format!("--initial-cluster={}", self.initial_cluster()));
            restore.arg(format!("--initial-advertise-peer-urls={}", member.peer_url()));
            process::run("etcdctl snapshot restore", restore).await.with_context(|| member.name.clone())?;
        }
        Ok(())
    }
}
