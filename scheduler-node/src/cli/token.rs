//! `duetime token`: makes a token and the section of the configuration that lets it in.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use clap::{Args, ValueEnum};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{Error, Form, Output, say};
use crate::config::Role;

/// Before every token, so that one that leaked is recognised as what it is.
const PREFIX: &str = "duetime_";

/// Whom the token is for.
#[derive(Debug, Args)]
pub struct Wish {
    /// Who will hold the token; default: the role.
    #[arg(long)]
    name: Option<String>,
    /// What the holder may do: each role may do what those before it may.
    #[arg(long, value_enum, default_value_t = RoleName::Operator)]
    role: RoleName,
    #[command(flatten)]
    output: Output,
}

/// The roles as they are spelled on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleName {
    Viewer,
    Producer,
    Operator,
}

impl From<RoleName> for Role {
    fn from(name: RoleName) -> Self {
        match name {
            RoleName::Viewer => Self::Viewer,
            RoleName::Producer => Self::Producer,
            RoleName::Operator => Self::Operator,
        }
    }
}

/// Prints a new token. It is kept nowhere.
pub fn token(wish: &Wish) -> Result<(), Error> {
    let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>()));
    let sha256: String = Sha256::digest(&token).iter().map(|byte| format!("{byte:02x}")).collect();
    let role = Role::from(wish.role);
    let name = wish.name.as_deref().unwrap_or_else(|| role.text());
    match wish.output.output {
        Form::Json | Form::Jsonl => say(json!({ "token": token, "name": name, "role": role.text(), "sha256": sha256 })),
        Form::Text => {
            say(format!("token: {token}\n"));
            say("Keep it: it is stored nowhere. Let it in with this section of the configuration:\n");
            say(format!("[[auth.token]]\nname = {name:?}\nrole = \"{role}\"\nsha256 = \"{sha256}\""));
        }
    }
    Ok(())
}
