use std::io::Write as _;

use secrecy::ExposeSecret;

use super::*;

mod hosts;
mod oidc;
mod passwords;
mod shards;
mod variables;

const SMALLEST: &str = r#"
[[database]]
url = "postgres://duetime:s3cret@db:5432/tasks"
[amqp]
url = "amqp://guest:s3cret@mq/%2f"
"#;

fn read(toml: &str, environment: &[(&str, &str)]) -> Result<Config, Error> {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(toml.as_bytes()).expect("written");
    Config::read(Some(file.path()), environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
}

fn complaints(toml: &str, environment: &[(&str, &str)]) -> Vec<String> {
    match read(toml, environment) {
        Ok(_) => Vec::new(),
        Err(Error::Refused(complaints)) => complaints.iter().map(ToString::to_string).collect(),
        Err(other) => vec![other.to_string()],
    }
}

fn file_with(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(text.as_bytes()).expect("written");
    file
}

#[test]
fn the_smallest_file_is_enough() {
    let config = read(SMALLEST, &[]).expect("accepted");
    assert_eq!((config.first_shard_count(), config.stated_shard_count()), (256, None));
    assert_eq!(config.databases[0].name.as_str(), "main");
    assert_eq!(config.databases[0].url.expose_secret(), "postgres://duetime:s3cret@db:5432/tasks");
    assert!(!config.node.name.as_str().is_empty());
}

#[test]
fn the_environment_wins_over_the_file() {
    let config = read(
        &format!("{SMALLEST}\n[scheduler]\nbatch = 100\n[telemetry]\nlog = 'warn'"),
        &[
            ("DUETIME_SCHEDULER__BATCH", "250"),
            ("DUETIME_QUEUES__AUTO_CREATE", "false"),
            ("DUETIME_NODE__NAME", "7"),
            ("DUETIME_ETCD__ENDPOINTS", "http://a:2379, http://b:2379"),
            ("DUETIME_DATABASE__0__URL", "postgres://other/tasks"),
            ("DUETIME_DATABASE__0__SHARDS", "0-15"),
            ("DUETIME_TELEMETRY__LOG", "debug"),
            ("DUETIME_TOKEN", "belongs to a client"),
        ],
    )
    .expect("accepted");
    assert_eq!(config.scheduler.batch, 250);
    assert!(!config.queues.auto_create);
    assert_eq!(config.node.name.as_str(), "7");
    assert_eq!(config.etcd.endpoints, ["http://a:2379", "http://b:2379"]);
    assert_eq!(config.databases[0].place(), "postgres://other/tasks");
    assert_eq!(config.stated_shard_count(), Some(16));
    assert_eq!(config.telemetry.log, "debug");
}

#[test]
fn the_environment_alone_is_enough() {
    let environment = [
        ("DUETIME_DATABASE__0__URL", "postgres://db/tasks"),
        ("DUETIME_AMQP__URL", "amqp://mq"),
        ("DUETIME_AUTH__TOKEN__0__NAME", "ops"),
        ("DUETIME_AUTH__TOKEN__0__ROLE", "operator"),
        ("DUETIME_AUTH__TOKEN__0__SHA256", "Ab00000000000000000000000000000000000000000000000000000000000000"),
    ];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let config = Config::read(None, environment).expect("accepted");
    assert_eq!(config.auth.token[0].role, Role::Operator);
    assert_eq!(config.auth.token[0].sha256[0], 0xab);
}

/// Eleven sections, because as text `10` comes before `2`.
#[test]
fn sections_from_the_environment_may_come_in_any_order() {
    let name = |index: usize| format!("orders-{index}");
    let mut environment: Vec<(String, String)> = (0..=10)
        .flat_map(|index| [("NAME", name(index)), ("DELIVER_TO", "orders".to_owned())].map(|of| (index, of)))
        .map(|(index, (key, value))| (format!("DUETIME_DELAY_EXCHANGE__{index}__{key}"), value))
        .collect();
    for _ in 0..environment.len() {
        environment.rotate_left(1);
        let given: Vec<_> = environment.iter().rev().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let config = read(SMALLEST, &given).expect("accepted");
        assert!(config.delay_exchanges.iter().map(|of| &of.name).eq(&(0..=10).map(name).collect::<Vec<_>>()));
    }
}

#[test]
fn a_secret_is_read_from_its_file_without_the_line_end() {
    let url = file_with("postgres://db/tasks\n");
    let password = file_with("pw\r\n");
    let toml =
        format!("[[database]]\nurl_file = {:?}\n[amqp]\nurl = 'amqp://mq'\n[etcd]\nusername = 'duetime'", url.path());
    let variable = password.path().display().to_string();
    let config = read(&toml, &[("DUETIME_ETCD__PASSWORD_FILE", &variable)]).expect("accepted");
    assert_eq!(config.databases[0].url.expose_secret(), "postgres://db/tasks");
    assert_eq!(config.etcd.password.expect("read").expose_secret(), "pw");
}

#[test]
fn secrets_show_neither_in_debug_nor_in_the_redacted_line() {
    let config =
        read(&format!("{SMALLEST}\n[etcd]\nusername = 'duetime'\npassword = 's3cret'"), &[]).expect("accepted");
    let shown = format!("{config:?} {}", config.redacted());
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(shown.contains("postgres://duetime@db:5432/tasks"), "{shown}");
}

#[test]
fn a_password_that_goes_over_a_network_in_the_clear_is_warned_of() {
    let warned = |amqp: &str, etcd: &str| {
        let toml = format!("[[database]]\nurl = 'postgres://db/tasks'\n[amqp]\nurl = '{amqp}'\n[etcd]\n{etcd}");
        let warnings = read(&toml, &[]).expect("accepted").warnings().join(" ");
        assert!(!warnings.contains("s3cret"), "{warnings}");
        (warnings.contains("`amqp.url`"), warnings.contains("`etcd.password`"))
    };
    let login = "username = 'duetime'\npassword = 's3cret'\n";
    let clear = format!("{login}endpoints = ['http://127.0.0.1:2379', 'http://etcd:2379']");
    let sealed = format!("{login}endpoints = ['https://etcd:2379']");
    let own = format!("{login}endpoints = ['http://localhost:2379']");
    assert_eq!(warned("amqp://guest:s3cret@mq", &clear), (true, true));
    assert_eq!(warned("amqps://guest:s3cret@mq", &sealed), (false, false));
    assert_eq!(warned("amqp://guest:s3cret@127.0.0.1:5672", &own), (false, false));
    assert_eq!(warned("amqp://mq", ""), (false, false));
}

#[test]
fn certificates_for_amqp_are_refused_where_they_cannot_be_used() {
    let amqp = |toml: &str| complaints(&format!("[[database]]\nurl = 'postgres://db/tasks'\n[amqp]\n{toml}"), &[]);
    let pair = "cert_file = '/etc/hostname'\nkey_file = '/etc/hostname'";
    for (toml, key, word) in [
        ("url = 'amqps://mq'\nca_file = '/nowhere/ca.pem'".to_owned(), "amqp.ca_file", "cannot be read"),
        ("url = 'amqp://mq'\nca_file = '/etc/hostname'".to_owned(), "amqp.ca_file", "amqps://"),
        (format!("url = 'amqp://mq'\n{pair}"), "amqp.cert_file", "amqps://"),
        ("url = 'amqps://mq'\ncert_file = '/etc/hostname'".to_owned(), "amqp.cert_file", "amqp.key_file"),
        ("url = 'amqps://mq'\nkey_file = '/etc/hostname'".to_owned(), "amqp.key_file", "amqp.cert_file"),
        ("url = 'amqps://mq?auth_mechanism=external'".to_owned(), "amqp.url", "amqp.cert_file"),
    ] {
        let said = amqp(&toml);
        let named = said.iter().any(|said| said.starts_with(&format!("`{key}`")) && said.contains(word));
        assert!(named, "`{toml}` should be refused by `{key}` with `{word}`, got {said:#?}");
    }
    let external = format!("url = 'amqps://mq?heartbeat=5&auth_mechanism=EXTERNAL'\nca_file = '/etc/hostname'\n{pair}");
    assert_eq!(amqp(&external), Vec::<String>::new());
}

#[test]
fn a_file_that_is_not_toml_is_refused_with_the_place_but_without_the_line() {
    let error = read("[amqp]\nurl = \"amqp://guest:s3cret@mq\" x\n", &[]).expect_err("refused").to_string();
    assert!(error.contains("line 2"), "{error}");
    assert!(!error.contains("s3cret"), "{error}");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Config::read(Some(Path::new("/nowhere/duetime.toml")), []).expect_err("refused").to_string();
    assert!(error.contains("/nowhere/duetime.toml"), "{error}");
}

#[test]
fn every_mistake_is_shown_at_once() {
    let toml = "[node]\nname = 'a b'\n[scheduler]\nbatch = 'x'\nhorizn_ms = 5\n[queues]\nmax_payload_bytes = -1\nauto_create = 'perhaps'\n[htp]\nlisten = 1";
    let complaints = complaints(toml, &[("DUETIME_SCHEDULER__WINDOW", "many")]);
    let named = |key: &str| complaints.iter().any(|complaint| complaint.starts_with(&format!("`{key}`")));
    for key in [
        "node.name",
        "scheduler.batch",
        "scheduler.horizn_ms",
        "scheduler.window",
        "queues.max_payload_bytes",
        "queues.auto_create",
        "htp",
        "amqp.url",
        "database",
    ] {
        assert!(named(key), "{key} is missing from {complaints:#?}");
    }
    assert!(
        complaints.iter().any(|complaint| complaint.contains("set by DUETIME_SCHEDULER__WINDOW")),
        "{complaints:#?}"
    );
}

/// An addition to the smallest valid file, the key that the complaint must name, and a word of its reason.
const REFUSED: &[(&str, &str, &str)] = &[
    ("[node]\nname = ''", "node.name", "1 to 64"),
    ("[node]\nname = 'a/b'", "node.name", "characters"),
    ("[node]\nnmae = 'a'", "node.nmae", "unknown"),
    ("[etcd]\nendpoints = []", "etcd.endpoints", "at least one"),
    ("[etcd]\nendpoints = 5", "etcd.endpoints", "list"),
    ("[etcd]\nendpoints = ['localhost:2379']", "etcd.endpoints[0]", "http://"),
    ("[etcd]\nendpoints = ['http://a', 'ftp://b']", "etcd.endpoints[1]", "ftp"),
    ("[etcd]\nendpoints = ['http://a', 'http://a']", "etcd.endpoints[1]", "twice"),
    ("[etcd]\nendpoints = ['http://u:p@a']", "etcd.endpoints[0]", "etcd.username"),
    ("[etcd]\nprefix = 'duetime/'", "etcd.prefix", "slash"),
    ("[etcd]\nlease_ttl_ms = 2500", "etcd.lease_ttl_ms", "whole seconds"),
    ("[etcd]\nlease_ttl_ms = 1000", "etcd.lease_ttl_ms", "2000"),
    ("[etcd]\nlease_ttl_ms = 'ten'", "etcd.lease_ttl_ms", "whole number"),
    ("[etcd]\nusername = 'u'", "etcd.username", "etcd.password"),
    ("[etcd]\npassword = 'p'", "etcd.password", "etcd.username"),
    ("[etcd]\nusername = 'u'\npassword = 12345", "etcd.password", "quotes"),
    ("[etcd]\nusername = 'u'\npassword_file = '/nowhere/pw'", "etcd.password_file", "cannot be read"),
    ("[etcd]\nusername = 'u'\npassword = 'p'\npassword_file = '/nowhere/pw'", "etcd.password_file", "one of them"),
    ("[etcd]\nca_file = '/nowhere/ca.pem'", "etcd.ca_file", "cannot be read"),
    ("[etcd]\nca_file = '/etc/hostname'", "etcd.ca_file", "https://"),
    ("[etcd]\ncert_file = '/etc/hostname'\nendpoints = ['https://a']", "etcd.cert_file", "etcd.key_file"),
    ("[etcd]\nkey_file = '/etc/hostname'\nendpoints = ['https://a']", "etcd.key_file", "etcd.cert_file"),
    ("[http]\ncert_file = '/etc/hostname'", "http.cert_file", "http.key_file"),
    ("[[database]]\nurl = 'postgres://db/more'\nmax_connections = 3", "database[1].max_connections", "between 4"),
    ("[http]\nkey_file = '/nowhere/key.pem'", "http.key_file", "http.cert_file"),
    ("[http]\nlisten = 'localhost'", "http.listen", "IP address"),
    ("[http]\nlisten = '0.0.0.0:8080'", "http.listen", "auth.token"),
    ("[http]\nlisten = '[::]:8080'", "http.listen", "duetime token"),
    ("[http]\nadvertise = 'node-1:8080'", "http.advertise", "http://"),
    ("[[auth.token]]\nname = 'ops'\nrole = 'admin'\nsha256 = ''", "auth.token[0].role", "operator"),
    ("[[auth.token]]\nname = 'ops'\nrole = 'operator'\nsha256 = 'secret'", "auth.token[0].sha256", "hexadecimal"),
    (
        "[[auth.token]]\nname = 'ops'\nrole = 'operator'\ntoken = 'secret'\nsha256 = ''",
        "auth.token[0].token",
        "unknown",
    ),
    ("[[auth.token]]\nrole = 'operator'\nsha256 = ''", "auth.token[0].name", "missing"),
    ("[[auth.token]]\nname = 'anonymous'\nrole = 'operator'\nsha256 = ''", "auth.token[0].name", "another name"),
    ("[[auth.token]]\nname = 'ops'\nrole = 'viewer'\nqueues = ['*']\nsha256 = ''", "auth.token[0].queues", "prefix"),
    ("[[auth.token]]\nname = 'ops'\nrole = 'viewer'\nqueues = []\nsha256 = ''", "auth.token[0].queues", "left out"),
    ("[scheduler]\nclaim_ahead_ms = 500\nhorizon_ms = 400", "scheduler.claim_ahead_ms", "scheduler.horizon_ms"),
    ("[scheduler]\nclaim_ahead_ms = 2001", "scheduler.claim_ahead_ms", "2000"),
    ("[scheduler]\nwindow = 100", "scheduler.window", "scheduler.batch"),
    ("[scheduler]\nbatch = 0", "scheduler.batch", "between"),
    ("[scheduler]\nbatch = 1.5", "scheduler.batch", "whole number"),
    ("[scheduler]\nheap_entries = 10", "scheduler.heap_entries", "between"),
    ("[queues]\nmax_payload_bytes = 2000000", "queues.max_payload_bytes", "1048576"),
    ("[http]\nmax_connections_per_address = 4097", "http.max_connections_per_address", "http.max_connections (4096)"),
    ("[queues]\nmax_per_caller = 5001", "queues.max_per_caller", "queues.max (5000)"),
    ("[telemetry]\nlog = 'inof'", "telemetry.log", "inof"),
    ("[telemetry]\nformat = 'xml'", "telemetry.format", "json"),
    ("[telemetry]\notlp_endpoint = 'collector:4317'", "telemetry.otlp_endpoint", "http://"),
    ("[telemetry]\notlp_headers = 'Bearer 12345'", "telemetry.otlp_headers", "name=value"),
    ("[telemetry]\ntrace_ratio = 1.5", "telemetry.trace_ratio", "0 to 1"),
    ("[telemetry]\ntrace_ratio = 'some'", "telemetry.trace_ratio", "a number"),
    ("[metrics]\nport = 1", "metrics", "unknown"),
];

#[test]
fn a_mistake_is_refused_by_the_name_of_its_key() {
    for (added, key, word) in REFUSED {
        let complaints = complaints(&format!("{SMALLEST}\n{added}"), &[]);
        let named =
            complaints.iter().any(|complaint| complaint.starts_with(&format!("`{key}`")) && complaint.contains(word));
        assert!(named, "`{added}` should be refused by `{key}` with `{word}`, got {complaints:#?}");
        assert!(!complaints.iter().any(|complaint| complaint.contains("12345")), "{complaints:#?}");
    }
}

#[test]
fn a_limit_that_is_not_set_follows_the_one_that_it_is_part_of() {
    let low = format!("{SMALLEST}\n[http]\nmax_connections = 100\n[queues]\nmax = 10");
    let config = read(&low, &[]).expect("accepted");
    assert_eq!((config.http.max_connections_per_address, config.queues.max_per_caller), (100, 10));
}

#[test]
fn variables_of_opentelemetry_count_where_nothing_else_is_said() {
    let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318/");
    let sampler = ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio");
    let telemetry =
        read(SMALLEST, &[base, ("OTEL_SERVICE_NAME", "shop"), sampler, ("OTEL_TRACES_SAMPLER_ARG", "0.25")])
            .expect("accepted")
            .telemetry;
    assert_eq!(telemetry.traces_url().as_deref(), Some("http://all:4318/v1/traces"));
    assert_eq!((telemetry.service_name.as_str(), telemetry.trace_ratio), ("shop", 0.25));
    let toml = format!("{SMALLEST}\n[telemetry]\notlp_endpoint = 'http://mine:4318'");
    // An unknown sampler, whose argument does not count, and a variable that names the whole URL.
    let other = [base, ("OTEL_TRACES_SAMPLER", "jaeger_remote"), ("OTEL_TRACES_SAMPLER_ARG", "endpoint=x")];
    let mine = read(&toml, &other).expect("accepted").telemetry;
    assert_eq!((mine.traces_url().as_deref(), mine.trace_ratio), (Some("http://mine:4318/v1/traces"), 0.0));
    let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4318/otlp/");
    let whole = read(SMALLEST, &[base, traces]).expect("accepted").telemetry;
    assert_eq!(whole.traces_url().as_deref(), Some("http://traces:4318/otlp/"));
    assert_eq!(read(SMALLEST, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]).expect("accepted").telemetry.traces_url(), None);
}

