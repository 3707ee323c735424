//! The processor time of each group of processes, and the memory of the nodes.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use integration_tests::sandbox::{Node, Postgres, Sandbox};
use tokio::task::JoinHandle;

use super::{
    report::{Report, Target},
    sleeper::Sleeper,
};

/// The unit of the figures in `/proc`, the same on every Linux machine.
const TICKS_PER_S: f64 = 100.0;
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// What a node may take at the rates of these measurements, with a million tasks pending.
const NODE_MEMORY_MB: f64 = 120.0;

pub(super) const NODES: &str = "nodes";
pub(super) const POSTGRESQL: &str = "postgresql";
pub(super) const RABBITMQ: &str = "rabbitmq";
/// This process.
const BENCH: &str = "bench";

/// Processor time by group of processes, and the memory of the nodes, from now on.
#[derive(Debug)]
pub(super) struct Watch {
    groups: Vec<Group>,
    each_node: Vec<Group>,
    began: Instant,
    total_ticks: u64,
    largest_kb: Arc<AtomicU64>,
    looking: JoinHandle<()>,
    sleeper: Sleeper,
}

#[derive(Debug)]
struct Group {
    name: String,
    roots: Vec<u32>,
    ticks: u64,
}

impl Group {
    fn new(name: &str, roots: Vec<u32>) -> Self {
        let ticks = ticks_of(&roots);
        Self { name: name.to_owned(), roots, ticks }
    }
}

/// Groups of processes, each with the seconds of processor time that it has used.
#[derive(Debug)]
pub(super) struct Used(Vec<(String, f64)>);

impl Used {
    /// The seconds of one group; 0 for a group that does not exist.
    pub(super) fn seconds_of(&self, group: &str) -> f64 {
        self.0.iter().filter(|(name, _)| *name == group).map(|(_, busy_s)| busy_s).sum()
    }
}

impl Watch {
    pub(super) fn start(cluster: &Sandbox) -> Self {
        let nodes: Vec<u32> = cluster.nodes().iter().filter_map(Node::pid).collect();
        let largest_kb = Arc::new(AtomicU64::new(0));
        let looking = tokio::spawn(look(nodes.clone(), Arc::clone(&largest_kb)));
        let groups = vec![
            Group::new(NODES, nodes),
            Group::new(POSTGRESQL, cluster.postgreses().filter_map(Postgres::pid).collect()),
            Group::new(RABBITMQ, cluster.rabbit().pids()),
            Group::new("etcd", cluster.etcd().pids()),
        ];
        let each_node =
            cluster.nodes().iter().map(|node| Group::new(node.name(), node.pid().into_iter().collect())).collect();
        let (began, total_ticks) = (Instant::now(), machine_ticks().unwrap_or(0));
        let sleeper = Sleeper::start();
        let mut watch = Self { groups, each_node, began, total_ticks, largest_kb, looking, sleeper };
        // Without its children, which are the groups above.
        let ticks = own_ticks(std::process::id(), false);
        watch.groups.push(Group { name: BENCH.to_owned(), roots: Vec::new(), ticks });
        watch
    }

    /// The name of each node, and the cores that it has used so far.
    pub(super) fn nodes(&self) -> Vec<(String, f64)> {
        let seconds = self.began.elapsed().as_secs_f64();
        let used = |node: &Group| ticks_of(&node.roots).saturating_sub(node.ticks) as f64 / TICKS_PER_S / seconds;
        self.each_node.iter().map(|node| (node.name.clone(), used(node))).collect()
    }

    /// The processor time of each group so far.
    pub(super) fn used(&self) -> Used {
        let used = |group: &Group| {
            let now = if group.name == BENCH { own_ticks(std::process::id(), false) } else { ticks_of(&group.roots) };
            (group.name.clone(), now.saturating_sub(group.ticks) as f64 / TICKS_PER_S)
        };
        Used(self.groups.iter().map(used).collect())
    }

    pub(super) fn end(self, part: &str, report: &mut Report) -> Result<()> {
        self.sleeper.tell(part, report);
        let (seconds, used) = (self.began.elapsed().as_secs_f64(), self.used());
        for (group, busy_s) in &used.0 {
            report.figure(part, &format!("cpu: {group}"), busy_s / seconds, "cores");
        }
        let all_s = machine_ticks()?.saturating_sub(self.total_ticks) as f64 / TICKS_PER_S;
        let ours_s: f64 = used.0.iter().map(|(_, busy_s)| busy_s).sum();
        report.figure(part, "cpu: everything else", (all_s - ours_s).max(0.0) / seconds, "cores");
        let largest_mb = self.largest_kb.load(Ordering::Relaxed) as f64 / 1024.0;
        report.judged(part, "memory of the largest node", largest_mb, "MB", Target::AtMost(NODE_MEMORY_MB));
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

async fn look(nodes: Vec<u32>, largest_kb: Arc<AtomicU64>) {
    loop {
        for node in &nodes {
            largest_kb.fetch_max(resident_kb(*node).unwrap_or(0), Ordering::Relaxed);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

pub(super) fn resident_kb(pid: u32) -> Option<u64> {
    status_of(pid, "VmRSS:")
}

pub(super) fn threads(pid: u32) -> Option<u64> {
    status_of(pid, "Threads:")
}

/// Open files, sockets and timers.
pub(super) fn handles(pid: u32) -> Option<u64> {
    u64::try_from(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count()).ok()
}

fn status_of(pid: u32, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(field))?.split_whitespace().next()?.parse().ok()
}

/// The ticks of these processes and all below them. A process that has ended counts with the one that waited for it.
fn ticks_of(roots: &[u32]) -> u64 {
    let below = |pid: &u32| own_ticks(*pid, true) + ticks_of(&children(*pid));
    roots.iter().map(below).sum()
}

fn own_ticks(pid: u32, with_ended_children: bool) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The second field is the name in parentheses and may hold anything. From the 14th field on: own user and system
    // time, then those of ended children.
    let Some((_, fields)) = stat.rsplit_once(')') else { return 0 };
    let count = if with_ended_children { 4 } else { 2 };
    fields.split_whitespace().skip(11).take(count).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// Any thread of a process may have started others.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<u32>>())
        .collect()
}

/// The ticks of the whole machine, without idling and waiting for disks.
fn machine_ticks() -> Result<u64> {
    let stat = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
    let fields = stat.lines().next().context("/proc/stat begins with a line for all processors")?;
    let ticks = fields.split_whitespace().skip(1).take(8).enumerate();
    Ok(ticks.filter(|(place, _)| !matches!(place, 3 | 4)).filter_map(|(_, ticks)| ticks.parse::<u64>().ok()).sum())
}
