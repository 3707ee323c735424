//! What becomes of the messages of each delay exchange. A change of the configuration replaces the rules as a whole.

use std::{collections::HashMap, sync::Arc};

use common::{ids::QueueName, queue::Unroutable, wire::DelayRoute};
use tokio::sync::watch;

/// The rule of one delay exchange.
#[derive(Clone, Debug)]
pub struct DelayRule {
    pub exchange: String,
    pub route: DelayRoute,
    /// The fate of a message that the broker returns.
    pub unroutable: Unroutable,
}

/// The rules in force. Clones share them.
#[derive(Clone, Debug)]
pub struct DelayRules(Arc<watch::Sender<Rules>>);

/// The rules as they were at one moment.
pub type Rules = Arc<RuleSet>;

#[derive(Debug, Default)]
pub struct RuleSet {
    by_exchange: HashMap<String, DelayRoute>,
    by_queue: HashMap<QueueName, DelayRule>,
}

impl RuleSet {
    fn new(rules: impl IntoIterator<Item = DelayRule>) -> Self {
        let mut set = Self::default();
        for rule in rules {
            set.by_exchange.insert(rule.exchange.clone(), rule.route.clone());
            set.by_queue.insert(rule.route.queue.clone(), rule);
        }
        set
    }

    /// The route of messages that this exchange takes. `None`: it is no longer configured.
    pub fn route(&self, exchange: &str) -> Option<&DelayRoute> {
        self.by_exchange.get(exchange)
    }

    /// The exchange to which messages go that are listed under `queue`.
    fn leads_to(&self, queue: &QueueName) -> Option<&str> {
        self.by_queue.get(queue).map(|rule| rule.route.deliver_to.as_str())
    }

    /// The queues under which waiting messages are listed.
    pub fn queues(&self) -> impl Iterator<Item = &QueueName> {
        self.by_queue.keys()
    }
}

impl DelayRules {
    pub fn new(rules: impl IntoIterator<Item = DelayRule>) -> Self {
        Self(Arc::new(watch::Sender::new(Arc::new(RuleSet::new(rules)))))
    }

    /// Messages that a node takes from now on follow these rules. Returns the queues whose messages go to another
    /// exchange than before.
    pub fn replace(&self, rules: impl IntoIterator<Item = DelayRule>) -> Vec<QueueName> {
        let after = Arc::new(RuleSet::new(rules));
        let before = self.0.send_replace(Arc::clone(&after));
        let has_changed = |queue: &&QueueName| before.leads_to(queue) != after.leads_to(queue);
        after.queues().filter(has_changed).cloned().collect()
    }

    pub fn now(&self) -> Rules {
        Arc::clone(&self.0.borrow())
    }

    pub fn subscribe(&self) -> watch::Receiver<Rules> {
        self.0.subscribe()
    }

    /// The fate of a returned message that is listed under `queue`. `None`: its exchange is no longer configured.
    pub fn unroutable(&self, queue: &QueueName) -> Option<Unroutable> {
        self.0.borrow().by_queue.get(queue).map(|rule| rule.unroutable)
    }

    /// Whether messages that are listed under `queue` go to another exchange now. Those that came before keep this one.
    pub fn have_left(&self, queue: &QueueName, exchange: &str) -> bool {
        self.0.borrow().leads_to(queue).is_some_and(|now| now != exchange)
    }
}
