//! Reads JSON and explains errors in the sender's terms: by field, not by column.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{error::Category, value::RawValue};

use crate::wire::{
    Problem,
    problem::{short_detail, short_field},
};

/// Reads a request body. A body that is not JSON is a 400. JSON that is not such a request is a 422 that names the
/// field.
pub fn json<'a, T: Deserialize<'a>>(raw: &'a str) -> Result<T, Problem> {
    serde_json::from_str(raw).map_err(|error| explain(raw, &error))
}

/// Like [`json`], but for an object only: serde would also read the fields from an array, in their order.
pub fn object<'a, T: Deserialize<'a>>(raw: &'a str) -> Result<T, Problem> {
    if raw.trim_ascii_start().starts_with('[') {
        let _: serde::de::IgnoredAny = json(raw)?;
        return Err(Problem { status: 422, ..Problem::malformed("the body must be an object, not an array") });
    }
    json(raw)
}

/// Explains an error that is only a message, for example of a query string. Names the field if the message does.
pub fn explain_text(message: &str) -> Problem {
    match named(message) {
        Some(field) => Problem::invalid_field(field.to_owned(), message),
        None => Problem::malformed(short_detail(message.to_owned())),
    }
}

fn explain(raw: &str, error: &serde_json::Error) -> Problem {
    if error.classify() != Category::Data && !is_json(raw) {
        return Problem::malformed(format!("the body is not valid JSON: {error}"));
    }
    let message = error.to_string();
    let text = message.split(" at line ").next().unwrap_or(&message);
    let around = field_at(raw, offset(raw, error));
    let field = match (around, named(text)) {
        // The inner name may include its path already.
        (Some(outer), Some(inner)) if !inner.contains('.') => Some(format!("{outer}.{inner}")),
        (Some(outer), None) => Some(outer),
        (_, inner) => inner.map(str::to_owned),
    };
    match field {
        Some(field) => {
            let field = short_field(field.into());
            let detail = format!("`{field}`: {text}");
            Problem::invalid_field(field, detail)
        }
        None => {
            let detail = format!("the body does not match this request: {text}");
            Problem { status: 422, ..Problem::malformed(short_detail(detail)) }
        }
    }
}

/// Whether the body is JSON by its grammar. The grammar allows lone surrogates, numbers beyond a double and deep
/// nesting, for which serde_json reports wrong syntax when the field cannot hold them.
fn is_json(raw: &str) -> bool {
    serde_json::from_str::<&RawValue>(raw).is_ok()
}

/// The field that serde's message names.
fn named(message: &str) -> Option<&str> {
    ["unknown field `", "missing field `", "duplicate field `"]
        .into_iter()
        .find_map(|start| message.strip_prefix(start))
        .and_then(|rest| rest.split('`').next())
}

/// The place where serde_json stopped, in bytes from the start.
fn offset(raw: &str, error: &serde_json::Error) -> usize {
    let lines = error.line().saturating_sub(1);
    let before: usize = raw.split_inclusive('\n').take(lines).map(str::len).sum();
    before + error.column()
}

/// The top-level field whose value serde_json was reading at `offset`.
fn field_at(raw: &str, offset: usize) -> Option<String> {
    let mut reader = serde_json::Deserializer::from_str(raw);
    let field = reader.deserialize_map(FieldAt { raw, offset }).ok()?;
    reader.end().ok()?;
    field
}

/// Looks at one field after the other and keeps none but the one that is looked for: a body may have millions.
struct FieldAt<'a> {
    raw: &'a str,
    offset: usize,
}

