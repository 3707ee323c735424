//! An identity provider (OpenID Connect) that signs in every person, and lies on demand.
//!
//! It checks the client's side in earnest: the client's secret, the verifier of PKCE, and a code that is good once.

use std::{collections::HashMap, sync::Arc, time::SystemTime};

use anyhow::{Context, Result};
use aws_lc_rs::{
    rand::SystemRandom,
    rsa::{KeySize, PublicKeyComponents},
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair},
};
use axum::{
    Json, Router,
    extract::{RawQuery, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
    routing::{get, post},
};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::{net::TcpListener, task::JoinHandle};

/// The cluster's client id.
pub const CLIENT_ID: &str = "duetime";
pub const CLIENT_SECRET: &str = "a secret: 64 % of it + a colon";

/// The way in which it violates the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lie {
    #[default]
    None,
    /// It reports that it is unavailable.
    Away,
    /// It refuses the person.
    Refuses,
    /// Its answer names another provider.
    OtherAnswer,
    OtherIssuer,
    OtherAudience,
    /// A token for several clients, requested by another.
    OtherParty,
    OtherNonce,
    /// Signed with an unpublished key, under the name of a published one.
    OtherKey,
    /// The same key, and the token names none.
    UnnamedKey,
    /// Signed with a key of an unpublished name.
    NewKey,
    /// Signed with the public key as though it were a shared secret.
    SharedKey,
    Unsigned,
    /// Expired for an hour.
    Expired,
    /// Valid in an hour.
    Early,
}

struct Signed {
    client: String,
    redirect: String,
    nonce: String,
    challenge: String,
}

struct Inner {
    issuer: String,
    rsa: RsaKeyPair,
    other: RsaKeyPair,
    ec: EcdsaKeyPair,
    mood: Mutex<Mood>,
}

struct Mood {
    lie: Lie,
    /// The claims of the person who signs in next, beside those that every token has.
    person: Value,
    /// Tokens are signed with the elliptic key.
    is_elliptic: bool,
    /// The client's secret must be in the body.
    in_body: bool,
    /// The new signing key is published.
    is_rotated: bool,
    /// The lifetime of a token, in seconds.
    lives_s: u64,
    codes: HashMap<String, Signed>,
    given: usize,
}

/// Stops when it is dropped.
pub struct IdentityProvider {
    inner: Arc<Inner>,
    task: JoinHandle<()>,
}

impl IdentityProvider {
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let mood = Mood {
            lie: Lie::None,
            person: json!({ "sub": "ann" }),
            is_elliptic: false,
            in_body: false,
            is_rotated: false,
            lives_s: 3_600,
            codes: HashMap::new(),
            given: 0,
        };
        let inner = Arc::new(Inner {
            // `localhost` makes it another site than the nodes for a browser, which are at 127.0.0.1.
            issuer: format!("http://localhost:{}", listener.local_addr()?.port()),
            rsa: RsaKeyPair::generate(KeySize::Rsa2048).context("a key")?,
            other: RsaKeyPair::generate(KeySize::Rsa2048).context("a key")?,
            ec: EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).context("a key")?,
            mood: Mutex::new(mood),
        });
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(configuration))
            .route("/keys", get(keys))
            .route("/authorize", get(authorize))
            .route("/token", post(token))
            .with_state(Arc::clone(&inner));
        let task = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("the server runs until it is dropped");
        });
        Ok(Self { inner, task })
    }

    pub fn issuer(&self) -> &str {
        &self.inner.issuer
    }

    /// Sets the claims of the person who signs in from now on.
    pub fn person(&self, claims: Value) {
        self.inner.mood.lock().person = claims;
    }

    pub fn lie(&self, lie: Lie) {
        self.inner.mood.lock().lie = lie;
    }

    pub fn sign_with_the_elliptic_key(&self) {
        self.inner.mood.lock().is_elliptic = true;
    }

    pub fn want_the_secret_in_the_body(&self) {
        self.inner.mood.lock().in_body = true;
    }

    /// Publishes the key of [`Lie::NewKey`], or that of [`Lie::OtherKey`] and [`Lie::UnnamedKey`] in place of a
    /// published one. It is then no lie any more.
    pub fn publish_the_new_key(&self) {
        self.inner.mood.lock().is_rotated = true;
    }

    /// Sets the lifetime of tokens from now on.
    pub fn vouch_for(&self, seconds: u64) {
        self.inner.mood.lock().lives_s = seconds;
    }

    /// Tokens issued so far.
    pub fn given(&self) -> usize {
        self.inner.mood.lock().given
    }
}

