//! The table of the gates in statement files: each write, what it changes and its guards. `…` at the end of a guard
//! stands for the rest.

use super::gate::{
    Gate,
    How::{self, In, Itself, Locked, Share, Statement},
    NEW_ROW, NO_ROW, TASK_UPDATE, UNCLAIMED, gate, guard,
};

const UNCLAIMED_CAST: How = Itself("t.state::TEXT IN ('waiting', 'scheduled', 'ready')");
const UNCLAIMED_STATED: &str = "`waiting`, `scheduled` or `ready`";
const UNEXPIRED: How = Itself("(t.expires_at > clock_timestamp()) IS NOT FALSE");
const UNEXPIRED_STATED: &str = "expiry has not passed";
const IN_FLIGHT: How = Itself("CASE WHEN t.state IN ('dispatching', 'delivered', 'running') THEN true ELSE false END");
const DISPATCHING: &str = "CASE WHEN t.state = 'dispatching' THEN true ELSE false END";
const SCHEDULED: &str = "CASE WHEN t.state = 'scheduled' THEN true ELSE false END";
const HANDED_OVER: &str = "it has been handed over or may have been";
const ATTEMPT: How = Itself("t.attempt = f.attempt");
const SKIPS_AT_DEADLINE: How = Locked("free", "f.at_deadline");
const AT_DEADLINE: How = Itself("(NOT f.at_deadline OR t.wake_at <= clock_timestamp())");

const FENCE_STATED: &str = "locks the fence rows FOR SHARE where the presented epoch is still in force";
const SHARD: How = Share("fence", "s.id = mine.shard");
const EPOCH: How = Share("fence", "s.epoch = mine.epoch");
const OF_FENCES: How = In("asked", "p.shard = ANY(ARRAY(SELECT f.id FROM fence AS f))");
const NOT_EXPIRED: &str = "(t.expires_at IS NULL OR t.expires_at > clock_timestamp())";

