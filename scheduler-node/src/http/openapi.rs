//! The description of the API for programs: OpenAPI 3.1, the same from every node.
//!
//! The document beside this file is written by hand, because checks and not types decide what a field accepts. Tests
//! compare it with the code: the routes and roles here, requests and answers in the scenarios.

use axum::{
    http::header,
    response::{IntoResponse, Response},
};

use super::extract::NoQuery;

const DOCUMENT: &str = include_str!("openapi.json");

pub(super) async fn show(_: NoQuery) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::http::Method;
    use common::{
        access::Role,
        ids::TaskId,
        time::UnixMicros,
        wire::{Cursor, audit::AuditCursor, list::Block},
    };
    use serde_json::Value;
    use uuid::Uuid;

    use super::{
        super::{ROUTES, Requirement, Route, requirement::requirement},
        *,
    };

    fn document() -> Value {
        serde_json::from_str(DOCUMENT).expect("JSON")
    }

    /// Every operation as `GET /v1/tasks`, with its description.
    fn operations(document: &Value) -> Vec<(String, &Value)> {
        let paths = document["paths"].as_object().expect("paths");
        let of = |path: &str, method: &str| format!("{} {path}", method.to_uppercase());
        paths
            .iter()
            .flat_map(|(path, item)| {
                item.as_object()
                    .expect("operations")
                    .iter()
                    .map(move |(method, operation)| (of(path, method), operation))
            })
            .collect()
    }

    #[test]
    fn every_route_is_described_and_no_other() {
        let document = document();
        let described: BTreeSet<String> = operations(&document).into_iter().map(|(name, _)| name).collect();
        let routed: BTreeSet<String> =
            ROUTES.iter().map(|Route { method, path, .. }| format!("{method} {path}")).collect();
        assert_eq!(described, routed);
    }

    #[test]
    fn every_operation_tells_the_roles_that_may_call_it() {
        for (name, operation) in operations(&document()) {
            let (method, path) = name.split_once(' ').expect("two words");
            let needed = requirement(&method.parse::<Method>().expect("a method"), Some(path));
            let may = |role: &Role| match needed {
                Requirement::May(permission) => role.may(permission),
                Requirement::AnyToken => true,
                Requirement::Open => false,
            };
            let roles: Vec<&str> = Role::ALL.iter().filter(|role| may(role)).map(|role| role.text()).collect();
            let listed: Vec<&str> =
                operation["x-roles"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            assert_eq!(listed, roles, "{name}");
            assert_eq!(operation["security"].is_array(), needed == Requirement::Open, "{name}");
        }
    }

    #[test]
    fn every_operation_has_a_name_of_its_own() {
        let document = document();
        let names: BTreeSet<&str> =
            operations(&document).iter().filter_map(|(_, operation)| operation["operationId"].as_str()).collect();
        assert_eq!(names.len(), ROUTES.len());
    }

    #[test]
    fn cursors_have_the_form_that_is_described() {
        let document = document();
        let pattern = |name: &str| document["components"]["parameters"][name]["schema"]["pattern"].clone();
        let bytes_of = |block: Option<(String, String)>| {
            let block = block.map(|(after, up_to)| Block { after, up_to: Some(up_to).filter(|name| !name.is_empty()) });
            Cursor { due_at: UnixMicros::LAST, id: TaskId::from_uuid(Uuid::max()), block }.to_string().len()
        };
        let name = || "n".repeat(128);
        let (alone, shortest) = (bytes_of(None), bytes_of(Some(Default::default())));
        let longest = bytes_of(Some((name(), name())));
        let text = "[A-Za-z0-9_-]";
        assert_eq!(pattern("Cursor"), format!("^({text}{{{alone}}}|{text}{{{shortest},{longest}}})$"));
        let deed = AuditCursor { at: UnixMicros::new(1_700_000_000_000_000), id: Uuid::max() };
        assert_eq!(deed.to_string(), format!("1700000000000000_{}", "f".repeat(32)));
        assert_eq!(pattern("CursorDeed"), "^-?[0-9]{1,17}_[0-9a-f]{32}$");
    }

    #[test]
    fn the_version_described_is_this_one() {
        assert_eq!(document()["info"]["version"], env!("CARGO_PKG_VERSION"));
    }
}
