//! The gates: every statement that changes where a task stands, with the guards that it has.
//!
//! The test reads every statement file and every function of the migrations. It finds the writes that set `state`,
//! `attempt` or `claim_epoch` of a task, that make a task or that delete one, and compares them with a table. For each
//! guard of the table, the header of the statement must state it and the statement must have it.

#[path = "gates/gate.rs"]
mod gate;
#[path = "gates/guards.rs"]
mod guards;
#[path = "gates/source.rs"]
mod source;
#[path = "gates/table.rs"]
mod table;
#[path = "gates/table_functions.rs"]
mod table_functions;

use proc_macro2::{TokenStream, TokenTree};
use sqlparser::ast::LockType;

use self::{
    gate::{Gate, Guard, How},
    guards::{Write, conditions, depends_on, label, locks, matches, take_out, unlock, writes},
    source::{Source, all, made_up},
};

/// The whole table.
fn gates() -> impl Iterator<Item = &'static Gate> {
    table::gates().chain(table_functions::gates())
}

/// What is wrong with the writes of a source, by these gates.
fn objections(source: &Source, gates: &[&Gate]) -> Vec<String> {
    let mut wrong = Vec::new();
    let writes = writes(source);
    for write in &writes {
        let Some(gate) = gates.iter().find(|gate| gate.write == write.label) else {
            wrong.push(format!("{}: `{}` changes {} and is not in the table", source.name, write.label, write.changes));
            continue;
        };
        if gate.changes != write.changes {
            wrong.push(format!("{}: `{}` changes {}, not {}", source.name, write.label, write.changes, gate.changes));
        }
        for guard in gate.guards {
            if !source.header.contains(guard.stated) {
                wrong.push(format!("{}: the header does not state \"{}\"", source.name, guard.stated));
            }
            if !holds(source, write, guard) {
                wrong.push(format!("{}: `{}` lacks {:?}", source.name, write.label, guard.how));
            }
        }
    }
    for gate in gates.iter().filter(|gate| !writes.iter().any(|write| write.label == gate.write)) {
        wrong.push(format!("{}: there is no `{}`", source.name, gate.write));
    }
    wrong
}

/// Whether a write has a guard.
fn holds(source: &Source, write: &Write, guard: &Guard) -> bool {
    let says = |command: usize, place: &str, wanted: &str| {
        conditions(source, command, place).iter().any(|found| matches(found, wanted))
    };
    match guard.how {
        How::Itself(wanted) => says(write.command, &write.place, wanted),
        How::Statement(wanted) => says(write.command, "", wanted),
        How::In(place, wanted) => depends_on(source, write).contains(place) && says(write.command, place, wanted),
        How::Share(place, wanted) => locked(source, write, place, wanted, &LockType::Share),
        How::Locked(place, wanted) => locked(source, write, place, wanted, &LockType::Update),
        How::After(first, wanted) => ends_without(source, write, first, |command| says(command, "", wanted)),
        How::Command(wanted) => {
            source.commands[..=write.command].iter().any(|command| command.control.contains(wanted))
        }
        How::Call(wanted) => source.commands[..write.command]
            .iter()
            .any(|command| command.sql.as_ref().is_some_and(|sql| sql.to_string().starts_with(wanted))),
    }
}

/// Whether the write depends on rows that are locked with this condition. A row that another transaction has changed
/// meanwhile is checked again when it is locked, and no other row is.
fn locked(source: &Source, write: &Write, place: &str, wanted: &str, lock: &LockType) -> bool {
    depends_on(source, write).contains(place)
        && locks(source, write.command, place, lock)
        && conditions(source, write.command, place).iter().any(|found| matches(found, wanted))
}

/// Whether an earlier command of the function has the condition, and the function returns when it finds no row.
fn ends_without(source: &Source, write: &Write, first: &str, has: impl Fn(usize) -> bool) -> bool {
    (0..write.command).any(|command| {
        label(source, command).as_deref() == Some(first)
            && has(command)
            && (!first.starts_with("SELECT") || locks(source, command, "", &LockType::Share))
            && source.commands[command + 1].control.starts_with("IF NOT FOUND THEN RETURN")
    })
}

