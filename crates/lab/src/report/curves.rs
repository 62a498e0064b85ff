//! Curves: one panel for each metric of scenarios whose names end in a number (`neighbours-16`), if there are three or more of them: the
//! figure against that number. The numbers stand at equal distances, as they grow by factors.

use std::fmt::Write as _;

use super::svg::text;
use super::table::{distinct, figure};
use super::{Metric, Row};

pub(super) const HEIGHT: f64 = 260.0;
pub(super) const WIDTH: f64 = 600.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 40.0;
/// Names at the ends of curves that are nearer than this would overlap.
const LINE: f64 = 14.0;

/// One panel.
pub(super) struct Curves<'a> {
    family: &'a str,
    metric: Metric,
    numbers: Vec<u64>,
    rows: Vec<(u64, &'a Row)>,
}

/// A scenario's name without its number, and that.
fn split(scenario: &str) -> Option<(&str, u64)> {
    let (family, number) = scenario.rsplit_once('-')?;
    Some((family, number.parse().ok()?))
}

/// The panels that the rows give.
pub(super) fn of(rows: &[Row]) -> Vec<Curves<'_>> {
    let keys = distinct(rows.iter().filter_map(|row| Some((split(&row.scenario)?.0, row.metric))));
    let panel = |(family, metric)| {
        let of_family =
            |row: &'_ &Row| row.metric == metric && split(&row.scenario).is_some_and(|s| s.0 == family);
        let rows: Vec<(u64, &Row)> =
            rows.iter().filter(of_family).filter_map(|row| Some((split(&row.scenario)?.1, row))).collect();
        let mut numbers: Vec<u64> = rows.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Curves { family, metric, numbers, rows }
    };
    keys.into_iter().map(panel).filter(|curves| curves.numbers.len() >= 3).collect()
}

impl Curves<'_> {
    /// Draws the panel with its corner at `at`.
    pub(super) fn draw(&self, svg: &mut String, at: (f64, f64), default_variant: &str) {
        let (corner, top) = at;
        let Metric { name, unit, shown, .. } = self.metric;
        let title = format!("{name} ({}, {unit}) against the number of {}", shown.label(), self.family);
        text(svg, "text title", corner + 16.0, top + 18.0, "start", &title);
        let largest = self.rows.iter().filter_map(|(_, row)| row.shown()).fold(0.0, f64::max);
        let (left, right) = (corner + LEFT, corner + WIDTH - RIGHT);
        let (upper, lower) = (top + TOP, top + HEIGHT - BOTTOM);
        let x = |at: usize| left + (right - left) * at as f64 / (self.numbers.len() - 1) as f64;
        let y = |value: f64| lower - (lower - upper) * if largest > 0.0 { value / largest } else { 0.0 };
        for (line, label) in [(lower, 0.0), (upper, largest)] {
            let _ = writeln!(
                svg,
                "<line class=\"axis\" x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{line:.1}\" y2=\"{line:.1}\"/>"
            );
            text(svg, "quiet", left - 6.0, line + 4.0, "end", &figure(label));
        }
        for (at, number) in self.numbers.iter().enumerate() {
            text(svg, "quiet", x(at), lower + 18.0, "middle", &number.to_string());
        }
        let mut names: Vec<(f64, &str)> = Vec::new();
        for variant in distinct(self.rows.iter().map(|(_, row)| row.variant.as_str())) {
            let value_at = |number: &u64| {
                let mut rows = self.rows.iter().filter(|(n, row)| n == number && row.variant == variant);
                rows.find_map(|(_, row)| row.shown())
            };
            let points: Vec<(f64, f64)> = self
                .numbers
                .iter()
                .enumerate()
                .filter_map(|(at, number)| value_at(number).map(|value| (x(at), y(value))))
                .collect();
            let Some((_, end)) = points.last().copied() else { continue };
            let class = if variant == default_variant { "curve first" } else { "curve" };
            let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(svg, "<polyline class=\"{class}\" points=\"{}\"/>", points.join(" "));
            names.push((end, variant));
        }
        names.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut free = f64::MIN;
        for (end, variant) in names {
            let line = (end + 4.0).max(free);
            text(svg, "text", right + 8.0, line, "start", variant);
            free = line + LINE;
        }
    }
}
