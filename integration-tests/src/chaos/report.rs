//! The report of a run: one page of HTML that needs nothing else, made from the history.

mod figures;
mod plot;

use std::collections::BTreeMap;

use figures::{Figures, Harm};

use crate::ledger::{Ledger, Verdict};

const STYLE: &str = include_str!("report/style.css");

/// The whole page.
pub(super) fn page(ledger: &Ledger, verdict: &Verdict) -> String {
    let facts = ledger.facts();
    let queues: Vec<&str> = facts["queues"].as_array().into_iter().flatten().filter_map(|name| name.as_str()).collect();
    let figures = Figures::of(ledger, &queues);
    let seed = &facts["seed"];
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Chaos run, seed {seed}</title>\n\
         <style>{STYLE}</style></head>\n<body>\n"
    );
    page += &head(&facts, verdict);
    page += &numbers(verdict, &figures);
    page += "<h2>Lateness</h2><p>Tasks of queues without a limit, by the second in which they were due. Each band is a \
             fault, with its number in the table below. The scale is logarithmic.</p>";
    page += &plot::lateness(&figures);
    page += "<h2>Throughput</h2><p>Messages that consumers received each second, of all queues.</p>";
    page += &plot::throughput(&figures);
    page += &checks(verdict);
    page += &kinds(&figures);
    page += &faults(&figures);
    page += "</body></html>\n";
    page
}

fn head(facts: &serde_json::Value, verdict: &Verdict) -> String {
    let (class, word) = if verdict.holds() { ("holds", "holds") } else { ("broken", "does not hold") };
    let text = |name: &str| escape(facts[name].as_str().unwrap_or("unknown"));
    format!(
        "<header><h1>Chaos run</h1><p class=\"verdict {class}\">The verdict {word}</p>\
         <dl><dt>Duetime</dt><dd>{}</dd><dt>Cluster</dt><dd>{}</dd><dt>Seed</dt><dd>{}</dd>\
         <dt>Repeat it</dt><dd><code>{}</code></dd></dl></header>\n",
        text("version"),
        text("cluster"),
        facts["seed"],
        text("command"),
    )
}

fn numbers(verdict: &Verdict, figures: &Figures) -> String {
    let played: Vec<&Harm> = figures.harms.iter().filter(|harm| harm.void.is_none()).collect();
    let kinds: std::collections::BTreeSet<&str> = played.iter().map(|harm| harm.name.as_str()).collect();
    let cells = [
        (format!("{}", verdict.submitted), "submissions"),
        (format!("{}", verdict.unknown), "answers that did not come"),
        (format!("{}", verdict.messages), "messages"),
        (format!("{}", verdict.marked_copies), "marked copies"),
        (format!("{}", verdict.cancelled), "cancelled in time"),
        (format!("{}", played.len()), "faults"),
        (format!("{}", figures.harms.len() - played.len()), "void faults"),
        (format!("{}", kinds.len()), "kinds of faults"),
        (format!("{:.0} ms", figures.quiet_p99_ms), "p99 of lateness in quiet seconds"),
        (format!("{} s", figures.without_excuse), "in which no fault excuses a copy"),
    ];
    let cells: String = cells.iter().map(|(value, what)| format!("<div><b>{value}</b>{what}</div>")).collect();
    format!("<section class=\"numbers\">{cells}</section>\n")
}

fn checks(verdict: &Verdict) -> String {
    let mut rows = String::new();
    for (question, findings) in verdict.questions() {
        let class = if findings.count == 0 { "" } else { " class=\"broken\"" };
        let examples: Vec<String> = findings.examples.iter().map(|example| escape(example)).collect();
        rows += &format!(
            "<tr{class}><td>{question}</td><td>{}</td><td>{}</td></tr>",
            findings.count,
            examples.join("<br>")
        );
    }
    format!(
        "<h2>Verdict</h2><table><thead><tr><th>Violation</th><th>Count</th><th>Examples</th></tr></thead>\
         <tbody>{rows}</tbody></table>\n"
    )
}

