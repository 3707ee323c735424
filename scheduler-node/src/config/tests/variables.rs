//! Variables over the file.

use secrecy::ExposeSecret;

use super::{SMALLEST, complaints, file_with, read};

#[test]
fn a_variable_takes_the_place_of_a_secret_and_of_the_file_that_holds_it() {
    let other = file_with("postgres://other/tasks\n");
    let path = other.path().display().to_string();
    let amqp = "[amqp]\nurl = 'amqp://mq'";
    for key in ["url_file = '/nowhere/db'", "url = 'postgres://db/tasks'"] {
        let toml = format!("[[database]]\n{key}\n{amqp}");
        for (variable, value) in
            [("DUETIME_DATABASE__0__URL", "postgres://other/tasks"), ("DUETIME_DATABASE__0__URL_FILE", path.as_str())]
        {
            let config = read(&toml, &[(variable, value)]).expect("accepted");
            assert_eq!(config.databases[0].url.expose_secret(), "postgres://other/tasks", "{key}, {variable}");
        }
    }
    let unset = complaints(&format!("[[database]]\nurl_file = '/nowhere/db'\n{amqp}"), &[]);
    assert!(unset.iter().any(|complaint| complaint.starts_with("`database[0].url_file`")), "{unset:#?}");
}

#[test]
fn a_consumer_does_without_the_secrets_and_the_variables_of_other_sections() {
    let file = file_with("[[database]]\nurl_file = '/nowhere/db'\n[amqp]\nurl = 'amqp://mq'");
    let read_with = |variable: &str, value: &str| {
        super::Config::read_for_consumer(Some(file.path()), [(variable.to_owned(), value.to_owned())])
    };
    for (variable, value) in [
        ("DUETIME_DATABASE__0__URL_FILE", "/nowhere/db"),
        ("DUETIME_ETCD__PASSWORD_FILE", "/nowhere/etcd"),
        ("DUETIME_SCHEDULER__BATCH", "many"),
        ("DUETIME_TELEMETRY__LOG", "debug"),
    ] {
        let (amqp, telemetry) = read_with(variable, value).unwrap_or_else(|error| panic!("{variable}: {error}"));
        assert_eq!(amqp.url.expose_secret(), "amqp://mq");
        assert_eq!(telemetry.log == "debug", variable == "DUETIME_TELEMETRY__LOG");
    }
    for variable in ["DUETIME_AMQP__URL_FILE", "DUETIME_AMPQ__URL", "DUETIME_AMQP_URL"] {
        let error = read_with(variable, "/nowhere/amqp").err().unwrap_or_else(|| panic!("{variable} is accepted"));
        assert!(error.to_string().contains(variable), "{variable}: {error}");
    }
    assert!(read(&std::fs::read_to_string(file.path()).expect("read"), &[]).is_err(), "a node needs its secrets");
}

#[test]
fn a_variable_that_names_no_key_is_refused() {
    let cases = [
        ("DUETIME_SCHEDULER__BACTH", "names no key"),
        ("DUETIME_DATABASE__URL", "names no key"),
        ("DUETIME_DATABASE__3__URL", "number 1 is missing"),
        ("DUETIME_AMQP__URL_FILE", "cannot be read"),
    ];
    for (variable, word) in cases {
        let complaints = complaints(SMALLEST, &[(variable, "/nowhere/x")]);
        assert!(
            complaints.iter().any(|complaint| complaint.contains(variable) && complaint.contains(word)),
            "{complaints:#?}"
        );
    }
}

#[test]
fn a_key_with_single_underscores_is_refused_and_names_of_other_programs_are_not() {
    for (variable, meant) in [
        ("DUETIME_NODE_NAME", "DUETIME_NODE__NAME"),
        ("DUETIME_HTTP_MAX_CONNECTIONS", "DUETIME_HTTP__MAX_CONNECTIONS"),
        ("DUETIME_DATABASE_0_URL", "DUETIME_DATABASE__0__URL"),
        ("DUETIME_DATABASE_1_URL", "DUETIME_DATABASE__1__URL"),
    ] {
        let complaints = complaints(SMALLEST, &[(variable, "a")]);
        assert!(complaints.len() == 1 && complaints[0].starts_with(&format!("`{variable}`")), "{complaints:#?}");
        assert!(complaints[0].contains(meant), "{complaints:#?}");
    }
    // Of clients, of a relay's commands, and of Kubernetes for a service called `duetime`.
    for other in ["DUETIME_TOKEN", "DUETIME_URLS", "DUETIME_CONFIG", "DUETIME_QUEUE", "DUETIME_SERVICE_HOST"] {
        assert_eq!(complaints(SMALLEST, &[(other, "a")]), Vec::<String>::new(), "{other}");
    }
}