#[test]
fn databases_that_do_not_fit_together_are_refused() {
    let two = |first: &str, second: &str| {
        complaints(
            &format!("[amqp]\nurl='amqp://mq'\n[[database]]\nname='a'\n{first}\n[[database]]\nname='b'\n{second}"),
            &[],
        )
    };
    let cases = [
        (
            two("url='postgres://x/a'\nshards='0-63'", "url='postgres://x/b'\nshards='65-127'"),
            "`database[1].shards`",
            "shards 64;",
        ),
        (
            two("url='postgres://x/a'\nshards='0-63'", "url='postgres://x/b'\nshards='60-127'"),
            "`database[1].shards`",
            "60-63",
        ),
        (
            two("url='postgres://x/a'\nshards='64-99'", "url='postgres://x/b'\nshards='1-63'"),
            "`database[1].shards`",
            "shards 0;",
        ),
        (
            two("url='postgres://x/a'\nshards='0-63'", "url='postgres://x/b'\nshards='9-1'"),
            "`database[1].shards`",
            "9-1",
        ),
        (
            two("url='postgres://x/a'\nshards='0-63'", "url='postgres://x/a'\nshards='64-127'"),
            "`database[1].url`",
            "another",
        ),
        (
            two("url='postgres://x/a'\nshards='0-63'", "url='postgres://x/b'\nshards='64-127'\nname='a'"),
            "not TOML",
            "duplicate",
        ),
        (
            two("url='mysql://x/a'\nshards='0-63'", "url='postgres://x/b'\nshards='64-127'"),
            "`database[0].url`",
            "mysql",
        ),
        (
            two("url='postgres://x/a'\nshards='0-63'", "url='postgres://x/b'\nshards='64-65535'"),
            "`database[1].shards`",
            "65534",
        ),
        (two("url=5\nshards='0-63'", "url='postgres://x/b'\nshards='64-127'"), "`database[0].url`", "quotes"),
    ];
    for (complaints, key, word) in cases {
        assert!(
            complaints.iter().any(|complaint| complaint.contains(key) && complaint.contains(word)),
            "{key} {word}: {complaints:#?}"
        );
    }
    assert_eq!(
        two("url='postgres://x/a'\nshards='64-127'", "url='postgres://x/b'\nshards='0-63'"),
        Vec::<String>::new()
    );
}

