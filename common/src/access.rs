//! Who asks, and what of: roles, and the queues that a token is for.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{field::FieldError, ids::QueueName, limit::TokenLimits, queue};

/// A request spells out at most so many; one pattern with `*` stands for any number of queues.
pub const MAX_PATTERNS: usize = 100;

/// What a caller may do. Each role may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Looks.
    Viewer,
    /// Submits, changes, cancels, reports.
    Producer,
    /// Runs the cluster: queues, pauses, tokens.
    Operator,
}

impl Role {
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Producer, Self::Operator];

    pub const fn text(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Producer => "producer",
            Self::Operator => "operator",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.text() == text)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The queues that somebody may know of: all, or those with these names. A name that ends in `*` stands for every queue that
/// begins so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scope(Option<Arc<[String]>>);

impl Scope {
    pub const ALL: Self = Self(None);

    /// `None`: all queues. An empty list is refused: who is to see nothing needs no token.
    pub fn of(patterns: Option<Vec<String>>) -> Result<Self, FieldError> {
        let Some(patterns) = patterns else { return Ok(Self::ALL) };
        if patterns.is_empty() || patterns.len() > MAX_PATTERNS {
            let detail = format!("`queues` has 1 to {MAX_PATTERNS} names, or is left out for all queues");
            return Err(FieldError::new("queues", detail));
        }
        for pattern in &patterns {
            let name = pattern.strip_suffix('*').unwrap_or(pattern);
            if name.is_empty() || queue::check_name(name).is_err() {
                let detail = format!("`queues`: {pattern:?} is neither a queue's name nor the start of one and `*`");
                return Err(FieldError::new("queues", detail));
            }
        }
        Ok(Self(Some(patterns.into())))
    }

    /// What any of `scopes` has, each pattern once.
    pub fn joined<'a>(scopes: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut joined: Vec<String> = Vec::new();
        for scope in scopes {
            let Some(patterns) = scope.patterns() else { return Self::ALL };
            for pattern in patterns {
                if !joined.contains(pattern) {
                    joined.push(pattern.clone());
                }
            }
        }
        Self(Some(joined.into()))
    }

    pub const fn is_all(&self) -> bool {
        self.0.is_none()
    }

    pub fn patterns(&self) -> Option<&[String]> {
        self.0.as_deref()
    }

    pub fn has(&self, queue: &QueueName) -> bool {
        let fits = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => queue.as_str().starts_with(start),
            None => queue.as_str() == pattern,
        };
        self.0.as_ref().is_none_or(|patterns| patterns.iter().any(fits))
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.as_ref().map_or_else(|| "all".to_owned(), |patterns| patterns.join(", ")))
    }
}

/// Somebody who was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The token's; of whoever signed in with an identity provider [`Caller::SUBJECT`] and his subject there.
    pub name: Arc<str>,
    pub role: Role,
    pub queues: Scope,
    pub limits: TokenLimits,
}

impl Caller {
    /// The name of whoever needs no token. No token is called so.
    pub const ANONYMOUS: &'static str = "anonymous";

    /// Before the subject of whoever signed in with an identity provider. No token's name begins so.
    pub const SUBJECT: &'static str = "oidc:";

    /// Whoever comes where nobody is asked for a token.
    pub fn anonymous() -> Self {
        Self { name: Self::ANONYMOUS.into(), role: Role::Operator, queues: Scope::ALL, limits: TokenLimits::NONE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(patterns: &[&str]) -> Result<Scope, FieldError> {
        Scope::of(Some(patterns.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn a_scope_has_the_queues_it_names_and_those_that_begin_as_it_says() {
        let some = scope(&["mail", "shop.*"]).expect("a scope");
        for (queue, has) in [("mail", true), ("mails", false), ("shop.", true), ("shop.orders", true), ("shop", false)]
        {
            assert_eq!(some.has(&QueueName::new(queue)), has, "{queue}");
        }
        assert!(Scope::ALL.has(&QueueName::new("anything")));
    }

    #[test]
    fn a_scope_that_is_none_is_refused() {
        let many = vec!["a"; MAX_PATTERNS + 1];
        for patterns in [&[] as &[&str], &["*"], &[""], &["a*b"], &["a b"], &["a**"], many.as_slice()] {
            assert_eq!(scope(patterns).expect_err("refused").field, "queues", "{patterns:?}");
        }
        assert!(Scope::of(None).expect("all").is_all());
    }

    #[test]
    fn a_role_reads_as_it_is_written() {
        for role in Role::ALL {
            assert_eq!(Role::parse(role.text()), Some(role));
        }
        assert_eq!(Role::parse("root"), None);
    }
}
