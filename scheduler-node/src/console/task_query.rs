//! Which tasks a page shows, as its URL says.

use axum::http::Uri;
use chrono::NaiveDateTime;
use common::{
    task::TaskState,
    wire::{ListFilter, Problem, TaskFilter},
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The filters of tasks: the API's name and the page's name of each.
pub(super) const FILTERS: [(&str, &str); 7] = [
    ("queue", "Queue"),
    ("state", "State"),
    ("key", "Key"),
    ("partition_key", "Partition key"),
    ("due_after", "Due from"),
    ("due_before", "Due before"),
    ("error", "Error"),
];

/// Tasks on one page.
pub(super) const PAGE: u32 = 50;

/// The number of earlier pages that a URL remembers; going back further leads to the first page.
const BACK: usize = 20;

/// The field of a form that holds a filter in the encoding of a URL. Browsers change the line breaks of other fields.
const ENCODED: &str = "filter";

/// The filters that are compared with a text of a client, blanks included.
const TEXTS: [&str; 3] = ["key", "partition_key", "error"];

/// Stands for the first page among those to go back to.
const FIRST: &str = "first";

/// A filter and a position in its list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TaskQuery {
    fields: Vec<(&'static str, String)>,
    pub(super) cursor: Option<String>,
    /// The pages before this one, the nearest last.
    back: Vec<String>,
}

impl TaskQuery {
    pub(super) fn of_uri(uri: &Uri) -> Self {
        Self::of_pairs(form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()))
    }

    /// Empty and unknown fields are left out, because forms send every field. An encoded filter wins over the fields
    /// beside it, which a browser may have changed.
    pub(super) fn of_pairs(pairs: impl Iterator<Item = (impl AsRef<str>, impl AsRef<str>)>) -> Self {
        let mut query = Self::default();
        let mut encoded = Vec::new();
        for (name, value) in pairs {
            match (name.as_ref(), value.as_ref()) {
                (ENCODED, filter) => encoded.push(filter.to_owned()),
                (name, value) => query.take(name, value),
            }
        }
        for (name, value) in encoded.iter().flat_map(|filter| form_urlencoded::parse(filter.as_bytes())) {
            query.take(&name, &value);
        }
        query
    }

    fn take(&mut self, name: &str, value: &str) {
        let value = if TEXTS.contains(&name) { value } else { value.trim() };
        let known = FILTERS.iter().find(|(known, _)| *known == name);
        match known {
            _ if value.is_empty() => {}
            Some((known, _)) => self.set(known, Some(value)),
            None if name == "cursor" => self.cursor = Some(value.to_owned()),
            None if name == "back" => self.back = value.split(' ').map(str::to_owned).collect(),
            None => {}
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn fields(&self) -> &[(&'static str, String)] {
        &self.fields
    }

    fn set(&mut self, name: &'static str, value: Option<&str>) {
        self.fields.retain(|(field, _)| *field != name);
        self.fields.extend(value.map(|value| (name, value.to_owned())));
    }

    /// The first page of the same filter with that field set, or without it.
    pub(super) fn with(&self, name: &'static str, value: Option<&str>) -> Self {
        let mut query = Self { fields: self.fields.clone(), ..Self::default() };
        query.set(name, value);
        query
    }

    /// The page that begins at `cursor`, with this one to go back to.
    pub(super) fn next(&self, cursor: String) -> Self {
        let mut back = self.back.clone();
        back.push(self.cursor.clone().unwrap_or_else(|| FIRST.to_owned()));
        let forgotten = back.len().saturating_sub(BACK);
        Self { cursor: Some(cursor), back: back.split_off(forgotten), fields: self.fields.clone() }
    }

    /// The page before; `None` on the first.
    pub(super) fn previous(&self) -> Option<Self> {
        self.cursor.as_ref()?;
        let mut back = self.back.clone();
        let cursor = back.pop().filter(|cursor| cursor != FIRST);
        Some(Self { fields: self.fields.clone(), cursor, back })
    }

    pub(super) fn url(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(self.fields.iter().map(|(name, value)| (*name, value.as_str())));
        if let Some(cursor) = &self.cursor {
            query.append_pair("cursor", cursor);
        }
        if !self.back.is_empty() {
            query.append_pair("back", &self.back.join(" "));
        }
        format!("/console/tasks?{}", query.finish())
    }

    /// The filter alone, in the encoding of a URL.
    pub(super) fn encoded(&self) -> String {
        form_urlencoded::Serializer::new(String::new()).extend_pairs(&self.fields).finish()
    }

    /// One field alone, in the encoding of a URL, if it has line breaks: an input of one line would lose them.
    pub(super) fn encoded_lines(&self, name: &'static str) -> Option<String> {
        let value = self.get(name).filter(|value| value.contains(['\r', '\n']))?;
        Some(Self::default().with(name, Some(value)).encoded())
    }

    /// The filter as the list takes it; the problem names the field.
    pub(super) fn list_filter(&self) -> Result<ListFilter, Problem> {
        let filter: ListFilter = self.read()?;
        let cursor = self.cursor.as_ref().map(|cursor| cursor.parse());
        let cursor = cursor
            .transpose()
            .map_err(|_| Problem::invalid_field("cursor", "the cursor is not valid; go back to the first page"))?;
        let filter = ListFilter { limit: Some(PAGE), cursor, ..filter };
        filter.validate().map(|()| filter)
    }

    /// The filter as bulk operations take it.
    pub(super) fn task_filter(&self) -> Result<TaskFilter, Problem> {
        let filter: TaskFilter = self.read()?;
        filter.validate().map(|()| filter)
    }

    fn read<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        let mut object = Map::new();
        for (name, value) in &self.fields {
            let value = Value::String(if name.starts_with("due_") { utc(value) } else { value.clone() });
            // Each field is parsed alone first, so that the problem names this field.
            let alone = Value::Object(Map::from_iter([((*name).to_owned(), value.clone())]));
            if let Err(error) = serde_json::from_value::<T>(alone) {
                return Err(Problem::invalid_field(*name, error.to_string()));
            }
            object.insert((*name).to_owned(), value);
        }
        serde_json::from_value(Value::Object(object)).map_err(|error| Problem::unprocessable(error.to_string()))
    }
}

/// A time without a zone, as a person writes it, is in UTC like every time on the pages.
pub(super) fn utc(text: &str) -> String {
    let plain = text.replacen('T', " ", 1);
    let formats = ["%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M"];
    let moment = formats.iter().find_map(|format| NaiveDateTime::parse_from_str(&plain, format).ok());
    moment.map_or_else(|| text.to_owned(), |moment| moment.format("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// The page's name of a filter.
pub(super) fn label(name: &str) -> &'static str {
    FILTERS.iter().find(|(filter, _)| *filter == name).map_or("", |(_, label)| label)
}

/// One filter in a form.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) name: &'static str,
    pub(super) label: &'static str,
    pub(super) value: String,
    /// Set for a value with line breaks, which an input of one line would lose.
    pub(super) encoded: Option<String>,
    pub(super) hint: &'static str,
}

impl Input {
    pub(super) fn of(query: &TaskQuery, (name, label): (&'static str, &'static str)) -> Self {
        Self {
            name,
            label,
            value: query.get(name).unwrap_or_default().to_owned(),
            encoded: query.encoded_lines(name),
            hint: if name.starts_with("due_") { "2030-01-31 08:00 (UTC)" } else { "" },
        }
    }

    pub(super) fn options(&self) -> Vec<&'static str> {
        if self.name == "state" { TaskState::ALL.iter().map(|state| state.text()).collect() } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(query: &str) -> TaskQuery {
        TaskQuery::of_uri(&format!("/console/tasks?{query}").parse().expect("a path"))
    }

    #[test]
    fn a_url_says_all_and_reads_back() {
        let query = "queue=mail&state=dead&key=a+b%26c&due_after=2030-01-01+10%3A00&error=100%25&cursor=x&back=first";
        let read = parsed(query);
        assert_eq!(read.get("key"), Some("a b&c"));
        assert_eq!(parsed(read.url().split_once('?').expect("a query").1), read);
        assert_eq!(parsed("queue=&state=+&colour=red"), TaskQuery::default());
    }

    #[test]
    fn texts_keep_their_blanks_and_an_encoded_filter_its_line_breaks() {
        let blank = parsed("error=+&key=+k&queue=+a+");
        assert_eq!((blank.get("error"), blank.get("key"), blank.get("queue")), (Some(" "), Some(" k"), Some("a")));
        assert_eq!((blank.encoded_lines("error"), blank.encoded_lines("state")), (None, None));
        let lines = TaskQuery::default().with("queue", Some("q")).with("error", Some("a\r\nb\n&c"));
        assert!(lines.encoded().is_ascii() && !lines.encoded().contains(['\r', '\n']), "{}", lines.encoded());
        let whole = [("error", "a\nb\n&c".to_owned()), ("filter", lines.encoded())];
        assert_eq!(TaskQuery::of_pairs(whole.into_iter()).get("error"), Some("a\r\nb\n&c"));
        let alone = lines.encoded_lines("error").expect("it has line breaks");
        let beside = [("filter", alone), ("queue", "q".to_owned()), ("error", String::new())];
        assert_eq!(TaskQuery::of_pairs(beside.into_iter()).encoded(), "queue=q&error=a%0D%0Ab%0A%26c");
    }

    #[test]
    fn filters_are_read_as_the_api_reads_them() {
        let filter = TaskQuery { cursor: None, ..parsed("state=dead&due_after=2030-01-01+10:00&error=x") };
        let list = filter.list_filter().expect("a filter");
        assert_eq!((list.state, list.limit, list.error.as_deref()), (Some(TaskState::Dead), Some(PAGE), Some("x")));
        assert_eq!(list.due_after.expect("given").to_string(), "2030-01-01T10:00:00.000000Z");
        assert_eq!(filter.task_filter().expect("a filter").due_after, list.due_after);
        for query in ["state=done", "queue=a/b", "due_after=soon", "cursor=x"] {
            assert_eq!(parsed(query).list_filter().expect_err("refused").status, 422, "{query}");
        }
    }

    #[test]
    fn pages_lead_on_and_back() {
        let first = parsed("queue=q");
        assert_eq!(first.previous(), None);
        let second = first.next("c2".to_owned());
        let third = second.next("c3".to_owned());
        assert_eq!(third.previous(), Some(second.clone()));
        assert_eq!(second.previous(), Some(first.clone()));
        let far = (0..100).fold(first, |page, n| page.next(n.to_string()));
        assert!(far.url().len() < 500, "{}", far.url());
        assert_eq!(third.with("queue", None), TaskQuery::default());
    }
}
