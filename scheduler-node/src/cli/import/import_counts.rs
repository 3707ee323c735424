//! The outcomes of imported lines: counts, reports, and the file of refused lines.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
};

use common::wire::Problem;
use indicatif::HumanCount;
use serde::Deserialize;
use serde_json::json;

use super::{chunk::Chunk, line};
use crate::cli::{
    client::sentence,
    error::Error,
    output::{Form, complain, say},
};

/// This many refusals are reported one by one; the rest is only counted.
const MAX_REPORTED: usize = 100;

/// The outcomes of the lines so far.
#[derive(Debug, Default)]
pub(super) struct ImportCounts {
    accepted: u64,
    duplicates: u64,
    skipped: u64,
    refused: u64,
    /// Tasks that a node could not serve at the moment.
    failed: u64,
    file: Option<BufWriter<File>>,
}

/// The relevant part of one answer of a batch: accepted when there is no error.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Outcome {
    error: Option<Problem>,
    #[serde(default)]
    duplicate: bool,
}

impl ImportCounts {
    /// `refused`: the file for refused lines; it must not exist yet.
    pub(super) fn new(refused: Option<&Path>) -> Result<Self, Error> {
        let create = |file: &Path| {
            let refuse = |error| Error::Usage(format!("`--refused {}` cannot be created: {error}", file.display()));
            File::create_new(file).map(BufWriter::new).map_err(refuse)
        };
        Ok(Self { file: refused.map(create).transpose()?, ..Self::default() })
    }

    /// Records the answers to a chunk, in the order of its lines.
    pub(super) fn note(&mut self, chunk: &Chunk, outcomes: Vec<Outcome>) -> Result<(), Error> {
        self.skipped += chunk.skipped;
        for ((number, text), outcome) in chunk.lines.iter().zip(outcomes) {
            self.take(text, *number, outcome)?;
        }
        chunk.refused.iter().try_for_each(|(number, text, problem)| self.refuse(*number, text, problem))
    }

    pub(super) const fn lines(&self) -> u64 {
        self.accepted + self.duplicates + self.skipped + self.refused + self.failed
    }

    fn take(&mut self, text: &str, number: u64, outcome: Outcome) -> Result<(), Error> {
        match outcome.error {
            Some(problem) => return self.refuse(number, text, &problem),
            None if outcome.duplicate => self.duplicates += 1,
            None => self.accepted += 1,
        }
        Ok(())
    }

    fn refuse(&mut self, number: u64, text: &str, problem: &Problem) -> Result<(), Error> {
        if problem.status < 500 {
            self.refused += 1;
        } else {
            self.failed += 1;
        }
        let reported = usize::try_from(self.refused + self.failed).unwrap_or(usize::MAX);
        if reported <= MAX_REPORTED {
            complain(format_args!("line {number}: {}", sentence(problem)));
        }
        if reported == MAX_REPORTED + 1 {
            complain("more lines were refused; --refused keeps them all");
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        let unwritable = |error| Error::Broken(format!("`--refused` cannot be written: {error}"));
        let line = line::refused(number, problem, text).map_err(Error::Unwritable)?;
        writeln!(file, "{line}").map_err(unwritable)
    }

    pub(super) fn end(self, form: Form, broken: Option<Error>) -> Result<(), Error> {
        let Self { accepted, duplicates, skipped, refused, failed, file } = self;
        if let Some(Err(error)) = file.map(|mut file| file.flush()) {
            return Err(Error::Broken(format!("`--refused` cannot be written: {error}")));
        }
        match form {
            Form::Text => say(format_args!(
                "{} imported, {} already there, {} finished and skipped, {} refused, {} failed or unknown",
                HumanCount(accepted),
                HumanCount(duplicates),
                HumanCount(skipped),
                HumanCount(refused),
                HumanCount(failed)
            )),
            Form::Json | Form::Jsonl => say(json!({
                "imported": accepted, "duplicates": duplicates, "finished": skipped, "refused": refused, "failed": failed,
            })),
        }
        let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let all = accepted + duplicates + refused + failed;
        match broken {
            Some(error) => Err(error),
            None if failed > 0 => Err(Error::Broken(format!("{failed} of {all} failed, or their outcome is unknown"))),
            None if refused > 0 => Err(Error::SomeRefused { refused: count(refused), all: count(all) }),
            None => Ok(()),
        }
    }
}
