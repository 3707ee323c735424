//! The fuzz target for input from an identity provider and a browser.

use std::sync::OnceLock;

use common::{
    access::{Role, Scope},
    grant::{Grant, Grants},
};
use serde_json::json;

use super::{
    Provider, Returned, SESSION_S, SUBJECT_CHARS,
    discovery::{Keys, Metadata},
    id_token,
};
use crate::config::{Oidc, oidc::CALLBACK};

const ISSUER: &str = "http://127.0.0.1:1";

/// A moment at which the tokens of the seeds are valid.
const NOW_S: i64 = 1_800_000_000;

fn provider() -> &'static Provider {
    static PROVIDER: OnceLock<Provider> = OnceLock::new();
    PROVIDER.get_or_init(|| {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let ops = Grant { value: "ops".to_owned(), role: Role::Operator, queues: Scope::ALL };
        let config = Oidc {
            issuer: ISSUER.to_owned(),
            client_id: "duetime".to_owned(),
            client_secret: "a secret that no attacker guesses".into(),
            scopes: vec!["openid".to_owned()],
            redirect_url: format!("http://127.0.0.1:2{CALLBACK}"),
            grants: Grants { claim: "realm.groups".to_owned(), grants: vec![ops] },
        };
        Provider::new(config).expect("a client")
    })
}

/// Reads one input a line: a discovery document, keys, an ID token, claims, and the query that a browser brings back.
/// No token can be valid, as nothing signs with a key that the provider publishes.
pub fn oidc(text: &str) {
    let (provider, now) = (provider(), common::time::UnixMicros::new(NOW_S * 1_000_000));
    let mut lines = text.lines();
    let mut line = || lines.next().unwrap_or_default();
    if let Ok(metadata) = serde_json::from_str::<Metadata>(line()) {
        let _ = metadata.check(ISSUER);
    }
    let keys = serde_json::from_str::<Keys>(line()).map(Keys::known).unwrap_or_default();
    let token = line();
    let _ = id_token::verified(token, &keys, &provider.config);
    if let Ok(mut claims) = serde_json::from_str::<serde_json::Value>(line())
        && let Some(object) = claims.as_object_mut()
    {
        object.insert("exp".to_owned(), json!(NOW_S + 60));
        if let Ok(signed_in) = provider.let_in(&claims, "/console".to_owned(), now) {
            assert!((1..=SESSION_S).contains(&signed_in.left_s));
            assert!(signed_in.caller.name.chars().count() <= SUBJECT_CHARS + "oidc:".len());
            assert_eq!(provider.caller(&signed_in.session, now), Some(signed_in.caller));
        }
    }
    let returned = line();
    let _ = Returned::of(returned);
    assert_eq!(provider.caller(returned, now), None, "only a node seals a session");
}
