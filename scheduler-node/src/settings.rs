//! Turns the configuration into the settings of the modules that connect.

use std::{fs, io, path::PathBuf, sync::Arc};

use secrecy::SecretString;

use crate::{
    broker::{self, AmqpSettings, ClusterGate, Identity, Login, Tls},
    config::{Amqp, Config, Database, DelayExchange, Etcd, Http},
    coordination::{EtcdSettings, EtcdTls},
    http::{Certificate, CertificateFiles},
    store::connect,
};

/// How to connect to one database. The server shows `purpose` beside each session.
pub fn database(database: &Database, purpose: &str) -> connect::Options {
    connect::Options {
        url: database.url.clone(),
        max_connections: database.max_connections,
        application_name: format!("duetime {purpose}"),
    }
}

/// Warnings about settings that work but send secrets over a network in the clear, a sentence each.
pub fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = config.warnings();
    for (index, of) in config.databases.iter().enumerate() {
        if database(of, "check").is_clear() {
            warnings.push(format!(
                "`database[{index}].url` sends tasks and the login over the network unencrypted; use \
                 sslmode=verify-full, or require"
            ));
        }
    }
    warnings
}

/// How to connect to etcd, with the certificates read from their files.
pub fn etcd(etcd: &Etcd) -> io::Result<EtcdSettings> {
    let read = |file: &Option<PathBuf>| file.as_ref().map(fs::read).transpose();
    let ca = read(&etcd.ca_file)?;
    let key = etcd.key_file.as_ref().map(fs::read_to_string).transpose()?.map(SecretString::from);
    let identity = read(&etcd.cert_file)?.zip(key);
    let encrypted = etcd.endpoints.iter().any(|endpoint| endpoint.starts_with("https://"));
    Ok(EtcdSettings {
        endpoints: etcd.endpoints.clone(),
        prefix: etcd.prefix.clone(),
        lease_ttl: etcd.lease_ttl(),
        user: etcd.username.clone().zip(etcd.password.clone()),
        tls: encrypted.then_some(EtcdTls { ca, identity }),
    })
}

/// The node's own certificate, if configured.
pub fn certificate(http: &Http) -> io::Result<Option<Arc<Certificate>>> {
    let Some((cert, key)) = http.cert_file.clone().zip(http.key_file.clone()) else { return Ok(None) };
    Certificate::read(CertificateFiles { cert, key }).map(Arc::new).map(Some)
}

/// The broker's address and credentials.
pub fn login(amqp: &Amqp) -> Login {
    let identity = amqp.cert_file.clone().zip(amqp.key_file.clone());
    let identity = identity.map(|(cert_file, key_file)| Identity { cert_file, key_file });
    Login { url: amqp.url.clone(), tls: Tls { ca_file: amqp.ca_file.clone(), identity }, failed: Arc::default() }
}

/// How to connect to the broker. With `consumed`, the connection also consumes submissions and reports, and the
/// messages of these delay exchanges. `cluster` says whose the virtual host must be.
pub fn amqp(amqp: &Amqp, consumed: Option<&[DelayExchange]>, cluster: Option<ClusterGate>) -> AmqpSettings {
    AmqpSettings {
        login: login(amqp),
        consume: consumed.is_some(),
        delay_exchanges: delay_exchanges(consumed.unwrap_or_default()),
        cluster,
    }
}

/// The exchanges to declare and to consume from.
pub fn delay_exchanges(exchanges: &[DelayExchange]) -> Vec<broker::DelayExchange> {
    exchanges.iter().map(|of| broker::DelayExchange { name: of.name.clone(), kind: of.kind }).collect()
}
