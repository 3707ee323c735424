//! The results: each line for people as it comes, and all of them for programs at the end.

use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    Text,
    Json,
}

/// The bound that a figure must keep.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(most) => format!("<= {}", number(most)),
            Self::AtLeast(least) => format!(">= {}", number(least)),
        }
    }
}

#[derive(Debug, Serialize)]
struct Line {
    part: String,
    figure: String,
    value: f64,
    unit: &'static str,
    #[serde(flatten)]
    target: Option<Target>,
    #[serde(skip_serializing_if = "Option::is_none")]
    met: Option<bool>,
    /// Whether the line is about tasks, and breaks a promise where it is not met.
    #[serde(skip)]
    is_finding: bool,
}

impl Line {
    fn new(part: &str, figure: &str, value: f64, unit: &'static str, target: Option<Target>) -> Self {
        let met = target.map(|target| target.is_met(value));
        Self { part: part.to_owned(), figure: figure.to_owned(), value, unit, target, met, is_finding: false }
    }

    fn value(&self) -> String {
        format!("{} {}", number(self.value), self.unit).trim_end().to_owned()
    }
}

/// All lines so far.
#[derive(Debug)]
pub(super) struct Report {
    output: Output,
    lines: Vec<Line>,
}

impl Report {
    pub(super) fn new(output: Output) -> Self {
        Self { output, lines: Vec::new() }
    }

    pub(super) fn figure(&mut self, part: &str, figure: &str, value: f64, unit: &'static str) {
        self.add(part, figure, value, unit, None);
    }

    /// Adds a figure that has a target.
    pub(super) fn judged(&mut self, part: &str, figure: &str, value: f64, unit: &'static str, target: Target) {
        self.add(part, figure, value, unit, Some(target));
    }

    /// Adds the number of tasks or messages that break a promise. One is enough for the run to fail.
    pub(super) fn finding(&mut self, part: &str, finding: &str, count: u64) {
        let line = Line::new(part, finding, count as f64, "", Some(Target::AtMost(0.0)));
        self.push(Line { is_finding: true, ..line });
    }

    /// Adds a figure that may have an upper limit.
    pub(super) fn limited(&mut self, part: &str, figure: &str, value: f64, unit: &'static str, at_most: Option<f64>) {
        self.add(part, figure, value, unit, at_most.map(Target::AtMost));
    }

    /// Adds the figures of one moment: one line for people.
    pub(super) fn row<'a>(&mut self, part: &str, figures: impl Iterator<Item = (&'a str, f64, &'static str)>) {
        let first = self.lines.len();
        self.lines.extend(figures.map(|(figure, value, unit)| Line::new(part, figure, value, unit, None)));
        if self.output == Output::Text {
            let texts = self.lines[first..].iter().map(|line| format!("{} {}", line.figure, line.value()));
            println!("{part:<28} {}", texts.collect::<Vec<_>>().join(", "));
        }
    }

    fn add(&mut self, part: &str, figure: &str, value: f64, unit: &'static str, target: Option<Target>) {
        self.push(Line::new(part, figure, value, unit, target));
    }

    fn push(&mut self, line: Line) {
        if self.output == Output::Text {
            say(&line);
        }
        self.lines.push(line);
    }

    /// Prints the end of the report. Fails when a finding is not 0; a missed goal is no failure.
    pub(super) fn end(&self) -> Result<ExitCode> {
        let judged = self.lines.iter().filter_map(|line| line.met);
        let (met, all) = judged.fold((0, 0), |(met, all), this| (met + usize::from(this), all + 1));
        match self.output {
            Output::Json => println!("{}", serde_json::to_string_pretty(&self.lines)?),
            Output::Text => println!("\n{met} of {all} targets met"),
        }
        let broken: Vec<&Line> = self.lines.iter().filter(|line| line.is_finding && line.met == Some(false)).collect();
        for line in &broken {
            progress(&format!("FAILED: {}: {} {}", line.part, line.figure, line.value()));
        }
        Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn say(line: &Line) {
    let value = format!("{} {}", number(line.value), line.unit);
    let verdict = match (line.target, line.met) {
        (Some(target), Some(met)) => format!("{:>10}  {}", target.text(), if met { "met" } else { "NOT MET" }),
        _ => String::new(),
    };
    println!("{}", format!("{:<28} {:<40} {value:>16} {verdict}", line.part, line.figure).trim_end());
}

/// A number with three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value == value.trunc() => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Prints progress, which is not part of the results.
#[expect(clippy::print_stderr, reason = "progress is not part of the results")]
pub(crate) fn progress(text: &str) {
    eprintln!("{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_fails_the_run_and_a_missed_goal_does_not() {
        let mut report = Report::new(Output::Text);
        report.judged("part", "tasks", 1.0, "/s", Target::AtLeast(2.0));
        report.finding("part", "missing", 0);
        assert_eq!(report.end().unwrap(), ExitCode::SUCCESS);
        report.finding("part", "missing", 1);
        assert_eq!(report.end().unwrap(), ExitCode::FAILURE);
    }
}
