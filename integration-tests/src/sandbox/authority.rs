//! A certificate authority for tests.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, ensure};

/// The PEM files of one certificate and its key.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// Signs certificates, all in one folder.
#[derive(Clone, Debug)]
pub struct Authority {
    folder: PathBuf,
    own: CertificateFiles,
}

impl Authority {
    /// Makes an authority with its files in `folder`.
    pub fn new(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let own = CertificateFiles { cert: folder.join("ca.pem"), key: folder.join("ca.key") };
        request("Test authority", "basicConstraints=critical,CA:TRUE", &own, None)?;
        Ok(Self { folder: folder.to_owned(), own })
    }

    /// PEM of its own certificate.
    pub fn file(&self) -> &Path {
        &self.own.cert
    }

    /// Makes the certificate of a server at 127.0.0.1 and `localhost`.
    pub fn server(&self) -> Result<CertificateFiles> {
        self.sign("localhost", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    }

    /// Makes the certificate of a client whose common name is `name`.
    pub fn client(&self, name: &str) -> Result<CertificateFiles> {
        self.sign(name, "extendedKeyUsage=clientAuth")
    }

    fn sign(&self, name: &str, extension: &str) -> Result<CertificateFiles> {
        let file = |kind: &str| self.folder.join(format!("{name}.{kind}"));
        let files = CertificateFiles { cert: file("pem"), key: file("key") };
        request(name, extension, &files, Some(&self.own))?;
        Ok(files)
    }
}

fn request(name: &str, extension: &str, files: &CertificateFiles, by: Option<&CertificateFiles>) -> Result<()> {
    let mut command = Command::new("openssl");
    command
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", &format!("/CN={name}"), "-addext", extension, "-keyout"])
        .arg(&files.key)
        .arg("-out")
        .arg(&files.cert);
    if let Some(by) = by {
        command.args(["-addext", "basicConstraints=critical,CA:FALSE", "-CA"]).arg(&by.cert).arg("-CAkey").arg(&by.key);
    }
    let made = command.output()?;
    ensure!(made.status.success(), "openssl: {}", String::from_utf8_lossy(&made.stderr));
    Ok(())
}
