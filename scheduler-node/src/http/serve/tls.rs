//! The node's own certificate: read from its files, and read again when they change.

use std::{
    fs, io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus::{IntGauge, Registry};
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use x509_cert::der::Decode;

use crate::supervise::at_work;

/// How often the files are checked. Renewal happens days before the old certificate expires.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// After this many failed reads in a row, a minute, the files are not being replaced: they cannot be read.
const READS_UNTIL_REPORT: u32 = 6;

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
    /// The reads that have failed since one succeeded.
    failed_reads: AtomicU32,
    /// The end of the certificate that new connections get, in seconds since 1970.
    not_after: IntGauge,
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
        let not_after =
            IntGauge::new("duetime_http_certificate_not_after_seconds", "end of the node's certificate, in Unix time")
                .map_err(io::Error::other)?;
        not_after.set(pem.not_after_s());
        Ok(Self { files, config, read: Mutex::new(pem), failed_reads: AtomicU32::new(0), not_after })
    }

    /// Shows the end of the certificate in the metrics. Only a node with a certificate has this series.
    pub(crate) fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        registry.register(Box::new(self.not_after.clone()))
    }

    /// When the certificate ends, in seconds since 1970.
    pub(crate) fn not_after_s(&self) -> i64 {
        self.not_after.get()
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

    /// Whether there was a new certificate. An unusable one is reported once, and so are files that stay unreadable.
    fn look(&self) -> io::Result<bool> {
        let pem = match Pem::read(&self.files) {
            Ok(pem) => pem,
            Err(error) => {
                let failed = self.failed_reads.fetch_add(1, Ordering::Relaxed) + 1;
                // While the files are being replaced one may be missing.
                return if failed == READS_UNTIL_REPORT { Err(error) } else { Ok(false) };
            }
        };
        self.failed_reads.store(0, Ordering::Relaxed);
        if *self.read.lock() == pem {
            return Ok(false);
        }
        let (config, not_after_s) = (pem.config(), pem.not_after_s());
        *self.read.lock() = pem;
        self.config.store(Arc::new(config?));
        self.not_after.set(not_after_s);
        Ok(true)
    }
}

impl Pem {
    fn read(files: &CertificateFiles) -> io::Result<Self> {
        let read = |file: &PathBuf| {
            fs::read(file).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
        };
        Ok(Self { cert: read(&files.cert)?, key: read(&files.key)? })
    }

    /// When the node's own certificate ends, the first one of the file. One that cannot be read counts as one without
    /// an end: clients judge it.
    fn not_after_s(&self) -> i64 {
        let own = CertificateDer::pem_slice_iter(&self.cert).next().and_then(Result::ok);
        let read = own.and_then(|own| x509_cert::Certificate::from_der(&own).ok());
        let end_s = read.map(|read| read.tbs_certificate.validity.not_after.to_unix_duration().as_secs());
        end_s.and_then(|end_s| end_s.try_into().ok()).unwrap_or(i64::MAX)
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
    use crate::clock;

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
        certificate.not_after.set(0);
        assert!(certificate.look().expect("it was renewed"));
        let left_s = certificate.not_after_s() - clock::now().to_utc().timestamp();
        assert!((86_400..=172_800).contains(&left_s), "it is made for two days: {left_s}");
        let second = certificate.config.load_full();
        assert!(!Arc::ptr_eq(&first, &second));
        fs::write(&files.key, "no key").expect("written");
        assert!(certificate.look().is_err(), "the error is reported");
        assert!(!certificate.look().expect("once"));
        assert!(Arc::ptr_eq(&second, &certificate.config.load_full()));
        fs::remove_file(&files.cert).expect("removed");
        for _ in 1..READS_UNTIL_REPORT {
            assert!(!certificate.look().expect("a missing file is a moment of its replacement"));
        }
        assert!(certificate.look().is_err(), "a file that stays away is reported");
        assert!(!certificate.look().expect("once"));
        let files = make(folder.path());
        assert!(certificate.look().expect("it was renewed"));
        fs::remove_file(&files.key).expect("removed");
        assert!(!certificate.look().expect("the reads are counted anew"));
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let (one, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let mixed = CertificateFiles { cert: make(one.path()).cert, key: make(other.path()).key };
        assert!(Certificate::read(mixed).is_err());
    }
}
