//! Whether what could grow has stayed flat.

use super::{
    super::report::{Report, Target, progress},
    look::{ARCHIVE, CHANNELS, Cell, DEAD_ROWS, Row},
};

/// The load varies, and what it fills varies by some per cent. The quarters that are compared are half an hour apart in
/// a run of an hour: a value that doubles within three hours goes beyond this.
const GROWTH: f64 = 1.2;
/// Each quarter needs a look.
const LOOKS_LEAST: usize = 4;
/// A launcher of autovacuum comes to a database each minute, and the vacuum before may just have missed the rows.
const DEAD_S: f64 = 120.0;
/// A task leaves so many dead rows at most: the inserted, the claimed and the delivered one.
const DEAD_A_TASK: f64 = 3.0;
/// A node opens channels as batches overlap, and keeps them: up to 256, and 32 for declarations. A busy moment late in
/// the run adds to them.
const CHANNELS_OF_A_NODE: f64 = 288.0;

/// What a judgement depends on, beside the rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub per_second: f64,
    pub nodes: usize,
    /// The archive had its full size in the second quarter.
    pub archive_settled: bool,
}

/// Compares the last quarter of the looks with the second.
pub(super) fn judge(part: &str, rows: &[Row], run: Run, report: &mut Report) {
    if rows.len() < LOOKS_LEAST {
        progress(&format!("{part}: growth is not judged: {} looks, and {LOOKS_LEAST} are needed", rows.len()));
        return;
    }
    for (place, cell) in rows[0].cells.iter().enumerate() {
        let Some((before, after)) = medians(rows, place) else { continue };
        let most = match (cell.name.as_str(), cell.slack) {
            (DEAD_ROWS, _) => run.per_second * DEAD_S * DEAD_A_TASK,
            (CHANNELS, _) => run.nodes as f64 * CHANNELS_OF_A_NODE,
            (ARCHIVE, _) if !run.archive_settled => continue,
            (_, Some(slack)) => (before * GROWTH).max(before + slack),
            (_, None) => continue,
        };
        report.figure(part, &format!("{}, second quarter", cell.name), before, cell.unit);
        report.judged(part, &format!("{}, last quarter", cell.name), after, cell.unit, Target::AtMost(most));
    }
}

/// The medians of a column over the second and over the last quarter. `None` when all looks of one failed.
fn medians(rows: &[Row], place: usize) -> Option<(f64, f64)> {
    let quarter = |number: usize| {
        let rows = &rows[rows.len() * number / 4..rows.len() * (number + 1) / 4];
        median(rows.iter().filter_map(|row| row.cells.get(place)))
    };
    Some((quarter(1)?, quarter(3)?))
}

fn median<'a>(cells: impl Iterator<Item = &'a Cell>) -> Option<f64> {
    let mut values: Vec<f64> = cells.map(|cell| cell.value).filter(|value| !value.is_nan()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(values: &[f64]) -> Vec<Row> {
        let cell = |value| Cell { name: "memory".into(), unit: "MB", slack: Some(10.0), value };
        values.iter().map(|value| Row { minutes: 0.0, cells: vec![cell(*value)] }).collect()
    }

    #[test]
    fn the_last_quarter_is_compared_with_the_second_and_failed_looks_do_not_count() {
        let nan = f64::NAN;
        assert_eq!(medians(&rows(&[1.0, 1.0, 5.0, nan, 90.0, 90.0, 7.0, 9.0]), 0), Some((5.0, 9.0)));
        assert_eq!(medians(&rows(&[1.0, 2.0, 3.0, 4.0, 5.0]), 0), Some((2.0, 5.0)));
        assert_eq!(medians(&rows(&[1.0, nan, 3.0, 4.0]), 0), None);
    }
}