#[test]
fn names_and_tokens_are_different_from_one_another() {
    let databases = "[amqp]\nurl='amqp://mq'\n[[database]]\nurl='postgres://x/a'\nshards='0-1'\n[[database]]\nurl='postgres://x/b'\nshards='2-3'";
    assert!(complaints(databases, &[]).iter().any(|complaint| complaint.starts_with("`database[1].name`")));
    let token = |name: &str, digit: &str| {
        format!("[[auth.token]]\nname='{name}'\nrole='viewer'\nsha256='{}'\n", digit.repeat(64))
    };
    let same_name = complaints(&format!("{SMALLEST}\n{}{}", token("a", "1"), token("a", "2")), &[]);
    assert!(same_name.iter().any(|complaint| complaint.starts_with("`auth.token[1].name`")), "{same_name:#?}");
    let same_token = complaints(&format!("{SMALLEST}\n{}{}", token("a", "1"), token("b", "1")), &[]);
    assert!(same_token.iter().any(|complaint| complaint.starts_with("`auth.token[1].sha256`")), "{same_token:#?}");
    assert!(complaints(&format!("{SMALLEST}\n[http]\nlisten='0.0.0.0:80'\n{}", token("a", "1")), &[]).is_empty());
}

#[test]
fn delay_exchanges_that_cannot_work_are_refused() {
    let pair = |name: &str, deliver_to: &str| {
        format!("\n[[delay_exchange]]\nname = '{name}'\ntype = 'direct'\ndeliver_to = '{deliver_to}'\n")
    };
    let chain = pair("first", "second") + &pair("second", "orders");
    assert!(complaints(&format!("{SMALLEST}{chain}"), &[]).is_empty(), "messages leave a chain");
    let fine = format!("{SMALLEST}{}{}", pair("orders.delayed", "orders"), pair("mails.delayed", "mails"));
    let config = read(&fine, &[("DUETIME_DELAY_EXCHANGE__1__DELIVER_TO", "letters")]).expect("accepted");
    assert_eq!(config.delay_exchanges[1].way(), common::wire::DelayRoute::new("mails.delayed", "letters"));
    for (toml, key) in [
        (pair("duetime", "orders"), "delay_exchange[0].name"),
        (pair("amq.topic", "orders"), "delay_exchange[0].name"),
        (pair("orders", "orders"), "delay_exchange[0].deliver_to"),
        (pair("a", "b") + &pair("b", "a"), "delay_exchange[0].deliver_to"),
        (pair("in", "b") + &pair("b", "c") + &pair("c", "d") + &pair("d", "b"), "delay_exchange[1].deliver_to"),
        (pair("orders.delayed", ""), "delay_exchange[0].deliver_to"),
        (pair("a b", "x") + &pair("a/b", "y"), "delay_exchange[1].name"),
        (
            "\n[[delay_exchange]]\nname = 'a'\ntype = 'x-delayed-message'\ndeliver_to = 'b'".to_owned(),
            "delay_exchange[0].type",
        ),
    ] {
        let complaints = complaints(&format!("{SMALLEST}{toml}"), &[]);
        assert!(complaints.len() == 1 && complaints[0].contains(key), "{toml}: {complaints:?}");
    }
}

