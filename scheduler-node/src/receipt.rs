//! Receipts. A delivery carries one, so that a report can prove that it comes from the consumer of the delivery.
//!
//! A receipt is an HMAC over the message id, made with a key of the cluster. The home database keeps the keys,
//! and every node reads them (`loops/upkeep/receipt_reader.rs`). The console derives the key of its sessions from the
//! same keys (`console/session.rs`).

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use common::ids::MessageId;
use hmac::{Hmac, Mac};
use secrecy::{ExposeSecret, SecretSlice};
use sha2::Sha256;
use tokio::sync::watch;

/// Separates receipts from every other use of the same key.
const DOMAIN: &[u8] = b"duetime-receipt:1:";

/// The keys as this node knows them; `None` until it has read them.
pub type Receipts = watch::Receiver<Option<Arc<ReceiptKeys>>>;

/// The keys of the cluster.
#[derive(Debug, Default)]
pub struct ReceiptKeys {
    /// The key that makes receipts. A cluster without keys makes none.
    pub making: Option<ReceiptKey>,
    /// The keys whose receipts are genuine. Several allow a change of keys while tasks are out.
    pub accepted: Vec<ReceiptKey>,
}

/// One key.
#[derive(Clone, Debug)]
pub struct ReceiptKey {
    secret: SecretSlice<u8>,
    /// A receipt that has taken in the key and the domain. A receipt for a message begins as a copy of it, so these are
    /// hashed once for all messages.
    begun: Hmac<Sha256>,
}

impl ReceiptKey {
    pub fn secret(&self) -> &[u8] {
        self.secret.expose_secret()
    }

    fn mac(&self, of: MessageId) -> Hmac<Sha256> {
        let mut mac = self.begun.clone();
        mac.update(of.to_string().as_bytes());
        mac
    }
}

impl From<Vec<u8>> for ReceiptKey {
    fn from(secret: Vec<u8>) -> Self {
        let mut begun = Hmac::<Sha256>::new_from_slice(&secret).expect("HMAC takes keys of any length");
        begun.update(DOMAIN);
        Self { secret: secret.into(), begun }
    }
}

impl ReceiptKeys {
    pub fn receipt(&self, of: MessageId) -> Option<String> {
        let mac = self.making.as_ref()?.mac(of);
        Some(URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
    }

    pub fn is_genuine(&self, of: MessageId, receipt: &str) -> bool {
        let Ok(bytes) = URL_SAFE_NO_PAD.decode(receipt) else { return false };
        // Each comparison takes constant time.
        self.accepted.iter().any(|key| key.mac(of).verify_slice(&bytes).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use common::ids::Attempt;

    use super::*;
    use crate::store::tests::fixture::fresh_id;

    fn key(byte: u8) -> ReceiptKey {
        vec![byte; 32].into()
    }

    #[test]
    fn a_receipt_is_genuine_for_its_own_attempt_only_and_with_any_key_that_is_accepted() {
        let keys = ReceiptKeys { making: Some(key(1)), accepted: vec![key(2), key(1)] };
        let first = MessageId { id: fresh_id(), attempt: Attempt::new(1) };
        let receipt = keys.receipt(first).expect("there is a key");
        assert!(keys.is_genuine(first, &receipt));
        assert!(!keys.is_genuine(MessageId { attempt: Attempt::new(2), ..first }, &receipt));
        assert!(!keys.is_genuine(MessageId { id: fresh_id(), ..first }, &receipt));
        for wrong in ["", "x", &receipt[1..], &receipt.to_uppercase(), &"A".repeat(43)] {
            assert!(!keys.is_genuine(first, wrong), "{wrong}");
        }
        let others = ReceiptKeys { making: None, accepted: vec![key(2)] };
        assert!(!others.is_genuine(first, &receipt) && others.receipt(first).is_none());
        assert!(!format!("{keys:?}").contains("1, 1"), "{keys:?}");
    }
}