impl std::fmt::Debug for IdentityProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdentityProvider").field("issuer", &self.inner.issuer).finish_non_exhaustive()
    }
}

impl Drop for IdentityProvider {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn configuration(State(inner): State<Arc<Inner>>) -> Response {
    if inner.mood.lock().lie == Lie::Away {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let issuer = &inner.issuer;
    let method = if inner.mood.lock().in_body { "client_secret_post" } else { "client_secret_basic" };
    Json(json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/authorize?tenant=1"),
        "token_endpoint": format!("{issuer}/token"),
        "jwks_uri": format!("{issuer}/keys"),
        "token_endpoint_auth_methods_supported": [method],
        "authorization_response_iss_parameter_supported": true,
        "response_types_supported": ["code"],
    }))
    .into_response()
}

async fn keys(State(inner): State<Arc<Inner>>) -> Json<Value> {
    let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let rsa = |name: &str, key: &RsaKeyPair| {
        let key = PublicKeyComponents::<Vec<u8>>::from(key.public_key());
        json!({ "kty": "RSA", "kid": name, "use": "sig", "alg": "RS256", "n": text(&key.n), "e": text(&key.e) })
    };
    let point = inner.ec.public_key().as_ref();
    let Mood { lie, is_rotated, .. } = *inner.mood.lock();
    let new = is_rotated.then(|| rsa("new", &inner.other));
    let named = if is_rotated && matches!(lie, Lie::OtherKey | Lie::UnnamedKey) { &inner.other } else { &inner.rsa };
    Json(json!({ "keys": [
        rsa("rsa", named),
        new,
        { "kty": "EC", "kid": "ec", "crv": "P-256", "x": text(&point[1..33]), "y": text(&point[33..]) },
        { "kty": "of a later time", "kid": "later" },
    ] }))
}

fn fields(text: &str) -> HashMap<String, String> {
    form_urlencoded::parse(text.as_bytes()).into_owned().collect()
}

async fn authorize(State(inner): State<Arc<Inner>>, RawQuery(query): RawQuery) -> Response {
    let asked = fields(&query.unwrap_or_default());
    let said = |name: &str| asked.get(name).cloned().unwrap_or_default();
    let wanted = said("response_type") == "code"
        && said("code_challenge_method") == "S256"
        && said("scope").split(' ').any(|scope| scope == "openid")
        && said("tenant") == "1";
    if !wanted {
        return (StatusCode::BAD_REQUEST, format!("{asked:?}")).into_response();
    }
    let mut mood = inner.mood.lock();
    let mut answer = form_urlencoded::Serializer::new(String::new());
    answer.append_pair("state", &said("state"));
    let issuer = if mood.lie == Lie::OtherAnswer { "https://other.example" } else { &inner.issuer };
    answer.append_pair("iss", issuer);
    if mood.lie == Lie::Refuses {
        answer.append_pair("error", "access_denied").append_pair("error_description", "<b>no</b>");
    } else {
        let code = uuid::Uuid::new_v4().to_string();
        answer.append_pair("code", &code);
        let signed = Signed {
            client: said("client_id"),
            redirect: said("redirect_uri"),
            nonce: said("nonce"),
            challenge: said("code_challenge"),
        };
        mood.codes.insert(code, signed);
    }
    Redirect::to(&format!("{}?{}", said("redirect_uri"), answer.finish())).into_response()
}

