//! A broker that accepts only clients with a certificate.

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

/// A client, once its view of the broker's state is as `wanted`.
async fn until(
    url: String,
    ca: Option<&Path>,
    identity: Option<Identity>,
    wanted: impl Fn(&BrokerState) -> bool,
) -> Broker {
    let tls = Tls { ca_file: ca.map(Path::to_owned), identity };
    let settings = AmqpSettings {
        login: Login { tls, ..Login::new(url.into()) },
        consume: false,
        delay_exchanges: Vec::new(),
        cluster: None,
    };
    let metrics = Arc::new(BrokerMetrics::register(&prometheus::Registry::new()).unwrap());
    let (broker, keeper) = Broker::new(settings, metrics);
    crate::supervise::spawn_child(keeper);
    let mut state = broker.state();
    let seen = timeout(LONG, state.wait_for(|state| wanted(state))).await.is_ok_and(|seen| seen.is_ok());
    assert!(seen, "the broker stays {:?}", broker.state().borrow());
    broker
}

/// Waits until a client is refused with all of these words. On a busy machine an earlier attempt may end otherwise.
async fn until_refused(url: String, ca: Option<&Path>, identity: Option<Identity>, words: &[&str]) {
    let is_refused = |state: &BrokerState| match state {
        BrokerState::Down { reason, .. } => words.iter().all(|word| reason.contains(word)),
        BrokerState::Up { .. } => panic!("it is let in"),
    };
    until(url, ca, identity, is_refused).await.close().await;
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
        let is_up = |state: &BrokerState| matches!(state, BrokerState::Up { blocked: false });
        let broker = until(url, ca, Some(identity(&client)), is_up).await;
        let taken = async {
            // A queue that is electing a leader may refuse for a while.
            while tally(&broker.publish(&route("mail"), batch("mail", 2)).await)
                != (Tally { done: 2, ..Tally::default() })
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(LONG, taken).await.expect("both are taken");
        broker.close().await;
    }

    let login = || rabbit.tls_url("guest:guest@");
    until_refused(login(), ca, None, &["amqp.cert_file", "amqp.key_file"]).await;
    until_refused(login(), None, Some(identity(&client)), &["UnknownIssuer"]).await;
    let stranger = authority.client("stranger").unwrap();
    until_refused(external, ca, Some(identity(&stranger)), &["REFUSED"]).await;
    std::fs::write(&client.key, "no key").unwrap();
    until_refused(login(), ca, Some(identity(&client)), &[&client.key.display().to_string()]).await;
}