/// The gates to the broker, and the rescue.
const CLAIMS: &[Gate] = &[
    gate(
        "task_claim.sql",
        "claimed",
        "attempt, claim_epoch, state",
        &[
            guard(FENCE_STATED, SHARD),
            guard(FENCE_STATED, EPOCH),
            guard("touches tasks of these shards only", OF_FENCES),
            guard("skips a row that another transaction locks", Locked("free", "t.id = a.id")),
            guard("cancelled, moved or finished meanwhile", Locked("free", SCHEDULED)),
            guard("how far ahead of its due time", Locked("free", "t.wake_at <= clock_timestamp() + $4")),
            guard("cancelled, moved or finished meanwhile", Locked("free", NOT_EXPIRED)),
            guard(
                "skips tasks of a queue that has turned since revision $7",
                Locked("free", "t.queue <> ALL(ARRAY(SELECT q.queue FROM turned AS q))"),
            ),
            guard("a queue that has turned since revision $7", In("turned", "q.revision > $7")),
            guard("touches tasks of these shards only", Itself("t.id = a.id")),
        ],
    ),
    gate(
        "task_pick.sql",
        "claimed",
        "attempt, claim_epoch, state",
        &[
            guard("as in task_claim.sql", Share("fence", "s.id = mine.id")),
            guard("as in task_claim.sql", EPOCH),
            guard("as in task_claim.sql", Locked("locked", "t.shard = ANY(ARRAY(SELECT f.id FROM fence AS f))")),
            guard("still `ready`", Locked("locked", "t.state::TEXT = 'ready'")),
            guard("skips rows that another statement locks", Locked("locked", "t.id = c.id")),
            guard("as in task_claim.sql", Locked("locked", NOT_EXPIRED)),
            guard("many of each priority", Locked("locked", "c.nth <= c.wanted")),
            guard("the only tasks to start", Locked("locked", "($14::UUID[] IS NULL OR c.id = ANY($14::UUID[]))")),
            guard("starts nothing when the queue has turned", In("turned", "q.revision > $12")),
            guard("has to begin: later it starts none", Locked("locked", "statement_timestamp() <= $15")),
            guard("starts a task at most $16 ahead", Locked("locked", "t.due_at <= statement_timestamp() + $16")),
            guard("as in task_claim.sql", Itself("t.id = p.id")),
        ],
    ),
    gate(
        "task_rescue.sql",
        "claimed",
        "claim_epoch",
        &[
            guard("the fence as in task_claim.sql", SHARD),
            guard("the fence as in task_claim.sql", EPOCH),
            guard("the fence as in task_claim.sql", OF_FENCES),
            guard("still `dispatching`", Locked("free", DISPATCHING)),
            guard("skips a row that another transaction locks", Locked("free", "t.id = a.id")),
            guard("still `dispatching`", Itself("t.id = a.id")),
        ],
    ),
    gate(
        "task_submit.sql",
        "written",
        NEW_ROW,
        &[
            guard("held under it (locked FOR SHARE", SHARD),
            guard("held under it (locked FOR SHARE", EPOCH),
            guard("Where $18 presents an epoch", In("gated", "claimed <- f.epoch IS NOT NULL")),
            guard("the fence of the shard is held", In("gated", "claimed <- f.shard IN (SELECT id FROM fence)")),
            guard(
                "when its queue has turned",
                In("gated", "claimed <- f.queue <> ALL(ARRAY(SELECT queue FROM turned))"),
            ),
            guard("has turned since revision $21", In("turned", "q.revision > $21")),
            guard(
                "the row begins as `dispatching`",
                Itself("CASE WHEN f.claimed THEN 'dispatching'::duetime.task_state…"),
            ),
            guard(
                "writes no task of a queue whose rules for submissions have changed",
                Itself("f.queue <> ALL(ARRAY(SELECT queue FROM rules_changed))"),
            ),
            guard("have changed since revision $24", In("rules_changed", "q.placed > $24")),
            guard(
                "ids that have meanwhile finished are left alone too",
                Itself("f.id <> ALL(ARRAY(SELECT id FROM finished))"),
            ),
            guard("an id that exists already is left alone", Itself("ON CONFLICT(id) DO NOTHING")),
            guard(
                "It inserts nothing after $23",
                Itself(
                    "CASE WHEN clock_timestamp() > $23 THEN duetime.out_of_time() WHEN $17 THEN duetime.not_finished(t.id)…",
                ),
            ),
            guard(
                "does nothing before that time has passed ($22)",
                Statement("too_early <- CASE WHEN statement_timestamp() <= $22 THEN duetime.out_of_time() END"),
            ),
        ],
    ),
];

/// What settles an attempt.
const SETTLES: &[Gate] = &[
    gate(
        "task_deliver.sql",
        TASK_UPDATE,
        "state",
        &[guard("this attempt", ATTEMPT), guard("still `dispatching`", Itself(DISPATCHING))],
    ),
    gate("task_extend.sql", TASK_UPDATE, "state", &[guard("this attempt", ATTEMPT), guard(HANDED_OVER, IN_FLIGHT)]),
    gate(
        "task_retry.sql",
        TASK_UPDATE,
        "state",
        &[
            guard("this attempt", ATTEMPT),
            guard(HANDED_OVER, IN_FLIGHT),
            guard("the task is not to stop", Itself("NOT t.stopping")),
            guard("no sign of life has moved its `wake_at`", AT_DEADLINE),
            guard("skips", SKIPS_AT_DEADLINE),
        ],
    ),
    gate(
        "task_finish.sql",
        "gone",
        NO_ROW,
        &[
            guard("this attempt", ATTEMPT),
            guard("in one of the states that the event may end", Itself("strpos(f.was, t.state::TEXT) > 0")),
            guard("claimed at least once since", Itself("t.attempt > t.attempts_base")),
            guard("A task that is to stop does not die", Itself("(f.final <> 'dead' OR NOT t.stopping)")),
            guard("no sign of life has moved its `wake_at`", AT_DEADLINE),
            guard("skips", SKIPS_AT_DEADLINE),
        ],
    ),
];