/// The source without one of the guards, in each way in which it can be taken out.
fn without(source: &Source, write: &Write, guard: &Guard) -> Vec<Source> {
    let mut less = source.clone();
    let mut unlocked = source.clone();
    match guard.how {
        How::Itself(says) => take_out(&mut less, write.command, &write.place, says),
        How::Statement(says) => take_out(&mut less, write.command, "", says),
        How::In(place, says) => take_out(&mut less, write.command, place, says),
        How::Share(place, says) | How::Locked(place, says) => {
            take_out(&mut less, write.command, place, says);
            unlock(&mut unlocked, write.command, place);
            return vec![less, unlocked];
        }
        How::After(first, says) => {
            let mut goes_on = source.clone();
            for command in (0..write.command).filter(|command| label(source, *command).as_deref() == Some(first)) {
                take_out(&mut less, command, "", says);
                goes_on.commands[command + 1].control.clear();
                unlock(&mut unlocked, command, "");
            }
            let is_read = first.starts_with("SELECT");
            return [less, goes_on].into_iter().chain(is_read.then_some(unlocked)).collect();
        }
        How::Command(says) => {
            less.commands.iter_mut().for_each(|command| command.control = command.control.replace(says, ""));
        }
        How::Call(says) => {
            let calls = |sql: &sqlparser::ast::Query| sql.to_string().starts_with(says);
            less.commands.iter_mut().for_each(|command| drop(command.sql.take_if(|sql| calls(sql))));
        }
    }
    vec![less]
}

fn gates_of(source: &Source) -> Vec<&'static Gate> {
    gates().filter(|gate| gate.source == source.name).collect()
}

#[test]
fn every_write_to_a_task_has_the_guards_that_its_header_states() {
    let sources = all();
    let wrong: Vec<String> = sources.iter().flat_map(|source| objections(source, &gates_of(source))).collect();
    assert_eq!(wrong, Vec::<String>::new());
    let unknown: Vec<&str> =
        gates().map(|gate| gate.source).filter(|name| !sources.iter().any(|source| source.name == *name)).collect();
    assert_eq!(unknown, Vec::<&str>::new(), "the table names statements that are there");
}

#[test]
fn without_any_one_of_its_guards_each_write_is_objected_to() {
    let mut taken_out = 0;
    for source in all() {
        let gates = gates_of(&source);
        for write in writes(&source) {
            let gate = gates.iter().find(|gate| gate.write == write.label).expect("a gate");
            for guard in gate.guards {
                for less in without(&source, &write, guard) {
                    assert_ne!(objections(&less, &gates), Vec::<String>::new(), "{}: {:?}", source.name, guard.how);
                    taken_out += 1;
                }
            }
        }
    }
    assert!(taken_out >= 60, "guards were taken out: {taken_out}");
}

#[test]
fn a_new_write_and_a_guard_that_no_header_states_are_objected_to() {
    for text in [
        "UPDATE duetime.task SET state = 'scheduled' WHERE id = $1",
        "WITH gone AS (DELETE FROM duetime.task WHERE id = $1 RETURNING id) SELECT id FROM gone",
        "INSERT INTO duetime.task (id) VALUES ($1)",
        "UPDATE task SET state = 'scheduled' WHERE id = $1",
        "UPDATE \"duetime\".\"task\" SET \"state\" = 'scheduled' WHERE id = $1",
        "UPDATE DUETIME.TASK SET STATE = 'scheduled' WHERE id = $1",
        "UPDATE duetime.task SET (wake_at, attempt) = ($2, 1) WHERE id = $1",
        "UPDATE duetime.archive SET state = 'succeeded' WHERE id = $1",
        "delete from duetime.archive where id = $1",
        "DO $$ BEGIN DELETE FROM duetime.task; END $$",
    ] {
        assert_eq!(objections(&made_up("new.sql", text), &[]).len(), 1, "{text}");
    }
    let harmless = made_up("new.sql", "UPDATE duetime.task SET wake_at = $2 WHERE id = $1");
    assert_eq!(objections(&harmless, &[]), Vec::<String>::new());
    for mut source in all() {
        let gates = gates_of(&source);
        source.header.clear();
        assert_eq!(objections(&source, &gates).is_empty(), gates.is_empty(), "{}", source.name);
    }
}

