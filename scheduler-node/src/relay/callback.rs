//! Calls over HTTP, signed according to Standard Webhooks.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use common::{
    relay::call::{self, MAX_OUTPUT_BYTES},
    task::report::{ReportStatus, ResultBody},
};
use hmac::{Hmac, Mac};
use ipnet::IpNet;
use reqwest::{
    Response, Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER},
    redirect,
};
use secrecy::{ExposeSecret, SecretSlice};
use sha2::Sha256;

use super::{finished_call::FinishedCall, guard::Guard};
use crate::{broker::Task, causes, clock};

/// The longest wait for a connection. A target that has not accepted one by then counts as down.
const CONNECTS_WITHIN: Duration = Duration::from_secs(5);
/// The most bytes shown of an answer that is no success.
const SHOWN_BYTES: usize = 1_000;
/// The length that the standard requires of a secret.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
const SECRET_PREFIX: &str = "whsec_";

/// A secret with which calls are signed.
#[derive(Debug)]
pub struct Secret(SecretSlice<u8>);

impl Secret {
    /// Parses `whsec_` and base64. The error names the fault and never the secret.
    pub fn parse(text: &str) -> Result<Self, String> {
        let coded = text.strip_prefix(SECRET_PREFIX).ok_or_else(|| format!("must begin with {SECRET_PREFIX}"))?;
        let bytes = STANDARD.decode(coded).map_err(|_| format!("must be base64 after {SECRET_PREFIX}"))?;
        if !SECRET_BYTES.contains(&bytes.len()) {
            return Err(format!("must have 24 to 64 bytes, not {}", bytes.len()));
        }
        Ok(Self(bytes.into()))
    }

