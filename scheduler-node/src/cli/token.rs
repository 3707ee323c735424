//! `duetime token`: makes tokens, for the configuration or over the API, and lists and revokes them.

use clap::{Subcommand, ValueEnum};
use common::{
    access::Role,
    limit::TokenLimits,
    time::UnixMicros,
    wire::{
        TokenList, TokenView,
        token::{TokenSource, check_name},
    },
};
use reqwest::Method;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{
    client::{Request, path_part},
    error::Error,
    invocation::Invocation,
    moment,
    output::{Form, Output, say},
    pages::PageArgs,
    print,
};
use crate::{access::fresh_token, clock};

/// The subcommand; without one, `new`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    new: New,
}

/// The subcommands that act on tokens.
#[derive(Debug, Subcommand)]
enum Command {
    /// Make a token, and the section of the configuration that lets it in. Needs no running node.
    #[command(after_help = "Example:\n  duetime token new --name ops --role operator")]
    New(New),
    /// Make a token that is valid on every node within a second, and print it this once.
    #[command(after_help = "Examples:\n  duetime token create shop --role producer --queue 'shop.*'\n  \
                            duetime token create visitor --role viewer --expires-after 8h\n  \
                            duetime token create tenant --role producer --queue 'tenant.*' --max-pending 100000")]
    Create(Invocation<Create>),
    /// List tokens, newest first; the secrets themselves are never shown.
    #[command(after_help = "Example:\n  duetime token list")]
    List(Invocation<PageArgs>),
    /// Revoke a token; within a second every node refuses it.
    #[command(after_help = "Example:\n  duetime token revoke shop")]
    Revoke(Invocation<One>),
}

/// A token for the configuration.
#[derive(Debug, clap::Args)]
struct New {
    /// Who will hold the token; default: the role.
    #[arg(long)]
    name: Option<String>,
    /// What the holder may do.
    #[arg(long, value_enum, default_value_t = RoleName::Operator)]
    role: RoleName,
    #[command(flatten)]
    output: Output,
}

/// A token made over the API.
#[derive(Debug, clap::Args)]
struct Create {
    #[command(flatten)]
    token: One,
    /// What the holder may do.
    #[arg(long, value_enum)]
    role: RoleName,
    /// A queue that the token is for, or a prefix and `*`; can be given again. Default: all queues.
    #[arg(long = "queue", value_name = "NAME")]
    queues: Vec<String>,
    /// Expire the token after this time: 8h, 90days.
    #[arg(long, value_name = "LENGTH", value_parser = moment::duration_ms)]
    expires_after: Option<i64>,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Limits of a token. All but the first count everything in its queues, no matter which caller made it.
#[derive(Debug, clap::Args)]
struct LimitArgs {
    /// Most requests a second that each node accepts with it.
    #[arg(long, value_name = "COUNT")]
    max_requests_per_second: Option<u32>,
    /// Most unfinished tasks.
    #[arg(long, value_name = "COUNT")]
    max_pending: Option<i64>,
    /// Most bytes of these tasks' payloads and headers.
    #[arg(long, value_name = "BYTES")]
    max_pending_bytes: Option<i64>,
    /// Most queues.
    #[arg(long, value_name = "COUNT")]
    max_queues: Option<i64>,
    /// Most schedules.
    #[arg(long, value_name = "COUNT")]
    max_schedules: Option<i64>,
}

impl LimitArgs {
    fn limits(&self) -> TokenLimits {
        TokenLimits {
            requests_per_second: self.max_requests_per_second,
            pending: self.max_pending,
            pending_bytes: self.max_pending_bytes,
            queues: self.max_queues,
            schedules: self.max_schedules,
        }
    }
}

/// One token.
#[derive(Debug, clap::Args)]
struct One {
    #[arg(value_parser = name)]
    name: String,
}

/// The roles, as the command line spells them, each with its permissions.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleName {
    /// Reads /metrics
    Metrics,
    /// Submits tasks
    Submitter,
    /// Reports results and heartbeats
    Reporter,
    /// Looks at everything but payloads, headers, results and error texts
    Observer,
    /// Looks at everything
    Viewer,
    /// Looks, submits, changes, cancels and reports
    Producer,
    /// Everything
    Operator,
}

impl From<RoleName> for Role {
    fn from(name: RoleName) -> Self {
        match name {
            RoleName::Metrics => Self::Metrics,
            RoleName::Submitter => Self::Submitter,
            RoleName::Reporter => Self::Reporter,
            RoleName::Observer => Self::Observer,
            RoleName::Viewer => Self::Viewer,
            RoleName::Producer => Self::Producer,
            RoleName::Operator => Self::Operator,
        }
    }
}

fn name(text: &str) -> Result<String, String> {
    check_name(text).map_err(|error| error.to_string())?;
    path_part(text)
}