#[test]
fn an_insert_that_changes_the_row_that_is_there_is_objected_to() {
    let source = all().into_iter().find(|source| source.name == "task_collect.sql").expect("it is there");
    let gates = gates_of(&source);
    let insert = "INSERT INTO duetime.task (id) VALUES ($1) ON CONFLICT (id) DO UPDATE SET state = 'scheduled'";
    let changed = Source { commands: made_up("task_collect.sql", insert).commands, ..source };
    let found = objections(&changed, &gates);
    assert!(
        found.iter().any(|objection| objection.contains("changes a new row, or state, not a new row")),
        "{found:?}"
    );
}

#[test]
#[should_panic(expected = "a write that this test does not read")]
fn a_write_below_another_statement_is_noticed() {
    let text = "SELECT (WITH gone AS (DELETE FROM duetime.task RETURNING id) SELECT count(*) FROM gone)";
    objections(&made_up("new.sql", text), &[]);
}

#[test]
#[should_panic(expected = "no test reads the writes in")]
fn a_procedure_is_noticed() {
    made_up("new.sql", "CREATE PROCEDURE p() LANGUAGE plpgsql AS $$ BEGIN DELETE FROM duetime.task; END $$");
}

#[test]
fn only_the_gate_of_a_move_and_settings_of_tables_are_texts_run_as_sql() {
    // EXECUTE ON is a privilege that a GRANT names.
    let is_run = |control: &str| {
        let words: Vec<String> = control.split(' ').map(str::to_uppercase).collect();
        words.windows(2).any(|pair| pair[0] == "EXECUTE" && pair[1] != "ON")
    };
    let runs = |source: &Source| source.commands.iter().any(|command| is_run(&command.control));
    let found: Vec<String> = all().into_iter().filter(|source| runs(source)).map(|source| source.name).collect();
    assert_eq!(found, ["duetime.gate_guard", "duetime.spare_analyze"]);
}

/// A function of a trigger can change the row that is written without a statement.
#[test]
fn no_trigger_changes_where_a_task_stands() {
    for source in all() {
        for command in &source.commands {
            let control = command.control.to_lowercase();
            for column in ["state", "attempt", "claim_epoch"] {
                assert!(!control.contains(&format!("new . {column} :=")), "{}: {control}", source.name);
                assert!(!control.contains(&format!("new . {column} =")), "{}: {control}", source.name);
            }
            assert!(!control.contains("new :="), "{}: {control}", source.name);
        }
    }
}

/// sqlx takes a text that is made at run time only in `AssertSqlSafe`, or from its builder.
#[test]
fn statements_are_made_at_run_time_for_the_partitions_of_the_archive_only() {
    let room = super::sources(&super::root().join("scheduler-node/src"));
    let makes = |text: &str| ["AssertSqlSafe", "QueryBuilder"].iter().any(|word| text.contains(word));
    let found = room.iter().filter(|(name, text)| !super::is_test(name) && makes(text)).map(|(name, _)| name.as_str());
    assert_eq!(found.collect::<Vec<_>>(), ["store/partition.rs"]);
}

/// The texts of a file, in comments of its code too, each as one line.
fn texts(tokens: TokenStream) -> Vec<String> {
    tokens
        .into_iter()
        .flat_map(|token| match token {
            TokenTree::Group(group) => texts(group.stream()),
            TokenTree::Literal(text) => {
                let text = text.to_string().replace("\\\n", " ").replace("\\n", " ").replace(['"', '\\'], "");
                vec![text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()]
            }
            _ => Vec::new(),
        })
        .collect()
}

#[test]
fn no_write_to_a_task_stands_in_the_code_outside_of_the_statement_files() {
    for crate_name in ["common", "scheduler-node"] {
        for (name, text) in super::sources(&super::root().join(crate_name).join("src")) {
            if super::is_test(&name) {
                continue;
            }
            let tokens: TokenStream = text.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
            for text in texts(tokens) {
                for verb in [
                    "update",
                    "update only",
                    "insert into",
                    "delete from",
                    "delete from only",
                    "truncate",
                    "merge into",
                ] {
                    for table in ["task", "archive", "{"] {
                        assert!(!text.contains(&format!("{verb} duetime.{table}")), "{name}: {text}");
                    }
                }
            }
        }
    }
}
