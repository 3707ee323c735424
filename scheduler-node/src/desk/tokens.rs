//! Tokens: created, shown, revoked. They are kept in the first database. The token itself is shown once and
//! kept nowhere.

use std::sync::Arc;

use common::wire::{
    Problem, TokenList, TokenPage, TokenRequest, TokenView,
    token::{TokenCursor, TokenSource, check_name},
};
use sha2::{Digest, Sha256};

use super::{Desk, last_of_full, run_to_end};
use crate::{
    access,
    loops::upkeep::token_reader::read_anew,
    store::tokens::{MOST, TokenAdded},
};

impl Desk {
    /// Creates a token in the name of `by`. It is in force on this node from the answer on, on the others
    /// within half a second.
    pub(crate) async fn token_add(&self, request: TokenRequest, by: &str) -> Result<TokenView, Problem> {
        self.require_all_queues()?;
        let valid = request.validate(self.now())?;
        self.refuse_first()?;
        self.refuse_configured(&valid.name)?;
        let (desk, by) = (self.clone(), by.to_owned());
        run_to_end(async move {
            let token = access::fresh_token();
            let added = desk.parts().store.home().token_add(&valid, &Sha256::digest(&token), &by).await;
            let record = match added? {
                TokenAdded::Made(record) => record,
                TokenAdded::NameTaken => {
                    let detail =
                        format!("a token has the name `{}`; revoke it first, or choose another name", valid.name);
                    return Err(Problem::conflict(detail));
                }
                TokenAdded::TooMany => {
                    return Err(Problem::conflict(format!(
                        "there are {MOST} tokens, the most allowed; revoke unused ones first"
                    )));
                }
            };
            tracing::info!(token = %valid.name, role = %valid.role, queues = %valid.queues, by, "token created");
            desk.tokens_in_force().await;
            Ok(TokenView { token: Some(token), ..record.view })
        })
        .await
    }

    /// Revokes a token in the name of `by`. This node refuses it from the answer on, the others within half a second.
    /// A configured token of the same name, which the configuration may have got later, stays.
    pub(crate) async fn token_revoke(&self, name: &str, by: &str) -> Result<TokenView, Problem> {
        self.require_all_queues()?;
        check_name(name)?;
        let (desk, name, by) = (self.clone(), name.to_owned(), by.to_owned());
        run_to_end(async move {
            let revoked = desk.parts().store.home().token_revoke(&name, &by).await?;
            let Some(record) = revoked else {
                desk.refuse_configured(&name)?;
                return Err(Problem::not_found(format!("there is no valid token `{name}`")));
            };
            tracing::info!(token = name, by, "token revoked");
            desk.tokens_in_force().await;
            Ok(record.view)
        })
        .await
    }

    /// Like [`Self::token_revoke`], unless the name is no longer that of the token `id`, which the caller saw.
    pub(crate) async fn token_revoke_seen(&self, id: i64, name: &str, by: &str) -> Result<TokenView, Problem> {
        self.require_all_queues()?;
        read_anew(&self.parts().store, &self.parts().access).await?;
        let book = self.parts().access.book().unwrap_or_default();
        let mut named = book.tokens.iter().filter(|token| token.caller.name.as_ref() == name);
        if named.any(|token| token.caller.id != Some(id)) {
            let detail = format!("the name `{name}` is that of another token by now; look at the tokens again");
            return Err(Problem::conflict(detail));
        }
        self.token_revoke(name, by).await
    }

    /// One page, newest first, revoked tokens included. The first page starts with the tokens of this node's
    /// configuration.
    pub(crate) async fn token_list(&self, page: TokenPage) -> Result<TokenList, Problem> {
        self.require_all_queues()?;
        page.validate()?;
        let limit = i64::from(page.limit());
        let before = page.cursor.map(|cursor| cursor.0);
        let home = self.parts().store.home();
        let records = home.token_list(before, limit).await?;
        let next_cursor = last_of_full(&records, limit).map(|last| TokenCursor(last.id));
        let configured = if before.is_none() { self.parts().access.configured() } else { Arc::default() };
        let tokens = configured.iter().map(shown).chain(records.into_iter().map(|record| record.view)).collect();
        Ok(TokenList { tokens, next_cursor })
    }

    /// Refuses the first token on an open node. A caller there may be any user of the machine, and the first to
    /// create a token would lock the others out.
    fn refuse_first(&self) -> Result<(), Problem> {
        if !self.parts().access.is_open() {
            return Ok(());
        }
        let detail = "this node has no token and accepts every request, so any caller could become an operator; put \
                      the first operator's token into the configuration: `duetime token new` makes it";
        Err(Problem::conflict(detail))
    }

    fn refuse_configured(&self, name: &str) -> Result<(), Problem> {
        if self.parts().access.configured().iter().all(|token| token.caller.name.as_ref() != name) {
            return Ok(());
        }
        let detail =
            format!("the token `{name}` is in the configuration of this node, [[auth.token]]; change it there");
        Err(Problem::conflict(detail))
    }

    /// Puts a written change in force on this node before the answer goes out. After a failed read, the node
    /// reads the tokens again within half a second.
    async fn tokens_in_force(&self) {
        if let Err(error) = read_anew(&self.parts().store, &self.parts().access).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the tokens were stored but cannot be read back");
        }
    }
}

fn shown(token: &access::Token) -> TokenView {
    TokenView {
        id: token.caller.id,
        name: token.caller.name.to_string(),
        role: token.caller.role,
        queues: token.caller.queues.patterns().map(<[String]>::to_vec),
        source: TokenSource::Configuration,
        created_at: None,
        created_by: None,
        expires_at: None,
        revoked_at: None,
        revoked_by: None,
        limits: (!token.caller.limits.is_none()).then_some(token.caller.limits),
        token: None,
    }
}
