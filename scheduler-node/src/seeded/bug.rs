//! The bugs, and which of them this process has.

use std::sync::LazyLock;

/// The variable that chooses a bug by its name.
pub const VARIABLE: &str = "DUETIME_SEEDED_BUG";

macro_rules! bugs {
    ($($bug:ident $name:literal,)*) => {
        /// A rule of the product that is broken. `seeded/tests.rs` says which, and which test catches it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $($bug,)*
        }

        impl Bug {
            pub const ALL: &[(Self, &str)] = &[$((Self::$bug, $name),)*];
        }
    };
}

bugs! {
    NaiveFence "naive_fence",
    ClaimWithoutEpoch "claim_without_epoch",
    AcquireKeepsEpoch "acquire_keeps_epoch",
    TakeoverLeavesClaimed "takeover_leaves_claimed",
    ClaimTooEarly "claim_too_early",
    EarlyPublish "early_publish",
    CancelClaimed "cancel_claimed",
    UnclaimOnNack "unclaim_on_nack",
    RevertOnTimeout "revert_on_timeout",
    StalePublish "stale_publish",
    RescueUnlocked "rescue_unlocked",
    BlindDeadline "blind_deadline",
    DeafDeadline "deaf_deadline",
    ReplacedSucceeds "replaced_succeeds",
    StoppedRetried "stopped_retried",
    BlindSettle "blind_settle",
    SettleBeforeConfirm "settle_before_confirm",
    TrustCleanConfirm "trust_clean_confirm",
    UnmarkedCopies "unmarked_copies",
    AttemptUsedAgain "attempt_used_again",
    IdWatermark "id_watermark",
    NoSweeper "no_sweeper",
    OverdueForgotten "overdue_forgotten",
    DoubtForgotten "doubt_forgotten",
    BlindBegin "blind_begin",
    LateDrop "late_drop",
    LateFirstSending "late_first_sending",
    SecondSendingBlind "second_sending_blind",
    InboxRowTwice "inbox_row_twice",
    CutWithoutLastDelta "cut_without_last_delta",
    OrderReleasedEarly "order_released_early",
    LimitOutsideFence "limit_outside_fence",
    PolicyIgnored "policy_ignored",
    PickUnderOldPolicy "pick_under_old_policy",
    NoSecondLook "no_second_look",
    FireTimeTwice "fire_time_twice",
    EtcdHoldsPermission "etcd_holds_permission",
    OpenWithoutToken "open_without_token",
    RefusalRepeated "refusal_repeated",
}

/// Read once. A name that no bug has ends the process: a misspelled bug would look like one that nothing catches.
static SEEDED: LazyLock<Option<Bug>> = LazyLock::new(|| {
    let name = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty())?;
    let named = Bug::ALL.iter().find(|(_, of)| *of == name);
    Some(named.unwrap_or_else(|| panic!("{VARIABLE} is {name}, and no seeded bug has this name")).0)
});

impl Bug {
    pub fn is_seeded(self) -> bool {
        Self::seeded() == Some(self)
    }

    pub fn seeded() -> Option<Self> {
        *SEEDED
    }
}
