//! A broker that takes clients with a certificate only.

use std::{path::Path, sync::Arc, time::Duration};

use integration_tests::sandbox::{Authority, CertificateFiles, Rabbit, Tether, scratch, shared};
use tokio::time::timeout;

use super::{
    super::{AmqpSettings, Broker, BrokerMetrics, BrokerState, Identity, Login, Tls},
    bench::{LONG, Tally, batch, route, tally},
};

/// A certificate and its key.
fn identity(files: &CertificateFiles) -> Identity {
    Identity { cert_file: files.cert.clone(), key_file: files.key.clone() }
}

/// A client that has tried once, and its state then.
async fn tried(url: String, ca: Option<&Path>, identity: Option<Identity>) -> (Broker, BrokerState) {
    let tls = Tls { ca_file: ca.map(Path::to_owned), identity };
    let settings = AmqpSettings { login: Login { url: url.into(), tls }, consume: false, delay_exchanges: Vec::new() };
    let metrics = Arc::new(BrokerMetrics::register(&prometheus::Registry::new()).unwrap());
    let (broker, keeper) = Broker::new(settings, metrics);
    let mut state = broker.state();
    crate::supervise::spawn_child(keeper);
    timeout(LONG, state.changed()).await.expect("it tries").unwrap();
    let found = state.borrow().clone();
    (broker, found)
}

async fn refusal(url: String, ca: Option<&Path>, identity: Option<Identity>) -> String {
    let (broker, state) = tried(url, ca, identity).await;
    broker.close().await;
    match state {
        BrokerState::Down { reason, .. } => reason,
        BrokerState::Up { .. } => panic!("it is let in"),
    }
}

#[tokio::test]
async fn a_client_shows_its_certificate_and_may_log_in_by_it() {
    let folder = scratch().join(shared::unique("authority"));
    let authority = Authority::new(&folder).unwrap();
    let place = scratch().join(shared::unique("rabbit-tls"));
    let rabbit = Rabbit::start_encrypted(&place, Tether::Tethered, &authority).await.unwrap();
    rabbit.ctl(&["add_user", "node-1", "unused"]).await.unwrap();
    rabbit.ctl(&["set_permissions", "node-1", ".*", ".*", ".*"]).await.unwrap();
    let (ca, client) = (Some(authority.file()), authority.client("node-1").unwrap());
    let external = format!("{}?auth_mechanism=external", rabbit.tls_url(""));

    for url in [rabbit.tls_url("guest:guest@"), external.clone()] {
        let (broker, state) = tried(url, ca, Some(identity(&client))).await;
        assert!(matches!(state, BrokerState::Up { blocked: false }), "{state:?}");
        let taken = async {
            // A queue whose leader is being elected may refuse for a while.
            while tally(&broker.publish(&route("mail"), batch("mail", 2)).await)
                != (Tally { done: 2, ..Tally::default() })
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(LONG, taken).await.expect("both are taken");
        broker.close().await;
    }

    let said = refusal(rabbit.tls_url("guest:guest@"), ca, None).await;
    assert!(said.contains("amqp.cert_file") && said.contains("amqp.key_file"), "{said}");
    let said = refusal(rabbit.tls_url("guest:guest@"), None, Some(identity(&client))).await;
    assert!(said.contains("UnknownIssuer") && !said.contains("amqp.cert_file"), "{said}");
    let stranger = authority.client("stranger").unwrap();
    let said = refusal(external, ca, Some(identity(&stranger))).await;
    assert!(said.contains("ACCESS_REFUSED") || said.contains("ACCESS-REFUSED"), "{said}");
    std::fs::write(&client.key, "no key").unwrap();
    let said = refusal(rabbit.tls_url("guest:guest@"), ca, Some(identity(&client))).await;
    assert!(said.contains(&client.key.display().to_string()), "{said}");
}
