//! Every key of the configuration, as `duetime node --help` and docs/configuration.md list them. Tests compare this
//! table with the structs and with the page.

use std::fmt::Write;

/// One key of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// `section.name`; `[]` stands where a section repeats.
    pub path: &'static str,
    /// The default, as the file would write it; empty when the key is required or off.
    pub default: &'static str,
    pub meaning: &'static str,
    /// Whether a running node takes a change over when it reads the file again.
    pub reloads: bool,
}

const fn key(path: &'static str, default: &'static str, meaning: &'static str) -> Key {
    Key { path, default, meaning, reloads: false }
}

const fn reloaded(path: &'static str, default: &'static str, meaning: &'static str) -> Key {
    Key { path, default, meaning, reloads: true }
}

/// Secrets that may come from a file instead: `<key>_file` names the file.
pub const SECRETS: &[&str] =
    &["etcd.password", "database[].url", "amqp.url", "telemetry.otlp_headers", "auth.oidc.client_secret"];

/// OpenTelemetry's variable whose URL is used as it stands, without a path added.
pub const WHOLE_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";

/// OpenTelemetry's variables and the keys that they set when nothing else does. The first variable that is set
/// counts.
pub const STANDARD: &[(&str, &str)] = &[
    (WHOLE_ENDPOINT, "telemetry.otlp_endpoint"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "telemetry.otlp_endpoint"),
    ("OTEL_SERVICE_NAME", "telemetry.service_name"),
    ("OTEL_TRACES_SAMPLER_ARG", "telemetry.trace_ratio"),
];

