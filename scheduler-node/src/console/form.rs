//! Forms with the fields of an API request: the same names, each with its meaning and default. A mistake appears
//! beside its field.

use common::{time::UnixMicros, wire::Problem};
use serde_json::{Map, Value};

use super::extract::PostedForm;
use crate::desk::{SEEN, Seen};

/// The value of the field [`SEEN`] where the queue or the schedule does not exist yet.
const NEW: &str = "new";

/// The value of the field [`SEEN`] on a page of a queue or a schedule that was last changed then. `None`: it does not
/// exist yet.
pub(super) fn seen_value(updated_at: Option<UnixMicros>) -> String {
    updated_at.map_or_else(|| NEW.to_owned(), |at| at.to_string())
}

/// The state that the page of the form showed. `None`: the page is of a node of an earlier version.
pub(super) fn seen(posted: &PostedForm) -> Result<Option<Seen>, Problem> {
    match posted.field(SEEN) {
        None => Ok(None),
        Some(NEW) => Ok(Some(Seen::Absent)),
        Some(text) => match serde_json::from_value(Value::from(text)) {
            Ok(at) => Ok(Some(Seen::Changed(at))),
            Err(_) => Err(Problem::invalid_field(SEEN, "the form does not say which state it changes; send it again")),
        },
    }
}

/// The value of the field [`SEEN`] on a page that shows a form again with a problem. It becomes that of the stored
/// state, `now`, once the problem says that this is another one. Before that the old one stays.
pub(super) fn seen_again(posted: &PostedForm, problem: &Problem, now: String) -> String {
    let seen = posted.field(SEEN).filter(|_| problem.field.as_deref() != Some(SEEN));
    seen.map_or(now, str::to_owned)
}

/// One field of a form.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spec {
    /// As the API names it, with a dot between levels.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// The value that applies when the field is left empty.
    pub(super) default: &'static str,
    pub(super) meaning: &'static str,
}

pub(super) const fn spec(name: &'static str, kind: Kind, default: &'static str, meaning: &'static str) -> Spec {
    Spec { name, kind, default, meaning }
}

/// The type of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Whole,
    Number,
    /// Whole numbers separated by commas.
    List,
    Text,
    /// A text that counts with the blanks around it.
    ExactText,
    /// JSON as written; the caller reads it separately.
    Json,
    /// A JSON object.
    Object,
    /// A checkbox.
    Flag,
    OneOf(&'static [&'static str]),
}

/// A field as the page shows it.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) spec: Spec,
    pub(super) value: String,
    pub(super) error: Option<String>,
}

impl Field {
    pub(super) fn options(&self) -> &'static [&'static str] {
        match self.spec.kind {
            Kind::OneOf(options) => options,
            _ => &[],
        }
    }

    pub(super) fn is_long(&self) -> bool {
        let has_lines = self.spec.kind == Kind::ExactText && self.value.contains('\n');
        has_lines || matches!(self.spec.kind, Kind::Json | Kind::Object)
    }

    pub(super) fn is_flag(&self) -> bool {
        self.spec.kind == Kind::Flag
    }
}

/// A parameter of a retry counts only with its own kind.
const RETRY_PARAMETERS: [(&str, &str); 5] = [
    ("retry.delay_ms", "fixed"),
    ("retry.base_ms", "exponential"),
    ("retry.factor", "exponential"),
    ("retry.max_ms", "exponential"),
    ("retry.jitter", "exponential"),
];

/// The fields of `retry`; `default` applies without a kind.
pub(super) const fn retry(default: &'static str) -> [Spec; 6] {
    const KINDS: Kind = Kind::OneOf(&["polynomial", "exponential", "fixed", "immediate"]);
    [
        spec("retry.kind", KINDS, default, "how long to wait after a failed attempt"),
        spec("retry.delay_ms", Kind::Whole, "", "with fixed: the wait"),
        spec("retry.base_ms", Kind::Whole, "", "with exponential: the wait after the first failure"),
        spec("retry.factor", Kind::Number, "2", "with exponential: the factor for each further failure"),
        spec("retry.max_ms", Kind::Whole, "1 day", "with exponential: the longest wait"),
        spec("retry.jitter", Kind::Number, "0", "with exponential: shortened by a random part, 0 to 1"),
    ]
}

/// The fields as the person filled them in.
pub(super) fn filled(specs: &[Spec], posted: &PostedForm) -> Vec<Field> {
    let value = |name| posted.field(name).unwrap_or_default().to_owned();
    specs.iter().map(|spec| Field { spec: *spec, value: value(spec.name), error: None }).collect()
}

/// The fields of an existing object, from the API's `json` of it.
pub(super) fn shown(specs: &[Spec], json: &Value) -> Vec<Field> {
    let field = |spec: &Spec| {
        let value = spec.name.split('.').try_fold(json, |json, level| json.get(level));
        Field { spec: *spec, value: value.map(text).unwrap_or_default(), error: None }
    };
    specs.iter().map(field).collect()
}

/// A value in the text form that [`read`] parses.
fn text(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(false) => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(Value::to_string).collect::<Vec<_>>().join(", "),
        Value::Object(_) => format!("{value:#}"),
        other => other.to_string(),
    }
}

