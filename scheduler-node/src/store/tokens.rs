//! Tokens created over the API, kept in the first database only.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    access::{Caller, Role, Scope},
    limit::TokenLimits,
    time::UnixMicros,
    wire::token::{TokenSource, TokenView, ValidToken},
};
use sqlx::{Row, postgres::PgRow, types::Json};

use super::{Database, Error, StoreOp, claim::interval, unexpected};
use crate::access::{Token, TokenBook};

/// The most tokens that are not revoked. A node compares each request with all of them.
pub const MOST: i64 = 1_000;

/// A token as stored.
#[derive(Clone, Debug)]
pub struct TokenRecord {
    pub id: i64,
    pub view: TokenView,
}

/// The outcome of creating a token.
#[derive(Debug)]
pub enum TokenAdded {
    Made(Box<TokenRecord>),
    /// A token of this name exists.
    NameTaken,
    /// [`MOST`] tokens exist already.
    TooMany,
}

impl Database {
    /// The revision of the tokens. It rises with every token that is created or revoked.
    pub async fn token_revision(&self) -> Result<i64, Error> {
        self.run(StoreOp::TokenRevision, |pool| async move {
            sqlx::query(include_str!("queries/token_revision.sql")).fetch_one(&pool).await?.try_get("revision")
        })
        .await
    }

    /// Reads every token that is not revoked.
    pub async fn token_book(&self) -> Result<TokenBook, Error> {
        let asked = Instant::now();
        self.run(StoreOp::TokenBook, |pool| async move {
            let rows = sqlx::query(include_str!("queries/token_book.sql")).fetch_all(&pool).await?;
            let revision = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("revision")?;
            let mut tokens = Vec::with_capacity(rows.len());
            for row in &rows {
                let Some(name) = row.try_get::<Option<&str>, _>("name")? else { continue };
                match token(row, asked) {
                    Ok(token) => tokens.push(token),
                    // The others are valid or revoked all the same.
                    Err(error) => tracing::error!(name, %error, "a token cannot be read, so it is refused"),
                }
            }
            Ok(TokenBook { revision, tokens })
        })
        .await
    }

    /// Stores a token under its hash.
    pub async fn token_add(&self, token: &ValidToken, sha256: &[u8], by: &str) -> Result<TokenAdded, Error> {
        let added = self
            .run(StoreOp::TokenAdd, |pool| async move {
                let row = sqlx::query(include_str!("queries/token_add.sql"))
                    .bind(&token.name)
                    .bind(token.role.text())
                    .bind(token.queues.patterns())
                    .bind(sha256)
                    .bind(by)
                    .bind(token.expires_at.map(UnixMicros::to_utc))
                    .bind(MOST)
                    .bind((!token.limits.is_none()).then_some(Json(token.limits)))
                    .fetch_optional(&pool)
                    .await?;
                row.as_ref().map(TokenRecord::read).transpose()
            })
            .await;
        match added {
            Ok(Some(record)) => Ok(TokenAdded::Made(Box::new(record))),
            Ok(None) => Ok(TokenAdded::TooMany),
            Err(error) if error.sqlstate().as_deref() == Some("23505") => Ok(TokenAdded::NameTaken),
            Err(error) => Err(error),
        }
    }

    /// Revokes a token. `None`: no token of this name is unrevoked.
    pub async fn token_revoke(&self, name: &str, by: &str) -> Result<Option<TokenRecord>, Error> {
        self.run(StoreOp::TokenRevoke, |pool| async move {
            let query = sqlx::query(include_str!("queries/token_revoke.sql")).bind(name).bind(by);
            query.fetch_optional(&pool).await?.as_ref().map(TokenRecord::read).transpose()
        })
        .await
    }

    /// Lists at most `limit` tokens that were created before the one with the id `before`, newest first.
    pub async fn token_list(&self, before: Option<i64>, limit: i64) -> Result<Vec<TokenRecord>, Error> {
        self.run(StoreOp::TokenList, |pool| async move {
            let query = sqlx::query(include_str!("queries/token_list.sql")).bind(before).bind(limit);
            query.fetch_all(&pool).await?.iter().map(TokenRecord::read).collect()
        })
        .await
    }

    /// Deletes at most `most` tokens that were revoked more than `keep` ago.
    pub async fn token_forget(&self, keep: Duration, most: i64) -> Result<i64, Error> {
        self.run(StoreOp::TokenForget, |pool| async move {
            let query = sqlx::query(include_str!("queries/token_forget.sql")).bind(interval(keep)).bind(most);
            query.fetch_one(&pool).await?.try_get("tokens")
        })
        .await
    }
}

impl TokenRecord {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        let id = row.try_get("id")?;
        Ok(Self {
            id,
            view: TokenView {
                id: Some(id),
                name: row.try_get("name")?,
                role: role(row)?,
                queues: row.try_get("queues")?,
                source: TokenSource::Api,
                created_at: Some(super::moment(row, "created_at")?),
                created_by: row.try_get("created_by")?,
                expires_at: super::optional_moment(row, "expires_at")?,
                revoked_at: super::optional_moment(row, "revoked_at")?,
                revoked_by: row.try_get("revoked_by")?,
                limits: limits(row)?,
                token: None,
            },
        })
    }
}

/// Reads a token. Its expiry counts from the moment of the query, so it expires on
/// this node early rather than late.
fn token(row: &PgRow, asked: Instant) -> Result<Token, sqlx::Error> {
    let name: Arc<str> = row.try_get::<&str, _>("name")?.into();
    let queues = Scope::of(row.try_get("queues")?).map_err(|error| unexpected("queues", &error.to_string()))?;
    let sha256: [u8; 32] =
        row.try_get::<&[u8], _>("sha256")?.try_into().map_err(|_| unexpected("sha256", "of another length"))?;
    let left_ms: Option<i64> = row.try_get("left_ms")?;
    let left = left_ms.map(|left_ms| Duration::from_millis(u64::try_from(left_ms).unwrap_or(0)));
    let limits = limits(row)?.unwrap_or_default();
    let caller = Caller { id: row.try_get("id")?, name, role: role(row)?, queues, limits };
    Ok(Token::new(caller, sha256, asked, left))
}

fn limits(row: &PgRow) -> Result<Option<TokenLimits>, sqlx::Error> {
    Ok(row.try_get::<Option<Json<TokenLimits>>, _>("limits")?.map(|Json(limits)| limits))
}

fn role(row: &PgRow) -> Result<Role, sqlx::Error> {
    let text: &str = row.try_get("role")?;
    Role::parse(text).ok_or_else(|| unexpected("role", text))
}
