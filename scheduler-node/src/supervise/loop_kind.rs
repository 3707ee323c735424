//! The kinds of loops, named by their verbs.

use std::fmt;

common::labelled! {
    /// Every loop by its verb. All have one policy: a loop handles its own errors and ends only at a stop. A
    /// loop that panics or ends by itself stops the node, because the state it kept true may be false now. A
    /// restart is a new incarnation that starts from the stores.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum LoopKind {
        Mirror = "mirror",
        RealmKeeper = "realm_keeper",
        SessionKeeper = "session_keeper",
        Elector = "elector",
        Watcher = "watcher",
        Assigner = "assigner",
        Owner = "owner",
        Mover = "mover",
        BrokerKeeper = "broker_keeper",
        Submitter = "submitter",
        KeyedSubmitter = "keyed_submitter",
        SqlIntake = "sql_intake",
        Preloader = "preloader",
        NudgeListener = "nudge_listener",
        Nudger = "nudger",
        Dispatcher = "dispatcher",
        ReadyStarter = "ready_starter",
        Publisher = "publisher",
        Settler = "settler",
        Reporter = "reporter",
        AmqpIntake = "amqp_intake",
        Firer = "firer",
        Archiver = "archiver",
        QueueReader = "queue_reader",
        MapReader = "map_reader",
        TokenReader = "token_reader",
        ReceiptReader = "receipt_reader",
        ConfigReader = "config_reader",
        Auditor = "auditor",
        Looker = "looker",
        Prober = "prober",
        SeenKeeper = "seen_keeper",
        Gauges = "gauges",
        Exporter = "exporter",
        Http = "http",
    }
}

impl fmt::Display for LoopKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