/// The body of a request from the filled-in fields. Empty fields are left out; the problem names a field that does
/// not parse.
pub(super) fn read(specs: &[Spec], posted: &PostedForm) -> Result<Map<String, Value>, Problem> {
    read_fields(specs, |name| posted.field(name))
}

/// Like [`read`]; `one` finds a field by its name.
pub(super) fn read_fields<'a>(
    specs: &[Spec],
    one: impl Fn(&str) -> Option<&'a str>,
) -> Result<Map<String, Value>, Problem> {
    let mut body = Map::new();
    let retry = one("retry.kind");
    for spec in specs.iter().filter(|spec| spec.kind != Kind::Json) {
        let belongs_to = RETRY_PARAMETERS.iter().find(|(name, _)| *name == spec.name).map(|(_, kind)| *kind);
        if belongs_to.is_some() && belongs_to != retry {
            continue;
        }
        let trimmed = |text: &'a str| if spec.kind == Kind::ExactText { text } else { text.trim() };
        let Some(text) = one(spec.name).map(trimmed).filter(|text| !text.is_empty()) else { continue };
        let value = value(spec, text)?;
        match spec.name.split_once('.') {
            Some((outer, inner)) => {
                let outer = body.entry(outer).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(outer) = outer {
                    outer.insert(inner.to_owned(), value);
                }
            }
            None => drop(body.insert(spec.name.to_owned(), value)),
        }
    }
    Ok(body)
}

fn value(spec: &Spec, text: &str) -> Result<Value, Problem> {
    let refuse = |what: &str| Problem::invalid_field(spec.name, format!("`{}` must be {what}", spec.name));
    match spec.kind {
        Kind::Whole => text.parse::<i64>().map(Value::from).map_err(|_| refuse("a whole number, without commas")),
        Kind::Number => {
            let number = text.parse::<f64>().ok().and_then(serde_json::Number::from_f64);
            number.map(Value::Number).ok_or_else(|| refuse("a number with a decimal point, without commas"))
        }
        Kind::List => {
            let numbers = text.split(',').map(|number| number.trim().parse::<i64>().map(Value::from));
            let numbers: Result<Vec<Value>, _> = numbers.collect();
            numbers.map(Value::Array).map_err(|_| refuse("whole numbers with commas between them"))
        }
        Kind::Object => {
            let object = serde_json::from_str::<Map<String, Value>>(text);
            object.map(Value::Object).map_err(|_| refuse("a JSON object, like {\"name\": \"value\"}"))
        }
        Kind::Flag => Ok(Value::Bool(true)),
        Kind::Text | Kind::ExactText | Kind::Json | Kind::OneOf(_) => Ok(Value::from(text)),
    }
}

/// Puts a problem beside the field that it blames; returns its text when it blames none of them.
pub(super) fn blame(fields: &mut [Field], problem: &Problem) -> Option<String> {
    let blamed = problem.field.as_deref().unwrap_or_default();
    let within = |name: &str| name.split_once('.').is_some_and(|(outer, _)| outer == blamed);
    let at = fields.iter().position(|field| field.spec.name == blamed);
    match at.or_else(|| fields.iter().position(|field| within(field.spec.name))) {
        Some(at) => {
            fields[at].error = Some(problem.detail.clone());
            None
        }
        None => Some(problem.detail.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const fn field(name: &'static str, kind: Kind) -> Spec {
        spec(name, kind, "", "")
    }

    #[test]
    fn what_is_shown_reads_back() {
        let specs = [
            field("rate", Kind::Number),
            field("most", Kind::Whole),
            field("weights", Kind::List),
            field("ordered", Kind::Flag),
            field("headers", Kind::Object),
            field("partition_key", Kind::ExactText),
            field("retry.kind", Kind::Text),
        ];
        let json = json!({
            "rate": 0.5, "most": 9_007_199_254_740_993_i64, "weights": [80, 20], "ordered": true, "headers": {"a": "b\nc", "d": ""},
            "partition_key": " eu ", "retry": {"kind": "fixed"}
        });
        let fields = shown(&specs, &json);
        let one = |name: &str| fields.iter().find(|field| field.spec.name == name).map(|field| field.value.as_str());
        assert_eq!(Value::Object(read_fields(&specs, one).expect("reads back")), json);
        assert_eq!(shown(&specs, &json!({"ordered": false}))[3].value, "");
    }

    #[test]
    fn what_cannot_be_read_is_blamed_on_its_field() {
        for (kind, text) in [(Kind::Whole, "1,000"), (Kind::Number, "NaN"), (Kind::List, "1 2"), (Kind::Object, "a: b")]
        {
            let problem = value(&field("f", kind), text).expect_err("refused");
            assert_eq!(problem.field.as_deref(), Some("f"), "{text}");
        }
        let mut fields = shown(&retry("polynomial"), &json!({}));
        assert_eq!(blame(&mut fields, &Problem::invalid_field("retry.base_ms", "a")), None);
        assert_eq!(blame(&mut fields, &Problem::invalid_field("retry", "b")), None);
        assert_eq!((fields[2].error.as_deref(), fields[0].error.as_deref()), (Some("a"), Some("b")));
        assert_eq!(blame(&mut fields, &Problem::conflict("c")).as_deref(), Some("c"));
    }
}
