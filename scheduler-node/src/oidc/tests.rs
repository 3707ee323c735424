//! Signing in with a provider that can lie in every way there is.

use std::time::Duration;

use common::{
    access::{Role, Scope},
    grant::{Grant, Grants},
};
use integration_tests::identity_provider::{CLIENT_ID, CLIENT_SECRET, IdentityProvider, Lie};
use serde_json::json;

use super::*;
use crate::{clock, config::oidc::CALLBACK, failures::tests::Log};

fn config(issuer: &str) -> Oidc {
    let ops = Grant { value: "ops".to_owned(), role: Role::Operator, queues: Scope::ALL };
    let shop = Scope::of(Some(vec!["shop.*".to_owned()])).expect("a scope");
    let shop = Grant { value: "shop".to_owned(), role: Role::Producer, queues: shop };
    Oidc {
        issuer: issuer.to_owned(),
        client_id: CLIENT_ID.to_owned(),
        client_secret: CLIENT_SECRET.into(),
        scopes: vec!["openid".to_owned()],
        redirect_url: format!("http://127.0.0.1:1{CALLBACK}"),
        grants: Grants { claim: "groups".to_owned(), grants: vec![ops, shop] },
    }
}

/// A node, and the provider it asks.
async fn pair() -> (Provider, IdentityProvider) {
    let idp = IdentityProvider::start().await.expect("a provider");
    idp.person(json!({ "sub": "ann", "email": "ann@a.example", "groups": ["shop"] }));
    (node(idp.issuer()), idp)
}

fn node(issuer: &str) -> Provider {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    Provider::new(config(issuer)).expect("a client")
}

/// Follows the URL to the provider, as a browser does, and returns the query that the provider sends back.
async fn visit(url: &str) -> String {
    let answer = integration_tests::http::stepwise().get(url).send().await.expect("answered");
    let location = answer.headers().get("location").expect("led back").to_str().expect("text");
    location.split_once('?').expect("with an answer").1.to_owned()
}

async fn sign_in(node: &Provider) -> Result<SignedIn, Refusal> {
    sign_in_at(node, clock::now()).await
}

async fn sign_in_at(node: &Provider, now: UnixMicros) -> Result<SignedIn, Refusal> {
    sign_in_from(node, None, now).await
}

async fn sign_in_from(node: &Provider, from: Option<IpAddr>, now: UnixMicros) -> Result<SignedIn, Refusal> {
    let begun = node.begin("/console/tasks", now).await?;
    let query = visit(&begun.url).await;
    node.finish(&begun.flow, &Returned::of(&query), from, now).await
}

#[tokio::test]
async fn whoever_has_a_role_is_let_in_on_every_node_until_his_session_ends() {
    let (one, idp) = pair().await;
    let signed_in = sign_in(&one).await.expect("let in");
    assert_eq!(signed_in.next, "/console/tasks");
    assert_eq!(signed_in.known_as, "ann@a.example");
    let other = node(idp.issuer());
    let caller = other.caller(&signed_in.session, clock::now()).expect("known there");
    assert_eq!(caller, signed_in.caller);
    assert_eq!(
        (&*caller.name, caller.role, caller.queues.to_string()),
        ("oidc:ann", Role::Producer, "shop.*".to_owned())
    );
    let later = clock::now().plus(Duration::from_secs(signed_in.left_s.unsigned_abs() + 1));
    assert_eq!(other.caller(&signed_in.session, later), None);
    let mut narrowed = config(idp.issuer());
    narrowed.grants.grants[1].role = Role::Viewer;
    let narrowed = Provider::new(narrowed).expect("a client");
    assert_eq!(narrowed.caller(&signed_in.session, clock::now()), None, "grants that changed end sessions");
}

#[tokio::test]
async fn a_sign_in_that_began_before_the_roles_changed_ends_with_the_new_ones() {
    let (before, idp) = pair().await;
    let mut changed = config(idp.issuer());
    changed.grants.grants[1].role = Role::Viewer;
    let after = Provider::new(changed).expect("a client");
    let begun = before.begin("/console", clock::now()).await.expect("begun");
    let returned = Returned::of(&visit(&begun.url).await);
    let signed_in = after.finish(&begun.flow, &returned, None, clock::now()).await.expect("let in");
    assert_eq!(signed_in.caller.role, Role::Viewer);
}

#[tokio::test]
async fn a_session_ends_with_the_token_and_after_a_working_day() {
    let (node, idp) = pair().await;
    for (lives_s, at_most) in [(300, 300 + LEEWAY_S), (7 * 24 * 3_600, SESSION_S)] {
        idp.vouch_for(lives_s);
        let left_s = sign_in(&node).await.expect("let in").left_s;
        assert!((at_most - 30..=at_most).contains(&left_s), "{left_s} of {at_most}");
    }
}

#[tokio::test]
async fn elliptic_keys_and_a_secret_in_the_body_are_fine_as_well() {
    let (node, idp) = pair().await;
    idp.sign_with_the_elliptic_key();
    idp.want_the_secret_in_the_body();
    sign_in(&node).await.expect("let in");
}

