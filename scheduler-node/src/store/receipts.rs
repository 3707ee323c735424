//! The keys that sign receipts, kept in the first database.

use sqlx::Row;

use super::{Database, Error, StoreOp};
use crate::receipt::ReceiptKeys;

impl Database {
    pub async fn receipt_keys(&self) -> Result<ReceiptKeys, Error> {
        self.run(StoreOp::ReceiptKeys, |pool| async move {
            let rows = sqlx::query(include_str!("queries/receipt_keys.sql")).fetch_all(&pool).await?;
            let mut keys = ReceiptKeys::default();
            for row in &rows {
                let key: Vec<u8> = row.try_get("key")?;
                if keys.making.is_none() && row.try_get("is_known")? {
                    keys.making = Some(key.clone().into());
                }
                keys.accepted.push(key.into());
            }
            // A new cluster uses its first key at once, because no other node could know a better one.
            keys.making = keys.making.or_else(|| keys.accepted.last().cloned());
            Ok(keys)
        })
        .await
    }
}
