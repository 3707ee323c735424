//! Where the broker is, and how a client shows who it is.

use std::{
    io,
    path::{Path, PathBuf},
};

use lapin::{
    tcp::{RustlsConnector, RustlsConnectorConfig},
    uri::{AMQPScheme, AMQPUri, SASLMechanism},
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use secrecy::{ExposeSecret, SecretString};

use super::error::Error;

/// What opening a connection needs.
#[derive(Clone, Debug)]
pub struct Login {
    /// `amqp://` or `amqps://`. A heartbeat of 5 s is added unless it names one. With `?auth_mechanism=external` the broker takes the
    /// user's name from the client's certificate.
    pub url: SecretString,
    pub tls: Tls,
}

/// The PEM files of an encrypted connection. Every connection reads them anew, so a renewed certificate needs no restart.
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
    pub fn new(url: SecretString) -> Self {
        Self { url, tls: Tls::default() }
    }

    pub(super) fn uri(&self) -> Result<AMQPUri, Error> {
        self.url.expose_secret().parse().map_err(|_| Error::Url)
    }

    /// The broker may have refused the connection because it shows no certificate.
    pub(super) fn lacks_certificate(&self, uri: &AMQPUri) -> bool {
        uri.scheme == AMQPScheme::AMQPS && self.tls.identity.is_none()
    }
}

/// As whom the client is logged in; `None` where only the broker knows.
pub(super) fn user(uri: &AMQPUri) -> Option<String> {
    let by_certificate = uri.query.auth_mechanism == Some(SASLMechanism::External);
    (!by_certificate).then(|| uri.authority.userinfo.username.clone())
}

impl Tls {
    pub(super) async fn connector(&self) -> io::Result<RustlsConnector> {
        let config = match &self.ca_file {
            Some(file) => {
                let mut config = RustlsConnectorConfig::default();
                config.add_parsable_certificates(certificates(file).await?);
                config
            }
            None => RustlsConnectorConfig::new_with_native_certs()?,
        };
        match &self.identity {
            Some(Identity { cert_file, key_file }) => {
                let key = PrivateKeyDer::from_pem_slice(&read(key_file).await?).map_err(|error| at(key_file, error))?;
                config.connector_with_single_cert(certificates(cert_file).await?, key)
            }
            None => config.connector_with_no_client_auth(),
        }
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