/// What changes or ends an unclaimed task.
const UNCLAIMED_ONLY: &[Gate] = &[
    gate("task_cancel.sql", "gone", NO_ROW, &[guard(UNCLAIMED_STATED, UNCLAIMED)]),
    gate(
        "bulk_cancel.sql",
        "gone",
        NO_ROW,
        &[guard(UNCLAIMED_STATED, UNCLAIMED_CAST), guard("skips a row", Locked("free", "t.id = asked.id"))],
    ),
    gate(
        "task_cancel_shared.sql",
        "gone",
        NO_ROW,
        &[guard(UNCLAIMED_STATED, UNCLAIMED_CAST), guard("skips a row", Locked("free", "t.id = asked.id"))],
    ),
    gate(
        "task_change.sql",
        TASK_UPDATE,
        "state",
        &[
            guard(UNCLAIMED_STATED, UNCLAIMED),
            guard(UNEXPIRED_STATED, UNEXPIRED),
            guard("must not expire before it is due", Itself("(($2::TIMESTAMPTZ IS NULL AND NOT $7) OR…")),
        ],
    ),
    gate(
        "task_change_shared.sql",
        TASK_UPDATE,
        "state",
        &[
            guard(UNCLAIMED_STATED, UNCLAIMED_CAST),
            guard("must not expire before it is due", Itself("(t.expires_at > free.due_at) IS NOT FALSE")),
            guard("skips a row", Locked("free", "t.id = asked.id")),
        ],
    ),
    gate(
        "bulk_move.sql",
        TASK_UPDATE,
        "state",
        &[
            guard(UNCLAIMED_STATED, UNCLAIMED_CAST),
            guard("must not expire before it is due", Itself("(t.expires_at > free.due_at) IS NOT FALSE")),
            guard("skips a row", Locked("free", "t.id = asked.id")),
        ],
    ),
    gate(
        "task_run.sql",
        TASK_UPDATE,
        "state",
        &[guard(UNCLAIMED_STATED, UNCLAIMED), guard(UNEXPIRED_STATED, UNEXPIRED)],
    ),
    gate(
        "bulk_run.sql",
        TASK_UPDATE,
        "state",
        &[
            guard(UNCLAIMED_STATED, UNCLAIMED_CAST),
            guard(UNEXPIRED_STATED, UNEXPIRED),
            guard("skips a row", Locked("free", "t.id = asked.id")),
        ],
    ),
    gate(
        "task_expire.sql",
        "gone",
        NO_ROW,
        &[
            guard("not claimed", Locked("late", "state IN ('waiting', 'scheduled', 'ready')")),
            guard("expiry has passed", Locked("late", "expires_at <= statement_timestamp()")),
            guard("tasks of these shards", Locked("late", "shard = ANY($1::INT[])")),
            guard("not claimed", Itself("t.id = late.id")),
        ],
    ),
    gate(
        "task_release.sql",
        "moved",
        "state",
        &[
            guard("still `waiting`", Itself("t.state = 'waiting'")),
            guard("whose dependencies have all succeeded", In("judged", "free <- cardinality(rest.names) = 0")),
            guard("skips a row that another transaction locks", Locked("looked", "t.id = c.id")),
            guard("not written since the snapshot", Locked("looked", "t.xmin::TEXT = c.seen")),
            guard("fails the statement (DT001)", In("done", "(SELECT duetime.require_place($7::INT[]))")),
        ],
    ),
];

/// What takes tasks out of an inbox.
const COLLECTS: &[Gate] = &[gate(
    "task_collect.sql",
    "INSERT duetime.task",
    NEW_ROW,
    &[
        guard(
            "writes nothing for a row that",
            Itself("f.id = ANY(ARRAY(SELECT id FROM gone UNION ALL SELECT id FROM first))"),
        ),
        guard("that was noted before", In("first", "ON CONFLICT(id) DO NOTHING")),
        guard(
            "deletes a row of this database's own inbox",
            In("gone", "i.id = ANY(ARRAY(SELECT w.id FROM duetime.inbox…"),
        ),
    ],
)];

/// Every gate in a statement file.
pub(crate) fn gates() -> impl Iterator<Item = &'static Gate> {
    [CLAIMS, SETTLES, UNCLAIMED_ONLY, COLLECTS].into_iter().flatten()
}