pub const KEYS: &[Key] = &[
    key("node.name", "", "permanent name of this node, the same after a restart; default: the host's name"),
    key("cluster.shards", "256", "number of shards of a new cluster, 1 to 4096; an existing one keeps its own"),
    key("etcd.endpoints", "[\"http://127.0.0.1:2379\"]", "one or more URLs; separated by commas in the environment"),
    key("etcd.prefix", "\"/duetime\"", "prefix of every key of this cluster"),
    key(
        "etcd.lease_ttl_ms",
        "10000",
        "silence after which the cluster treats a node as lost; whole seconds, at least 2000",
    ),
    key("etcd.username", "", "requires etcd.password"),
    key("etcd.password", "", ""),
    key("etcd.password_file", "", "file that holds the password"),
    key("etcd.ca_file", "", "PEM of the authority that signed the servers' certificates; default: the system's"),
    key("etcd.cert_file", "", "PEM of the client certificate, with etcd.key_file"),
    key("etcd.key_file", "", "PEM of its private key"),
    key(
        "database[].name",
        "\"main\"",
        "permanent name of the database, different for each. The first one keeps queues, schedules and tokens: never change which one is first",
    ),
    key(
        "database[].url",
        "",
        "postgres://user:password@host:5432/database; required. Beyond loopback it asks for TLS unless it has an sslmode. Several hosts (host1:5432,host2:5432): the one that takes writes",
    ),
    key("database[].url_file", "", "file that holds the url"),
    key(
        "database[].shards",
        "",
        "the shards that the first migration gives it, such as 0-127; several databases together cover 0-n without gap or overlap. Default: the first database has all",
    ),
    key(
        "database[].max_connections",
        "20",
        "most connections this node opens to it: half to dispatch tasks, a quarter for writes, a quarter for reads",
    ),
    key(
        "database[].require_synchronous_standby",
        "false",
        "accept tasks only while a synchronous standby confirms commits; the role needs pg_monitor",
    ),
    key(
        "amqp.url",
        "",
        "amqp://user:password@host:5672/vhost or amqps://host:5671/vhost; required. Several hosts are tried in turn. With `?auth_mechanism=external` the certificate logs in",
    ),
    key("amqp.url_file", "", "file that holds the url"),
    key("amqp.ca_file", "", "PEM of the authority that signed the broker's certificate; default: the system's"),
    key("amqp.cert_file", "", "PEM of the client certificate, with amqp.key_file; read again for each connection"),
    key("amqp.key_file", "", "PEM of its private key"),
    key(
        "amqp.default_door",
        "true",
        "whether reports and submissions may use the default exchange; false: only the exchange duetime.in",
    ),
    reloaded(
        "delay_exchange[].name",
        "",
        "exchange that this cluster declares; a message published there waits as its `x-delay` header says",
    ),
    reloaded(
        "delay_exchange[].type",
        "\"topic\"",
        "topic, direct, fanout or headers: the type that its publishers declare",
    ),
    reloaded("delay_exchange[].deliver_to", "", "exchange to which a due message is published unchanged"),
    reloaded(
        "delay_exchange[].unroutable",
        "\"set_aside\"",
        "what to do with a message that deliver_to cannot route to a queue: set_aside, wait or drop",
    ),
    key(
        "http.listen",
        "\"127.0.0.1:8080\"",
        "address and port; beyond loopback only with an auth token; port 0 takes a free one",
    ),
    key("http.max_connections", "4096", "most client connections open at one time"),
    key(
        "http.max_connections_per_address",
        "1024",
        "of these, most connections from one address (IPv6: one /64 network); default: http.max_connections where that is less",
    ),
    key(
        "http.max_requests_per_second",
        "0",
        "most requests a second that each node accepts from each caller; 0: no limit",
    ),
    key(
        "http.cert_file",
        "",
        "PEM of the node's certificate with its chain, with http.key_file; the node then accepts TLS only",
    ),
    key("http.key_file", "", "PEM of its private key; both files are read again when they change"),
    key("http.advertise", "", "base URL shown to other nodes and to people; default: from http.listen"),
    reloaded("auth.token[].name", "", "name of the token's holder"),
    reloaded(
        "auth.token[].role",
        "",
        "metrics, submitter, reporter, observer, viewer, producer or operator; see the roles in docs/security.md",
    ),
    reloaded("auth.token[].queues", "", "the queues it covers: a list of names, or prefixes and `*`; default: all"),
    reloaded(
        "auth.token[].limits.requests_per_second",
        "",
        "most requests a second that each node accepts with it; default: http.max_requests_per_second",
    ),
    reloaded(
        "auth.token[].limits.pending",
        "",
        "most unfinished tasks of its queues; default: no limit, as for the next",
    ),
    reloaded("auth.token[].limits.pending_bytes", "", "most bytes of the payloads and headers of these tasks"),
    reloaded(
        "auth.token[].limits.queues",
        "",
        "most queues that it covers; default: queues.max_per_caller, of those it creates",
    ),
    reloaded("auth.token[].limits.schedules", "", "most schedules of its queues"),
    reloaded("auth.token[].sha256", "", "hex of the SHA-256 of the token; `duetime token` makes both"),
    key("auth.oidc.issuer", "", "https:// address of the identity provider that signs people in to the console"),
    key("auth.oidc.client_id", "", "name of this cluster at the provider"),
    key(
        "auth.oidc.client_secret",
        "",
        "secret of this cluster at the provider, the same on every node; at least 24 characters",
    ),
    key("auth.oidc.client_secret_file", "", "file that holds the secret"),
    key("auth.oidc.scopes", "[\"openid\", \"profile\", \"email\"]", "scopes requested from the provider"),
    key(
        "auth.oidc.redirect_url",
        "",
        "address of the console with the path /console/sign-in/oidc/callback, as registered with the provider",
    ),
    key(
        "auth.oidc.roles_claim",
        "\"groups\"",
        "claim of the id token that holds a person's groups or roles, by its name or as a path with dots",
    ),
    key("auth.oidc.role[].value", "", "a value of that claim; people without any of them cannot sign in"),
    key(
        "auth.oidc.role[].role",
        "",
        "observer, viewer, producer or operator; of several values, the strongest role counts",
    ),
    key("auth.oidc.role[].queues", "", "the queues it covers, as for a token; default: all"),
    key("audit.keep_days", "400", "how long audit records are kept; the same on every node"),
    key("console.show_payloads", "true", "whether the web console shows payloads and results"),
    key("scheduler.horizon_ms", "10000", "how far ahead due tasks are loaded into memory"),
    key("scheduler.heap_entries", "1000000", "most due tasks of each database kept in memory, about 70 bytes each"),
    key(
        "scheduler.claim_ahead_ms",
        "100",
        "how long before its due time a task may be claimed at most, up to 2000; the node uses as much of it as claims lately took or a crowd of tasks needs, and at most a quarter of etcd.lease_ttl_ms",
    ),
    key("scheduler.batch", "500", "most tasks claimed or settled in one statement"),
    key("scheduler.window", "10000", "most claimed tasks of each database whose outcome is not written yet"),
    key("queues.auto_create", "true", "whether a submission creates a queue that does not exist"),
    key("queues.max", "5000", "most queues in the cluster; further ones are refused"),
    key(
        "queues.max_per_caller",
        "1000",
        "of these, most queues that one caller's submissions create; default: queues.max where that is less",
    ),
    key("queues.max_payload_bytes", "262144", "largest payload accepted, at most 1048576"),
    reloaded("telemetry.log", "\"info\"", "level, or `target=level` directives separated by commas"),
    key("telemetry.format", "\"text\"", "text or json"),
    key("telemetry.otlp_endpoint", "", "http://host:4318 of an OpenTelemetry collector; default: nothing is exported"),
    key("telemetry.otlp_headers", "", "name=value pairs separated by commas, sent with every export"),
    key("telemetry.otlp_headers_file", "", "file that holds these pairs"),
    key("telemetry.service_name", "\"duetime\"", "name of the cluster at the collector"),
    key(
        "telemetry.history_file",
        "",
        "file to which the node appends each step of each task, for a check of a run; default: none. No rotation: name another file for each start",
    ),
    key("telemetry.trace_ratio", "0", "share of the tasks submitted without a trace that start one: 0 to 1"),
];

