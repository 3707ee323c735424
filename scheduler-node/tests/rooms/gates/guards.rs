//! Finds the writes that a statement contains and the conditions that they depend on, and takes a condition out.

use std::{collections::BTreeSet, ops::ControlFlow};

use sqlparser::ast::{
    Assignment, AssignmentTarget, BinaryOperator, Delete, Expr, FromTable, Insert, JoinConstraint, JoinOperator,
    LockType, ObjectName, OnConflictAction, OnInsert, Query, Select, SelectItem, SetExpr, Statement, TableFactor,
    TableObject, TableWithJoins, Update, UpdateTableFromKind, Value, visit_expressions_mut, visit_relations,
    visit_statements,
};

use super::source::Source;

/// The columns that say where a task stands and who claimed it.
const WATCHED: [&str; 3] = ["attempt", "claim_epoch", "state"];

/// A write to a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    /// The command of the source that contains it.
    pub(crate) command: usize,
    /// Its name in WITH; outside of WITH it is empty.
    pub(crate) place: String,
    /// The name in WITH, or the verb and the table, with a number from the second on.
    pub(crate) label: String,
    /// The watched columns that it sets, `a new row`, or `no row any more`.
    pub(crate) changes: String,
}

/// The writes of a source that change where a task stands.
pub(crate) fn writes(source: &Source) -> Vec<Write> {
    let mut found: Vec<Write> = Vec::new();
    for (command, query) in source.commands.iter().enumerate().filter_map(|(at, c)| Some((at, c.sql.as_ref()?))) {
        assert_eq!(all_writes(query), seen_writes(query), "{}: a write that this test does not read", source.name);
        for place in places(query) {
            let Some((verb, changes)) = body(query, &place).and_then(|query| write(&query.body)) else { continue };
            let same = found.iter().filter(|other| other.label.starts_with(&verb)).count();
            let label = match (place.is_empty(), same) {
                (false, _) => place.clone(),
                (true, 0) => verb,
                (true, before) => format!("{verb} {}", before + 1),
            };
            found.push(Write { command, place, label, changes });
        }
    }
    found
}

/// The names in WITH, and the empty name of the rest.
fn places(query: &Query) -> Vec<String> {
    let named = query.with.iter().flat_map(|with| &with.cte_tables).map(|cte| cte.alias.name.value.clone());
    named.chain([String::new()]).collect()
}

/// The writes of a statement, wherever they stand.
fn all_writes(query: &Query) -> usize {
    let mut found = 0;
    let _ = visit_statements(query, |_| {
        found += 1;
        ControlFlow::<()>::Continue(())
    });
    found
}

/// The writes that this test reads: in WITH of the whole statement, and outside of WITH.
fn seen_writes(query: &Query) -> usize {
    let is_write = |place: &String| {
        let body = body(query, place).map(|query| &*query.body);
        matches!(body, Some(SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Insert(_)))
    };
    places(query).iter().filter(|place| is_write(place)).count()
}

fn body<'a>(query: &'a Query, place: &str) -> Option<&'a Query> {
    if place.is_empty() {
        return Some(query);
    }
    let ctes = query.with.iter().flat_map(|with| &with.cte_tables);
    ctes.into_iter().find(|cte| cte.alias.name.value == place).map(|cte| &*cte.query)
}

fn body_mut<'a>(query: &'a mut Query, place: &str) -> Option<&'a mut Query> {
    if place.is_empty() {
        return Some(query);
    }
    let ctes = query.with.iter_mut().flat_map(|with| &mut with.cte_tables);
    ctes.into_iter().find(|cte| cte.alias.name.value == place).map(|cte| &mut *cte.query)
}

