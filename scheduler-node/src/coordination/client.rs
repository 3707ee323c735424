//! One client for each etcd endpoint, and Duetime's own fail-over between them.
//!
//! etcd-client's balanced channel never leaves a frozen endpoint, and by default its calls and streams wait for
//! ever. Hence every endpoint has a client of its own, and one endpoint is in use. The first caller that finds
//! it silent moves all callers to the next one.

use std::{
    fmt,
    future::Future,
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::{Mutex, watch};

use super::{
    CoordinationMetrics, EtcdOp, EtcdSettings, EtcdTls,
    error::{Error, code, is_refusal, status},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest wait for an answer of an endpoint, before the next one is tried.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// On an idle connection, a frozen peer is noticed after the interval and the timeout together.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// All endpoints, and the one in use.
pub(super) struct Endpoints {
    all: Vec<Endpoint>,
    /// Index of the endpoint in use. Streams watch it, to move with all other callers.
    current: watch::Sender<usize>,
    /// Whether no endpoint answered the last request, so that an outage is logged once.
    away: AtomicBool,
    metrics: Arc<CoordinationMetrics>,
}

struct Endpoint {
    url: String,
    client: Client,
    login: Option<Login>,
}

/// The credentials, and whether the client has logged in with them.
struct Login {
    user: String,
    password: SecretString,
    done: Mutex<bool>,
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all.iter().map(|endpoint| &endpoint.url)).finish()
    }
}

impl Endpoints {
    pub(super) async fn new(settings: &EtcdSettings, metrics: Arc<CoordinationMetrics>) -> Result<Self, Error> {
        assert!(!settings.endpoints.is_empty(), "the configuration names at least one endpoint");
        let mut all = Vec::with_capacity(settings.endpoints.len());
        for url in &settings.endpoints {
            let endpoint = Endpoint::new(url, settings).await;
            all.push(endpoint.map_err(|source| Error::Endpoint { endpoint: url.clone(), source })?);
        }
        Ok(Self { all, current: watch::Sender::new(0), away: AtomicBool::new(false), metrics })
    }

    /// Sends a request to the endpoint in use, and to the others in turn while there is no answer. `request`
    /// may reach etcd more than once, so it must be idempotent. Waits at most `timeout` for each endpoint.
    pub(super) async fn ask<T, F>(
        &self,
        op: EtcdOp,
        timeout: Duration,
        request: impl Fn(Client) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let mut source = None;
        // A lone endpoint gets the request twice: only use reveals a broken connection.
        for _ in 0..self.all.len().max(2) {
            let number = *self.current.borrow();
            let answer = tokio::time::timeout(timeout, self.all[number].ask(&request)).await;
            source = match answer {
                Ok(Ok(answer)) => {
                    self.answered();
                    return Ok(answer);
                }
                Ok(Err(source)) if is_refusal(&source) => {
                    self.answered();
                    return Err(Error::Refused { op, source });
                }
                Ok(Err(source)) => Some(source),
                Err(_) => None,
            };
            self.failed(number);
        }
        let error = Error::Unanswered { op, source };
        if !self.away.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "etcd is unreachable; this node keeps working on the shards it owns"
            );
        }
        Err(error)
    }

    /// Opens a stream on the endpoint in use. The stream's holder reports its end with [`Self::failed`] and
    /// leaves the endpoint when [`Self::moved`] returns.
    pub(super) async fn stream<T, F>(&self, op: EtcdOp, open: impl Fn(Client) -> F) -> Result<(usize, T), Error>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let number = *self.current.borrow();
        let source = match tokio::time::timeout(REQUEST_TIMEOUT, self.all[number].ask(&open)).await {
            Ok(Ok(stream)) => return Ok((number, stream)),
            Ok(Err(source)) if is_refusal(&source) => return Err(Error::Refused { op, source }),
            Ok(Err(source)) => Some(source),
            Err(_) => None,
        };
        self.failed(number);
        Err(Error::Unanswered { op, source })
    }

    /// Reports that endpoint `number` did not answer. The first report moves all callers to the next endpoint.
    pub(super) fn failed(&self, number: usize) {
        self.metrics.request_failures.inc();
        let next = (number + 1) % self.all.len();
        let moved = next != number
            && self.current.send_if_modified(|current| {
                let first = *current == number;
                if first {
                    *current = next;
                }
                first
            });
        if moved {
            tracing::debug!(from = self.all[number].url, to = self.all[next].url, "switched to another etcd endpoint");
        }
    }

    /// Waits until endpoint `number` is no longer the one in use.
    pub(super) async fn moved(&self, number: usize) {
        let mut current = self.current.subscribe();
        // The sender lives in `self`, so the wait cannot end otherwise.
        let _ = current.wait_for(|current| *current != number).await;
    }

    pub(super) fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
    }

    fn answered(&self) {
        if self.away.load(Ordering::Relaxed) && self.away.swap(false, Ordering::Relaxed) {
            tracing::info!("etcd is reachable again");
        }
    }
}

