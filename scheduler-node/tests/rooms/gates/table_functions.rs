//! The table of the gates in functions of the migrations.

use super::gate::{
    Gate, Guard,
    How::{After, Call, Command, Itself},
    NEW_ROW, NO_ROW, TASK_UPDATE, UNCLAIMED, gate, guard,
};

const KEY_LOCK: Guard =
    guard("takes the lock of the key first", Call("SELECT pg_advisory_xact_lock(hashtextextended(v_name"));
const WINDOW_STATED: &str = "writes nothing outside of the time window that the sender gave";
const WINDOW: Guard =
    guard(WINDOW_STATED, Command("IF statement_timestamp ( ) <= p_after OR clock_timestamp ( ) > p_until THEN"));
const OUT_OF_TIME: Guard = guard(WINDOW_STATED, Call("SELECT duetime.out_of_time()"));

const ARRIVES: Guard =
    guard("the shard does not arrive any more", After("UPDATE duetime.shard", "s.status = 'arriving'"));
const FILLS: Guard = guard("a newer owner fills it", After("UPDATE duetime.shard", "s.move_epoch = p_epoch"));
const IN_TIME: Guard = guard("this write comes late", After("UPDATE duetime.shard", "s.move_write < p_write"));
const GAP_STATED: &str = "Only in the very gap that the move made";
const IS_GONE: Guard = guard(GAP_STATED, After("SELECT duetime.shard", "s.status = 'gone'"));
const IN_GAP: Guard = guard(GAP_STATED, After("SELECT duetime.shard", "s.epoch = p_epoch"));

const REVIVE_KEY: Guard = guard("first takes the lock of the task's key", Call("SELECT pg_advisory_xact_lock(v_lock)"));
const REVIVE_TRY: Guard =
    guard("when a lock is held", Command("ELSIF NOT pg_try_advisory_xact_lock ( v_lock ) THEN RETURN"));
const REVIVE_PLACE: Guard =
    guard("a task of an old one does not come back", Command("v_dead . shard <> duetime . shard_of ("));
const REVIVE_LIVE: Guard =
    guard("an unfinished one of this version or a newer one", Command("t . version >= v_dead . version"));
const REVIVE_KEPT: Guard = guard("a kept one of a newer version", Command("a . version > v_dead . version"));

/// What an application cancels.
const CANCELS: &[Gate] = &[gate(
    "duetime.cancel",
    "DELETE duetime.task",
    NO_ROW,
    &[
        guard("Cancels an unclaimed task", UNCLAIMED),
        guard("The caller must not", Call("SELECT set_config('duetime.mover', '', true)")),
    ],
)];

/// What takes tasks in by their keys, and brings dead ones back.
const KEYED: &[Gate] = &[
    gate(
        "duetime.task_put",
        TASK_UPDATE,
        "state",
        &[guard("a compare-and-set on the row's state", UNCLAIMED), KEY_LOCK, WINDOW, OUT_OF_TIME],
    ),
    gate(
        "duetime.task_put",
        "gone",
        NO_ROW,
        &[
            guard("a compare-and-set on the row's state", UNCLAIMED),
            guard("unclaimed older ones are superseded", Itself("t.version < p_version")),
            KEY_LOCK,
            WINDOW,
            OUT_OF_TIME,
        ],
    ),
    gate(
        "duetime.task_put",
        "late",
        NO_ROW,
        &[
            guard("a compare-and-set on the row's state", UNCLAIMED),
            guard("whose expiry has passed", Itself("t.expires_at <= clock_timestamp()")),
            KEY_LOCK,
            WINDOW,
            OUT_OF_TIME,
        ],
    ),
    gate(
        "duetime.task_put",
        "INSERT duetime.task",
        NEW_ROW,
        &[
            guard("no second row can have its key and version", Itself("ON CONFLICT DO NOTHING")),
            KEY_LOCK,
            WINDOW,
            OUT_OF_TIME,
        ],
    ),
    gate(
        "duetime.task_revive",
        "DELETE duetime.archive",
        NO_ROW,
        &[
            guard("the task is not dead any more", Itself("a.state = 'dead'")),
            REVIVE_PLACE,
            REVIVE_KEY,
            REVIVE_TRY,
            REVIVE_LIVE,
            REVIVE_KEPT,
        ],
    ),
    gate(
        "duetime.task_revive",
        "INSERT duetime.task",
        NEW_ROW,
        &[guard("the task is not dead any more", After("DELETE duetime.archive", "a.state = 'dead'"))],
    ),
];

const OF_SHARD: Guard = guard("an arriving shard", Itself("t.shard = p_shard"));
const LEFT_BEHIND: &str = "rows that a shard left behind";

/// What a move of a shard copies, and what it deletes.
const MOVES: &[Gate] = &[
    gate("duetime.move_write", "DELETE duetime.task", NO_ROW, &[ARRIVES, FILLS, IN_TIME, OF_SHARD]),
    gate("duetime.move_write", "DELETE duetime.task 2", NO_ROW, &[ARRIVES, FILLS, IN_TIME, OF_SHARD]),
    gate("duetime.move_write", "DELETE duetime.task 3", NO_ROW, &[ARRIVES, FILLS, IN_TIME, OF_SHARD]),
    gate(
        "duetime.move_write",
        "INSERT duetime.task",
        NEW_ROW,
        &[ARRIVES, FILLS, IN_TIME, guard("an arriving shard", Itself("n.shard = p_shard"))],
    ),
    gate(
        "duetime.move_write",
        "DELETE duetime.archive",
        NO_ROW,
        &[ARRIVES, FILLS, IN_TIME, guard("an arriving shard", Itself("a.shard = p_shard"))],
    ),
    gate(
        "duetime.move_sweep",
        "DELETE duetime.task",
        NO_ROW,
        &[IS_GONE, IN_GAP, guard(LEFT_BEHIND, Itself("t.shard = p_shard"))],
    ),
    gate(
        "duetime.move_sweep",
        "DELETE duetime.archive",
        NO_ROW,
        &[IS_GONE, IN_GAP, guard(LEFT_BEHIND, Itself("a.shard = p_shard"))],
    ),
];

/// Every gate in a function.
pub(crate) fn gates() -> impl Iterator<Item = &'static Gate> {
    [CANCELS, KEYED, MOVES].into_iter().flatten()
}
