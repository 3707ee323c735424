//! The rules with shortened times, so that a cause shows within seconds and not within the hour.

use anyhow::{Result, bail};

/// The heap's bound in this cluster. The rules' threshold for a full heap is lowered to match.
pub(super) const HEAP_ENTRIES: u32 = 1_000;

/// A minute becomes a second, within these bounds. A shorter window holds too few scrapes for a rate, and a longer
/// one makes the run slow.
const SHORTER_BY: u64 = 60;
const WINDOW_S: std::ops::RangeInclusive<u64> = 6..=20;
const FOR_MOST_S: u64 = 3;

/// Changes beside windows and `for`: the rule's text, its replacement, and the reason.
pub(super) const CHANGES: [(&str, &str, &str); 7] = [
    ("[1h]) * 3600 > 10", "[1h]) * 20 > 10", "DuetimeLatenessBudgetBurnsFast: late tasks are those of 20 s"),
    ("[6h]) * 21600 > 50", "[6h]) * 20 > 50", "DuetimeLatenessBudgetBurnsSlowly: late tasks are those of 20 s"),
    ("(duetime_database_up) == 1)) > 60", "(duetime_database_up) == 1)) > 8", "DuetimeEtcdUnreachable: 8 s"),
    (
        "(duetime_database_up) == 1)) > 20",
        "(duetime_database_up) == 1)) > 6",
        "DuetimeLeaseRenewalFailing: 6 s; leases live for 3 s",
    ),
    ("duetime_inbox_oldest_seconds) > 60", "duetime_inbox_oldest_seconds) > 5", "DuetimeInboxStuck: 5 s"),
    (
        "duetime_heap_entries[5m]) > 500000",
        "duetime_heap_entries[5m]) > 500",
        "DuetimeHeapFull: 500 keys; scheduler.heap_entries is 1,000",
    ),
    (
        "\n          or sum by (namespace, job, database) (increase(duetime_database_statement_seconds_count{op=\"partition_read\"}[1h])) == 0",
        "",
        "DuetimeArchivePartitionsFailing: only by its failures; partitions are checked every ten minutes, an interval \
         that no setting shortens",
    ),
];

/// The change that several alerts share.
pub(super) const NEW_NODE: (&str, &str, &str) = (
    "process_start_time_seconds < 900",
    "process_start_time_seconds < 15",
    "all alerts that read what a new node has counted: it is new for 15 s",
);

/// The rules, shortened.
pub(super) fn shorten(rules: &str) -> Result<String> {
    let (from, to, what) = NEW_NODE;
    if !rules.contains(from) {
        bail!("rules.yaml does not say `{from}`: follow it in alerts/rules.rs ({what})");
    }
    let mut text = rules.replace(from, to);
    for (from, to, what) in CHANGES {
        if text.matches(from).count() != 1 {
            bail!("rules.yaml does not say `{from}` once: follow it in alerts/rules.rs ({what})");
        }
        text = text.replacen(from, to, 1);
    }
    text.lines().map(|line| shorten_line(line).map(|line| line + "\n")).collect()
}

fn shorten_line(line: &str) -> Result<String> {
    if line.trim_start().starts_with('#') {
        return Ok(line.to_owned());
    }
    if let Some((indent, time)) = line.split_once("for: ").filter(|(indent, _)| indent.trim().is_empty()) {
        return Ok(format!("{indent}for: {}s", (seconds(time)? / SHORTER_BY).clamp(1, FOR_MOST_S)));
    }
    let mut short = String::new();
    let mut rest = line;
    while let Some((before, (window, after))) =
        rest.split_once('[').and_then(|(before, from)| Some((before, from.split_once(']')?)))
    {
        // A subquery has its step behind a colon; a minute becomes a second.
        let (range, step) = window.split_once(':').map_or((window, ""), |(range, _)| (range, ":1s"));
        let range_s = (seconds(range)? / SHORTER_BY).clamp(*WINDOW_S.start(), *WINDOW_S.end());
        short.push_str(&format!("{before}[{range_s}s{step}]"));
        rest = after;
    }
    Ok(short + rest)
}

/// Parses a time as the rules write it: a number and one unit.
fn seconds(time: &str) -> Result<u64> {
    let (number, unit_s) = match time.split_at_checked(time.len().saturating_sub(1)) {
        Some((number, "s")) => (number, 1),
        Some((number, "m")) => (number, 60),
        Some((number, "h")) => (number, 3_600),
        Some((number, "d")) => (number, 86_400),
        _ => bail!("rules.yaml has a time that alerts/rules.rs cannot read: `{time}`"),
    };
    Ok(number.parse::<u64>()? * unit_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_and_waits_are_a_sixtieth_within_bounds() {
        let short = |line| shorten_line(line).unwrap();
        assert_eq!(short("expr: rate(a[5m]) > b[15m]"), "expr: rate(a[6s]) > b[15s]");
        assert_eq!(short("max_over_time(a[1h:1m])"), "max_over_time(a[20s:1s])");
        assert_eq!(short("        for: 45m"), "        for: 3s");
        assert_eq!(short("        for: 1m"), "        for: 1s");
        assert_eq!(short("# [5m] for: 5m"), "# [5m] for: 5m");
        assert!(shorten_line("for: ever").is_err());
    }

    #[test]
    fn the_rules_can_be_made_short() {
        let rules = include_str!("../../../../../charts/duetime/files/rules.yaml");
        let short = shorten(rules).unwrap();
        let alerts = |text: &str| text.matches("- alert: ").count();
        assert_eq!(alerts(&short), alerts(rules));
        assert!(
            !short.lines().any(|line| !line.starts_with('#') && (line.contains("m]") || line.contains("h]"))),
            "{short}"
        );
        assert!(!short.contains("< 900"), "{short}");
    }
}