/// What a write changes, if it changes where a task stands.
fn write(body: &SetExpr) -> Option<(String, String)> {
    let (verb, changes) = match body {
        SetExpr::Update(Statement::Update(update)) => (verb_of(body)?, watched(&update.assignments)),
        SetExpr::Delete(_) => (verb_of(body)?, "no row any more".to_owned()),
        SetExpr::Insert(Statement::Insert(insert)) => {
            let set = match &insert.on {
                Some(OnInsert::OnConflict(on)) => match &on.action {
                    OnConflictAction::DoUpdate(update) => watched(&update.assignments),
                    OnConflictAction::DoNothing => String::new(),
                },
                _ => String::new(),
            };
            let changes = if set.is_empty() { "a new row".to_owned() } else { format!("a new row, or {set}") };
            (verb_of(body)?, changes)
        }
        _ => return None,
    };
    let gated = [
        "UPDATE duetime.task",
        "DELETE duetime.task",
        "INSERT duetime.task",
        "UPDATE duetime.archive",
        "DELETE duetime.archive",
    ];
    (gated.contains(&verb.as_str()) && !changes.is_empty()).then_some((verb, changes))
}

/// The watched columns among those that are set.
fn watched(assignments: &[Assignment]) -> String {
    let set = assignments.iter().flat_map(|assignment| match &assignment.target {
        AssignmentTarget::ColumnName(name) => std::slice::from_ref(name),
        AssignmentTarget::Tuple(names) => names,
    });
    let set: BTreeSet<String> = set.map(last_part).filter(|name| WATCHED.contains(&name.as_str())).collect();
    set.into_iter().collect::<Vec<_>>().join(", ")
}

/// The name of a column or table without its schema, as PostgreSQL reads it.
fn last_part(name: &ObjectName) -> String {
    let last = name.0.last().map(ToString::to_string).unwrap_or_default();
    if last.contains('"') { last.replace('"', "") } else { last.to_lowercase() }
}

/// The name of a table. However the schema is written, there is one table of a name.
fn table_name(name: &ObjectName) -> String {
    format!("duetime.{}", last_part(name))
}

/// The verb of a command, and the table that it is about.
fn verb_of(body: &SetExpr) -> Option<String> {
    let table = |tables: &[TableWithJoins]| match tables.first().map(|table| &table.relation) {
        Some(TableFactor::Table { name, .. }) => Some(table_name(name)),
        _ => None,
    };
    Some(match body {
        SetExpr::Update(Statement::Update(update)) => {
            format!("UPDATE {}", table(std::slice::from_ref(&update.table))?)
        }
        SetExpr::Delete(Statement::Delete(delete)) => format!("DELETE {}", table(from(delete))?),
        SetExpr::Insert(Statement::Insert(Insert { table: TableObject::TableName(name), .. })) => {
            format!("INSERT {}", table_name(name))
        }
        SetExpr::Select(select) => format!("SELECT {}", table(&select.from)?),
        _ => return None,
    })
}

fn from(delete: &Delete) -> &[TableWithJoins] {
    match &delete.from {
        FromTable::WithFromKeyword(tables) | FromTable::WithoutKeyword(tables) => tables,
    }
}

/// The verb and table of a command of a source.
pub(crate) fn label(source: &Source, command: usize) -> Option<String> {
    verb_of(&source.commands[command].sql.as_ref()?.body)
}

/// The names in WITH that the rows of `write` depend on, directly or through others.
pub(crate) fn depends_on(source: &Source, write: &Write) -> BTreeSet<String> {
    let Some(query) = &source.commands[write.command].sql else { return BTreeSet::new() };
    let (mut found, mut open) = (BTreeSet::from([write.place.clone()]), vec![write.place.clone()]);
    while let Some(place) = open.pop() {
        let Some(part) = body(query, &place) else { continue };
        let _ = visit_relations(&part.body, |name| {
            if body(query, &name.to_string()).is_some() && found.insert(name.to_string()) {
                open.push(name.to_string());
            }
            ControlFlow::<()>::Continue(())
        });
    }
    found
}

/// The conditions of one place that hold for each row of it, and the expressions that it gives a name.
pub(crate) fn conditions(source: &Source, command: usize, place: &str) -> Vec<String> {
    let part = source.commands[command].sql.as_ref().and_then(|query| body(query, place));
    let mut found = Vec::new();
    if let Some(part) = part {
        collect(&part.body, &mut found);
    }
    found
}

/// Whether a place locks the rows that it reads: FOR UPDATE, or at least FOR SHARE.
pub(crate) fn locks(source: &Source, command: usize, place: &str, lock: &LockType) -> bool {
    let part = source.commands[command].sql.as_ref().and_then(|query| body(query, place));
    part.is_some_and(|part| part.locks.iter().any(|found| found.lock_type == *lock))
}