impl Key {
    /// The variable that overrides the key: `DUETIME_SECTION__NAME`, with an index if the section repeats.
    pub fn variable(&self) -> String {
        format!("DUETIME_{}", self.path.replace("[]", "__0").replace('.', "__").to_uppercase())
    }
}

/// The table as text: key, default, variable and meaning.
pub fn table() -> String {
    let mut text = String::from(
        "Configuration keys, with defaults. The file is TOML; an environment variable takes precedence over it.\n\
         A section that repeats is `[[database]]`, `[[delay_exchange]]`, `[[auth.token]]` or `[[auth.oidc.role]]` in \
         the file and counts from 0 in a variable.\n\
         A running node reads the file again when it changes, and on SIGHUP. It takes over the keys marked (reloaded) \
         and new [[database]] sections; the others require a restart.\n",
    );
    for key in KEYS {
        let default = if key.default.is_empty() { String::new() } else { format!(" = {}", key.default) };
        // Writing to a String cannot fail.
        let mark = if key.reloads { " (reloaded)" } else { "" };
        let _ = writeln!(text, "\n  {}{default}{mark}\n      {}", key.path, key.variable());
        if !key.meaning.is_empty() {
            let _ = writeln!(text, "      {}", key.meaning);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{KEYS, Key};

    fn row(key: &Key) -> String {
        let default = if key.default.is_empty() { String::new() } else { format!("`{}`", key.default) };
        let reloaded = if key.reloads { "yes" } else { "" };
        format!("| `{}` | {default} | {reloaded} | {} |", key.path, key.meaning)
    }

    #[test]
    fn the_page_on_the_configuration_lists_every_key_as_the_help_does() {
        let page = include_str!("../../../docs/configuration.md");
        let listed: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        let known: Vec<String> = KEYS.iter().map(row).collect();
        assert_eq!(listed, known);
    }
}
