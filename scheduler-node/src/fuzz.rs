//! One function for each parser of outside data in this crate, for tests only. Each takes any bytes and panics when a
//! rule breaks.
//!
//! `make fuzz` drives them with libFuzzer through the crate `fuzz/`. The test below drives their seeds and edits of
//! these. The parsers of the crate `common` have their targets in `fuzz/src/lib.rs`.

use crate::{config, console, http, oidc, store};

/// The name of a target, its function, and inputs that it takes.
pub type Target = (&'static str, fn(&[u8]), &'static [&'static [u8]]);

pub const TARGETS: &[Target] = &[
    ("config", config, &[
        b"[etcd]\nendpoints = [\"http://127.0.0.1:2379\"]\n[[database]]\nname = \"main\"\nurl = \"postgres://a:b@c/d\"\n[amqp]\nurl = \"amqp://a:b@c:5672/%2f\"\n\n---\nDUETIME_HTTP__LISTEN=127.0.0.1:1\nOTEL_SERVICE_NAME=x",
        b"[amqp]\nurl = 5\n[[auth.token]]\nname = \"a\"\nrole = \"operator\"\nqueues = [\"m.*\"]\nsha256 = \"00\"\n\n---\nDUETIME_DATABASE__0__URL=postgres://c/d\nDUETIME_DATABASE__0__SHARDS=0-63\nDUETIME_AUTH__OIDC__ROLE__0__ROLE=viewer",
        b"[amqp]\nurl = \"amqps://c\"\n[[database]]\nurl = \"postgres://c/d\"\n[[delay_exchange]]\nname = \"late\"\ndeliver_to = \"orders\"\ntype = \"topic\"\nunroutable = \"drop\"\n[auth.oidc]\nissuer = \"https://id.example\"\nclient_id = \"d\"\nclient_secret = \"123456789012345678901234\"\nredirect_url = \"https://d.example/console/sign-in/oidc/callback\"\n[[auth.oidc.role]]\nvalue = \"ops\"\nrole = \"operator\"",
    ]),
    ("link", link, &[b"postgres://me:s3cret@db:5432/tasks?sslmode=require", b"amqps://guest:p@ss@host/%2f", b"http://[::1]:2379"]),
    ("oidc", oidc, &[
        b"{\"issuer\":\"http://127.0.0.1:1\",\"authorization_endpoint\":\"https://a/b?c\",\"token_endpoint\":\"https://a/t\",\"jwks_uri\":\"http://127.0.0.1:1/k\"}\n{\"keys\":[{\"kty\":\"RSA\",\"kid\":\"1\",\"alg\":\"RS256\",\"use\":\"sig\",\"n\":\"sXchDaQebHnPiGvyDOAT4saGEUetSyo9MKLOoWFsueri23bOdgWp4Dy1WlUzewbgBHod5pcM9H95GQRV3JDXboIRROSBigeC5yjU1hGzHHyXss8UDprecbAYxknTcQkhslANGRUZmdTOQ5qTRsLAt6BTYuyvVRdhS8exSZEy_c4gs_7svlJJQ4H9_NxsiIoLwAEk7-Q3UXERGYw_75IDrGA84-lA_-Ct4eTlXHBIY2EaV7t7LjJaynVJCpkv4LKjTTAumiGUIuQhrNhZLuF_RJLqHpM2kgWFLU7-VTdL1VbC2tejvcI2BlMkEpk1BzBZI0KQB0GaDWFLN-aEAw3vRw\",\"e\":\"AQAB\"}]}\neyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJpc3MiOiJhIn0.AAAA\n{\"sub\":\"ann\",\"aud\":\"duetime\",\"iss\":\"a\",\"email\":\"a@b\",\"realm\":{\"groups\":[\"ops\"]}}\ncode=a&state=b",
        b"{}\n{\"keys\":[{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4\",\"y\":\"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM\"},{\"kty\":\"oct\",\"k\":\"AA\"}]}\neyJhbGciOiJIUzI1NiJ9.e30.AA\n{\"sub\":5}\nerror=access_denied&iss=x",
    ]),
    ("form", form, &[
        b"settle=result&max_attempts=5&rate_per_second=0.5&ordered=on&priority_weights=80%2C+20&retry.kind=fixed&retry.delay_ms=5",
        b"queue=mail&cron=*%2F5+*+*+*+*&time_zone=Europe%2FBerlin&headers=%7B%22a%22%3A%22b%22%7D&priority=3",
        b"queue=mail&state=dead&due_after=2030-01-01+10%3A00&error=100%25&cursor=x&back=first+a",
    ]),
    ("cookies", cookies, &[b"a=b; duetime_session=t.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", b"https://node:8080", b"/console/tasks?queue=a"]),
    ("query", query, &[
        b"queue=mail&state=scheduled&partition_key=a%20b&due_after=2030-01-01T00:00:00Z&due_before=1900000000000&limit=7",
        b"limit=2&cursor=a.b", b"next=5", b"cursor=AAYzn_kRAAABmfOgAABwAIAAAAAAAAAF&who=ann&action=task.cancel",
    ]),
    ("header", header, &[b"Bearer abc", b"localhost:8080", b"[::1]:80"]),
];

fn text(data: &[u8], read: impl FnOnce(&str)) {
    if let Ok(text) = std::str::from_utf8(data) {
        read(text);
    }
}

pub fn config(data: &[u8]) {
    text(data, config::fuzz::config);
}

/// A URL of the configuration, also as PostgreSQL's driver reads it.
pub fn link(data: &[u8]) {
    text(data, |url| {
        config::fuzz::link(url);
        let name = String::new();
        let options =
            store::connect::Options { url: url.to_owned().into(), max_connections: 1, application_name: name };
        let _ = options.check();
    });
}

pub fn oidc(data: &[u8]) {
    text(data, oidc::fuzz::oidc);
}

pub fn query(data: &[u8]) {
    text(data, http::fuzz::query);
}

pub fn form(data: &[u8]) {
    console::fuzz::form(data);
}

pub fn cookies(data: &[u8]) {
    console::fuzz::cookies(data);
}

pub fn header(data: &[u8]) {
    http::fuzz::header(data);
}

#[cfg(test)]
#[path = "../../fuzz/src/edits.rs"]
mod edits;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_parser_of_the_node_breaks_at_its_seeds_or_at_edits_of_them() {
        edits::drive(TARGETS);
    }

    #[test]
    fn each_target_of_the_node_is_one_line_over_its_function() {
        edits::check_files(TARGETS, "node_targets", "scheduler_node::fuzz");
    }
}
