//! Callers: permissions, the roles that combine them, and the queues that a token covers.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{field::FieldError, ids::QueueName, limit::TokenLimits, queue};

/// The most patterns that a request may list; one pattern with `*` stands for any number of queues.
pub(crate) const MAX_PATTERNS: usize = 100;

/// One kind of request. A route needs one of these, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Reads the metrics.
    Metrics,
    /// Reads tasks, queues, schedules and the cluster, without the data of tasks.
    Look,
    /// Reads the data of tasks as well: payloads, headers, results and the failure texts of consumers.
    Payloads,
    /// Submits tasks.
    Submit,
    /// Reports results and heartbeats, as a consumer.
    Report,
    /// Changes, cancels, runs and retries tasks.
    Change,
    /// Operates the cluster: queues, schedules, nodes, databases, tokens, the audit.
    Operate,
}

impl Permission {
    pub const ALL: [Self; 7] =
        [Self::Metrics, Self::Look, Self::Payloads, Self::Submit, Self::Report, Self::Change, Self::Operate];

    /// The roles with this permission, as a sentence lists them: `viewer, producer or operator`.
    pub fn roles(self) -> String {
        let roles: Vec<&str> = Role::ALL.into_iter().filter(|role| role.may(self)).map(Role::text).collect();
        match roles.as_slice() {
            [] => "none".to_owned(),
            [only] => (*only).to_owned(),
            [first @ .., last] => format!("{} or {last}", first.join(", ")),
        }
    }
}

crate::labelled! {
    /// A named set of permissions. The narrow roles come first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Role {
        /// A program that collects metrics.
        Metrics = "metrics",
        /// A program that submits tasks and reads none.
        Submitter = "submitter",
        /// A consumer that reports over HTTP and reads no task.
        Reporter = "reporter",
        /// A person or program that must not read the data of tasks.
        Observer = "observer",
        Viewer = "viewer",
        Producer = "producer",
        Operator = "operator",
    }
}

impl Role {
    /// The roles that open the console, and that an identity provider can give. Each has all permissions of the roles
    /// before it.
    pub const CONSOLE: [Self; 4] = [Self::Observer, Self::Viewer, Self::Producer, Self::Operator];

    const fn permissions(self) -> &'static [Permission] {
        use Permission::{Change, Look, Metrics, Operate, Payloads, Report, Submit};
        match self {
            Self::Metrics => &[Metrics],
            Self::Submitter => &[Submit],
            Self::Reporter => &[Report],
            Self::Observer => &[Metrics, Look],
            Self::Viewer => &[Metrics, Look, Payloads],
            Self::Producer => &[Metrics, Look, Payloads, Submit, Report, Change],
            Self::Operator => &[Metrics, Look, Payloads, Submit, Report, Change, Operate],
        }
    }

    pub fn may(self, permission: Permission) -> bool {
        self.permissions().contains(&permission)
    }

    /// The number of the role's permissions: of two roles of [`Self::CONSOLE`], the stronger one has more.
    pub(crate) const fn strength(self) -> usize {
        self.permissions().len()
    }

    /// Refuses a scope under which the role could do nothing: the metrics name every queue.
    pub fn check_scope(self, scope: &Scope) -> Result<(), FieldError> {
        if self == Self::Metrics && !scope.is_all() {
            let detail = "`queues` does not apply to the role metrics: the metrics name every queue";
            return Err(FieldError::new("queues", detail));
        }
        Ok(())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The queues that a caller may know of: all queues, or those that a pattern matches. A pattern that ends in `*`
/// matches every queue whose name begins with the text before it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scope(Option<Arc<[String]>>);

impl Scope {
    pub const ALL: Self = Self(None);

    /// Reads patterns; `None` means all queues. An empty list is refused, because a caller without queues needs no
    /// token.
    pub fn of(patterns: Option<Vec<String>>) -> Result<Self, FieldError> {
        let Some(patterns) = patterns else { return Ok(Self::ALL) };
        if patterns.is_empty() || patterns.len() > MAX_PATTERNS {
            let detail = format!("`queues` must have 1 to {MAX_PATTERNS} entries, or be left out for all queues");
            return Err(FieldError::new("queues", detail));
        }
        for pattern in &patterns {
            let name = pattern.strip_suffix('*').unwrap_or(pattern);
            if name.is_empty() || queue::check_name(name).is_err() {
                let detail = format!("`queues`: {pattern:?} is neither a queue's name nor a prefix and `*`");
                return Err(FieldError::new("queues", detail));
            }
        }
        Ok(Self(Some(patterns.into())))
    }

    /// The union of `scopes`, with each pattern once.
    pub(crate) fn joined<'a>(scopes: impl IntoIterator<Item = &'a Self>) -> Self {
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

/// An authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The id of a token that was made over the API. A later token of the same name has a different id. Tokens of the
    /// configuration and people of an identity provider have none.
    pub id: Option<i64>,
    /// The token's name. For a person of an identity provider: [`Caller::SUBJECT`] and their subject there.
    pub name: Arc<str>,
    pub role: Role,
    pub queues: Scope,
    pub limits: TokenLimits,
}

impl Caller {
    /// The name of a caller that needs no token. No token may have this name.
    pub const ANONYMOUS: &'static str = "anonymous";

    /// The prefix before the subject of a person of an identity provider. No token's name begins with it.
    pub const SUBJECT: &'static str = "oidc:";

    /// The caller on a node that asks for no tokens.
    pub fn anonymous() -> Self {
        Self {
            id: None,
            name: Self::ANONYMOUS.into(),
            role: Role::Operator,
            queues: Scope::ALL,
            limits: TokenLimits::NONE,
        }
    }

    pub fn may(&self, permission: Permission) -> bool {
        self.role.may(permission)
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
    fn each_role_of_the_console_has_all_permissions_of_those_before_it() {
        for pair in Role::CONSOLE.windows(2) {
            let (weak, strong) = (pair[0], pair[1]);
            assert!(weak.permissions().iter().all(|permission| strong.may(*permission)), "{weak} and {strong}");
            assert!(weak.strength() < strong.strength(), "{weak} and {strong}");
        }
        let narrow = Role::ALL.into_iter().filter(|role| !Role::CONSOLE.contains(role));
        assert!(narrow.clone().all(|role| !role.may(Permission::Look)), "every role that may read may use the console");
        assert!(Role::CONSOLE.iter().all(|role| role.may(Permission::Look)));
    }

    #[test]
    fn each_permission_names_the_roles_that_have_it() {
        for (permission, roles) in [
            (Permission::Metrics, "metrics, observer, viewer, producer or operator"),
            (Permission::Look, "observer, viewer, producer or operator"),
            (Permission::Payloads, "viewer, producer or operator"),
            (Permission::Submit, "submitter, producer or operator"),
            (Permission::Report, "reporter, producer or operator"),
            (Permission::Change, "producer or operator"),
            (Permission::Operate, "operator"),
        ] {
            assert_eq!(permission.roles(), roles);
        }
    }

    #[test]
    fn a_metrics_role_for_some_queues_is_refused() {
        let some = scope(&["mail"]).expect("a scope");
        assert_eq!(Role::Metrics.check_scope(&some).expect_err("refused").field, "queues");
        assert!(Role::Metrics.check_scope(&Scope::ALL).is_ok());
        assert!(Role::Submitter.check_scope(&some).is_ok());
    }
}
