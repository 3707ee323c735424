//! What the figures were measured on.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use integration_tests::sandbox::scratch;
use serde::Serialize;

use crate::bench::sleeper::Sleeper;

const QUIET: Duration = Duration::from_secs(3);
const SYNCS: usize = 50;
const PAGE: [u8; 8_192] = [7; 8_192];

#[derive(Clone, Debug, Serialize)]
pub(super) struct Machine {
    pub cores: usize,
    pub processor: String,
    pub memory_gb: f64,
    pub kernel: String,
    pub disk: String,
    /// The median time to write a page to the disk for good.
    pub sync_ms: f64,
    pub load_average: String,
    /// A sleeper's p99 before anything was started.
    pub sleeper_alone_p99_ms: f64,
}

impl Machine {
    /// Looks at the machine while nothing of this program runs.
    pub(super) async fn look() -> Result<Self> {
        let sleeper = Sleeper::start();
        tokio::time::sleep(QUIET).await;
        let memory_kb: f64 = number_after(&read("/proc/meminfo"), "MemTotal").parse().unwrap_or(0.0);
        Ok(Self {
            cores: std::thread::available_parallelism()?.get(),
            processor: after(&read("/proc/cpuinfo"), "model name"),
            memory_gb: memory_kb / 1_048_576.0,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            disk: file_system(&read("/proc/self/mountinfo"), scratch()),
            load_average: read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
            sleeper_alone_p99_ms: sleeper.p99_ms(),
            sync_ms: sync_ms()?,
        })
    }

    pub(super) fn text(&self) -> String {
        format!(
            "{} cores of {}, {:.0} GB, Linux {}, {}, a page is on disk after {:.2} ms, load average before {}",
            self.cores, self.processor, self.memory_gb, self.kernel, self.disk, self.sync_ms, self.load_average
        )
    }
}

fn read(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

/// The rest of the first line that begins with `key`.
fn after(text: &str, key: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.split_once(':'));
    line.map_or_else(|| "an unknown processor".to_owned(), |(_, value)| value.trim().to_owned())
}

fn number_after(text: &str, key: &str) -> String {
    after(text, key).split(' ').next().unwrap_or_default().to_owned()
}

/// The type and the device of the mount with the longest path above `folder`.
fn file_system(mounts: &str, folder: &Path) -> String {
    let mounted = mounts.lines().filter_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        Some((place.split(' ').nth(4)?, kind.next()?, kind.next()?))
    });
    let above = mounted.filter(|(place, ..)| folder.starts_with(place)).max_by_key(|(place, ..)| place.len());
    above.map_or_else(|| "an unknown disk".into(), |(_, kind, device)| format!("{kind} on {device}"))
}

fn sync_ms() -> Result<f64> {
    let path = scratch().join("page");
    let mut file = File::create(&path).context("writing a page")?;
    let mut times = Vec::new();
    for _ in 0..SYNCS {
        let began = Instant::now();
        file.write_all(&PAGE)?;
        file.sync_data()?;
        times.push(began.elapsed());
    }
    fs::remove_file(&path)?;
    times.sort_unstable();
    Ok(times[SYNCS / 2].as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_is_that_of_the_nearest_mount() {
        let mounts = "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
                      30 22 0:25 / /tmp rw,nosuid - tmpfs tmpfs rw\n";
        assert_eq!(file_system(mounts, Path::new("/tmp/duetime-1")), "tmpfs on tmpfs");
        assert_eq!(file_system(mounts, Path::new("/home/ann")), "ext4 on /dev/sda1");
        assert_eq!(number_after("MemTotal:       16384 kB\nMemFree: 1 kB\n", "MemTotal"), "16384");
    }
}
