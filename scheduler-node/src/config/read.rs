//! Deserializers of single values.

use std::net::SocketAddr;

use secrecy::SecretString;
use serde::{Deserialize, Deserializer, de::Error};

pub(super) fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SecretString, D::Error> {
    String::deserialize(deserializer).map(SecretString::from)
}

pub(super) fn maybe_secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SecretString>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.map(SecretString::from))
}

/// A list, or one text with commas, the form that an environment variable can hold.
pub(super) fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "must be a list of strings, or one string with commas")]
    enum Either {
        Many(Vec<String>),
        One(String),
    }
    Ok(match Either::deserialize(deserializer)? {
        Either::Many(items) => items,
        Either::One(text) => {
            text.split(',').map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect()
        }
    })
}

pub(super) fn maybe_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    list(deserializer).map(Some)
}

pub(super) fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|_| {
        D::Error::custom(format!(
            "is {text:?}; it must be an IP address and a port, such as 127.0.0.1:8080 or [::1]:8080"
        ))
    })
}