/// Names are logged, so a control character could forge a log line. The fuzz target `config` found this.
#[test]
fn a_delay_exchange_with_a_control_character_in_a_name_is_refused() {
    for (name, deliver_to, key) in [("a\\r", "b", "name"), ("a", "\\nb", "deliver_to"), ("a", "b\\u0085", "deliver_to")]
    {
        let toml = format!("{SMALLEST}\n[[delay_exchange]]\nname = \"{name}\"\ndeliver_to = \"{deliver_to}\"\n");
        let complaints = complaints(&toml, &[]);
        assert!(complaints.len() == 1 && complaints[0].contains(key), "{toml}: {complaints:?}");
    }
}

/// Serde lists the fields of a section when it meets an unknown one.
#[test]
fn the_table_of_keys_is_what_is_read() {
    let mut read_keys = Vec::new();
    for (section, toml) in [
        ("node", "[node]\nx=1"),
        ("cluster", "[cluster]\nx=1"),
        ("etcd", "[etcd]\nx=1"),
        ("database[]", "[[database]]\nx=1"),
        ("amqp", "[amqp]\nx=1"),
        ("delay_exchange[]", "[[delay_exchange]]\nx=1"),
        ("http", "[http]\nx=1"),
        ("auth.token[]", "[[auth.token]]\nx=1"),
        ("auth.token[].limits", "[[auth.token]]\n[auth.token.limits]\nx=1"),
        ("auth.oidc", "[auth.oidc]\nx=1"),
        ("auth.oidc.role[]", "[[auth.oidc.role]]\nx=1"),
        ("audit", "[audit]\nx=1"),
        ("console", "[console]\nx=1"),
        ("scheduler", "[scheduler]\nx=1"),
        ("queues", "[queues]\nx=1"),
        ("telemetry", "[telemetry]\nx=1"),
    ] {
        let complaints = complaints(toml, &[]);
        let known =
            complaints.iter().find_map(|complaint| complaint.split_once(".x` is unknown; ")).expect("an unknown key").1;
        let names = known.split_once(" has ").expect("the known keys").1;
        read_keys.extend(names.split(", ").map(|name| format!("{section}.{name}")));
        // These keys are sections; the table lists their keys instead.
        read_keys.retain(|key| key != "auth.oidc.role" && key != "auth.token[].limits");
    }
    let mut listed: Vec<String> = keys::KEYS.iter().map(|key| key.path.to_owned()).collect();
    read_keys.extend(keys::SECRETS.iter().map(|secret| format!("{secret}_file")));
    read_keys.sort();
    listed.sort();
    assert_eq!(listed, read_keys);
}