pub async fn token(args: &Args) -> Result<(), Error> {
    match &args.command {
        None => new(&args.new),
        Some(Command::New(args)) => new(args),
        Some(Command::Create(invocation)) => create(invocation).await,
        Some(Command::List(invocation)) => {
            PageArgs::print(invocation, "tokens", |page| Ok(table(&page.read::<TokenList>()?.tokens, clock::now())))
                .await
        }
        Some(Command::Revoke(invocation)) => {
            let path = ["v1", "tokens", invocation.args.name.as_str()];
            let answer = invocation.client()?.send(&Request::new(Method::DELETE, &path)).await?;
            invocation.print(&answer, |_| Ok(format!("{}  revoked", invocation.args.name)))
        }
    }
}

/// Prints a new token, which is stored nowhere.
fn new(args: &New) -> Result<(), Error> {
    let token = fresh_token();
    let sha256: String = Sha256::digest(&token).iter().map(|byte| format!("{byte:02x}")).collect();
    let role = Role::from(args.role);
    let name = args.name.as_deref().unwrap_or_else(|| role.text());
    match args.output.output {
        Form::Json | Form::Jsonl => say(json!({ "token": token, "name": name, "role": role.text(), "sha256": sha256 })),
        Form::Text => {
            say(format!("token: {token}\n"));
            say("Keep it: it is stored nowhere. Allow it with this section of the configuration:\n");
            say(format!("[[auth.token]]\nname = {name:?}\nrole = \"{role}\"\nsha256 = \"{sha256}\""));
        }
    }
    Ok(())
}

async fn create(invocation: &Invocation<Create>) -> Result<(), Error> {
    let Create { token, role, queues, expires_after, limits } = &invocation.args;
    let mut body = json!({ "name": token.name, "role": Role::from(*role) });
    if !queues.is_empty() {
        body["queues"] = json!(queues);
    }
    if let Some(expires_after_ms) = expires_after {
        body["expires_after_ms"] = json!(expires_after_ms);
    }
    if !limits.limits().is_none() {
        body["limits"] = json!(limits.limits());
    }
    let answer = invocation.client()?.send(&Request::post(&["v1", "tokens"]).body(body.to_string())).await?;
    invocation.print(&answer, |answer| {
        let token = answer.read::<TokenView>()?.token.unwrap_or_default();
        Ok(format!("token: {token}\n\nKeep it: it is stored nowhere and shown only once. It is in force."))
    })
}

fn table(tokens: &[TokenView], now: UnixMicros) -> String {
    let row = |token: &TokenView| {
        let queues = token.queues.as_ref().map_or_else(|| "all".to_owned(), |queues| queues.join(" "));
        let id = token.id.map_or_else(|| "-".to_owned(), |id| id.to_string());
        let limits = token.limits.unwrap_or_default().to_string();
        vec![id, token.name.clone(), token.role.to_string(), queues, limits, made(token, now), standing(token, now)]
    };
    print::table(&["ID", "NAME", "ROLE", "QUEUES", "LIMITS", "MADE", "IS"], tokens.iter().map(row).collect())
}

fn made(token: &TokenView, now: UnixMicros) -> String {
    match (token.source, token.created_at, &token.created_by) {
        (TokenSource::Api, Some(at), Some(by)) => format!("{} by {by}", moment::distance(at, now)),
        _ => "in the configuration".to_owned(),
    }
}

fn standing(token: &TokenView, now: UnixMicros) -> String {
    match (token.revoked_at, token.expires_at) {
        (Some(at), _) => format!("revoked {}", moment::distance(at, now)),
        (None, Some(at)) if at <= now => format!("expired {}", moment::distance(at, now)),
        (None, Some(at)) => format!("in force, expires {}", moment::distance(at, now)),
        (None, None) => "in force".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_shown_with_whether_it_opens_anything() {
        let at = |seconds: i64| Some(UnixMicros::new(seconds * 1_000_000));
        let now = UnixMicros::new(1_000_000_000);
        let token = |expires_at, revoked_at| TokenView {
            id: Some(7),
            name: "shop".to_owned(),
            role: Role::Producer,
            queues: Some(vec!["shop.*".to_owned(), "mail".to_owned()]),
            source: TokenSource::Api,
            created_at: at(400),
            created_by: Some("ops".to_owned()),
            expires_at,
            revoked_at,
            revoked_by: None,
            limits: None,
            token: None,
        };
        let row = |token: TokenView| table(&[token], now).lines().nth(1).unwrap_or_default().to_owned();
        assert_eq!(row(token(None, None)), "7   shop  producer  shop.* mail  none    10 m ago by ops  in force");
        assert!(row(token(at(1_600), None)).ends_with("in force, expires in 10 m"));
        assert!(row(token(at(400), None)).ends_with("expired 10 m ago"));
        assert!(row(token(at(400), at(400))).ends_with("revoked 10 m ago"));
    }
}