#[tokio::test]
async fn every_lie_of_a_provider_is_seen() {
    let (node, idp) = pair().await;
    for (lie, said) in [
        (Lie::Refuses, "refused: access_denied"),
        (Lie::OtherAnswer, "another provider"),
        (Lie::OtherIssuer, "another issuer"),
        (Lie::OtherAudience, "another client"),
        (Lie::OtherParty, "another client"),
        (Lie::OtherNonce, "another sign-in (nonce)"),
        (Lie::OtherKey, "wrong signature"),
        (Lie::NewKey, "does not publish"),
        (Lie::SharedKey, "HS256"),
        (Lie::Unsigned, "not a signed token"),
        (Lie::Expired, "has expired"),
        (Lie::Early, "not valid yet"),
    ] {
        idp.lie(lie);
        let refusal = sign_in(&node).await.expect_err("refused").to_string();
        assert!(refusal.contains(said), "{lie:?}: {refusal}");
        assert!(!refusal.contains("<b>"), "{lie:?}: {refusal}");
    }
    idp.lie(Lie::None);
    sign_in(&node).await.expect("let in");
}

#[tokio::test]
async fn without_a_role_nobody_is_let_in() {
    let (node, idp) = pair().await;
    let (who, claim) = ("oidc:bob".to_owned(), "groups".to_owned());
    for groups in [json!(["other"]), json!([]), json!("shops")] {
        idp.person(json!({ "sub": "bob", "groups": groups }));
        let refusal = sign_in(&node).await.expect_err("refused");
        assert_eq!(refusal, Refusal::NoRole { who: who.clone(), claim: claim.clone() });
    }
    for person in [json!({ "sub": "bob" }), json!({ "sub": "bob", "groups": { "ops": true } })] {
        idp.person(person);
        let refusal = sign_in(&node).await.expect_err("refused");
        assert_eq!(refusal, Refusal::NoClaim { who: who.clone(), claim: claim.clone() });
    }
    for subject in [json!(""), json!(7), json!("a\nb"), json!("x".repeat(SUBJECT_CHARS + 1))] {
        idp.person(json!({ "sub": subject, "groups": "ops" }));
        assert!(matches!(sign_in(&node).await, Err(Refusal::Untrusted(_))), "{subject}");
    }
}

#[tokio::test]
async fn only_who_began_can_finish_and_once() {
    let (node, idp) = pair().await;
    let mine = node.begin("/console", clock::now()).await.expect("begun");
    let other = node.begin("/console", clock::now()).await.expect("begun");
    let query = visit(&mine.url).await;
    for (flow, query) in [(&*other.flow, &*query), ("", &query), (&mine.flow, ""), (&mine.flow, "state=&code=x")] {
        let refused = node.finish(flow, &Returned::of(query), None, clock::now()).await;
        assert_eq!(refused.expect_err("refused"), Refusal::Over, "{query}");
    }
    let late = clock::now().plus(Duration::from_secs(SIGN_IN_S.unsigned_abs() + 1));
    assert_eq!(node.finish(&mine.flow, &Returned::of(&query), None, late).await.expect_err("refused"), Refusal::Over);
    assert_eq!(idp.given(), 0, "no request asked for a token");
    // Another browser's code, in an answer that has this browser's state.
    let state = |query: &str| Returned::of(query).state.expect("a state");
    let theirs = visit(&other.url).await.replace(&state(&visit(&other.url).await), &state(&query));
    let swapped = node.finish(&mine.flow, &Returned::of(&theirs), None, clock::now()).await.expect_err("refused");
    assert!(swapped.to_string().contains("invalid_grant"), "PKCE: {swapped}");
    let session = node.finish(&mine.flow, &Returned::of(&query), None, clock::now()).await.expect("let in").session;
    let again = node.finish(&mine.flow, &Returned::of(&query), None, clock::now()).await.expect_err("refused");
    assert!(again.to_string().contains("invalid_grant"), "{again}");
    assert_eq!(node.caller(&mine.flow, clock::now()), None, "the cookie of a sign-in is not a session");
    let refused = node.finish(&session, &Returned::of(&query), None, clock::now()).await;
    assert_eq!(refused.expect_err("refused"), Refusal::Over, "nor the other way round");
}

/// The time at which another discovery is allowed.
fn later() -> UnixMicros {
    clock::now().plus(discovery::LOOK_AGAIN)
}

#[tokio::test]
async fn a_key_that_came_since_is_found_but_not_looked_for_at_every_token() {
    for (lie, said) in [
        (Lie::NewKey, "does not publish"),
        (Lie::OtherKey, "wrong signature"),
        // The provider has a key of another type, too.
        (Lie::UnnamedKey, "wrong signature"),
    ] {
        let (node, idp) = pair().await;
        sign_in(&node).await.expect("let in");
        idp.lie(lie);
        idp.publish_the_new_key();
        let refusal = sign_in(&node).await.expect_err("refused").to_string();
        assert!(refusal.contains(said), "{lie:?}: {refusal}");
        sign_in_at(&node, later()).await.expect("let in");
    }
}