fn collect(body: &SetExpr, found: &mut Vec<String>) {
    match body {
        SetExpr::Select(select) => collect_select(select, found),
        SetExpr::Query(query) => collect(&query.body, found),
        SetExpr::Update(Statement::Update(Update { selection, from, .. })) => {
            split(selection.as_ref(), "", found);
            if let Some(UpdateTableFromKind::BeforeSet(tables) | UpdateTableFromKind::AfterSet(tables)) = from {
                collect_tables(tables, found);
            }
        }
        SetExpr::Delete(Statement::Delete(delete)) => {
            split(delete.selection.as_ref(), "", found);
            collect_tables(delete.using.as_deref().unwrap_or_default(), found);
        }
        SetExpr::Insert(Statement::Insert(insert)) => {
            if let Some(rows) = &insert.source {
                collect(&rows.body, found);
            }
            found.extend(insert.on.iter().map(|on| on.to_string().trim().to_owned()));
            found.extend(insert.returning.iter().flatten().map(ToString::to_string));
        }
        _ => {}
    }
}

fn collect_select(select: &Select, found: &mut Vec<String>) {
    split(select.selection.as_ref(), "", found);
    collect_tables(&select.from, found);
    for item in &select.projection {
        match item {
            SelectItem::ExprWithAlias { expr, alias } => split(Some(expr), &format!("{alias} <- "), found),
            SelectItem::UnnamedExpr(expr) => found.push(expr.to_string()),
            _ => {}
        }
    }
}

fn collect_tables(tables: &[TableWithJoins], found: &mut Vec<String>) {
    for table in tables {
        // An outer join keeps the rows of the other side, whatever its own conditions say.
        let is_inner = |operator: &JoinOperator| {
            matches!(operator, JoinOperator::Join(_) | JoinOperator::Inner(_) | JoinOperator::CrossJoin(_))
        };
        let joined = table.joins.iter().filter(|join| is_inner(&join.join_operator)).map(|join| &join.relation);
        for relation in std::iter::once(&table.relation).chain(joined) {
            if let TableFactor::Derived { subquery, .. } = relation {
                collect(&subquery.body, found);
            }
        }
        for join in &table.joins {
            if let JoinOperator::Join(JoinConstraint::On(on)) | JoinOperator::Inner(JoinConstraint::On(on)) =
                &join.join_operator
            {
                split(Some(on), "", found);
            }
        }
    }
}

/// Adds the parts of a condition that are joined by AND.
fn split(condition: Option<&Expr>, before: &str, found: &mut Vec<String>) {
    match condition {
        Some(Expr::BinaryOp { left, op: BinaryOperator::And, right }) => {
            split(Some(left), before, found);
            split(Some(right), before, found);
        }
        Some(part) => found.push(format!("{before}{part}")),
        None => {}
    }
}

/// Takes one condition out of a place.
pub(crate) fn take_out(source: &mut Source, command: usize, place: &str, says: &str) {
    let Some(part) = source.commands[command].sql.as_mut().and_then(|query| body_mut(query, place)) else { return };
    let wanted = says.split_once(" <- ").map_or(says, |(_, expression)| expression);
    if let SetExpr::Insert(Statement::Insert(insert)) = &mut *part.body {
        insert.on.take_if(|on| matches(on.to_string().trim(), wanted));
        insert.returning.take_if(|items| items.iter().any(|item| matches(&item.to_string(), wanted)));
    }
    let _ = visit_expressions_mut(&mut part.body, |expr| {
        if matches(&expr.to_string(), wanted) {
            *expr = Expr::Value(Value::Boolean(true).into());
        }
        ControlFlow::<()>::Continue(())
    });
}

/// Takes the locks out of a place.
pub(crate) fn unlock(source: &mut Source, command: usize, place: &str) {
    if let Some(part) = source.commands[command].sql.as_mut().and_then(|query| body_mut(query, place)) {
        part.locks.clear();
    }
}

/// Whether a condition is the wanted one. `…` at the end of `wanted` stands for the rest.
pub(crate) fn matches(found: &str, wanted: &str) -> bool {
    match wanted.strip_suffix('…') {
        Some(begin) => found.starts_with(begin),
        None => found == wanted,
    }
}
