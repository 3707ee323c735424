//! A password in the wrong place. No complaint repeats it.

use super::{SMALLEST, complaints, keys::KEYS};

const URL: &str = "amqp://duetime:s3cret@rabbitmq:5672/%2f";

fn check(said: &[String], key: &str, word: &str) {
    let named = said.iter().any(|one| one.starts_with(&format!("`{key}`")) && one.contains(word));
    assert!(named, "`{key}` should be refused with `{word}`, got {said:#?}");
    assert!(!said.iter().any(|one| one.contains("s3cret")), "{said:#?}");
}

#[test]
fn a_text_in_the_place_of_a_section_or_a_list_is_not_repeated() {
    for text in [URL, "host=db password=s3cret"] {
        for (toml, key, word) in [
            (format!("amqp = '{text}'"), "amqp", "a section"),
            (format!("auth = '{text}'"), "auth", "a section"),
            (format!("database = '{text}'"), "database", "a list"),
            (format!("database = ['{text}']"), "database[0]", "a section"),
            (format!("auth.oidc = '{text}'"), "auth.oidc", "a section"),
        ] {
            check(&complaints(&toml, &[]), key, word);
        }
    }
}

#[test]
fn a_url_in_the_place_of_another_value_is_not_repeated() {
    for (key, word) in [
        ("scheduler.batch", "is a URL; it must be a whole number"),
        ("queues.auto_create", "is a URL; it must be true or false"),
        ("http.listen", "is a URL; it must be an IP address"),
        ("node.name", "is a URL; it must be 1 to 64"),
        ("telemetry.format", "is a URL; it must be one of"),
        ("telemetry.otlp_endpoint", "is a URL; it must be an address"),
        ("etcd.ca_file", "names a URL, which cannot be read"),
    ] {
        check(&complaints(&format!("{key} = '{URL}'\n{SMALLEST}"), &[]), key, word);
    }
    let log = format!("telemetry.log = 'info,{URL}'\n{SMALLEST}");
    check(&complaints(&log, &[]), "telemetry.log", "a URL, which is");
}

#[test]
fn a_url_in_the_place_of_the_path_of_a_secret_is_not_repeated() {
    let word = "names a URL instead of a path, which cannot be read";
    let file = format!("[[database]]\nurl = 'postgres://db/tasks'\n[amqp]\nurl_file = '{URL}'");
    check(&complaints(&file, &[]), "amqp.url_file", word);
    check(&complaints(SMALLEST, &[("DUETIME_AMQP__URL_FILE", URL)]), "DUETIME_AMQP__URL_FILE", word);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 500, ..Default::default() })]

    #[test]
    fn whatever_key_has_a_url_no_complaint_repeats_its_password(
        key in proptest::sample::select(KEYS), before in "[a-z0-9:=@?,. ]{0,9}", after in "[a-z0-9:=@?, /\"\\\\ß]{0,9}"
    ) {
        let url = format!("{before}://duetime:s3cret@{after}");
        let told = complaints(SMALLEST, &[(&key.variable(), &url)]).join("; ");
        proptest::prop_assert!(!told.contains("s3cret"), "{}", told);
    }
}
