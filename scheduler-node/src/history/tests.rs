use std::{io, sync::Arc};

use common::ids::{Attempt, Epoch, Incarnation, NodeId, NodeName, ShardId, TaskId};
use parking_lot::Mutex;
use prometheus::Registry;
use serde_json::Value;

use super::*;
use crate::coordination::tests::eventually;

fn me() -> NodeId {
    NodeId { name: NodeName::new("a"), incarnation: Incarnation::new(uuid::Uuid::nil()) }
}

fn claimed(number: i32) -> Step {
    let (task, epoch) = (TaskId::from_uuid(uuid::Uuid::nil()), Epoch::from_store(3));
    Step::Claimed { task, attempt: Attempt::new(number), epoch, now: None }
}

/// A disk that can be full, and what it took.
#[derive(Clone, Debug, Default)]
struct Disk(Arc<Mutex<(bool, Vec<u8>)>>);

impl io::Write for Disk {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let (is_full, bytes) = &mut *self.0.lock();
        if *is_full {
            // As a disk does: a part of the first line still finds room.
            bytes.extend(&text[..1]);
            return Err(io::ErrorKind::StorageFull.into());
        }
        bytes.extend(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Disk {
    fn lines(&self) -> Vec<String> {
        String::from_utf8_lossy(&self.0.lock().1).lines().map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn each_step_is_a_line_between_a_start_and_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history");
    let (history, writer) = History::open(Some(&path), &me(), &Registry::new()).unwrap();
    history.record(claimed(1));
    history.acquired(&[(ShardId::new(7), Epoch::from_store(2))]);
    drop(history);
    writer.unwrap().end().await;
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let steps: Vec<&str> = lines.iter().filter_map(|line| line["step"].as_str()).collect();
    assert_eq!(steps, ["started", "claimed", "shard_acquired", "stopped"]);
    assert_eq!((&lines[0]["node"], &lines[1]["attempt"], &lines[1]["epoch"]), (&"a".into(), &1.into(), &3.into()));
    assert_eq!((&lines[2]["shard"], &lines[2]["epoch"]), (&7.into(), &2.into()));
    assert!(lines.iter().all(|line| line["at"].is_string()));
}

#[tokio::test]
async fn a_full_disk_costs_lines_that_are_counted_and_the_file_says_so() {
    let disk = Disk::default();
    let lost = Lost::register(&Registry::new()).unwrap();
    let (sender, lines) = sync_channel(2);
    disk.0.lock().0 = true;
    let writer = Writer::start(disk.clone(), &me(), lines, lost.clone());
    let history = History(Some(Arc::new(Recorder { lines: sender, lost: lost.clone() })));
    for number in 0..1_000 {
        history.record(claimed(number));
    }
    // The first line counts too.
    eventually("every line is counted", || lost.total.get() >= 1_001).await;
    disk.0.lock().0 = false;
    history.record(claimed(2_000));
    drop(history);
    writer.end().await;
    let read: Vec<Value> = disk.lines().iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let gaps: u64 = read.iter().filter_map(|line| line["lost"].as_u64()).sum();
    assert_eq!(gaps, 1_001);
    assert_eq!(read.iter().filter(|line| line["step"] == "claimed").count(), 1);
    assert_eq!(read.last().unwrap()["step"], "stopped");
}

#[test]
fn without_a_file_no_step_is_recorded() {
    let (history, writer) = History::open(None, &me(), &Registry::new()).unwrap();
    history.record(claimed(1));
    assert!(!history.is_on() && writer.is_none());
}
