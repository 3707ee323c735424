//! `[telemetry]`: the node's logs, traces and history.

use std::{collections::BTreeMap, path::PathBuf};

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use super::{complaint::Complaints, keys, read};

/// Which log lines are written, in which format, and where traces and the history go.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Telemetry {
    /// A level, or `target=level` directives separated by commas.
    pub log: String,
    pub format: Format,
    /// Base URL of an OpenTelemetry collector that takes OTLP over HTTP; `None`: nothing is exported.
    pub otlp_endpoint: Option<String>,
    /// Whether that is the whole URL for spans.
    #[serde(skip)]
    pub is_whole_endpoint: bool,
    /// `name=value` pairs separated by commas, sent with every export.
    #[serde(deserialize_with = "read::maybe_secret")]
    pub otlp_headers: Option<SecretString>,
    /// The cluster's service name at the collector.
    pub service_name: String,
    /// The share, from 0 to 1, of tasks without a caller's trace that begin one.
    pub trace_ratio: f64,
    /// The file for the steps of tasks that this node sees; `None`: they are not recorded.
    pub history_file: Option<PathBuf>,
}

/// The path for spans, below the collector's base URL.
const TRACES_PATH: &str = "/v1/traces";

fn pairs(text: &str) -> impl Iterator<Item = Option<(&str, &str)>> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.split_once('=').map(|(name, value)| (name.trim(), value.trim())))
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For a person.
    Text,
    /// One JSON object a line.
    Json,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            log: "info".to_owned(),
            format: Format::Text,
            otlp_endpoint: None,
            is_whole_endpoint: false,
            otlp_headers: None,
            service_name: "duetime".to_owned(),
            trace_ratio: 0.0,
            history_file: None,
        }
    }
}

impl Telemetry {
    /// Notes what it means that these `variables` set keys.
    pub(super) fn set_by(&mut self, variables: &BTreeMap<String, String>) {
        let variable = variables.get("telemetry.otlp_endpoint");
        self.is_whole_endpoint = variable.is_some_and(|variable| variable == keys::WHOLE_ENDPOINT);
    }

    /// The URL that spans are sent to.
    pub fn traces_url(&self) -> Option<String> {
        let endpoint = self.otlp_endpoint.as_deref()?;
        if self.is_whole_endpoint {
            return Some(endpoint.to_owned());
        }
        let base = endpoint.trim_end_matches('/');
        // Some write the whole URL here as well.
        Some(if base.ends_with(TRACES_PATH) { base.to_owned() } else { format!("{base}{TRACES_PATH}") })
    }

    /// The headers of every export. A part that is not a pair has become a complaint already.
    pub fn headers(&self) -> impl Iterator<Item = (String, String)> {
        let text = self.otlp_headers.as_ref().map_or("", |headers| headers.expose_secret());
        pairs(text).flatten().map(|(name, value)| (name.to_owned(), value.to_owned()))
    }

    pub(super) fn check(&self, complaints: &mut Complaints) {
        self.check_log(complaints);
        if let Some(endpoint) = &self.otlp_endpoint {
            complaints.unless(
                ["http://", "https://"]
                    .iter()
                    .any(|scheme| endpoint.len() > scheme.len() && endpoint.starts_with(scheme)),
                "telemetry.otlp_endpoint",
                format!("is {endpoint:?}; it must be an address such as http://collector:4318"),
            );
        }
        let headers = self.otlp_headers.as_ref().map_or("", |headers| headers.expose_secret());
        complaints.unless(
            pairs(headers).all(|pair| pair.is_some()),
            "telemetry.otlp_headers",
            "must be name=value pairs separated by commas",
        );
        complaints.unless(
            (0.0..=1.0).contains(&self.trace_ratio),
            "telemetry.trace_ratio",
            format!("is {}; it must be from 0 to 1", self.trace_ratio),
        );
    }

    fn check_log(&self, complaints: &mut Complaints) {
        if let Err(error) = EnvFilter::try_new(&self.log) {
            complaints.add("telemetry.log", format!("is {:?}, which is not a log filter: {error}", self.log));
            return;
        }
        // A misspelt level would parse as the name of a target, and would silence every other target.
        for word in self.log.split(',').map(str::trim) {
            complaints.unless(
                word.contains('=') || word.contains('[') || word.parse::<LevelFilter>().is_ok(),
                "telemetry.log",
                format!(
                    "has {word:?}, which is neither a level (off, error, warn, info, debug, trace) nor target=level"
                ),
            );
        }
    }
}
