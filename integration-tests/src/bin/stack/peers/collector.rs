//! Collects what arrives: in this process, or from the files that a program wrote.

use std::{
    fs::File,
    io::{BufRead, BufReader, ErrorKind},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::judge::{Arrival, FIRST_PENDING};
use crate::bench::{drain::Eye, numbers::Numbers};

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What has arrived so far in this process.
#[derive(Debug, Default)]
pub(super) struct Collector(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    arrivals: Vec<Arrival>,
    seen: Numbers,
    /// Messages without a number, which only show that the way is open.
    greetings: u64,
}

impl Collector {
    pub(super) fn note(&self, arrival: Arrival) {
        let mut state = self.0.lock();
        state.arrivals.push(arrival);
        if arrival.number < FIRST_PENDING {
            state.seen.insert(arrival.number);
        }
    }

    /// For a consumer of RabbitMQ. The payload holds the due instant and the number.
    pub(super) fn eye(self: &Arc<Self>) -> Eye {
        let collector = Arc::clone(self);
        Arc::new(move |seen| match seen.stamp_us {
            0 => collector.0.lock().greetings += 1,
            due_us => collector.note(Arrival { number: seen.serial, due_us, got_us: seen.at_us }),
        })
    }

    pub(super) fn greetings(&self) -> u64 {
        self.0.lock().greetings
    }

    /// Different tasks that have arrived.
    pub(super) fn different(&self) -> u64 {
        self.0.lock().seen.different()
    }

    /// Returns when so many different tasks have arrived, or at the deadline.
    pub(super) async fn wait(&self, count: u64, deadline: Instant) {
        while self.different() < count && Instant::now() < deadline {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    pub(super) fn take(&self) -> Vec<Arrival> {
        std::mem::take(&mut self.0.lock().arrivals)
    }
}

/// Reads the file of a program, and those of its other processes.
pub(super) fn read(file: &Path) -> Result<Vec<Arrival>> {
    let mut arrivals = Vec::new();
    read_one(file, &mut arrivals)?;
    for process in 1.. {
        let mut name = file.as_os_str().to_owned();
        name.push(format!(".{process}"));
        if !read_one(Path::new(&name), &mut arrivals)? {
            return Ok(arrivals);
        }
    }
    Ok(arrivals)
}

/// Returns whether there is such a file.
fn read_one(file: &Path, arrivals: &mut Vec<Arrival>) -> Result<bool> {
    let opened = match File::open(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        opened => opened.with_context(|| format!("opening {}", file.display()))?,
    };
    for (place, line) in BufReader::new(opened).lines().enumerate() {
        let line = line?;
        let arrival = parse(&line).with_context(|| format!("{} line {}: `{line}`", file.display(), place + 1))?;
        arrivals.push(arrival);
    }
    Ok(true)
}

fn parse(line: &str) -> Option<Arrival> {
    let mut numbers = line.split_ascii_whitespace();
    let arrival = Arrival {
        number: numbers.next()?.parse().ok()?,
        due_us: numbers.next()?.parse().ok()?,
        got_us: numbers.next()?.parse().ok()?,
    };
    numbers.next().is_none().then_some(arrival)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_several_processes_are_one_list() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("arrivals");
        assert_eq!(read(&file).unwrap(), []);
        std::fs::write(folder.path().join("arrivals.1"), "1 1000 1500\n").unwrap();
        std::fs::write(folder.path().join("arrivals.2"), "2 1000 1600\n3 1000 1700\n").unwrap();
        let numbers: Vec<u64> = read(&file).unwrap().iter().map(|arrival| arrival.number).collect();
        assert_eq!(numbers, [1, 2, 3]);
        std::fs::write(&file, "4 1000\n").unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("line 1"), "half a line is no arrival");
    }

    #[test]
    fn a_task_that_comes_twice_is_one_task() {
        let collector = Collector::default();
        for number in [0, 64, 64, FIRST_PENDING] {
            collector.note(Arrival { number, due_us: 1, got_us: 2 });
        }
        assert_eq!((collector.different(), collector.take().len()), (2, 4));
    }
}
