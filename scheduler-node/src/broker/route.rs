//! The route of a queue's messages, and the declaration of the queue behind it.

use common::ids::QueueName;

/// The declaration of a task queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDeclaration {
    pub queue: QueueName,
    /// The length limit in messages. Beyond it the broker refuses messages, and the tasks wait in the database.
    pub max_length: i64,
    /// Whether an existing queue that Duetime did not declare is bound and used.
    pub use_existing: bool,
}

/// The route of a queue's messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub exchange: String,
    pub routing_key: String,
    /// `None` when the policy names an exchange of its own: then nothing is declared.
    pub declare: Option<QueueDeclaration>,
}
