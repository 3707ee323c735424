//! The table for people: medians with the least and the largest value, and below it what they were measured with.

use comfy_table::{Table, presets::ASCII_MARKDOWN};

use super::{
    results::{Results, Row, Spread},
    work::Work,
};

const COLUMNS: [&str; 10] = [
    "peer",
    "late: p50 ms",
    "late: p99 ms",
    "late: max ms",
    "burst: half after ms",
    "burst: last after ms",
    "burst: /s",
    "throughput: /s",
    "submit: /s",
    "lost, doubled, early",
];
/// A reason in the table; the whole of it is below.
const REASON_LEN: usize = 60;

pub(super) fn text(results: &Results) -> String {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(COLUMNS);
    for row in &results.rows {
        table.add_row(cells(row));
    }
    let amounts: Vec<String> = results.amounts.iter().map(|(name, amount)| format!("{name} {amount}")).collect();
    let stores: Vec<String> = results.stores.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let mut text = format!("{table}\n\nMedians of all runs, with the least and the largest value.\n\n");
    let facts = [
        ("began", results.began.clone()),
        ("machine", results.machine.text()),
        ("stores", stores.join(", ")),
        ("amounts", amounts.join(", ")),
        (
            "a sleeper late, p99",
            format!(
                "{} ms alone, {} ms in all runs",
                number(results.machine.sleeper_alone_p99_ms),
                number(results.sleeper_p99_ms)
            ),
        ),
    ];
    text.extend(facts.iter().map(|(name, fact)| format!("- {name}: {fact}\n")));
    text.push('\n');
    text.extend(results.rows.iter().flat_map(notes));
    text
}

fn cells(row: &Row) -> Vec<String> {
    let mut cells = vec![if row.is_limit { format!("limit: {}", row.peer) } else { row.peer.clone() }];
    if let Some(why) = row.why_nothing() {
        let short: String = why.chars().take(REASON_LEN).collect();
        cells.push(format!("not run: {}", short.replace(['|', '\n'], " ")));
        return cells;
    }
    let findings =
        row.findings().map_or_else(String::new, |[lost, doubled, early]| format!("{lost}, {doubled}, {early}"));
    cells.extend([
        cell(row.late(Work::Late, |verdict| verdict.p50_ms)),
        cell(row.late(Work::Late, |verdict| verdict.p99_ms)),
        cell(row.late(Work::Late, |verdict| verdict.max_ms)),
        cell(row.late(Work::Burst, |verdict| verdict.p50_ms)),
        cell(row.late(Work::Burst, |verdict| verdict.max_ms)),
        cell(row.rate(Work::Burst)),
        cell(row.rate(Work::Throughput)),
        cell(row.rate(Work::Submit)),
        findings,
    ]);
    cells
}

/// A line for what the peer was, and one for each work that it did not do.
fn notes(row: &Row) -> Vec<String> {
    let mut notes = Vec::new();
    if row.runs.is_empty() && row.not_run.values().all(|why| Some(why.as_str()) == row.why_nothing()) {
        return row.why_nothing().map(|why| format!("- {}: not run: {why}\n", row.peer)).into_iter().collect();
    }
    if !row.runs.is_empty() {
        let unfair = if row.unfair.is_empty() {
            String::new()
        } else {
            format!(" Unfair: {}.", row.unfair.trim_end_matches('.'))
        };
        let version = if row.version.is_empty() { String::new() } else { format!(" ({})", row.version) };
        notes.push(format!("- {}{version}: {}.{unfair}\n", row.peer, row.settings.trim_end_matches('.')));
    }
    let not_run = row.not_run.iter().map(|(work, why)| format!("- {}, {}: not run: {why}\n", row.peer, work.text()));
    notes.extend(not_run);
    let not_its =
        row.not_its.iter().map(|(work, why)| format!("- {}, {}: not its work: {why}\n", row.peer, work.text()));
    notes.extend(not_its);
    notes
}

fn cell(spread: Option<Spread>) -> String {
    match spread {
        None => "–".into(),
        Some(Spread { median, min, max }) if min == max => number(median),
        Some(Spread { median, min, max }) => format!("{} ({}–{})", number(median), number(min), number(max)),
    }
}

/// A number with three significant digits, and commas between thousands.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1_000.0 => {
            let digits = format!("{:.0}", value.abs());
            let head = digits.len() % 3;
            let groups = digits.as_bytes()[head..].chunks(3).map(|group| String::from_utf8_lossy(group).into_owned());
            let groups: Vec<String> =
                Some(digits[..head].to_owned()).filter(|head| !head.is_empty()).into_iter().chain(groups).collect();
            groups.join(",")
        }
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_that_count() {
        let numbers = [0.256, 9.5, 12.34, 345.6, 1_234.0, 20_700.4, 1_234_567.0].map(number);
        assert_eq!(numbers, ["0.26", "9.50", "12.3", "346", "1,234", "20,700", "1,234,567"]);
    }

    #[test]
    fn a_peer_that_did_nothing_is_a_row_with_its_reason() {
        let not_run = [(Work::Late, "no npm | here".to_owned())].into();
        let row = Row { peer: "bullmq".into(), not_run, ..Row::default() };
        assert_eq!(cells(&row), ["bullmq", "not run: no npm   here"]);
        assert_eq!(notes(&row), ["- bullmq: not run: no npm | here\n"]);
    }
}