#[test]
fn a_token_for_whose_algorithm_no_key_is_published_may_be_of_a_newer_key() {
    let keys = json!({ "keys": [{ "kty": "EC", "crv": "P-256", "x": "AA", "y": "AA" }] });
    let keys: discovery::Keys = serde_json::from_value(keys).expect("keys");
    let (keys, config) = (keys.known(), config("https://sso.example"));
    assert_eq!(keys.len(), 1);
    // `{"alg":"RS256"}`, `{}` and some signature.
    let fault = id_token::verified("eyJhbGciOiJSUzI1NiJ9.e30.AA", &keys, &config).expect_err("refused");
    assert!(fault.may_be_of_a_newer_key(), "{fault}");
}

#[tokio::test]
async fn a_provider_that_refuses_this_cluster_has_one_line_in_the_log_however_many_come_back() {
    let log = Log::keep();
    let (_, idp) = pair().await;
    let node = Provider::new(Oidc { client_secret: "another secret of this client".into(), ..config(idp.issuer()) });
    let node = node.expect("a client");
    for _ in 0..10 {
        let refusal = sign_in(&node).await.expect_err("refused").to_string();
        assert!(refusal.contains("invalid_client"), "{refusal}");
    }
    assert_eq!(log.count("refused this cluster's token request"), 1);
    assert_eq!(log.count("refused another token request"), 9);
}

#[tokio::test]
async fn a_provider_that_comes_back_is_asked_again_after_a_while() {
    let (node, idp) = pair().await;
    idp.lie(Lie::Away);
    assert!(matches!(sign_in(&node).await, Err(Refusal::Away(said)) if said.contains("503")));
    idp.lie(Lie::None);
    assert!(matches!(sign_in(&node).await, Err(Refusal::Away(_))), "every caller gets the same answer for a while");
    sign_in_at(&node, later()).await.expect("let in");
}

#[tokio::test]
async fn after_the_clock_was_set_back_the_provider_is_asked_again() {
    let (node, idp) = pair().await;
    let year = Duration::from_secs(365 * 24 * 60 * 60);
    idp.lie(Lie::Away);
    let before = node.begin("/console", clock::now().plus(year)).await.expect_err("it is away");
    assert!(matches!(before, Refusal::Away(_)), "{before}");
    idp.lie(Lie::None);
    sign_in(&node).await.expect("let in");
    node.begin("/console", clock::now().plus(year)).await.expect("begun");
    idp.lie(Lie::NewKey);
    idp.publish_the_new_key();
    sign_in(&node).await.expect("the keys of that discovery are gone");
}

#[tokio::test]
async fn a_provider_that_is_away_or_another_one_is_said_to_be() {
    let away = node("http://127.0.0.1:9");
    let refusal = away.begin("/console", clock::now()).await.expect_err("refused");
    assert!(matches!(refusal, Refusal::Away(_)), "{refusal}");
    assert_eq!(refusal.problem().status, 503);
    let (_, idp) = pair().await;
    let other = node(&format!("{}/", idp.issuer()));
    let refusal = other.begin("/console", clock::now()).await.expect_err("refused").to_string();
    assert!(refusal.contains("calls itself") && refusal.contains("auth.oidc.issuer"), "{refusal}");
}

fn stranger(number: usize) -> Option<IpAddr> {
    Some(format!("192.0.2.{number}").parse().expect("an address"))
}

#[tokio::test]
async fn a_stranger_who_takes_the_places_of_its_address_keeps_nobody_else_out() {
    let (node, _idp) = pair().await;
    let mut taken = Vec::new();
    for _ in 0..exchange_limit::OF_ADDRESS {
        taken.push(node.client.limit.enter(stranger(1)).await.expect("a place"));
    }
    sign_in_from(&node, stranger(2), clock::now()).await.expect("let in");
    let refusal = sign_in_from(&node, stranger(1), clock::now()).await.expect_err("refused").to_string();
    assert!(refusal.contains("too many sign-ins"), "{refusal}");
    drop(taken);
    sign_in_from(&node, stranger(1), clock::now()).await.expect("let in");
}

#[tokio::test]
async fn a_return_that_nobody_began_needs_no_place_and_neither_does_a_look_at_the_provider() {
    let (node, idp) = pair().await;
    let mut taken = Vec::new();
    for number in 0..exchange_limit::AT_ONCE {
        taken.push(node.client.limit.enter(stranger(number)).await.expect("a place"));
    }
    for query in ["", "state=guessed&code=x"] {
        let refused = node.finish("guessed", &Returned::of(query), stranger(200), clock::now()).await;
        assert_eq!(refused.expect_err("refused"), Refusal::Over, "{query}");
    }
    node.begin("/console", clock::now()).await.expect("the provider says where it is");
    assert_eq!(idp.given(), 0);
}
