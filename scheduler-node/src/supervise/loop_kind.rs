//! The loops by their verbs.

use std::fmt;

macro_rules! loops {
    ($($variant:ident = $name:literal),* $(,)?) => {
        /// Every loop by its verb. All have one policy: a loop handles its own errors and ends only when told to. One that
        /// panics, or ends by itself, stops the node: whatever it kept true is no longer true, and a restart is a new
        /// incarnation that starts from what the stores say.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum LoopKind { $($variant),* }

        impl LoopKind {
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// As metrics and `/readyz` call it.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

loops! {
    Mirror = "mirror",
    SessionKeeper = "session_keeper",
    Elector = "elector",
    Assigner = "assigner",
    Owner = "owner",
    BrokerKeeper = "broker_keeper",
    Submitter = "submitter",
    Putter = "putter",
    Collector = "collector",
    Preloader = "preloader",
    NudgeListener = "nudge_listener",
    Nudger = "nudger",
    Dispatcher = "dispatcher",
    Picker = "picker",
    Publisher = "publisher",
    Settler = "settler",
    Reporter = "reporter",
    Receiver = "receiver",
    Firer = "firer",
    Archiver = "archiver",
    QueueReader = "queue_reader",
    TokenReader = "token_reader",
    ReceiptReader = "receipt_reader",
    Auditor = "auditor",
    Prober = "prober",
    Gauger = "gauger",
    Exporter = "exporter",
    Http = "http",
}

impl fmt::Display for LoopKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
