//! The node's log: lines on standard error, as text or JSON.

use std::{fmt, io::IsTerminal};

use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter,
    filter::ParseError,
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Format as Lines, Json, Writer},
    },
    registry::LookupSpan,
    reload,
    util::TryInitError,
};

use crate::{
    causes::explained,
    config::telemetry::{Format, Telemetry},
};

/// Silences libraries that log too much. The AMQP client warns of every message that the broker returns and of
/// every orderly close; `broker/` counts and handles both itself. The pools of the database client report each
/// connection that `store/` refuses as an error; `store/` handles it. The entries precede the configured filter, so
/// a filter that names a target wins.
const QUIETER: &str = "lapin=off,sqlx_core::pool::inner=off";

/// The reason why logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`telemetry.log` is not a log filter")]
    Filter(#[source] ParseError),
    #[error("logging is already running")]
    Started(#[source] TryInitError),
    #[error("the log has no filter any more")]
    Replaced(#[source] reload::Error),
}

/// Replaces the filter of a log that runs. Events that the filter drops cost as little as before: each place in the
/// code remembers the filter's answer, and asks again only after a change.
pub struct LogFilter(Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>);

impl LogFilter {
    /// Lets these lines through from now on: a level, or `target=level` directives.
    pub fn set(&self, log: &str) -> Result<(), Error> {
        (self.0)(filter(log)?).map_err(Error::Replaced)
    }
}

impl fmt::Debug for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogFilter").finish_non_exhaustive()
    }
}

/// Starts logging for the whole process. `node` names the source of the lines.
pub fn start(telemetry: &Telemetry, node: &str) -> Result<LogFilter, Error> {
    use tracing_subscriber::util::SubscriberInitExt;

    // A line that cannot be written is lost. The library would print why to the same closed pipe or full disk, and
    // that panics.
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter(&telemetry.log)?)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    let (started, filter) = match telemetry.format {
        Format::Text => {
            let lines = lines.with_ansi(std::io::stderr().is_terminal()).with_filter_reloading();
            let handle = lines.reload_handle();
            (lines.finish().try_init(), LogFilter(Box::new(move |filter| handle.reload(filter))))
        }
        Format::Json => {
            let json = lines.json().flatten_event(true).with_current_span(false).with_span_list(true);
            let lines = json.map_event_format(|lines| Named::new(lines, node)).with_filter_reloading();
            let handle = lines.reload_handle();
            (lines.finish().try_init(), LogFilter(Box::new(move |filter| handle.reload(filter))))
        }
    };
    started.map(|()| filter).map_err(Error::Started)
}

/// Lines of JSON with the causes of an error and the node's name at the end of each.
struct Named {
    lines: Lines<Json>,
    /// The text in place of the closing brace.
    end: String,
}

impl Named {
    fn new(lines: Lines<Json>, node: &str) -> Self {
        Self { lines, end: format!(",\"node\":{}}}", serde_json::Value::from(node)) }
    }
}

impl<S, N> FormatEvent<S, N> for Named
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = String::new();
        self.lines.format_event(context, Writer::new(&mut line), event)?;
        let open = line.trim_end().strip_suffix('}').ok_or(fmt::Error)?;
        writer.write_str(open)?;
        let mut causes = Causes::default();
        event.record(&mut causes);
        if let Some(causes) = causes.0 {
            write!(writer, ",\"causes\":{}", serde_json::Value::from(causes))?;
        }
        writeln!(writer, "{}", self.end)
    }
}

/// The causes of an event's error: `Json` writes the error alone.
#[derive(Default)]
struct Causes(Option<String>);

impl Visit for Causes {
    fn record_error(&mut self, _: &Field, error: &(dyn std::error::Error + 'static)) {
        self.0 = error.source().map(explained);
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

fn filter(log: &str) -> Result<EnvFilter, Error> {
    EnvFilter::try_new(format!("{QUIETER},{log}")).map_err(Error::Filter)
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use super::*;

    /// Collects the lines of a log.
    #[derive(Clone, Default)]
    struct Collected(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Collected {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("it failed without effect")]
    struct Failed(#[source] io::Error);

    #[test]
    fn a_line_of_json_has_the_causes_of_its_error() {
        let collected = Collected::default();
        let writer = collected.clone();
        let json = tracing_subscriber::fmt().with_writer(move || writer.clone()).json().flatten_event(true);
        let log = json.map_event_format(|lines| Named::new(lines, "a")).finish();
        tracing::subscriber::with_default(log, || {
            let error = Failed(io::Error::other("permission denied for table \"tasks\""));
            tracing::error!(error = &error as &dyn std::error::Error, "claim failed");
            tracing::info!("claimed");
        });
        let bytes = collected.0.lock().expect("no panic").clone();
        let lines: Vec<serde_json::Map<String, serde_json::Value>> = String::from_utf8(bytes)
            .expect("text")
            .lines()
            .map(|line| serde_json::from_str(line).expect("one object a line"))
            .collect();
        assert_eq!(lines[0]["error"], "it failed without effect");
        assert_eq!(lines[0]["causes"], "permission denied for table \"tasks\"");
        assert_eq!(lines[0]["node"], "a");
        assert!(!lines[1].contains_key("causes"), "{:?}", lines[1]);
    }

    #[test]
    fn the_amqp_client_is_quiet_unless_the_filter_names_it() {
        assert!(filter("debug").expect("a filter").to_string().contains("lapin=off"));
        let named = filter("info,lapin=debug").expect("a filter").to_string();
        assert!(named.contains("lapin=debug") && !named.contains("lapin=off"), "{named}");
    }
}
