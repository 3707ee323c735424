//! Seals data that a browser carries for the nodes: the browser can neither read nor change it.
//!
//! The key is derived from a secret that all nodes already have, so no click costs a read from a store. A new
//! secret invalidates everything sealed with the one before.

use aws_lc_rs::{
    aead::{AES_256_GCM_SIV, Aad, Nonce, RandomizedNonceKey},
    hkdf,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

const NONCE_BYTES: usize = 12;

/// The most characters that browsers keep in one cookie, with its name. No seal is longer.
const SEALED_CHARS: usize = 4_096;

/// Seals for one purpose, and opens what it sealed, on any node with the same configuration.
pub struct Seal(RandomizedNonceKey);

/// The sealed data and its expiry.
#[derive(Serialize, Deserialize)]
struct Sealed<T> {
    ends_s: i64,
    what: T,
}

impl Seal {
    /// `purpose` separates keys that are made from one secret. `context` holds everything that must be the same
    /// where the seal is opened.
    pub fn new(secret: &[u8], purpose: &str, context: &[&[u8]]) -> Self {
        let lengths: Vec<[u8; 8]> = context.iter().map(|part| (part.len() as u64).to_be_bytes()).collect();
        let mut info = vec![purpose.as_bytes()];
        for (length, part) in lengths.iter().zip(context) {
            info.extend([length.as_slice(), part]);
        }
        let extracted = hkdf::Salt::new(hkdf::HKDF_SHA256, b"duetime").extract(secret);
        let mut key = [0_u8; 32];
        extracted
            .expand(&info, hkdf::HKDF_SHA256)
            .and_then(|expanded| expanded.fill(&mut key))
            .expect("HKDF gives as many bytes as its hash has");
        // With this cipher, random nonces are safe without a count of what all nodes have sealed.
        Self(RandomizedNonceKey::new(&AES_256_GCM_SIV, &key).expect("the key is as long as the cipher wants"))
    }

    pub fn close(&self, what: &impl Serialize, ends_s: i64) -> String {
        let mut text = serde_json::to_vec(&Sealed { ends_s, what }).expect("texts and numbers are JSON");
        let nonce = self.0.seal_in_place_append_tag(Aad::empty(), &mut text).expect("there is memory to seal in");
        URL_SAFE_NO_PAD.encode([nonce.as_ref().as_slice(), &text].concat())
    }

    /// `None` when the data was sealed elsewhere, for another purpose or with another configuration, was
    /// changed, or has expired.
    pub fn open<T: DeserializeOwned>(&self, sealed: &str, now_s: i64) -> Option<T> {
        if sealed.len() > SEALED_CHARS {
            return None;
        }
        let mut bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (nonce, text) = bytes.split_at_mut_checked(NONCE_BYTES)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let text = self.0.open_in_place(nonce, Aad::empty(), text).ok()?;
        let Sealed { ends_s, what } = serde_json::from_slice(text).ok()?;
        (now_s < ends_s).then_some(what)
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"a secret that the provider made";

    fn seal() -> Seal {
        Seal::new(SECRET, "session", &[b"issuer", b"client"])
    }

    #[test]
    fn what_is_sealed_is_opened_by_any_node_with_the_same_configuration() {
        let sealed = seal().close(&["ann", "ops"], 100);
        assert_eq!(seal().open::<Vec<String>>(&sealed, 99).expect("opened"), ["ann", "ops"]);
        assert_ne!(seal().close(&["ann", "ops"], 100), sealed, "the same looks different each time");
        assert!(!String::from_utf8_lossy(&URL_SAFE_NO_PAD.decode(&sealed).expect("base64")).contains("ann"));
    }

    #[test]
    fn it_ends() {
        let sealed = seal().close(&"ann", 100);
        assert_eq!(seal().open::<String>(&sealed, 100), None);
        assert_eq!(seal().open::<String>(&sealed, 1_000), None);
    }

    #[test]
    fn another_key_purpose_or_context_does_not_open_it() {
        let sealed = seal().close(&"ann", 100);
        for other in [
            Seal::new(b"a secret that the provider made anew", "session", &[b"issuer", b"client"]),
            Seal::new(SECRET, "sign-in", &[b"issuer", b"client"]),
            Seal::new(SECRET, "session", &[b"issue", b"rclient"]),
            Seal::new(SECRET, "session", &[b"issuer"]),
        ] {
            assert_eq!(other.open::<String>(&sealed, 0), None);
        }
    }

    #[test]
    fn one_changed_bit_anywhere_is_seen() {
        let sealed = URL_SAFE_NO_PAD.decode(seal().close(&"ann", 100)).expect("base64");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(seal().open::<String>(&URL_SAFE_NO_PAD.encode(changed), 0), None, "byte {at}");
        }
        for end in 0..sealed.len() {
            assert_eq!(seal().open::<String>(&URL_SAFE_NO_PAD.encode(&sealed[..end]), 0), None, "{end} bytes");
        }
        for text in ["", "???", &"A".repeat(SEALED_CHARS + 1)] {
            assert_eq!(seal().open::<String>(text, 0), None);
        }
    }
}
