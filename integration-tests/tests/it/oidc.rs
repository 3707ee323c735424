//! Signing in to the console with an identity provider, on three nodes without session state.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use anyhow::{Context, Result, ensure};
use axum::{Router, extract::State, http::Uri, response::Redirect};
use integration_tests::{
    http,
    identity_provider::{CLIENT_ID, CLIENT_SECRET, IdentityProvider},
    sandbox::{Builder, Sandbox},
};
use reqwest::{Method, Response, header};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

use crate::{console::look, language, scenario, tokens::noted};

const CALLBACK: &str = "/console/sign-in/oidc/callback";

/// The one address in front of all nodes that the provider knows, as with a load balancer.
struct Front {
    address: String,
    /// The node that it forwards to.
    node: Arc<OnceLock<String>>,
    task: JoinHandle<()>,
}

impl Front {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, node) = (format!("http://{}", listener.local_addr()?), Arc::new(OnceLock::new()));
        let router = Router::new().fallback(lead_on).with_state(Arc::clone(&node));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.expect("served to the end") });
        Ok(Self { address, node, task })
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn lead_on(State(node): State<Arc<OnceLock<String>>>, uri: Uri) -> Redirect {
    Redirect::temporary(&format!("{}{uri}", node.get().expect("the cluster runs")))
}

fn cluster(idp: &IdentityProvider, front: &Front) -> Builder {
    Sandbox::builder().config(&format!(
        "[auth.oidc]\nissuer = {:?}\nclient_id = {CLIENT_ID:?}\nclient_secret = {CLIENT_SECRET:?}\n\
         redirect_url = \"{}{CALLBACK}\"\n[[auth.oidc.role]]\nvalue = \"ops\"\nrole = \"operator\"\n",
        idp.issuer(),
        front.address
    ))
}

/// A minimal browser: the cookies of one host, and one step at a time.
struct Browser {
    http: reqwest::Client,
    cookies: BTreeMap<String, String>,
}

impl Browser {
    async fn send(&mut self, method: Method, url: &str, form: Option<String>) -> Result<Response> {
        let cookies: Vec<String> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut request = self.http.request(method, url).header(header::COOKIE, cookies.join("; "));
        if let Some(form) = form {
            let kind = "application/x-www-form-urlencoded";
            request = request.header(header::CONTENT_TYPE, kind).header("sec-fetch-site", "same-origin").body(form);
        }
        let answer = request.send().await?;
        for cookie in answer.headers().get_all(header::SET_COOKIE) {
            let pair = cookie.to_str()?.split(';').next().unwrap_or_default();
            let (name, value) = pair.split_once('=').context("a cookie has a name")?;
            self.cookies.insert(name.to_owned(), value.to_owned());
        }
        Ok(answer)
    }

    async fn get(&mut self, url: &str) -> Result<Response> {
        self.send(Method::GET, url, None).await
    }

    /// Follows the link of a page.
    async fn led(&mut self, url: &str) -> Result<String> {
        let answer = self.get(url).await?;
        let place = answer.headers().get(header::LOCATION).with_context(|| format!("{url}: {}", answer.status()))?;
        Ok(place.to_str()?.to_owned())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_begins_on_one_node_ends_on_another_and_is_good_on_a_third() {
    let (idp, front) = (IdentityProvider::start().await.expect("starts"), Front::start().await.expect("starts"));
    idp.person(json!({ "sub": "ann-7", "email": "ann@a.example", "groups": ["ops"] }));
    scenario(cluster(&idp, &front), async |sandbox| {
        let [one, two, three] = [0, 1, 2].map(|node| sandbox.client(node).base().to_owned());
        front.node.set(two.clone()).expect("once");
        let mut browser = Browser { http: http::stepwise(), cookies: BTreeMap::new() };
        let away = browser.led(&format!("{one}/console/sign-in/oidc?next=/console/queues")).await?;
        ensure!(away.starts_with(idp.issuer()), "{away}");
        let back = browser.led(&away).await?;
        let landed = browser.led(&back).await?;
        ensure!(landed.starts_with(&two), "{landed}");
        let answer = browser.get(&landed).await?;
        ensure!(answer.headers()[header::REFRESH] == "0; url=/console/queues", "{}", answer.text().await?);
        let page = browser.get(&format!("{three}/console/queues")).await?.text().await?;
        ensure!(page.contains("oidc:ann-7"), "{page}");
        let token = page.split("name=\"form_token\" value=\"").nth(1).and_then(|rest| rest.split('"').next());
        let form = format!("form_token={}&action=create&name=made&role=viewer", token.context("every page has one")?);
        let made = browser.send(Method::POST, &format!("{three}/console/tokens"), Some(form)).await?;
        ensure!(made.status().is_success(), "{}", made.text().await?);
        let operator = sandbox.client(0);
        for (what, target, node) in [("console.sign_in", "console", 1), ("token.create", "made", 2)] {
            let deed = noted(&operator, what, 1).await?.remove(0);
            let by = (deed["who"].as_str(), deed["target"].as_str(), deed["node"].as_str());
            let name = sandbox.node(node).name();
            ensure!(by == (Some("oidc:ann-7"), Some(target), Some(name)), "{deed}, not {target} on {name}");
        }
        // The code was good once, and the browser keeps nothing of the sign-in.
        let again = browser.get(&landed).await?;
        ensure!(again.status() == 400, "{}", again.text().await?);
        ensure!(idp.given() == 1);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_signs_in_with_a_provider_of_another_site_in_a_browser() {
    if !language::is_here("npm") || !language::is_here("chromium") {
        return;
    }
    let (idp, front) = (IdentityProvider::start().await.expect("starts"), Front::start().await.expect("starts"));
    idp.person(json!({ "sub": "ann-7", "groups": ["ops"] }));
    scenario(cluster(&idp, &front), async |sandbox| {
        front.node.set(sandbox.client(1).base().to_owned()).expect("once");
        look(sandbox, "oidc.js", &json!({ "who": "oidc:ann-7" })).await?;
        let paused: Value = sandbox.client(0).call(Method::GET, "/v1/queues/orders", None).await?;
        ensure!(paused["paused"] == true, "{paused}");
        Ok(())
    })
    .await;
}
