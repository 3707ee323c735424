//! The stylesheet, the script and the icon. They are compiled in, and browsers keep them for as long as their content
//! is the same.

use std::sync::LazyLock;

use axum::{
    extract::Path,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use sha2::{Digest, Sha256};

/// Hexadecimal digits of the hash. Few are enough, because no attacker chooses these files.
const HASH_DIGITS: usize = 16;

/// A file that pages link to.
pub(super) struct Asset {
    name: &'static str,
    content_type: &'static str,
    content: &'static str,
    hash: LazyLock<String>,
}

impl Asset {
    pub(super) fn url(&self) -> String {
        format!("/console/assets/{}/{}", *self.hash, self.name)
    }
}

macro_rules! asset {
    ($name:literal, $content_type:literal) => {{
        const CONTENT: &str = include_str!(concat!("assets/", $name));
        Asset { name: $name, content_type: $content_type, content: CONTENT, hash: LazyLock::new(|| hash(CONTENT)) }
    }};
}

pub(super) static STYLE: Asset = asset!("console.css", "text/css; charset=utf-8");
pub(super) static SCRIPT: Asset = asset!("console.js", "text/javascript; charset=utf-8");
pub(super) static ICON: Asset = asset!("icon.svg", "image/svg+xml");

fn hash(content: &str) -> String {
    let digest = Sha256::digest(content);
    digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()[..HASH_DIGITS].to_owned()
}

/// Serves a file. A page of another version of the console, during an upgrade, gets this version's file, but may not
/// cache it.
pub(super) async fn asset(Path((hash, name)): Path<(String, String)>) -> Response {
    let Some(asset) = [&STYLE, &SCRIPT, &ICON].into_iter().find(|asset| asset.name == name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let keep = if hash == *asset.hash { "public, max-age=31536000, immutable" } else { "no-store" };
    let headers = [
        (header::CONTENT_TYPE, asset.content_type),
        (header::CACHE_CONTROL, keep),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, asset.content).into_response()
}
