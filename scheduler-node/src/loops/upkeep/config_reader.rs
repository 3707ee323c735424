//! Reads the configuration again: at once on SIGHUP, and when its file, or a file that it names, has other content.
//!
//! The loop compares content, so that it does not matter how a file is replaced: by an editor, by a rename, or by
//! the symlinks of Kubernetes. It takes what it has read alike twice in a row, because an editor may be writing.
//! Content that cannot be used is handed over as well, once.

use std::{fmt, time::Duration};

use tokio::{signal::unix::Signal, sync::mpsc};
use tokio_util::sync::CancellationToken;

use crate::{config::Config, supervise::at_work};

/// How often the files are read. A change takes effect after two looks at most.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Readings on their way to the node. It takes each at once.
pub const READINGS: usize = 1;

/// A configuration that was read and checked whole, or what is wrong with it.
pub type Reading = Result<Config, String>;

/// Reads the configuration as at the start of the node.
pub type ReadConfig = Box<dyn Fn() -> Reading + Send + Sync>;

pub struct ConfigReader {
    read: ReadConfig,
    /// The last reading that was handed over.
    handed: Reading,
    /// The last reading, if it was another one.
    fresh: Option<Reading>,
}

impl fmt::Debug for ConfigReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigReader").field("fresh", &self.fresh).finish_non_exhaustive()
    }
}

impl ConfigReader {
    /// `in_force` is what `read` returned at the start of the node.
    pub fn new(read: ReadConfig, in_force: Config) -> Self {
        Self { read, handed: Ok(in_force), fresh: None }
    }

    pub async fn run(mut self, mut hangups: Signal, readings: mpsc::Sender<Reading>, stop: CancellationToken) {
        loop {
            let is_asked = tokio::select! {
                () = stop.cancelled() => return,
                Some(()) = hangups.recv() => true,
                () = tokio::time::sleep(LOOK_EVERY) => false,
            };
            let _work = at_work();
            let reading = if is_asked { Some(self.take()) } else { self.look() };
            let Some(reading) = reading else { continue };
            if stop.run_until_cancelled(readings.send(reading)).await.is_none() {
                return;
            }
        }
    }

    /// The present content, whatever was handed over before.
    fn take(&mut self) -> Reading {
        self.fresh = None;
        self.handed = (self.read)();
        self.handed.clone()
    }

    /// The present content if it is new and was the same at the last look.
    fn look(&mut self) -> Option<Reading> {
        let reading = (self.read)();
        if is_same(&reading, &self.handed) {
            self.fresh = None;
            return None;
        }
        if self.fresh.as_ref().is_some_and(|fresh| is_same(fresh, &reading)) {
            self.fresh = None;
            self.handed = reading.clone();
            return Some(reading);
        }
        self.fresh = Some(reading);
        None
    }
}

fn is_same(one: &Reading, other: &Reading) -> bool {
    match (one, other) {
        (Ok(one), Ok(other)) => one.is_same_as(other),
        (Err(one), Err(other)) => one == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn text(batch: u32) -> String {
        format!("[[database]]\nurl = \"postgres://db/t\"\n[amqp]\nurl = \"amqp://mq\"\n[scheduler]\nbatch = {batch}\n")
    }

    fn reader(file: &Path) -> ConfigReader {
        let file = file.to_owned();
        let read = move || Config::read(Some(&file), []).map_err(|error| error.to_string());
        let in_force = read().expect("accepted");
        ConfigReader::new(Box::new(read), in_force)
    }

    fn batch(reading: Option<Reading>) -> Option<usize> {
        reading.map(|reading| reading.expect("accepted").scheduler.batch)
    }

    #[test]
    fn a_change_is_handed_over_once_and_only_after_it_was_read_alike_twice() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("duetime.toml");
        fs::write(&file, text(100)).expect("written");
        let mut reader = reader(&file);
        assert_eq!(batch(reader.look()), None, "nothing is new");
        fs::write(&file, text(200)).expect("written");
        assert_eq!(batch(reader.look()), None, "an editor may still be writing");
        fs::write(&file, text(300)).expect("written");
        assert_eq!(batch(reader.look()), None);
        assert_eq!(batch(reader.look()), Some(300));
        assert_eq!(batch(reader.look()), None);
        assert_eq!(batch(Some(reader.take())), Some(300), "a signal asks for it all the same");
        fs::write(&file, text(400)).expect("written");
        assert_eq!(batch(reader.look()), None);
        fs::write(&file, text(300)).expect("written");
        assert_eq!((batch(reader.look()), batch(reader.look())), (None, None), "the change was taken back");
    }

    #[test]
    fn a_mistake_is_handed_over_once_and_so_is_the_way_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("duetime.toml");
        fs::write(&file, text(100)).expect("written");
        let mut reader = reader(&file);
        fs::remove_file(&file).expect("removed");
        assert!(reader.look().is_none(), "it may be on its way to another content");
        fs::write(&file, "batch = ").expect("written");
        assert!(reader.look().is_none());
        assert!(reader.look().expect("a reading").is_err());
        assert!(reader.look().is_none(), "once");
        fs::write(&file, text(100)).expect("written");
        assert!(reader.look().is_none());
        assert_eq!(batch(reader.look()), Some(100));
    }

    /// A ConfigMap in a pod: the file is a link through `..data`, which is replaced whole.
    #[test]
    fn links_that_are_replaced_lead_to_the_new_content() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for (version, batch) in [("v1", 100), ("v2", 200)] {
            fs::create_dir(at(version)).expect("made");
            fs::write(at(version).join("duetime.toml"), text(batch)).expect("written");
        }
        std::os::unix::fs::symlink("v1", at("..data")).expect("linked");
        std::os::unix::fs::symlink("..data/duetime.toml", at("duetime.toml")).expect("linked");
        let mut reader = reader(&at("duetime.toml"));
        std::os::unix::fs::symlink("v2", at("..tmp")).expect("linked");
        fs::rename(at("..tmp"), at("..data")).expect("replaced");
        assert_eq!((batch(reader.look()), batch(reader.look())), (None, Some(200)));
    }
}
