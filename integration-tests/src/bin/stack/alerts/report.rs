//! The report: each result as it comes, and a table at the end.

use std::{collections::BTreeSet, process::ExitCode, time::Duration};

use super::scene::{Course, Scene};

/// One alert and its result.
#[derive(Debug)]
struct Line {
    alert: &'static str,
    cause: &'static str,
    course: Course,
}

#[derive(Debug, Default)]
pub(super) struct Report {
    lines: Vec<Line>,
    unprovoked: BTreeSet<String>,
    /// Causes that could not be injected or healed.
    wrong: usize,
}

impl Report {
    /// Notes the alerts that fire although nothing is wrong.
    pub(super) fn quiet(&mut self, firing: &BTreeSet<String>) {
        for alert in firing {
            if self.unprovoked.insert(alert.clone()) {
                println!("{alert} fires without a fault");
            }
        }
    }

    /// Notes the results of a step that is over.
    pub(super) fn step(&mut self, scenes: &[Scene<'_>]) {
        let mut beside: BTreeSet<String> = scenes.iter().flat_map(Scene::beside).collect();
        for scene in scenes {
            println!("\n{}", scene.cause.says);
            for alert in scene.cause.alerts {
                let course = scene.course(alert);
                println!("  {alert:<44} {}", text(course));
                beside.remove(*alert);
                self.lines.push(Line { alert, cause: scene.cause.says, course });
            }
        }
        if !beside.is_empty() {
            println!("  beside: {}", beside.into_iter().collect::<Vec<_>>().join(", "));
        }
    }

    /// Notes a cause that could not be injected or healed; the others are played all the same.
    pub(super) fn wrong(&mut self, error: &anyhow::Error) {
        self.wrong += 1;
        println!("  went wrong: {error:#}");
    }

    /// Prints the table. Fails unless each alert has fired and cleared, and none fired without a cause.
    pub(super) fn end(&self, took: Duration) -> ExitCode {
        println!("\n{:<44} {:>8} {:>9}  cause", "alert", "fired", "resolved");
        for line in &self.lines {
            let (fired, resolved) = (time(line.course.fired), time(line.course.resolved));
            println!("{:<44} {fired:>8} {resolved:>9}  {}", line.alert, line.cause);
        }
        let held = self.lines.iter().filter(|line| line.course.resolved.is_some()).count();
        println!("\n{held} of {} fired and fell silent, in {} s", self.lines.len(), took.as_secs());
        for alert in &self.unprovoked {
            println!("{alert} fired without a fault");
        }
        let well = held == self.lines.len() && self.unprovoked.is_empty() && self.wrong == 0;
        if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn text(course: Course) -> String {
    match (course.fired, course.resolved) {
        (None, _) => "DID NOT FIRE".to_owned(),
        (fired, None) => format!("fired after {}, DID NOT RESOLVE", time(fired)),
        (fired, resolved) => format!("fired after {}, resolved after {}", time(fired), time(resolved)),
    }
}

fn time(time: Option<Duration>) -> String {
    time.map_or_else(|| "never".to_owned(), |time| format!("{:.1} s", time.as_secs_f32()))
}
