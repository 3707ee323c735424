//! Checks of the OpenAPI document alone: it is valid, its schemas are closed, its examples fit them, and its problems
//! match the code's.
//!
//! The scenario `it/openapi.rs` checks that nodes behave as described.

mod document;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use document::{Answer, Document};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn document() -> Document {
    let text = std::fs::read_to_string(root().join("scheduler-node/src/http/openapi.json")).expect("it can be read");
    Document(serde_json::from_str(&text).expect("JSON"))
}

/// Every object in the document, with its path.
fn objects<'a>(value: &'a Value, way: &str, found: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Object(members) => {
            found.push((way.to_owned(), value));
            members.iter().for_each(|(name, member)| objects(member, &format!("{way}/{name}"), found));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, item)| objects(item, &format!("{way}/{at}"), found));
        }
        _ => {}
    }
}

#[test]
fn the_document_is_openapi_3_1() {
    // As published at spec.openapis.org/oas/3.1/schema; Apache-2.0.
    let meta: Value = serde_json::from_str(include_str!("oas-3.1.json")).expect("JSON");
    let validator = jsonschema::validator_for(&meta).expect("a schema");
    let Document(document) = document();
    let errors: Vec<String> =
        validator.iter_errors(&document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    for (name, schema) in document["components"]["schemas"].as_object().expect("schemas") {
        jsonschema::meta::validate(schema).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn every_reference_leads_somewhere_and_every_component_is_used() {
    let Document(document) = document();
    let mut all = Vec::new();
    objects(&document, "", &mut all);
    let references: BTreeSet<&str> = all.iter().filter_map(|(_, object)| object["$ref"].as_str()).collect();
    for reference in &references {
        assert!(document.pointer(&reference[1..]).is_some(), "{reference} leads nowhere");
    }
    for kind in ["schemas", "parameters", "responses"] {
        for name in document["components"][kind].as_object().expect("components").keys() {
            let reference = format!("#/components/{kind}/{name}");
            assert!(references.contains(reference.as_str()), "nothing refers to {reference}");
        }
    }
}

#[test]
fn objects_are_closed_so_that_a_field_that_is_not_described_is_noticed() {
    let Document(document) = document();
    let mut all = Vec::new();
    objects(&document["components"]["schemas"], "", &mut all);
    let open: Vec<&str> = all
        .iter()
        // An object below `allOf` adds a condition to an object that is closed elsewhere.
        .filter(|(way, object)| {
            object["type"] == "object" && !way.contains("/allOf/") && object.get("additionalProperties").is_none()
        })
        .map(|(way, _)| way.as_str())
        .collect();
    assert_eq!(open, ["/ExportedTask/properties/envelope"]);
}

#[test]
fn every_operation_that_takes_a_body_shows_examples_that_fit_its_schema() {
    let document = document();
    for operation in document.operations() {
        let Some(schema) = operation.request() else { continue };
        assert!(operation.examples().count() > 0, "{operation} shows no request");
        for (name, example) in operation.examples() {
            document.check(schema, example).unwrap_or_else(|error| panic!("{operation} {name}: {error}"));
        }
    }
}

/// The types that are read and written, field by field: the file under `common/src`, the type, its schema.
const TYPES: [(&str, &str, &str); 27] = [
    ("limit/mod.rs", "TokenLimits", "TokenLimits"),
    ("queue.rs", "QueuePolicy", "QueuePolicy"),
    ("task/dependency.rs", "Dependency", "Dependency"),
    ("task/report.rs", "ResultBody", "Report"),
    ("wire/audit.rs", "AuditList", "AuditList"),
    ("wire/audit.rs", "AuditEventView", "Deed"),
    ("wire/bulk.rs", "BulkAnswer", "BulkAnswer"),
    ("wire/bulk.rs", "BulkRequest", "BulkRequest"),
    ("wire/bulk.rs", "TaskFilter", "Filter"),
    ("wire/change.rs", "ChangeRequest", "TaskChange"),
    ("wire/cluster.rs", "ClusterReport", "Cluster"),
    ("wire/export.rs", "ExportedTask", "ExportedTask"),
    ("wire/list.rs", "ListAnswer", "TaskList"),
    ("wire/queue.rs", "Counts", "Counts"),
    ("wire/queue.rs", "QueueRequest", "QueueRequest"),
    ("wire/queue.rs", "QueueView", "Queue"),
    ("wire/schedule.rs", "ScheduleList", "ScheduleList"),
    ("wire/schedule.rs", "ScheduleRequest", "ScheduleRequest"),
    ("wire/task.rs", "TaskRequest", "TaskRequest"),
    ("wire/token.rs", "LimitsRequest", "LimitsRequest"),
    ("wire/token.rs", "TokenList", "TokenList"),
    ("wire/token.rs", "TokenRequest", "TokenRequest"),
    ("wire/token.rs", "TokenView", "Token"),
    ("wire/view.rs", "AttemptView", "Attempt"),
    ("wire/view.rs", "CancelAnswer", "CancelAnswer"),
    ("wire/view.rs", "TaskReceipt", "Receipt"),
    ("wire/view.rs", "TaskView", "Task"),
];

/// The scenarios' answers never hold a rare field, so this test compares the types too.
#[test]
fn every_field_that_is_read_or_written_is_described_and_no_other() {
    let Document(document) = document();
    for (file, name, schema) in TYPES {
        let source = std::fs::read_to_string(root().join("common/src").join(file)).expect("it can be read");
        let body = source.split(&format!("pub struct {name} {{")).nth(1).expect("the type is there");
        let body = body.split("\n}").next().expect("a text");
        // A field with `#[serde(skip)]` is no part of the body.
        let beside = body.split("#[serde(skip)]\n").skip(1).filter_map(|rest| rest.lines().next());
        let beside: BTreeSet<&str> = beside.collect();
        let lines = body.lines().filter(|line| !beside.contains(line));
        let fields = lines.filter_map(|line| line.trim().strip_prefix("pub ")?.split(':').next());
        let described = document["components"]["schemas"][schema]["properties"].as_object().expect("an object");
        assert_eq!(
            described.keys().map(String::as_str).collect::<BTreeSet<_>>(),
            fields.collect::<BTreeSet<_>>(),
            "{schema} and {name}"
        );
    }
}

#[test]
fn the_problems_listed_are_those_there_are() {
    let source = std::fs::read_to_string(root().join("common/src/wire/problem.rs")).expect("it can be read");
    let product = source.split("#[cfg(test)]").next().expect("a text");
    // `name = 400, "slug", "title";` in the table, `urn:duetime:problem:slug` beside it.
    let rows = product.lines().filter(|line| line.ends_with("\";"));
    let table = rows.filter_map(|row| Some(row.split_once(" = ")?.1.split('"').nth(1)?.to_owned()));
    let others = product.split("urn:duetime:problem:").skip(1).filter_map(|rest| rest.split(['"', '`']).next());
    let slug = |text: &String| !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let there: BTreeSet<String> = table.chain(others.map(str::to_owned)).filter(slug).collect();
    let Document(document) = document();
    let listed = document["components"]["schemas"]["Problem"]["properties"]["type"]["enum"].as_array().expect("a list");
    let listed: BTreeSet<String> =
        listed.iter().filter_map(|urn| urn.as_str()?.strip_prefix("urn:duetime:problem:").map(str::to_owned)).collect();
    assert_eq!(listed, there);
}

#[test]
fn an_answer_that_is_not_described_is_noticed() {
    let document = document();
    let cancel = document.operation("DELETE", "/v1/tasks/0199f3a0-0000-7000-8000-000000000005?x=1").expect("described");
    assert_eq!(cancel.to_string(), "DELETE /v1/tasks/{id}");
    let answer =
        |status, kind: &str, text: &str| Answer { status, content_type: kind.to_owned(), text: text.to_owned() };
    let good = r#"{"id": "0199f3a0-0000-7000-8000-000000000005", "outcome": "cancelled"}"#;
    assert!(document.check_answer(cancel, &answer(200, "application/json", good)).is_ok());
    for (status, kind, text) in [
        (201, "application/json", good),
        (200, "text/plain", good),
        (200, "application/json", r#"{"outcome": "cancelled"}"#),
        (
            200,
            "application/json",
            r#"{"id": "0199f3a0-0000-7000-8000-000000000005", "outcome": "cancelled", "more": 1}"#,
        ),
        (409, "application/problem+json", good),
    ] {
        assert!(document.check_answer(cancel, &answer(status, kind, text)).is_err(), "{status} {kind} {text}");
    }
    let batch = document.operation("post", "/v1/tasks/batch").expect("described");
    assert_eq!(batch.path, "/v1/tasks/batch", "a word goes before a variable");
}