    fn signature(&self, id: &str, timestamp_s: i64, body: &[u8]) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.expose_secret()).expect("HMAC takes keys of any length");
        mac.update(format!("{id}.{timestamp_s}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

/// The target of calls, and the secrets that sign them.
#[derive(Debug)]
pub struct Callback {
    http: reqwest::Client,
    to: Url,
    /// Several while secrets are being changed: the receiver accepts any of them.
    secrets: Vec<Secret>,
}

impl Callback {
    /// `allowed`: networks that may be called although they are not public.
    pub fn new(to: Url, secrets: Vec<Secret>, allowed: Vec<IpNet>, timeout: Duration) -> Result<Self, String> {
        let guard = Guard::new(allowed);
        guard.check_literal(to.host_str().unwrap_or_default()).map_err(|error| error.to_string())?;
        let mut http = reqwest::Client::builder()
            .user_agent(concat!("duetime/", env!("CARGO_PKG_VERSION")))
            // A redirect would lead to an unchecked address, and a proxy would connect on its own.
            .redirect(redirect::Policy::none())
            .no_proxy()
            .dns_resolver(guard)
            .connect_timeout(CONNECTS_WITHIN.min(timeout))
            .timeout(timeout);
        if to.scheme() == "http" {
            // A machine without certificates can use plain HTTP all the same.
            http = http.tls_certs_only([]);
        }
        let http = http.build().map_err(|error| format!("cannot create an HTTP client: {error}"))?;
        Ok(Self { http, to, secrets })
    }

    pub(super) async fn call(&self, queue: &str, handed: &Task) -> FinishedCall {
        let headers = self.headers(queue, handed, clock::now().millis() / 1_000);
        match self.http.post(self.to.clone()).headers(headers).body(handed.body.clone()).send().await {
            Ok(response) => read(response).await,
            Err(error) => FinishedCall::not_called(explained(error)),
        }
    }

    /// The headers of a call. The id is the task's and the same in each attempt, so that a receiver can do the
    /// work only once.
    fn headers(&self, queue: &str, handed: &Task, timestamp_s: i64) -> HeaderMap {
        let id = handed.id.as_deref().unwrap_or_default();
        let signatures: Vec<String> =
            self.secrets.iter().map(|secret| secret.signature(id, timestamp_s, &handed.body)).collect();
        let number = |number: Option<i64>| number.map(|number| number.to_string());
        let mut headers = HeaderMap::new();
        for (name, value) in [
            (CONTENT_TYPE, handed.content_type.clone()),
            (HeaderName::from_static("webhook-id"), Some(id.to_owned())),
            (HeaderName::from_static("webhook-timestamp"), Some(timestamp_s.to_string())),
            (HeaderName::from_static("webhook-signature"), (!signatures.is_empty()).then(|| signatures.join(" "))),
            (HeaderName::from_static("duetime-queue"), Some(queue.to_owned())),
            (HeaderName::from_static("duetime-attempt"), number(handed.attempt)),
            (HeaderName::from_static("duetime-due-ms"), number(handed.due_ms)),
            (HeaderName::from_static("duetime-key"), handed.key.clone()),
            (HeaderName::from_static("duetime-partition-key"), handed.partition_key.clone()),
            (HeaderName::from_static("traceparent"), handed.traceparent.clone()),
            (HeaderName::from_static("tracestate"), handed.tracestate.clone()),
        ] {
            // A key with control characters has no place in a header.
            if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
                headers.insert(name, value);
            }
        }
        headers
    }
}

async fn read(mut response: Response) -> FinishedCall {
    let status = response.status().as_u16();
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let answer = call::of_status(status, retry_after, clock::now());
    let (mut output, mut broken) = (Vec::new(), None);
    // One byte more shows that the answer exceeds the limit.
    while output.len() <= MAX_OUTPUT_BYTES {
        match response.chunk().await {
            Ok(Some(chunk)) => output.extend_from_slice(&chunk),
            Ok(None) => break,
            Err(error) => {
                broken = Some(error);
                break;
            }
        }
    }
    let mut ended = FinishedCall::new(answer);
    ended.report.status_code = Some(status.into());
    match (answer.status, broken) {
        (ReportStatus::Succeeded, None) => ended.report.result = call::result(&output),
        (ReportStatus::Succeeded, Some(error)) if error.is_timeout() => {
            return FinishedCall::not_called(format!(
                "HTTP {status}, and its answer did not end: {}",
                explained(error)
            ));
        }
        (ReportStatus::Succeeded, Some(error)) => {
            let why = format!("HTTP {status} without a result, because its answer broke off: {}", explained(error));
            ended.report.status_msg = Some(why);
        }
        // Where it fails, the beginning of the answer is enough.
        _ => {
            let body = call::text(&output, SHOWN_BYTES);
            ended.report = ResultBody { status_msg: Some(format!("HTTP {status} {}", body.trim())), ..ended.report };
        }
    }
    ended
}

/// The error with its causes, without the address, which may hold a secret.
fn explained(error: reqwest::Error) -> String {
    causes::explained(&error.without_url())
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;
    use crate::broker::tests::bench::LONG;

    fn task(body: Vec<u8>) -> Task {
        Task {
            id: Some("task".to_owned()),
            is_whole: true,
            attempt: None,
            due_ms: None,
            key: None,
            partition_key: None,
            traceparent: Some("00-1-2-01".to_owned()),
            tracestate: Some("vendor=7".to_owned()),
            content_type: None,
            body,
            subject: None,
            is_foreign: false,
        }
    }

    /// Calls a target that sends half of its answer, and then closes the connection or falls silent.
    async fn half_answered(closes: bool, timeout: Duration) -> FinishedCall {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let body = b"{}".to_vec();
        let task = task(body.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = Url::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let callback = Callback::new(to, Vec::new(), vec!["127.0.0.0/8".parse().unwrap()], timeout).unwrap();
        let target = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(&body) {
                assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"a\"").await.unwrap();
            if closes {
                stream.shutdown().await.unwrap();
            }
            // The caller ends the connection.
            let _ = stream.read_to_end(&mut request).await;
        };
        tokio::join!(callback.call("jobs", &task), target).0
    }

    #[tokio::test]
    async fn a_success_whose_answer_breaks_off_has_no_result_and_says_why() {
        let ended = half_answered(true, LONG).await;
        assert_eq!((ended.report.status, ended.is_healthy), (ReportStatus::Succeeded, true));
        assert!(ended.report.result.is_none());
        assert!(ended.report.status_msg.is_some_and(|why| why.contains("broke off")));
    }

    #[tokio::test]
    async fn an_answer_that_does_not_end_in_time_is_a_failure_of_the_target() {
        let ended = half_answered(false, Duration::from_secs(2)).await;
        assert_eq!((ended.report.status, ended.is_healthy), (ReportStatus::Failed, false));
        assert!(ended.report.status_msg.is_some_and(|why| why.contains("did not end")));
    }

    #[test]
    fn a_call_carries_on_the_trace_of_its_task() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let to = Url::parse("http://shop.example/").unwrap();
        let callback = Callback::new(to, Vec::new(), Vec::new(), LONG).unwrap();
        let headers = callback.headers("jobs", &task(Vec::new()), 0);
        assert_eq!(headers["traceparent"], "00-1-2-01");
        assert_eq!(headers["tracestate"], "vendor=7");
    }

    #[test]
    fn a_signature_is_the_one_of_the_standard() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a secret");
        let signature = secret.signature("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn what_is_no_secret_is_refused_without_being_shown() {
        for text in ["", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_???", "whsec_aGFsbG8="] {
            let refused = Secret::parse(text).expect_err("it is none");
            assert!(text.is_empty() || !refused.contains(text), "{refused}");
        }
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a secret");
        assert!(!format!("{secret:?}").contains("49"), "{secret:?}");
    }
}