async fn token(State(inner): State<Arc<Inner>>, headers: HeaderMap, body: String) -> Response {
    let asked = fields(&body);
    let said = |name: &str| asked.get(name).cloned().unwrap_or_default();
    let refuse = |error: &str| (StatusCode::BAD_REQUEST, Json(json!({ "error": error }))).into_response();
    let mut mood = inner.mood.lock();
    let login = if mood.in_body { Some((said("client_id"), said("client_secret"))) } else { login(&headers) };
    if login != Some((CLIENT_ID.to_owned(), CLIENT_SECRET.to_owned())) {
        return refuse("invalid_client");
    }
    let Some(signed) = mood.codes.remove(&said("code")) else { return refuse("invalid_grant") };
    let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(said("code_verifier")));
    if said("grant_type") != "authorization_code"
        || signed.client != CLIENT_ID
        || signed.redirect != said("redirect_uri")
        || signed.challenge != challenge
    {
        return refuse("invalid_grant");
    }
    mood.given += 1;
    let token = id_token(&inner, &mood, &signed.nonce);
    Json(json!({ "access_token": "none", "token_type": "Bearer", "id_token": token })).into_response()
}

/// Name and password, each decoded as the standard demands.
fn login(headers: &HeaderMap) -> Option<(String, String)> {
    let coded = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Basic ")?;
    let login = String::from_utf8(STANDARD.decode(coded).ok()?).ok()?;
    let (name, password) = login.split_once(':')?;
    let plain = |text: &str| fields(&format!("x={text}")).remove("x");
    Some((plain(name)?, plain(password)?))
}

fn id_token(inner: &Inner, mood: &Mood, nonce: &str) -> String {
    let now_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    let mut claims = json!({
        "iss": inner.issuer, "aud": CLIENT_ID, "iat": now_s, "exp": now_s + mood.lives_s, "nonce": nonce,
    });
    for (claim, value) in mood.person.as_object().into_iter().flatten() {
        claims[claim] = value.clone();
    }
    match mood.lie {
        Lie::OtherIssuer => claims["iss"] = json!("https://other.example"),
        Lie::OtherAudience => claims["aud"] = json!(["another client"]),
        Lie::OtherParty => {
            claims["aud"] = json!([CLIENT_ID, "another client"]);
            claims["azp"] = json!("another client");
        }
        Lie::OtherNonce => claims["nonce"] = json!("of another sign-in"),
        Lie::Expired => claims["exp"] = json!(now_s - 3_600),
        Lie::Early => claims["nbf"] = json!(now_s + 3_600),
        _ => {}
    }
    signed(inner, mood, &claims)
}

fn signed(inner: &Inner, mood: &Mood, claims: &Value) -> String {
    let (alg, kid) = match mood.lie {
        Lie::Unsigned => ("none", "rsa"),
        Lie::SharedKey => ("HS256", "rsa"),
        Lie::NewKey => ("RS256", "new"),
        _ if mood.is_elliptic => ("ES256", "ec"),
        _ => ("RS256", "rsa"),
    };
    let text = |json: &Value| URL_SAFE_NO_PAD.encode(json.to_string());
    let is_unnamed = mood.lie == Lie::UnnamedKey;
    let header = if is_unnamed { json!({ "alg": alg }) } else { json!({ "alg": alg, "kid": kid }) };
    let message = format!("{}.{}", text(&header), text(claims));
    let random = SystemRandom::new();
    let by_rsa = |key: &RsaKeyPair| {
        let mut signature = vec![0; key.public_modulus_len()];
        key.sign(&RSA_PKCS1_SHA256, &random, message.as_bytes(), &mut signature).expect("signed");
        signature
    };
    let signature = match (mood.lie, alg) {
        (Lie::Unsigned, _) => Vec::new(),
        (Lie::SharedKey, _) => {
            let key = PublicKeyComponents::<Vec<u8>>::from(inner.rsa.public_key()).n;
            let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &key);
            aws_lc_rs::hmac::sign(&key, message.as_bytes()).as_ref().to_vec()
        }
        (Lie::OtherKey | Lie::UnnamedKey | Lie::NewKey, _) => by_rsa(&inner.other),
        (_, "ES256") => inner.ec.sign(&random, message.as_bytes()).expect("signed").as_ref().to_vec(),
        _ => by_rsa(&inner.rsa),
    };
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
}