impl<'a> Visitor<'a> for FieldAt<'a> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut fields: A) -> Result<Option<String>, A::Error> {
        let mut found = None;
        while let Some((name, value)) = fields.next_entry::<String, &'a RawValue>()? {
            let start = value.get().as_ptr() as usize - self.raw.as_ptr() as usize;
            if (start..=start + value.get().len()).contains(&self.offset) {
                found = Some(name);
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Pair {
        #[expect(dead_code, reason = "only read, never inspected")]
        one: i64,
        #[expect(dead_code, reason = "only read, never inspected")]
        two: Inner,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[expect(dead_code, reason = "only read, never inspected")]
        deep: bool,
    }

    #[test]
    fn the_field_that_is_to_blame_is_found_wherever_it_stands() {
        for (raw, field) in [
            (r#"{"one":"x","two":{"deep":true}}"#, "one"),
            ("{\n  \"one\" : \"x\" ,\n \"two\" : {\"deep\":true}}", "one"),
            ("{\n\"two\":{\"deep\":true},\n\n\"one\":[]}", "one"),
            (r#"{"ä":1,"one":1}"#, "ä"),
            (r#"{"one":1,"two":{"deep":1}}"#, "two"),
            (r#"{"one":1,"two":{"flat":1}}"#, "two.flat"),
            (r#"{"one":1,"two":{}}"#, "two.deep"),
            (r#"{"one":1}"#, "two"),
            (r#"{"two":{"deep":true}}"#, "one"),
            (r#"{"one":1,"one":2}"#, "one"),
            (r#"{"one":"x","one":2}"#, "one"),
            (r#"{"one":1,"two":{"deep":true},"three":{}}"#, "three"),
        ] {
            let problem = json::<Pair>(raw).unwrap_err();
            assert_eq!((problem.field.as_deref(), problem.status), (Some(field), 422), "{raw}: {problem:?}");
        }
    }

    #[derive(Debug, Deserialize)]
    struct Numbers {
        #[serde(default, deserialize_with = "crate::json::whole")]
        small: Option<i16>,
        #[serde(default, deserialize_with = "crate::json::whole_present")]
        large: Option<i64>,
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_fraction_of_nothing() {
        for (raw, small, large) in [
            (r#"{"small":72.0,"large":-1e3}"#, Some(72), Some(-1_000)),
            (r#"{"small":null}"#, None, None),
            (r#"{"large":9223372036854775807}"#, None, Some(i64::MAX)),
        ] {
            let read: Numbers = json(raw).expect("read");
            assert_eq!((read.small, read.large), (small, large), "{raw}");
        }
        for raw in [
            r#"{"small":1.5}"#,
            r#"{"small":70000}"#,
            r#"{"small":"1"}"#,
            r#"{"large":null}"#,
            r#"{"large":1e300}"#,
            r#"{"large":18446744073709551615}"#,
        ] {
            assert_eq!(json::<Numbers>(raw).expect_err("refused").status, 422, "{raw}");
        }
    }

    #[test]
    fn an_array_is_no_object() {
        for (raw, status) in [("[1, {\"deep\": true}]", 422), (" []", 422), ("[1,", 400)] {
            assert_eq!(object::<Pair>(raw).expect_err("refused").status, status, "{raw}");
        }
        assert!(object::<Pair>(r#" {"one":1,"two":{"deep":true}}"#).is_ok());
    }

    #[test]
    fn a_bare_message_is_searched_for_the_field_it_names() {
        let problem = explain_text("unknown field `colour`, expected `queue`");
        assert_eq!((problem.status, problem.field.as_deref()), (422, Some("colour")));
        assert_eq!(explain_text("something else").status, 400);
    }

    #[test]
    fn a_problem_is_short_however_long_the_name_or_the_value_that_it_is_about() {
        let long = "é".repeat(3_300);
        for raw in [
            format!(r#"{{"{long}":1}}"#),
            format!(r#"{{"queue":"q","delay_ms":"{long}"}}"#),
            format!(r#"{{"queue":"q","due_at":"{long}"}}"#),
            format!(r#"{{"queue":"q","on_duplicate":"{long}"}}"#),
            format!(r#""{long}""#),
        ] {
            let problem = crate::wire::TaskRequest::parse(&raw).expect_err("refused");
            let json = serde_json::to_string(&problem).expect("JSON");
            assert!(problem.detail.ends_with('…') && json.len() < 2_000, "{} bytes: {json:.300}", json.len());
        }
        for message in [format!("unknown field `{long}`"), long] {
            let problem = explain_text(&message);
            assert!(serde_json::to_string(&problem).expect("JSON").len() < 2_000, "{problem}");
        }
    }

    /// The problem that refuses a request with this body.
    fn refused<T: serde::de::DeserializeOwned>(raw: &str) -> Option<Problem> {
        object::<T>(raw).err()
    }

    type Refused = fn(&str) -> Option<Problem>;

    /// Collects the names of the objects with fields that `schema` refers to.
    fn objects(schemas: &serde_json::Value, schema: &serde_json::Value, found: &mut Vec<String>) {
        match schema {
            serde_json::Value::Object(fields) => {
                if let Some(name) = fields.get("$ref").and_then(|name| name.as_str()?.rsplit('/').next())
                    && schemas[name].to_string().contains("\"properties\"")
                {
                    found.push(name.to_owned());
                }
                fields.values().for_each(|inner| objects(schemas, inner, found));
            }
            serde_json::Value::Array(several) => several.iter().for_each(|inner| objects(schemas, inner, found)),
            _ => {}
        }
    }

    #[test]
    fn an_object_inside_a_request_is_not_read_from_an_array() {
        let document: serde_json::Value =
            serde_json::from_str(include_str!("../../../scheduler-node/src/http/openapi.json")).unwrap();
        let schemas = &document["components"]["schemas"];
        let requests: [(&str, &str, Refused); 6] = [
            ("TaskRequest", r#""queue":"q""#, refused::<crate::wire::TaskRequest>),
            ("QueueRequest", r#""settle":"result""#, refused::<crate::wire::QueueRequest>),
            ("ScheduleRequest", r#""queue":"q""#, refused::<crate::wire::ScheduleRequest>),
            ("BulkRequest", r#""action":"cancel""#, refused::<crate::wire::BulkRequest>),
            ("TaskChange", r#""priority":1"#, refused::<crate::wire::ChangeRequest>),
            ("TokenRequest", r#""name":"n","role":"viewer""#, refused::<crate::wire::TokenRequest>),
        ];
        let mut tried = Vec::new();
        for (request, rest, refused) in requests {
            assert!(refused(&format!("{{{rest}}}")).is_none(), "{request} alone");
            for (field, schema) in schemas[request]["properties"].as_object().unwrap() {
                let mut found = Vec::new();
                objects(schemas, schema, &mut found);
                for name in found {
                    // The array that serde would read as this struct.
                    let array = match name.as_str() {
                        "RetryPolicy" => r#"["immediate"]"#,
                        "Filter" | "LimitsRequest" => "[]",
                        "Dependency" => r#"[["q","k"]]"#,
                        other => panic!("add the array form of `{other}` here"),
                    };
                    let problem = refused(&format!(r#"{{{rest},"{field}":{array}}}"#));
                    let problem = problem.unwrap_or_else(|| panic!("{request} takes `{field}` = {array}"));
                    assert_eq!((problem.status, problem.field.as_deref()), (422, Some(field.as_str())), "{request}");
                    tried.push(name);
                }
            }
        }
        assert_eq!(tried.len(), 6, "{tried:?}");
    }
}
