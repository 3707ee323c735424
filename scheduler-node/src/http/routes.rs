//! The table of routes of a module: for each route its handler, who may call it, and what the audit log calls it. The
//! router, the shell, the metrics and the audit log read the table. A route without all its columns does not compile.

use axum::http::Method;
use common::access::Permission;

use crate::audit::AuditAction;

/// One line of a table.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) method: Method,
    /// The pattern that the router matches and the metrics count.
    pub(crate) path: &'static str,
    pub(crate) requirement: Requirement,
    pub(crate) audited: Audited,
}

impl Route {
    /// The line of `table` with this method and pattern.
    pub(crate) fn find(table: &'static [Self], method: &Method, path: &str) -> Option<&'static Self> {
        table.iter().find(|route| route.path == path && route.method == method)
    }

    /// Like [`Self::find`]; the router answers HEAD where it answers GET.
    pub(crate) fn serving(table: &'static [Self], method: &Method, path: &str) -> Option<&'static Self> {
        Self::find(table, if *method == Method::HEAD { &Method::GET } else { method }, path)
    }
}

/// The condition that a request must meet before a handler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requirement {
    /// None: the route is open to any client.
    Open,
    /// A token of any role: the answer is the same for all of them.
    AnyToken,
    /// A token, or a session of the console, with this permission.
    May(Permission),
}

/// What the audit log calls the requests of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audited {
    /// Nothing: it records only refusals, and answers that show the data of tasks.
    No,
    As(AuditAction),
    /// By the form's field `action`.
    ByForm(&'static [(&'static str, AuditAction)]),
}

impl Audited {
    /// The action of a request; `form` is the form's field `action`. `None` for a form that no page of ours sends.
    pub(crate) fn action(self, form: Option<&str>) -> Option<AuditAction> {
        match self {
            Self::No => None,
            Self::As(action) => Some(action),
            Self::ByForm(actions) => actions.iter().find(|(word, _)| Some(*word) == form).map(|(_, action)| *action),
        }
    }
}

/// `routes! { State => METHOD "/path" => handler, requirement, audited; … }` makes the table `ROUTES` and the router
/// `routes()`.
macro_rules! routes {
    ($state:ty => $($method:ident $path:literal => $handler:expr, $requirement:expr, $audited:expr;)*) => {
        /// The table of routes.
        pub(crate) const ROUTES: &[$crate::http::Route] = {
            use common::access::Permission::*;
            use $crate::{audit::AuditAction::*, http::{Audited::*, Requirement::*, Route}};
            &[$(Route {
                method: axum::http::Method::$method,
                path: $path,
                requirement: $requirement,
                audited: $audited,
            }),*]
        };

        fn routes() -> axum::Router<$state> {
            axum::Router::new()$(.route($path, axum::routing::on(axum::routing::MethodFilter::$method, $handler)))*
        }
    };
}

pub(crate) use routes;
