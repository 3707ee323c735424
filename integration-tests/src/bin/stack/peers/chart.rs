//! The same figures as bars, in one SVG file.

use std::fmt::Write;

use super::{
    results::{Results, Row, Spread},
    roster::DUETIME,
    table::number,
    work::Work,
};

const WIDTH: f64 = 960.0;
const LABELS: f64 = 190.0;
const VALUES: f64 = 220.0;
const LINE: f64 = 22.0;
const TITLE: f64 = 42.0;
const BARS: f64 = WIDTH - LABELS - VALUES;

/// Latencies differ by orders of magnitude, rates do not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scale {
    Log,
    Linear,
}

type Figure = fn(&Row) -> Option<Spread>;

const PANELS: [(&str, Scale, Figure); 4] = [
    ("late: p99, ms (log scale, shorter is better)", Scale::Log, |row| row.late(Work::Late, |seen| seen.p99_ms)),
    ("burst: the last after, ms (log scale, shorter is better)", Scale::Log, |row| {
        row.late(Work::Burst, |seen| seen.max_ms)
    }),
    ("throughput: tasks a second (longer is better)", Scale::Linear, |row| row.rate(Work::Throughput)),
    ("submit: tasks a second, one by one (longer is better)", Scale::Linear, |row| row.rate(Work::Submit)),
];

pub(super) fn svg(results: &Results) -> String {
    let (mut body, mut top) = (String::new(), 0.0);
    for (title, scale, figure) in PANELS {
        let mut bars: Vec<(&Row, Spread)> = results.rows.iter().filter_map(|row| Some((row, figure(row)?))).collect();
        if bars.is_empty() {
            continue;
        }
        let sign = if scale == Scale::Log { 1.0 } else { -1.0 };
        bars.sort_by(|(_, one), (_, other)| (sign * one.median).total_cmp(&(sign * other.median)));
        panel(&mut body, top, title, scale, &bars);
        top += TITLE + LINE * bars.len() as f64 + 12.0;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {top}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"{WIDTH}\" height=\"{top}\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

fn panel(body: &mut String, top: f64, title: &str, scale: Scale, bars: &[(&Row, Spread)]) {
    let least = bars.iter().map(|(_, spread)| spread.min).fold(f64::INFINITY, f64::min);
    let most = bars.iter().map(|(_, spread)| spread.max).fold(0.0, f64::max);
    let place = |value: f64| BARS * share(scale, value, least, most);
    writeln!(body, "<text x=\"8\" y=\"{}\" font-weight=\"bold\">{title}</text>", top + 24.0).ok();
    for (index, (row, spread)) in bars.iter().enumerate() {
        let y = top + TITLE + LINE * index as f64;
        let colour = match row {
            Row { is_limit: true, .. } => "#c9c9c9",
            Row { peer, .. } if peer == DUETIME => "#1f5fa8",
            Row { .. } => "#8fb3d9",
        };
        let (middle, end) = (y + 7.0, LABELS + place(spread.max));
        let text = if spread.min == spread.max {
            number(spread.median)
        } else {
            format!("{} ({}–{})", number(spread.median), number(spread.min), number(spread.max))
        };
        writeln!(
            body,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n\
             <rect x=\"{LABELS}\" y=\"{y}\" width=\"{:.1}\" height=\"14\" fill=\"{colour}\"/>\n\
             <line x1=\"{:.1}\" x2=\"{end:.1}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"#333333\"/>\n\
             <text x=\"{:.1}\" y=\"{}\">{text}</text>",
            LABELS - 8.0,
            y + 12.0,
            escaped(&row.peer),
            place(spread.median),
            LABELS + place(spread.min),
            end + 8.0,
            y + 12.0,
        )
        .ok();
    }
}

/// The part of the whole width. On a log scale the least value is a tenth of it.
fn share(scale: Scale, value: f64, least: f64, most: f64) -> f64 {
    match scale {
        Scale::Linear => value / most.max(1e-9),
        Scale::Log => {
            let (least, most) = (least.max(0.01), most.max(0.01));
            let reach = (most / least).ln().max(1e-9);
            (0.1 + 0.9 * (value.max(0.01) / least).ln() / reach).clamp(0.0, 1.0)
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_stay_within_their_scale() {
        assert_eq!(share(Scale::Linear, 5.0, 1.0, 10.0), 0.5);
        assert_eq!(share(Scale::Log, 1.0, 1.0, 100.0), 0.1);
        assert_eq!(share(Scale::Log, 100.0, 1.0, 100.0), 1.0);
        assert!((share(Scale::Log, 10.0, 1.0, 100.0) - 0.55).abs() < 1e-9);
        assert!(share(Scale::Log, 0.0, 0.0, 0.0).is_finite());
    }
}
