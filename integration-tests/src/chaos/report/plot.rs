//! The plots of the report, as SVG in the page.

use std::fmt::Write;

use super::figures::{Figures, Second};

const WIDTH: f64 = 1_120.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 28.0;
const LATENESS_HEIGHT: f64 = 320.0;
const THROUGHPUT_HEIGHT: f64 = 150.0;

/// The bounds of the logarithmic scale; what is beyond is drawn on them.
const LEAST_MS: f64 = 1.0;
const MOST_MS: f64 = 100_000.0;
/// Lines across the plot of lateness.
const MARKS: [(f64, &str); 6] =
    [(1.0, "1 ms"), (10.0, "10 ms"), (100.0, "100 ms"), (1_000.0, "1 s"), (10_000.0, "10 s"), (100_000.0, "100 s")];
/// The most marks of the time axis.
const TIME_MARKS: f64 = 12.0;

/// A plot's area and its time axis.
struct Frame {
    height: f64,
    seconds: f64,
}

impl Frame {
    fn x(&self, second: f64) -> f64 {
        LEFT + (WIDTH - LEFT - 8.0) * (second / self.seconds).clamp(0.0, 1.0)
    }

    /// The height of a share of the plot, 0 at its foot.
    fn y(&self, share: f64) -> f64 {
        TOP + (self.height - TOP - BOTTOM) * (1.0 - share.clamp(0.0, 1.0))
    }

    /// The opening tag, the bands of the faults and the time axis.
    fn open(&self, figures: &Figures, title: &str) -> String {
        let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{title}\">", self.height);
        for (harm, number) in figures.harms.iter().zip(1..) {
            let (from, until) = (self.x(harm.from_s), self.x(harm.until_s));
            write!(
                svg,
                "<rect class=\"fault\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{number}: {} {}</title></rect>",
                self.y(1.0),
                (until - from).max(1.5),
                self.y(0.0) - self.y(1.0),
                super::escape(&harm.name),
                super::escape(&harm.victim),
            )
            .ok();
            // Numbers of neighbours take turns in height, so that they stay legible.
            let height = if number % 2 == 0 { 10.0 } else { 19.0 };
            write!(svg, "<text class=\"number\" x=\"{from:.1}\" y=\"{height}\">{number}</text>").ok();
        }
        self.time_axis(&mut svg);
        svg
    }

    fn time_axis(&self, svg: &mut String) {
        let steps = [5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1_800.0, 3_600.0];
        let step = steps.into_iter().find(|step| self.seconds / step <= TIME_MARKS).unwrap_or(7_200.0);
        let mut at = 0.0;
        while at <= self.seconds {
            let label = if step < 60.0 { format!("{at:.0} s") } else { format!("{:.0} min", at / 60.0) };
            write!(svg, "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>", self.x(at), self.height - 8.0)
                .ok();
            at += step;
        }
    }

    fn line_across(&self, svg: &mut String, share: f64, label: &str) {
        let y = self.y(share);
        write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"label\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
            LEFT - 6.0,
            y + 4.0
        )
        .ok();
    }

    /// One line through the seconds; it breaks where nothing was due.
    fn curve(&self, svg: &mut String, class: &str, seconds: &[Second], share: impl Fn(&Second) -> Option<f64>) {
        let (mut path, mut is_open) = (String::new(), false);
        for (place, second) in seconds.iter().enumerate() {
            let Some(share) = share(second) else {
                is_open = false;
                continue;
            };
            let verb = if is_open { 'L' } else { 'M' };
            write!(path, "{verb}{:.1} {:.1}", self.x(place as f64 + 0.5), self.y(share)).ok();
            is_open = true;
        }
        write!(svg, "<path class=\"{class}\" d=\"{path}\"/>").ok();
    }
}

/// Median, 99th percentile and maximum of each second.
pub(super) fn lateness(figures: &Figures) -> String {
    let frame = Frame { height: LATENESS_HEIGHT, seconds: figures.seconds.len().max(1) as f64 };
    let mut svg = frame.open(figures, "Lateness over time");
    let share = |ms: f64| (ms.clamp(LEAST_MS, MOST_MS) / LEAST_MS).log10() / (MOST_MS / LEAST_MS).log10();
    for (ms, label) in MARKS {
        frame.line_across(&mut svg, share(ms), label);
    }
    for (class, pick) in [
        ("max", (|second| second.max_ms) as fn(&Second) -> f64),
        ("p99", |second| second.p99_ms),
        ("p50", |second| second.p50_ms),
    ] {
        frame.curve(&mut svg, class, &figures.seconds, |second| second.has_tasks.then(|| share(pick(second))));
    }
    format!(
        "{svg}</svg><p class=\"legend\"><span class=\"p50\">median</span><span class=\"p99\">99th percentile</span>\
         <span class=\"max\">maximum</span><span class=\"fault\">fault</span></p>\n"
    )
}

/// Messages each second.
pub(super) fn throughput(figures: &Figures) -> String {
    let frame = Frame { height: THROUGHPUT_HEIGHT, seconds: figures.seconds.len().max(1) as f64 };
    let mut svg = frame.open(figures, "Messages each second");
    let most = figures.seconds.iter().map(|second| second.messages).max().unwrap_or(0).max(1) as f64;
    for share in [0.0, 0.5, 1.0] {
        frame.line_across(&mut svg, share, &format!("{:.0}", most * share));
    }
    frame.curve(&mut svg, "p50", &figures.seconds, |second| Some(second.messages as f64 / most));
    format!("{svg}</svg>\n")
}
