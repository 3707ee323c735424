//! The audit log's names of actions. They are part of the API: clients filter by them, and docs/security.md lists them.

/// An action that the audit log records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuditAction {
    TaskChange,
    TaskCancel,
    TaskStop,
    TaskRun,
    TaskRetry,
    TaskBulk,
    TaskExport,
    /// A task was shown with its data.
    TaskRead,
    /// A page of tasks was shown with their data.
    TaskList,
    /// A schedule was shown with the data of its tasks.
    ScheduleRead,
    QueuePut,
    QueueDelete,
    QueuePause,
    QueueResume,
    SchedulePut,
    ScheduleDelete,
    SchedulePause,
    ScheduleResume,
    ScheduleRun,
    TokenCreate,
    TokenRevoke,
    NodeDrain,
    NodeUndrain,
    ConsoleSignIn,
    ConsoleSignOut,
    /// A request or a message without another name was refused.
    Refused,
}

impl AuditAction {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 26] = [
        Self::TaskChange,
        Self::TaskCancel,
        Self::TaskStop,
        Self::TaskRun,
        Self::TaskRetry,
        Self::TaskBulk,
        Self::TaskExport,
        Self::TaskRead,
        Self::TaskList,
        Self::ScheduleRead,
        Self::QueuePut,
        Self::QueueDelete,
        Self::QueuePause,
        Self::QueueResume,
        Self::SchedulePut,
        Self::ScheduleDelete,
        Self::SchedulePause,
        Self::ScheduleResume,
        Self::ScheduleRun,
        Self::TokenCreate,
        Self::TokenRevoke,
        Self::NodeDrain,
        Self::NodeUndrain,
        Self::ConsoleSignIn,
        Self::ConsoleSignOut,
        Self::Refused,
    ];

    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::TaskChange => "task.change",
            Self::TaskCancel => "task.cancel",
            Self::TaskStop => "task.stop",
            Self::TaskRun => "task.run",
            Self::TaskRetry => "task.retry",
            Self::TaskBulk => "task.bulk",
            Self::TaskExport => "task.export",
            Self::TaskRead => "task.read",
            Self::TaskList => "task.list",
            Self::ScheduleRead => "schedule.read",
            Self::QueuePut => "queue.put",
            Self::QueueDelete => "queue.delete",
            Self::QueuePause => "queue.pause",
            Self::QueueResume => "queue.resume",
            Self::SchedulePut => "schedule.put",
            Self::ScheduleDelete => "schedule.delete",
            Self::SchedulePause => "schedule.pause",
            Self::ScheduleResume => "schedule.resume",
            Self::ScheduleRun => "schedule.run",
            Self::TokenCreate => "token.create",
            Self::TokenRevoke => "token.revoke",
            Self::NodeDrain => "node.drain",
            Self::NodeUndrain => "node.undrain",
            Self::ConsoleSignIn => "console.sign_in",
            Self::ConsoleSignOut => "console.sign_out",
            Self::Refused => "refused",
        }
    }

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
