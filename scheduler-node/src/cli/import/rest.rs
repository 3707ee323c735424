//! What an import that ends early has not done, and where to go on.

use std::fmt;

use crate::cli::error::Error;

/// Lines that follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lines {} to {}", self.first, self.last)
    }
}

/// How far an import has come.
#[derive(Debug)]
pub(super) struct Rest {
    /// The first line of the chunks to come.
    next: u64,
    /// Lines without answers, and the reasons. No chunk is sent after the first of them, so there are few.
    lost: Vec<(Span, String)>,
    /// Lines behind them that have their answers all the same: they were under way.
    behind: Vec<Span>,
}

impl Rest {
    pub(super) fn new(from_line: u64) -> Self {
        Self { next: from_line, lost: Vec::new(), behind: Vec::new() }
    }

    /// Whether some lines have no answers.
    pub(super) fn is_broken(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Notes what became of the next chunk, and why if it has no answers.
    pub(super) fn note(&mut self, span: Span, why: Option<String>) {
        self.next = span.last + 1;
        match why {
            Some(why) => match self.lost.last_mut() {
                Some((before, same)) if before.last + 1 == span.first && *same == why => before.last = span.last,
                _ => self.lost.push((span, why)),
            },
            None if self.is_broken() => match self.behind.last_mut() {
                Some(before) if before.last + 1 == span.first => before.last = span.last,
                _ => self.behind.push(span),
            },
            None => {}
        }
    }

    /// The error of an import that did not send all its lines, because of `why` if none was lost. Its exit code is that
    /// of an unknown outcome, also after a refusal: the lines left over are not in the file of the refused ones.
    pub(super) fn broken(&self, why: &str) -> Error {
        let Some(first) = self.lost.first().map(|(span, _)| span.first) else {
            return Error::Broken(format!("{why}; {}", going_on(self.next)));
        };
        let lost: Vec<String> = self.lost.iter().map(|(span, why)| format!("{span}: {why}")).collect();
        let mut text = format!("{}; {}", lost.join("; "), going_on(first));
        if !self.behind.is_empty() {
            let behind: Vec<String> = self.behind.iter().map(Span::to_string).collect();
            text += &format!(
                ", and leave out {}: they are imported or refused already, and a task without a key would come twice",
                behind.join(", ")
            );
        }
        Error::Broken(text)
    }
}

fn going_on(line: u64) -> String {
    format!("all lines before are imported but those that were said to fail: continue with --from-line {line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(first: u64) -> Span {
        Span { first, last: first + 9 }
    }

    #[test]
    fn what_is_lost_and_what_is_behind_it_is_named_by_its_lines() {
        let mut rest = Rest::new(1);
        rest.note(span(1), None);
        assert!(!rest.is_broken());
        assert!(rest.broken("stopped").to_string().ends_with("continue with --from-line 11"));
        for (first, why) in [(11, Some("no")), (21, Some("no")), (31, None), (41, None), (51, Some("lost"))] {
            rest.note(span(first), why.map(str::to_owned));
        }
        let error = rest.broken("stopped");
        let text = error.to_string();
        assert!(rest.is_broken() && text.starts_with("lines 11 to 30: no; lines 51 to 60: lost; all lines before"));
        assert!(text.contains("--from-line 11, and leave out lines 31 to 50: "), "{text}");
        assert_eq!(error.exit_code(), 3);
    }
}
