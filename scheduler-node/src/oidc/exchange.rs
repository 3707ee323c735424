//! Exchanges the browser's code for the id token that identifies the person.

use std::net::IpAddr;

use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::{
    RequestBuilder,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue},
};
use secrecy::ExposeSecret;
use serde::Deserialize;

use super::{
    Refusal,
    discovery::Metadata,
    provider_client::{self, ProviderClient},
};
use crate::config::Oidc;

const IN_HEADER: &str = "client_secret_basic";
const IN_BODY: &str = "client_secret_post";

#[derive(Deserialize)]
struct TokenResponse {
    id_token: Option<String>,
    error: Option<String>,
}

/// Returns the id token. The secret proves that this cluster asks, and the verifier proves that it began the sign-in.
pub(super) async fn exchange(
    client: &ProviderClient,
    config: &Oidc,
    metadata: &Metadata,
    code: &str,
    verifier: &str,
    from: Option<IpAddr>,
) -> Result<String, Refusal> {
    let place = client.limit.enter(from).await;
    let _place = place.ok_or_else(|| Refusal::Away("too many sign-ins at once".to_owned()))?;
    let request = request(client, config, metadata, code, verifier);
    let (status, answer): (_, TokenResponse) = client.send(request).await.map_err(Refusal::Away)?;
    match answer {
        TokenResponse { error: Some(error), .. } => Err(refused(client, &error)),
        TokenResponse { id_token: Some(token), .. } if status.is_success() => {
            if client.refusals.end() {
                tracing::info!("the identity provider accepts this cluster's token requests again");
            }
            Ok(token)
        }
        _ => Err(Refusal::Untrusted(format!("it answered {status} without an id token"))),
    }
}

fn request(client: &ProviderClient, config: &Oidc, metadata: &Metadata, code: &str, verifier: &str) -> RequestBuilder {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("grant_type", "authorization_code")
        .append_pair("code", code)
        .append_pair("redirect_uri", &config.redirect_url)
        .append_pair("code_verifier", verifier);
    let mut request = client.http.post(&metadata.token_endpoint);
    let methods = metadata.token_endpoint_auth_methods_supported.as_deref();
    let takes = |method: &str| methods.is_none_or(|methods| methods.iter().any(|taken| taken == method));
    if takes(IN_HEADER) || !takes(IN_BODY) {
        request = request.header(AUTHORIZATION, login(config));
    } else {
        form.append_pair("client_id", &config.client_id)
            .append_pair("client_secret", config.client_secret.expose_secret());
    }
    request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(form.finish())
}

fn refused(client: &ProviderClient, error: &str) -> Refusal {
    let error = provider_client::code(error);
    if error == "invalid_grant" {
        return Refusal::Refused("the code was used before, or is too old (invalid_grant); sign in again".to_owned());
    }
    // The person who signs in cannot correct this. A stranger can bring it about as often as they like.
    if client.refusals.begin() {
        tracing::warn!(error, "the identity provider refused this cluster's token request");
    } else {
        tracing::debug!(error, "the identity provider refused another token request of this cluster");
    }
    Refusal::Refused(format!("it refused this cluster's token request ({error}); an operator finds more in the log"))
}

/// Client id and secret for the header. Both are percent-encoded, because a colon separates them.
fn login(config: &Oidc) -> HeaderValue {
    let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let login = format!("{}:{}", encoded(&config.client_id), encoded(config.client_secret.expose_secret()));
    let mut value =
        HeaderValue::try_from(format!("Basic {}", STANDARD.encode(login))).expect("base64 fits into a header");
    value.set_sensitive(true);
    value
}
