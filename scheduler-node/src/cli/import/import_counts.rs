//! The outcomes of imported lines: counts, reports, and the file of refused lines.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
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

/// The number, the text and the problem of a refused line.
type Refused<'a> = (u64, &'a str, &'a Problem);

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
    /// Whether the file could not be written: it lacks refused lines.
    is_cut_off: bool,
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

    /// Counts whose refused lines go to an open file.
    #[cfg(test)]
    pub(super) fn on(file: File) -> Self {
        Self { file: Some(BufWriter::new(file)), ..Self::default() }
    }

    /// Records the answers to a chunk, in the order of its lines.
    pub(super) fn note(&mut self, chunk: &Chunk, outcomes: &[Outcome]) {
        self.skipped += chunk.skipped;
        for outcome in outcomes.iter().filter(|outcome| outcome.error.is_none()) {
            if outcome.duplicate {
                self.duplicates += 1;
            } else {
                self.accepted += 1;
            }
        }
        let answered = chunk.lines.iter().zip(outcomes);
        let answered = answered.filter_map(|((number, text), outcome)| Some((*number, text, outcome.error.as_ref()?)));
        let unsent = chunk.refused.iter().map(|(number, text, problem)| (*number, text, problem));
        let refused: Vec<Refused<'_>> =
            answered.chain(unsent).map(|(number, text, problem)| (number, text.as_str(), problem)).collect();
        refused.iter().for_each(|(number, _, problem)| self.refuse(*number, problem));
        self.keep(&refused);
    }

    pub(super) const fn lines(&self) -> u64 {
        self.accepted + self.duplicates + self.skipped + self.refused + self.failed
    }

    /// Whether the file of refused lines lacks some.
    pub(super) const fn is_cut_off(&self) -> bool {
        self.is_cut_off
    }

    fn refuse(&mut self, number: u64, problem: &Problem) {
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
    }

    /// Writes refused lines to the file, chunk by chunk, so that a command that is killed leaves them there.
    fn keep(&mut self, refused: &[Refused<'_>]) {
        let (Some(file), Some(first)) = (&mut self.file, refused.iter().map(|(number, ..)| *number).min()) else {
            return;
        };
        let mut write = |(number, text, problem): &Refused<'_>| -> io::Result<()> {
            writeln!(file, "{}", line::refused(*number, problem, text)?)
        };
        if let Err(error) = refused.iter().try_for_each(&mut write).and_then(|()| file.flush()) {
            complain(format_args!(
                "`--refused` cannot be written: {error}; it lacks refused lines from line {first} on"
            ));
            (self.file, self.is_cut_off) = (None, true);
        }
    }

    pub(super) fn end(self, form: Form, broken: Option<Error>) -> Result<(), Error> {
        let Self { accepted, duplicates, skipped, refused, failed, is_cut_off, .. } = self;
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
            None if is_cut_off => Err(Error::Broken("`--refused` lacks some of the refused lines".to_owned())),
            None if failed > 0 => Err(Error::Broken(format!("{failed} of {all} failed, or their outcome is unknown"))),
            None if refused > 0 => Err(Error::SomeRefused { refused: count(refused), all: count(all) }),
            None => Ok(()),
        }
    }
}
