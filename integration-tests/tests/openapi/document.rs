//! Lookups in the OpenAPI document: the operation of a request, and whether a request or an answer fits its
//! description.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// Refusals that only some operations describe; any operation may return the others.
const OF_THE_OPERATION: [u16; 3] = [404, 409, 422];

/// The document of the repository, or the one that a node served.
#[derive(Debug)]
pub(crate) struct Document(pub(crate) Value);

/// One operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation<'a> {
    pub(crate) method: &'a str,
    /// With its variable parts in braces.
    pub(crate) path: &'a str,
    pub(crate) told: &'a Value,
}

impl std::fmt::Display for Operation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method.to_uppercase(), self.path)
    }
}

impl<'a> Operation<'a> {
    /// The schema of its request; `None`: it takes no body.
    pub(crate) fn request(&self) -> Option<&'a Value> {
        self.told.pointer("/requestBody/content/application~1json/schema")
    }

    /// Its request examples, by name.
    pub(crate) fn examples(&self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let examples = self.told.pointer("/requestBody/content/application~1json/examples").and_then(Value::as_object);
        examples.into_iter().flatten().map(|(name, example)| (name.as_str(), &example["value"]))
    }
}

impl Document {
    pub(crate) fn operations(&self) -> Vec<Operation<'_>> {
        let paths = self.0["paths"].as_object().into_iter().flatten();
        paths
            .flat_map(|(path, item)| {
                item.as_object().into_iter().flatten().map(move |(method, told)| Operation { method, path, told })
            })
            .collect()
    }

    /// The operation of a request; a literal segment of a path takes precedence over a variable.
    pub(crate) fn operation(&self, method: &str, path: &str) -> Result<Operation<'_>> {
        let path = path.split('?').next().unwrap_or_default();
        let fits = |operation: &Operation<'_>| {
            let (told, asked): (Vec<_>, Vec<_>) = (operation.path.split('/').collect(), path.split('/').collect());
            operation.method.eq_ignore_ascii_case(method)
                && told.len() == asked.len()
                && told.iter().zip(&asked).all(|(told, asked)| told.starts_with('{') || told == asked)
        };
        let variables = |operation: &Operation<'_>| operation.path.matches('{').count();
        let found = self.operations().into_iter().filter(fits).min_by_key(variables);
        found.with_context(|| format!("{method} {path} is not described"))
    }

    /// Refuses a value that a schema of this document does not allow.
    pub(crate) fn check(&self, schema: &Value, value: &Value) -> Result<()> {
        // References lead to the components, so those are included.
        let whole = json!({ "allOf": [schema], "components": self.0["components"] });
        let validator = jsonschema::options()
            .with_draft(jsonschema::Draft::Draft202012)
            .should_validate_formats(true)
            .build(&whole)
            .map_err(|error| anyhow::anyhow!("{schema} is no schema: {error}"))?;
        let errors: Vec<String> =
            validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
        ensure!(errors.is_empty(), "{value} does not fit {schema}: {errors:?}");
        Ok(())
    }

    /// Refuses an answer that is not described: its status, its content type or any part of its body.
    pub(crate) fn check_answer(&self, operation: Operation<'_>, answer: &Answer) -> Result<()> {
        let responses = &operation.told["responses"];
        let told = responses.get(answer.status.to_string());
        // A success needs a description under its own status, and so does a refusal that depends on the operation.
        let told = told.or_else(|| {
            responses.get("default").filter(|_| answer.status >= 400 && !OF_THE_OPERATION.contains(&answer.status))
        });
        let told = self.resolved(told.with_context(|| format!("{operation}: {} is not described", answer.status))?)?;
        let Some(contents) = told["content"].as_object() else {
            ensure!(answer.text.is_empty(), "{operation}: {} has no body, not {}", answer.status, answer.text);
            return Ok(());
        };
        let content = contents
            .get(&answer.content_type)
            .with_context(|| format!("{operation}: {} is not {}", answer.status, answer.content_type))?;
        self.check_content(content, answer).with_context(|| format!("{operation}: {}", answer.status))
    }

    fn check_content(&self, content: &Value, answer: &Answer) -> Result<()> {
        match content.get("x-line") {
            Some(line) => answer.text.lines().try_for_each(|text| self.check(line, &serde_json::from_str(text)?)),
            None if answer.content_type.ends_with("json") => {
                self.check(&content["schema"], &serde_json::from_str(&answer.text)?)
            }
            None => Ok(()),
        }
    }

    /// The target of a reference.
    pub(crate) fn resolved<'a>(&'a self, value: &'a Value) -> Result<&'a Value> {
        match value["$ref"].as_str().map(|reference| reference.strip_prefix('#')) {
            None => Ok(value),
            Some(Some(pointer)) => self.0.pointer(pointer).with_context(|| format!("{pointer} leads nowhere")),
            Some(None) => bail!("{value} leads out of the document"),
        }
    }
}

/// An answer of a node.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Without its parameters.
    pub(crate) content_type: String,
    pub(crate) text: String,
}
