//! The permission that a request needs.

use axum::http::Method;
use common::access::Permission;

use super::{ROUTES, Requirement, Route};

/// The requirement of a request. `path` is the pattern that matched, if one did. An unlisted route needs the rarest
/// permission, so that a forgotten one is closed and not open.
pub(super) fn requirement(method: &Method, path: Option<&str>) -> Requirement {
    let Some(path) = path else {
        // Paths without a handler need a token, so that strangers do not learn which paths exist.
        return Requirement::AnyToken;
    };
    if path == "/" || path.starts_with("/console") {
        // The console authenticates by itself, because a browser sends no token of its own accord.
        return Requirement::Open;
    }
    let is_open = |route: &Route| route.path == path && route.requirement == Requirement::Open;
    match Route::serving(ROUTES, method, path) {
        Some(route) => route.requirement,
        // Every caller may learn the methods of an open path.
        None if ROUTES.iter().any(is_open) => Requirement::Open,
        None => Requirement::May(Permission::Operate),
    }
}

#[cfg(test)]
mod tests {
    use common::access::Role;

    use super::*;

    /// The roles that are let in, as the reference lists them: `metrics, submitter, reporter, observer, viewer,
    /// producer, operator`, one letter each.
    const ROLES: &str = "msrovpO";

    /// Every route and the roles that may use it. A new route needs a line here.
    const TABLE: &[(&str, &str)] = &[
        ("POST /v1/tasks", "spO"),
        ("GET /v1/tasks", "ovpO"),
        ("POST /v1/tasks/batch", "spO"),
        ("POST /v1/tasks/bulk", "pO"),
        ("GET /v1/tasks/export", "vpO"),
        ("GET /v1/tasks/{id}", "ovpO"),
        ("PATCH /v1/tasks/{id}", "pO"),
        ("DELETE /v1/tasks/{id}", "pO"),
        ("POST /v1/tasks/{id}/stop", "pO"),
        ("POST /v1/tasks/{id}/run", "pO"),
        ("POST /v1/tasks/{id}/retry", "pO"),
        ("POST /v1/tasks/{id}/result", "rpO"),
        ("GET /v1/queues", "ovpO"),
        ("GET /v1/queues/{queue}", "ovpO"),
        ("PUT /v1/queues/{queue}", "O"),
        ("DELETE /v1/queues/{queue}", "O"),
        ("POST /v1/queues/{queue}/pause", "O"),
        ("POST /v1/queues/{queue}/resume", "O"),
        ("GET /v1/queues/{queue}/keys/{key}", "ovpO"),
        ("PATCH /v1/queues/{queue}/keys/{key}", "pO"),
        ("DELETE /v1/queues/{queue}/keys/{key}", "pO"),
        ("GET /v1/schedules", "ovpO"),
        ("GET /v1/schedules/{name}", "ovpO"),
        ("PUT /v1/schedules/{name}", "O"),
        ("DELETE /v1/schedules/{name}", "O"),
        ("POST /v1/schedules/{name}/pause", "O"),
        ("POST /v1/schedules/{name}/resume", "O"),
        ("POST /v1/schedules/{name}/run", "O"),
        ("GET /v1/tokens", "O"),
        ("POST /v1/tokens", "O"),
        ("DELETE /v1/tokens/{name}", "O"),
        ("GET /v1/audit", "O"),
        ("GET /v1/cluster", "ovpO"),
        ("POST /v1/cluster/nodes/{name}/drain", "O"),
        ("POST /v1/cluster/nodes/{name}/undrain", "O"),
        ("GET /v1/shards", "ovpO"),
        ("GET /v1/shards/moves", "ovpO"),
        ("POST /v1/shards/moves", "O"),
        ("DELETE /v1/shards/moves", "O"),
        ("POST /v1/shards/rebalance", "O"),
        ("GET /v1/databases", "ovpO"),
        ("POST /v1/databases/{name}/drain", "O"),
        ("POST /v1/databases/{name}/undrain", "O"),
        ("DELETE /v1/databases/{name}", "O"),
        ("POST /v1/databases/{name}/accept-loss", "O"),
        ("GET /healthz", "msrovpO"),
        ("GET /readyz", "msrovpO"),
        ("GET /metrics", "movpO"),
        ("GET /openapi.json", "msrovpO"),
    ];

    #[test]
    fn each_route_is_for_its_roles_and_no_others() {
        assert_eq!(TABLE.len(), ROUTES.len(), "every route has one line");
        for Route { method, path, .. } in ROUTES {
            let name = format!("{method} {path}");
            let (_, roles) =
                TABLE.iter().find(|(line, _)| *line == name).unwrap_or_else(|| panic!("{name} has no line"));
            let needed = requirement(method, Some(path));
            for (role, letter) in Role::ALL.into_iter().zip(ROLES.chars()) {
                let lets_in = match needed {
                    Requirement::Open | Requirement::AnyToken => true,
                    Requirement::May(permission) => role.may(permission),
                };
                assert_eq!(lets_in, roles.contains(letter), "{name} for {role}");
            }
        }
    }

    #[test]
    fn a_route_that_is_missing_in_the_table_needs_an_operator() {
        let cases = [
            (Method::HEAD, Some("/v1/tasks/{id}"), Requirement::May(Permission::Look)),
            (Method::GET, Some("/v1/anything"), Requirement::May(Permission::Operate)),
            (Method::POST, Some("/v1/tasks/{id}/anything"), Requirement::May(Permission::Operate)),
            (Method::POST, Some("/metrics"), Requirement::May(Permission::Operate)),
            (Method::POST, Some("/healthz"), Requirement::Open),
            (Method::GET, Some("/"), Requirement::Open),
            (Method::POST, Some("/console/sign-in"), Requirement::Open),
            (Method::GET, Some("/openapi.json"), Requirement::AnyToken),
            (Method::POST, None, Requirement::AnyToken),
        ];
        for (method, path, expected) in cases {
            assert_eq!(requirement(&method, path), expected, "{method} {path:?}");
        }
    }
}