impl Endpoint {
    /// Makes the client. It does not connect yet.
    async fn new(url: &str, settings: &EtcdSettings) -> Result<Self, etcd_client::Error> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_keep_alive(KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT)
            .with_keep_alive_while_idle(true)
            .with_tcp_keepalive(KEEP_ALIVE_INTERVAL)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if url.starts_with("https://") {
            options = options.with_tls(tls(settings.tls.as_ref())?);
        }
        let login = settings.user.clone().map(|(user, password)| Login { user, password, done: Mutex::new(false) });
        Ok(Self { url: url.to_owned(), client: Client::connect([url], Some(options)).await?, login })
    }

    async fn ask<T, F>(&self, request: &impl Fn(Client) -> F) -> Result<T, etcd_client::Error>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let Some(login) = &self.login else { return request(self.client.clone()).await };
        login.once(&self.client).await?;
        let answer = request(self.client.clone()).await;
        if let Err(error) = &answer
            && is_stale_login(error)
        {
            *login.done.lock().await = false;
            login.once(&self.client).await?;
            return request(self.client.clone()).await;
        }
        answer
    }
}

impl Login {
    /// Logs in once. The client keeps the token, and gets a new one when it expires.
    async fn once(&self, client: &Client) -> Result<(), etcd_client::Error> {
        let mut done = self.done.lock().await;
        if !*done {
            let credentials = (self.user.clone(), self.password.expose_secret().to_owned());
            client.clone().update_user(Some(credentials)).await?;
            *done = true;
        }
        Ok(())
    }
}

fn tls(settings: Option<&EtcdTls>) -> Result<TlsOptions, etcd_client::Error> {
    let mut options = TlsOptions::new();
    options = match settings.and_then(|tls| tls.ca.as_ref()) {
        Some(ca) => {
            check_certificates(ca, "the authority")?;
            options.ca_certificate(Certificate::from_pem(ca))
        }
        None => options.with_enabled_roots(),
    };
    if let Some((certificate, key)) = settings.and_then(|tls| tls.identity.as_ref()) {
        check_certificates(certificate, "the client's certificate")?;
        if let Err(error) = PrivateKeyDer::from_pem_slice(key.expose_secret().as_bytes()) {
            return Err(etcd_client::Error::InvalidArgs(format!("the client's key cannot be read: {error}")));
        }
        options = options.identity(Identity::from_pem(certificate, key.expose_secret()));
    }
    Ok(options)
}

/// Refuses a text without a certificate: the client would take it for an empty list and then trust no server.
fn check_certificates(pem: &[u8], what: &str) -> Result<(), etcd_client::Error> {
    let mut certificates = CertificateDer::pem_slice_iter(pem).peekable();
    let fault = match certificates.peek() {
        None => Some("it holds no certificate in PEM".to_owned()),
        Some(_) => certificates.find_map(Result::err).map(|error| error.to_string()),
    };
    fault.map_or(Ok(()), |fault| Err(etcd_client::Error::InvalidArgs(format!("{what} cannot be read: {fault}"))))
}

/// Whether etcd refused the token for a reason that the client does not recognise: the users changed since, or
/// the server has forgotten the token.
fn is_stale_login(error: &etcd_client::Error) -> bool {
    let etcd_client::Error::GRpcStatus(answer) = error else { return false };
    status(error) == Some(code::INVALID_ARGUMENT)
        && ["revision of auth store is old", "user name is empty"].iter().any(|text| answer.message().contains(text))
}
