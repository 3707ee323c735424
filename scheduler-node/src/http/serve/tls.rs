//! The node's own certificate: read from its files, and read again when they change.

use std::{fs, io, path::PathBuf, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::supervise::at_work;

/// How often the files are checked. Renewal happens days before the old certificate expires.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The protocols to negotiate, the first one preferred.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The files of the certificate with its chain and of the private key, both in PEM.
#[derive(Clone, Debug)]
pub(crate) struct CertificateFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// The certificate that new connections get.
pub struct Certificate {
    files: CertificateFiles,
    config: ArcSwap<ServerConfig>,
    /// The content of the files at the last read, usable or not.
    read: Mutex<Pem>,
}

#[derive(PartialEq, Eq)]
struct Pem {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificate").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Certificate {
    /// Reads the files; fails if they hold no certificate with its key.
    pub(crate) fn read(files: CertificateFiles) -> io::Result<Self> {
        let pem = Pem::read(&files)?;
        let config = ArcSwap::from_pointee(pem.config()?);
        Ok(Self { files, config, read: Mutex::new(pem) })
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }

    /// Reads the files at an interval. New connections get a new certificate; open ones keep theirs.
    pub(crate) async fn watch(self: Arc<Self>, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
            let _work = at_work();
            match self.look() {
                Ok(true) => tracing::info!(file = %self.files.cert.display(), "reloaded the renewed certificate"),
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(%error, file = %self.files.cert.display(), "the new certificate cannot be used; keeping the old one");
                }
            }
        }
    }

    /// Whether there was a new certificate. An unusable one is reported once.
    fn look(&self) -> io::Result<bool> {
        // While the files are being replaced one may be missing.
        let Ok(pem) = Pem::read(&self.files) else { return Ok(false) };
        if *self.read.lock() == pem {
            return Ok(false);
        }
        let config = pem.config();
        *self.read.lock() = pem;
        self.config.store(Arc::new(config?));
        Ok(true)
    }
}

impl Pem {
    fn read(files: &CertificateFiles) -> io::Result<Self> {
        Ok(Self { cert: fs::read(&files.cert)?, key: fs::read(&files.key)? })
    }

    fn config(&self) -> io::Result<ServerConfig> {
        let chain =
            CertificateDer::pem_slice_iter(&self.cert).collect::<Result<Vec<_>, _>>().map_err(io::Error::other)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(io::Error::other)?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = builder
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(io::Error::other)?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        Ok(config)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::{path::Path, process::Command};

    use super::*;

    /// Writes a certificate for `localhost`, signed by an authority of its own.
    pub(in super::super) fn make(folder: &Path) -> CertificateFiles {
        let files = CertificateFiles { cert: folder.join("cert.pem"), key: folder.join("key.pem") };
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
            .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout"])
            .arg(&files.key)
            .arg("-out")
            .arg(&files.cert)
            .output()
            .expect("openssl runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        files
    }

    #[test]
    fn a_renewed_certificate_is_taken_and_a_broken_one_leaves_the_old_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let certificate = Certificate::read(make(folder.path())).expect("a certificate");
        let first = certificate.config.load_full();
        assert!(!certificate.look().expect("nothing is new"));
        let files = make(folder.path());
        assert!(certificate.look().expect("it was renewed"));
        let second = certificate.config.load_full();
        assert!(!Arc::ptr_eq(&first, &second));
        fs::write(&files.key, "no key").expect("written");
        assert!(certificate.look().is_err(), "the error is reported");
        assert!(!certificate.look().expect("once"));
        assert!(Arc::ptr_eq(&second, &certificate.config.load_full()));
        fs::remove_file(&files.cert).expect("removed");
        assert!(!certificate.look().expect("a missing file is a moment of its replacement"));
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let (one, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let mixed = CertificateFiles { cert: make(one.path()).cert, key: make(other.path()).key };
        assert!(Certificate::read(mixed).is_err());
    }
}
