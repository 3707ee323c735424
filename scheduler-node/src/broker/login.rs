//! The address of the broker, and the credentials of a client.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use lapin::{
    tcp::RustlsConnector,
    uri::{AMQPUri, SASLMechanism},
};
use rustls::{
    ClientConfig, RootCertStore, SignatureScheme,
    client::ResolvesClientCert,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use secrecy::{ExposeSecret, SecretString};

use super::{addresses::FailedAddresses, error::Error};
use crate::address;

/// The parameters of a connection.
#[derive(Clone, Debug)]
pub struct Login {
    /// `amqp://` or `amqps://`. A heartbeat of 5 s is added unless the URL names one. With
    /// `?auth_mechanism=external` the broker takes the user's name from the client's certificate.
    pub url: SecretString,
    pub tls: Tls,
    /// Clones share them, as all connections of a node or relay go to the same brokers.
    pub failed: Arc<FailedAddresses>,
}

/// The PEM files of an encrypted connection. Every connection reads them anew, so a renewed certificate needs
/// no restart.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// The authorities that may have signed the broker's certificate. `None`: those that the system trusts.
    pub ca_file: Option<PathBuf>,
    pub identity: Option<Identity>,
}

/// The client's certificate with its chain, and its key.
#[derive(Clone, Debug)]
pub struct Identity {
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
}

impl Login {
    #[cfg(test)]
    pub fn new(url: SecretString) -> Self {
        Self { url, tls: Tls::default(), failed: Arc::default() }
    }

    /// The same login at each broker that the URL names, at least one. A malformed list stays whole, and the
    /// attempt to connect says so.
    pub(super) fn each(&self) -> Vec<Self> {
        let url = self.url.expose_secret();
        let urls = address::each_host(url).unwrap_or_else(|_| vec![url.to_owned()]);
        let at = |url: String| Self { url: url.into(), tls: self.tls.clone(), failed: Arc::clone(&self.failed) };
        urls.into_iter().map(at).collect()
    }

    /// The broker's host and port, fit for a log.
    pub(super) fn place(&self) -> String {
        let Ok(AMQPUri { authority, .. }) = self.uri() else { return String::new() };
        let (host, port) = (authority.host, authority.port);
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    pub(super) fn uri(&self) -> Result<AMQPUri, Error> {
        let url = self.url.expose_secret();
        let mut uri: AMQPUri = url.parse().map_err(|_| Error::Url)?;
        // The parser knows no host in brackets, and puts `localhost` in its place.
        if let Some(address) = address_in_brackets(url) {
            address.clone_into(&mut uri.authority.host);
        }
        Ok(uri)
    }
}

/// The host of the URL without its brackets, if it is an IPv6 address.
fn address_in_brackets(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    host.strip_prefix('[')?.split_once(']').map(|(address, _)| address)
}

/// The user of the login. `None` where only the broker knows it.
pub(super) fn user(uri: &AMQPUri) -> Option<String> {
    let by_certificate = uri.query.auth_mechanism == Some(SASLMechanism::External);
    (!by_certificate).then(|| uri.authority.userinfo.username.clone())
}

/// Whether the broker has asked for a certificate that this client does not have. The broker's later
/// explanation is often lost, because the broker closes the connection at the same moment.
#[derive(Clone, Debug, Default)]
pub(super) struct CertificateRequest(Arc<AtomicBool>);

impl CertificateRequest {
    pub(super) fn is_received(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl ResolvesClientCert for CertificateRequest {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.store(true, Ordering::Relaxed);
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

impl Tls {
    pub(super) async fn connector(&self, request: &CertificateRequest) -> io::Result<RustlsConnector> {
        let mut trusted = RootCertStore::empty();
        let certificates_of_authorities = match &self.ca_file {
            Some(file) => certificates(file).await?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        trusted.add_parsable_certificates(certificates_of_authorities);
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(io::Error::other)?.with_root_certificates(trusted);
        let config = match &self.identity {
            Some(Identity { cert_file, key_file }) => {
                let key = PrivateKeyDer::from_pem_slice(&read(key_file).await?).map_err(|error| at(key_file, error))?;
                let made = builder.with_client_auth_cert(certificates(cert_file).await?, key);
                made.map_err(|error| at(cert_file, error))?
            }
            None => builder.with_client_cert_resolver(Arc::new(request.clone())),
        };
        Ok(config.into())
    }
}

async fn certificates(file: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let pem = read(file).await?;
    let certificates = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    match certificates.map_err(|error| at(file, error))? {
        none if none.is_empty() => Err(at(file, "it holds no certificate")),
        certificates => Ok(certificates),
    }
}

async fn read(file: &Path) -> io::Result<Vec<u8>> {
    tokio::fs::read(file).await.map_err(|error| at(file, error))
}

fn at(file: &Path, error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("cannot use {}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_may_be_named_by_an_ipv6_address() {
        for (url, hosts, places) in [
            ("amqp://u:p@[2001:db8::5]:1/%2f", &["2001:db8::5"][..], &["[2001:db8::5]:1"][..]),
            ("amqps://[::1]?heartbeat=9", &["::1"][..], &["[::1]:5671"][..]),
            ("amqp://u@[::1]:1,b:2/[x]", &["::1", "b"][..], &["[::1]:1", "b:2"][..]),
        ] {
            let each = Login::new(url.to_owned().into()).each();
            let found: Vec<String> = each.iter().map(|login| login.uri().unwrap().authority.host).collect();
            assert_eq!(found, hosts, "{url}");
            assert_eq!(each.iter().map(Login::place).collect::<Vec<_>>(), places, "{url}");
        }
    }
}