#[test]
fn the_defaults_in_the_table_are_the_defaults_in_force() {
    let mut toml = String::from(SMALLEST);
    for section in ["etcd", "http", "scheduler", "queues", "telemetry"] {
        let _ = writeln!(toml, "[{section}]");
        for key in keys::KEYS {
            if let Some(name) = key.path.strip_prefix(&format!("{section}.")).filter(|_| !key.default.is_empty()) {
                let _ = writeln!(toml, "{name} = {}", key.default);
            }
        }
    }
    let written = read(&toml, &[]).expect("accepted");
    let silent = read(SMALLEST, &[]).expect("accepted");
    assert_eq!(format!("{written:?}"), format!("{silent:?}"));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 500, ..Default::default() })]

    /// The password may be in the very line that does not parse.
    #[test]
    fn whatever_stands_in_the_file_is_accepted_or_refused_in_words_that_hold_no_secret(
        line in "[a-z_.\\[\\]=\"'0-9 {}#ß-]{0,60}", at in 0..SMALLEST.len()
    ) {
        let text = format!("{}{line}\n{}", &SMALLEST[..at], &SMALLEST[at..]);
        let told = complaints(&text, &[]).join("; ");
        proptest::prop_assert!(!told.contains("s3cret"), "{}", told);
    }
}