/// One row for each kind of fault.
fn kinds(figures: &Figures) -> String {
    let mut kinds: BTreeMap<(u32, &str, &str), Vec<&Harm>> = BTreeMap::new();
    for harm in &figures.harms {
        // By the number of the row; those without a row come last.
        let number = harm.row.trim_start_matches('F').parse().unwrap_or(u32::MAX);
        kinds.entry((number, &harm.row, &harm.name)).or_default().push(harm);
    }
    let mut rows = String::new();
    for ((_, row, name), harms) in kinds {
        let worst = harms.iter().map(|harm| harm.worst_ms).fold(0.0, f64::max);
        let back = harms.iter().filter_map(|harm| harm.normal_after_s).reduce(f64::max);
        let copies: usize = harms.iter().map(|harm| harm.copies).sum();
        let void = harms.iter().filter(|harm| harm.void.is_some()).count();
        rows += &format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{void}</td><td>{worst:.0}</td><td>{}</td><td>{copies}</td></tr>",
            escape(row),
            escape(name),
            harms.len() - void,
            seconds(back),
        );
    }
    format!(
        "<h2>Faults by kind</h2><p>A row is that of the fault matrix. Faults at the same time share their lateness and \
         copies. <i>Normal after</i> is the longest time from a heal until three seconds in a row whose tasks were all \
         less than {} ms late; a dash: the next fault began before. A void fault had no effect.</p>\
         <table><thead><tr><th>Row</th><th>Fault</th><th>Times</th><th>Void</th><th>Worst lateness, ms</th>\
         <th>Normal after, s</th><th>Copies</th></tr></thead><tbody>{rows}</tbody></table>\n",
        figures::NORMAL_MS,
    )
}

fn faults(figures: &Figures) -> String {
    let mut rows = String::new();
    for (harm, number) in figures.harms.iter().zip(1..) {
        let void = harm.void.as_ref().map(|why| format!(" (void: {})", escape(why))).unwrap_or_default();
        rows += &format!(
            "<tr><td>{number}</td><td>{}</td><td>{} {}{void}</td><td>{:.1}</td><td>{:.1}</td><td>{:.0}</td><td>{}</td><td>{}</td></tr>",
            escape(&harm.row),
            escape(&harm.name),
            escape(&harm.victim),
            harm.from_s,
            harm.until_s - harm.from_s,
            harm.worst_ms,
            seconds(harm.normal_after_s),
            harm.copies,
        );
    }
    format!(
        "<h2>All faults</h2><table><thead><tr><th>Number</th><th>Row</th><th>Fault</th><th>Begins, s</th>\
         <th>Lasts, s</th><th>Worst lateness, ms</th><th>Normal after, s</th><th>Copies</th></tr></thead>\
         <tbody>{rows}</tbody></table>\n"
    )
}

fn seconds(time: Option<f64>) -> String {
    time.map_or_else(|| "–".into(), |time| format!("{time:.1}"))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::now_us, ledger::Delivery};

    #[test]
    fn a_page_shows_the_verdict_the_faults_and_what_repeats_the_run_and_runs_no_script() {
        let ledger = Ledger::default();
        ledger.run(serde_json::json!({ "seed": 7, "command": "stack chaos --seed 7", "queues": ["q"] }));
        let fault = ledger.fault("F1 kill-node node-2");
        let number = ledger.submitting("q", now_us() / 1_000);
        ledger.accepted(number, "t");
        ledger.delivered(Delivery {
            at_us: now_us() + 5_000,
            queue: "q".into(),
            message_id: "t:1".into(),
            task: "t".into(),
            attempt: 1,
            number: Some(number),
            ..Delivery::default()
        });
        ledger.heal(fault);
        ledger.void(fault, "the node was <away>");
        let lost = ledger.submitting("<q>", 0);
        ledger.accepted(lost, "<lost>");
        let page = page(&ledger, &ledger.judge());
        for part in [
            "does not hold",
            "kill-node",
            "node-2",
            "stack chaos --seed 7",
            "&lt;lost&gt;",
            "<svg",
            "(void: the node was &lt;away&gt;)",
        ] {
            assert!(page.contains(part), "{part} is missing");
        }
        assert!(!page.contains("<script") && !page.contains("<lost>"));
    }
}
