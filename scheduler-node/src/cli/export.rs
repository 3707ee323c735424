//! `duetime export`: streams whole tasks, one a line.

use std::io::{self, Write};

use common::wire::ExportEnd;

use super::{client::Request, error::Error, filter::Filter, invocation::Invocation, progress};

/// The last line is shorter than this.
const END_BYTES: usize = 64;

/// Which tasks to export; all of them without a filter.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    filter: Filter,
}

pub(super) async fn export(invocation: &Invocation<Args>) -> Result<(), Error> {
    let client = invocation.client()?;
    let request = Request::get(&["v1", "tasks", "export"]).query(invocation.args.filter.query());
    let mut pieces = client.stream(&request).await?;
    let progress = progress::of_tasks();
    let mut tail = Vec::new();
    while let Some(piece) = pieces.next().await.map_err(|failure| Error::Broken(cut_off(&failure.to_string())))? {
        write(&piece)?;
        progress.inc(piece.iter().filter(|byte| **byte == b'\n').count() as u64);
        tail.extend_from_slice(&piece[piece.len().saturating_sub(END_BYTES)..]);
        tail.drain(..tail.len().saturating_sub(END_BYTES));
    }
    progress.finish_and_clear();
    if end_of(&tail).is_none() {
        return Err(Error::Broken(cut_off("its last line is missing")));
    }
    Ok(())
}

fn cut_off(why: &str) -> String {
    format!("the export is cut off: {why}")
}

/// Writes to standard output. Ends the process when the reader has closed the pipe.
fn write(piece: &[u8]) -> Result<(), Error> {
    let written = io::stdout().write_all(piece).and_then(|()| io::stdout().flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => written.map_err(|error| Error::Broken(cut_off(&error.to_string()))),
    }
}

fn end_of(tail: &[u8]) -> Option<ExportEnd> {
    let line = tail.strip_suffix(b"\n")?.rsplit(|byte| *byte == b'\n').next()?;
    serde_json::from_slice(line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_last_line_is_an_end() {
        assert_eq!(end_of(b"{\"id\":1}\n{\"exported\":7}\n"), Some(ExportEnd { exported: 7 }));
        assert_eq!(end_of(b"{\"exported\":0}\n"), Some(ExportEnd { exported: 0 }));
        for tail in [b"".as_slice(), b"\n", b"{\"exported\":7}", b"{\"exported\":7}\n{\"id\"", b"{\"id\":1}\n"] {
            assert_eq!(end_of(tail), None);
        }
    }
}
