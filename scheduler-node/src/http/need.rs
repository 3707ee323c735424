//! The permission that each route needs.

use axum::http::Method;
use common::access::Permission;

/// The condition that a request must meet before a handler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing: probes, and the console. The console authenticates by itself, because a browser sends no token of its
    /// own accord.
    Nothing,
    /// A token of any role: the answer is the same for all of them.
    Token,
    May(Permission),
}

/// `route` is the pattern that matched, if one did. An unlisted route needs the rarest permission, so that a
/// forgotten one is closed and not open.
pub(super) fn needed(method: &Method, route: Option<&str>) -> Need {
    let Some(route) = route else {
        // Paths without a handler need a token, so that strangers do not learn which paths exist.
        return Need::Token;
    };
    if route == "/" || route.starts_with("/console") {
        return Need::Nothing;
    }
    // The router answers HEAD where it answers GET.
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    Need::May(match (method, route) {
        (_, "/healthz" | "/readyz") => return Need::Nothing,
        ("GET", "/openapi.json") => return Need::Token,
        ("GET", "/metrics") => Permission::Metrics,
        ("POST", "/v1/tasks" | "/v1/tasks/batch") => Permission::Submit,
        ("POST", "/v1/tasks/{id}/result") => Permission::Report,
        ("GET", "/v1/tasks/export") => Permission::Payloads,
        ("GET", "/v1/tasks" | "/v1/tasks/{id}" | "/v1/queues" | "/v1/queues/{queue}")
        | ("GET", "/v1/queues/{queue}/keys/{key}" | "/v1/schedules" | "/v1/schedules/{name}" | "/v1/cluster") => {
            Permission::Look
        }
        ("PATCH" | "DELETE", "/v1/tasks/{id}" | "/v1/queues/{queue}/keys/{key}")
        | ("POST", "/v1/tasks/bulk" | "/v1/tasks/{id}/stop" | "/v1/tasks/{id}/run" | "/v1/tasks/{id}/retry") => {
            Permission::Change
        }
        _ => Permission::Operate,
    })
}

#[cfg(test)]
mod tests {
    use common::access::Role;

    use super::*;
    use crate::http::ROUTES;

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
        ("GET /healthz", "msrovpO"),
        ("GET /readyz", "msrovpO"),
        ("GET /metrics", "movpO"),
        ("GET /openapi.json", "msrovpO"),
    ];

    #[test]
    fn each_route_is_for_its_roles_and_no_others() {
        assert_eq!(TABLE.len(), ROUTES.len(), "every route has one line");
        for (method, route) in ROUTES {
            let name = format!("{method} {route}");
            let (_, roles) =
                TABLE.iter().find(|(line, _)| *line == name).unwrap_or_else(|| panic!("{name} has no line"));
            let need = needed(method, Some(route));
            for (role, letter) in Role::ALL.into_iter().zip(ROLES.chars()) {
                let lets_in = match need {
                    Need::Nothing | Need::Token => true,
                    Need::May(permission) => role.may(permission),
                };
                assert_eq!(lets_in, roles.contains(letter), "{name} for {role}");
            }
        }
    }

    #[test]
    fn a_route_that_is_missing_in_the_table_needs_an_operator() {
        let cases = [
            (Method::HEAD, Some("/v1/tasks/{id}"), Need::May(Permission::Look)),
            (Method::GET, Some("/v1/anything"), Need::May(Permission::Operate)),
            (Method::POST, Some("/v1/tasks/{id}/anything"), Need::May(Permission::Operate)),
            (Method::POST, Some("/metrics"), Need::May(Permission::Operate)),
            (Method::GET, Some("/"), Need::Nothing),
            (Method::POST, Some("/console/sign-in"), Need::Nothing),
            (Method::GET, Some("/openapi.json"), Need::Token),
            (Method::POST, None, Need::Token),
        ];
        for (method, route, need) in cases {
            assert_eq!(needed(&method, route), need, "{method} {route:?}");
        }
    }
}
