//! What was done, by whom and how it was answered.

use common::wire::{AuditFilter, AuditList, Problem};

use super::{Desk, refusal::failed};
use crate::audit::Audit;

impl Desk {
    /// Where whoever answers notes what he answered.
    pub fn audit(&self) -> &Audit {
        &self.parts().audit
    }

    /// One page, newest first.
    pub async fn audit_list(&self, filter: AuditFilter) -> Result<AuditList, Problem> {
        self.ask_for_everything()?;
        filter.validate()?;
        self.parts().store.home().audit_list(&filter).await.map_err(|error| failed(&error))
    }
}
