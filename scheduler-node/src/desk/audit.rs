//! The audit log: each action, its caller and its outcome.

use common::wire::{AuditFilter, AuditList, Problem};

use super::Desk;
use crate::audit::Audit;

impl Desk {
    /// The audit log's entry point. The layer that answers a request notes the outcome here.
    pub(crate) fn audit(&self) -> &Audit {
        &self.parts().audit
    }

    /// One page of the audit log, newest first.
    pub(crate) async fn audit_list(&self, filter: AuditFilter) -> Result<AuditList, Problem> {
        self.require_all_queues()?;
        filter.validate()?;
        Ok(self.parts().store.home().audit_list(&filter).await?)
    }
}
