//! Mistakes in a configuration. All of them are collected before any is reported, so that one start shows every
//! mistake.

use std::{collections::BTreeMap, fmt, ops::RangeInclusive};

/// One mistake: the key, and a sentence that says what is wrong and how to correct it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    pub key: String,
    pub problem: String,
    /// The environment variable that set the value, if one did.
    pub variable: Option<String>,
}

/// All mistakes, each key once: a mistake that follows from an earlier one is not reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Complaints(Vec<Complaint>);

impl Complaints {
    pub(super) fn add(&mut self, key: impl Into<String>, problem: impl Into<String>) {
        let complaint = Complaint { key: key.into(), problem: problem.into(), variable: None };
        if !self.about(&complaint.key) {
            self.0.push(complaint);
        }
    }

    /// Adds the complaint unless `fine`.
    pub(super) fn unless(&mut self, fine: bool, key: impl Into<String>, problem: impl Into<String>) {
        if !fine {
            self.add(key, problem);
        }
    }

    /// Requires a limit `within` these bounds, and a part of it between the least and the limit. Of the part it says
    /// nothing while the limit is wrong. A limit and a part are each a key and its value.
    pub(super) fn limit_and_part<N: Copy + PartialOrd + fmt::Display>(
        &mut self,
        (limit_key, limit): (&str, N),
        within: RangeInclusive<N>,
        (part_key, part): (&str, N),
    ) {
        let (least, most) = within.into_inner();
        self.unless(
            (least..=most).contains(&limit),
            limit_key,
            format!("is {limit}; it must be between {least} and {most}"),
        );
        self.unless(
            (least..=limit).contains(&part) || self.about(limit_key),
            part_key,
            format!("is {part}; it must be between {least} and {limit_key} ({limit})"),
        );
    }

    /// Whether `key` has a complaint already.
    pub(super) fn about(&self, key: &str) -> bool {
        self.0.iter().any(|complaint| complaint.key == key)
    }

    pub(super) fn name_variables(&mut self, variables: &BTreeMap<String, String>) {
        for complaint in &mut self.0 {
            complaint.variable = variables.get(&complaint.key).cloned();
        }
    }

    /// Removes `urls` from the sentences, because a URL may hold a password. One that is part of another comes after
    /// it.
    pub(super) fn hide(&mut self, urls: &[String]) {
        for complaint in &mut self.0 {
            for url in urls {
                // A sentence shows a value as it is, or quoted and escaped.
                complaint.problem = complaint.problem.replace(&format!("{url:?}"), "a URL").replace(url, "a URL");
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Complaint> {
        self.0.iter()
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.key)?;
        if let Some(variable) = &self.variable {
            write!(f, " (set by {variable})")?;
        }
        write!(f, " {}", self.problem)
    }
}

impl fmt::Display for Complaints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, complaint) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{complaint}")?;
        }
        Ok(())
    }
}
