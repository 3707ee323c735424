//! The audit log's names of actions. They are part of the API: clients filter by them, and docs/security.md lists them.

common::labelled! {
    /// An action that the audit log records.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum AuditAction {
        TaskChange = "task.change",
        TaskCancel = "task.cancel",
        TaskStop = "task.stop",
        TaskRun = "task.run",
        TaskRetry = "task.retry",
        TaskBulk = "task.bulk",
        TaskExport = "task.export",
        /// A task was shown with its data.
        TaskRead = "task.read",
        /// A page of tasks was shown with their data.
        TaskList = "task.list",
        /// A schedule was shown with the data of its tasks.
        ScheduleRead = "schedule.read",
        QueuePut = "queue.put",
        QueueDelete = "queue.delete",
        QueuePause = "queue.pause",
        QueueResume = "queue.resume",
        SchedulePut = "schedule.put",
        ScheduleDelete = "schedule.delete",
        SchedulePause = "schedule.pause",
        ScheduleResume = "schedule.resume",
        ScheduleRun = "schedule.run",
        TokenCreate = "token.create",
        TokenRevoke = "token.revoke",
        NodeDrain = "node.drain",
        NodeUndrain = "node.undrain",
        ShardMove = "shard.move",
        ShardCallOff = "shard.call_off",
        ShardRebalance = "shard.rebalance",
        DatabaseDrain = "database.drain",
        DatabaseUndrain = "database.undrain",
        DatabaseRemove = "database.remove",
        DatabaseAcceptLoss = "database.accept_loss",
        ConsoleSignIn = "console.sign_in",
        ConsoleSignOut = "console.sign_out",
        /// A request or a message without another name was refused.
        Refused = "refused",
    }
}

impl AuditAction {
    /// Whether the action consists of an answer that shows the data of tasks.
    pub(super) const fn shows_data(self) -> bool {
        matches!(self, Self::TaskRead | Self::TaskList | Self::ScheduleRead)
    }
}

#[cfg(test)]
mod tests {
    use super::AuditAction;

    #[test]
    fn the_page_on_security_lists_every_action_and_no_other() {
        let page = include_str!("../../../docs/security.md");
        let table = page.split_once("| what | target |").expect("the table of actions").1;
        let table = table.split_once("\n\n").expect("its end").0;
        let cells = table.lines().filter_map(|line| line.split('|').nth(1));
        let mut listed: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        let mut known = AuditAction::ALL.map(AuditAction::text).to_vec();
        listed.sort_unstable();
        known.sort_unstable();
        assert_eq!(listed, known);
    }
}
