//! Whether a message that came back from the broker may change a task.
//!
//! Any user with write access to RabbitMQ can write such a message. Two things vouch for it: the queue that its
//! routing key named, which RabbitMQ's topic permissions have checked, and the receipt that only the attempt's own
//! delivery carried.

use crate::{
    ids::QueueName,
    queue::{QueuePolicy, ReceiptPolicy},
};

/// The evidence that a report or a rejection carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Voucher {
    /// The queue that its routing key in `duetime.in` named; `None` for a message that came another way.
    pub queue: Option<String>,
    pub receipt: Receipt,
    /// The RabbitMQ user who published it, if the message names one: RabbitMQ has checked it.
    pub user: Option<String>,
}

/// The receipt of a message, compared with the one of its task and attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Receipt {
    #[default]
    Absent,
    /// The receipt belongs to another attempt or another cluster, or is made up.
    Wrong,
    Genuine,
}

impl Voucher {
    /// Refuses a message about a task of `queue` that nothing vouches for; the error gives the reason.
    pub fn check(&self, queue: &QueueName, policy: &QueuePolicy) -> Result<(), String> {
        if let Some(named) = self.queue.as_deref().filter(|named| *named != queue.as_str()) {
            return Err(format!("its routing key names the queue `{named}`, but its task is in `{queue}`"));
        }
        match (policy.receipt, self.receipt) {
            (ReceiptPolicy::Optional, _) | (_, Receipt::Genuine) => Ok(()),
            (ReceiptPolicy::Required, Receipt::Absent) => {
                Err(format!("it has no header duetime-receipt, which the queue `{queue}` requires"))
            }
            (ReceiptPolicy::Required, Receipt::Wrong) => Err(format!(
                "its duetime-receipt does not match this attempt, and the queue `{queue}` requires a matching one"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_speaks_for_the_queue_it_was_addressed_to_and_brings_its_receipt_where_required() {
        let queue = QueueName::new("mail");
        let required = QueuePolicy { receipt: ReceiptPolicy::Required, ..QueuePolicy::default() };
        let voucher = |named: Option<&str>, receipt| Voucher { queue: named.map(Into::into), receipt, user: None };
        for (named, receipt, policy, is_let_in) in [
            (None, Receipt::Absent, &QueuePolicy::default(), true),
            (Some("mail"), Receipt::Wrong, &QueuePolicy::default(), true),
            (Some("mails"), Receipt::Genuine, &QueuePolicy::default(), false),
            (Some("mail"), Receipt::Genuine, &required, true),
            (None, Receipt::Genuine, &required, true),
            (Some("mail"), Receipt::Absent, &required, false),
            (None, Receipt::Wrong, &required, false),
        ] {
            let checked = voucher(named, receipt).check(&queue, policy);
            assert_eq!(checked.is_ok(), is_let_in, "{named:?} {receipt:?}: {checked:?}");
        }
    }
}
