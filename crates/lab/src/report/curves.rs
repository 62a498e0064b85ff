//! Curves: one panel for each metric of scenarios whose names end in a number (`neighbours-16`), if
//! there are three or more of them: the figure against that number. The numbers stand at equal
//! distances, as they grow by factors; the figures are drawn by their logarithms where the largest
//! is more than [`FACTORS`] times the smallest.

use std::fmt::Write as _;

use super::svg::{MARGIN, cut_bold, text, width};
use super::table::{distinct, figure};
use super::{Metric, Row};

/// How many stand side by side.
pub(super) const BESIDE: usize = 2;
/// Of one, in pixels.
pub(super) const WIDTH: f64 = 616.0;
/// The plain height of the ground that curves are drawn on.
const GROUND: f64 = 190.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 56.0;
/// Names at the ends of curves that are nearer than this would overlap.
const LINE: f64 = 15.0;
/// From the end of a curve to its name.
const LEAD: f64 = 18.0;
/// By more than this a scale is logarithmic.
const FACTORS: f64 = 50.0;
/// How many colours there are; with more curves than these, the others are dashed.
const COLOURS: usize = 8;

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
pub(super) fn of<'a>(rows: &[&'a Row]) -> Vec<Curves<'a>> {
    let keys = distinct(rows.iter().filter_map(|row| Some((split(&row.scenario)?.0, row.metric))));
    let panel = |(family, metric)| {
        let of_family =
            |row: &&Row| row.metric == metric && split(&row.scenario).is_some_and(|s| s.0 == family);
        let rows: Vec<(u64, &Row)> = rows
            .iter()
            .copied()
            .filter(of_family)
            .filter_map(|row| Some((split(&row.scenario)?.1, row)))
            .collect();
        let mut numbers: Vec<u64> = rows.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Curves { family, metric, numbers, rows }
    };
    keys.into_iter().map(panel).filter(|curves| curves.numbers.len() >= 3).collect()
}

/// How figures become heights.
struct Scale {
    is_logarithmic: bool,
    /// Where lines are drawn, with the figures that they stand for; upwards.
    ticks: Vec<f64>,
}

impl Scale {
    /// A scale with all of these.
    fn of(values: &[f64]) -> Self {
        let least = values.iter().copied().fold(f64::MAX, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        if least > 0.0 && most > 0.0 && most / least > FACTORS {
            #[allow(clippy::cast_possible_truncation, reason = "the logarithm of a double is small")]
            let (from, to) = (least.log10().floor() as i32, most.log10().ceil() as i32);
            let ticks = (from..=to.max(from + 1)).map(|power| 10_f64.powi(power)).collect();
            return Self { is_logarithmic: true, ticks };
        }
        if most <= 0.0 {
            return Self { is_logarithmic: false, ticks: vec![0.0, 1.0] };
        }
        // Steps of 1, 2 or 5 times a power of ten, of which there are at most five.
        let power = 10_f64.powf((most / 5.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|s| s * 5.0 >= most);
        let step = step.unwrap_or(most);
        let count = (most / step).ceil().max(1.0);
        let ticks = (0..=5_u32).map(f64::from).filter(|tick| *tick <= count).map(|tick| tick * step);
        Self { is_logarithmic: false, ticks: ticks.collect() }
    }

    /// How far up, from 0 to 1.
    fn height(&self, value: f64) -> f64 {
        let at = |value: f64| if self.is_logarithmic { value.log10() } else { value };
        let (least, most) = (at(self.ticks[0]), at(self.ticks[self.ticks.len() - 1]));
        (at(value) - least) / (most - least)
    }
}

/// The heights at which names stand that belong to these, in their order from above, none nearer to
/// another than a line.
fn apart(wanted: &[f64], upper: f64, lower: f64) -> Vec<f64> {
    let mut placed: Vec<f64> = Vec::with_capacity(wanted.len());
    for &at in wanted {
        let free = placed.last().map_or(upper, |above| above + LINE);
        placed.push(at.max(free));
    }
    let mut free = lower;
    for at in placed.iter_mut().rev() {
        *at = at.min(free);
        free = *at - LINE;
    }
    placed
}

impl Curves<'_> {
    /// Whether this row is a point here.
    pub(super) fn has(&self, row: &Row) -> bool {
        self.rows.iter().any(|(_, own)| std::ptr::eq(*own, row))
    }

    fn variants(&self) -> Vec<&str> {
        distinct(self.rows.iter().map(|(_, row)| row.variant.as_str()))
    }

    fn ground(&self) -> f64 {
        GROUND.max(self.variants().len() as f64 * LINE)
    }

    /// Of the panel, in pixels.
    pub(super) fn height(&self) -> f64 {
        TOP + self.ground() + BOTTOM
    }

    /// Draws the panel with its corner at `at`.
    pub(super) fn draw(&self, svg: &mut String, at: (f64, f64), default_variant: &str) {
        let (corner, top) = (at.0 + MARGIN, at.1);
        let values: Vec<f64> = self.rows.iter().filter_map(|(_, row)| row.shown()).collect();
        let scale = Scale::of(&values);
        let names = self.variants();
        let room = WIDTH - MARGIN * 2.0;
        let title = format!("{}, {}-N", self.metric.name, self.family);
        text(svg, "text title", corner, top + 18.0, "start", &cut_bold(&title, room));
        let logarithmic = if scale.is_logarithmic { "; logarithmic" } else { "" };
        let axis = format!("{}{logarithmic}", self.metric.axis());
        text(svg, "quiet", corner, top + 34.0, "start", &axis);

        let labels: Vec<String> = scale.ticks.iter().map(|&tick| figure(tick)).collect();
        let widest = |texts: &mut dyn Iterator<Item = f64>| texts.fold(0.0, f64::max);
        let left = corner + widest(&mut labels.iter().map(|label| width(label))) + 8.0;
        let right = corner + room - widest(&mut names.iter().map(|name| width(name))) - LEAD - 4.0;
        let (upper, lower) = (top + TOP, top + TOP + self.ground());
        let x = |at: usize| left + (right - left) * at as f64 / (self.numbers.len() - 1) as f64;
        let y = |value: f64| lower - (lower - upper) * scale.height(value);
        for (&tick, label) in scale.ticks.iter().zip(&labels) {
            let line = y(tick);
            let _ = writeln!(
                svg,
                "<line class=\"axis\" x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{line:.1}\" y2=\"{line:.1}\"/>"
            );
            text(svg, "quiet", left - 6.0, line + 4.0, "end", label);
        }
        for (at, number) in self.numbers.iter().enumerate() {
            text(svg, "quiet", x(at), lower + 18.0, "middle", &number.to_string());
        }
        text(svg, "quiet", f64::midpoint(left, right), lower + 36.0, "middle", "N");

        let mut ends: Vec<(f64, f64, usize)> = Vec::new();
        // The default's is drawn last, over the others.
        let mut order: Vec<usize> = (0..names.len()).collect();
        order.sort_by_key(|&at| names[at] == default_variant);
        for at in order {
            let value_at = |number: &u64| {
                let mut rows = self.rows.iter().filter(|(n, row)| n == number && row.variant == names[at]);
                rows.find_map(|(_, row)| row.shown())
            };
            let points: Vec<(f64, f64)> = self
                .numbers
                .iter()
                .enumerate()
                .filter_map(|(at, number)| value_at(number).map(|value| (x(at), y(value))))
                .collect();
            let Some((end_x, end_y)) = points.last().copied() else { continue };
            let first = if names[at] == default_variant { " first" } else { "" };
            let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(
                svg,
                "<polyline class=\"curve{first} {}\" points=\"{}\"/>",
                colour(at),
                points.join(" ")
            );
            ends.push((end_x, end_y, at));
        }
        ends.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.2.cmp(&b.2)));
        let wanted: Vec<f64> = ends.iter().map(|end| end.1).collect();
        for ((end_x, end_y, at), line) in ends.into_iter().zip(apart(&wanted, upper, lower)) {
            let name_x = right + LEAD;
            let _ = writeln!(
                svg,
                "<path class=\"lead {}\" d=\"M{end_x:.1} {end_y:.1}L{:.1} {line:.1}\"/>",
                colour(at),
                name_x - 3.0
            );
            text(svg, "text", name_x, line + 4.0, "start", names[at]);
        }
    }
}

/// The class of the variant with this number.
fn colour(at: usize) -> String {
    let second = if at >= COLOURS { " second" } else { "" };
    format!("c{}{second}", at % COLOURS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_have_all_values_between_few_round_figures() {
        for (values, ticks) in [
            (vec![0.0, 178.0], vec![0.0, 50.0, 100.0, 150.0, 200.0]),
            (vec![64.0, 85.5], vec![0.0, 20.0, 40.0, 60.0, 80.0, 100.0]),
            (vec![0.0], vec![0.0, 1.0]),
            (vec![], vec![0.0, 1.0]),
            (vec![2.1, 178.0], vec![1.0, 10.0, 100.0, 1_000.0]),
            (vec![0.5, 10.0, 100.0], vec![0.1, 1.0, 10.0, 100.0]),
        ] {
            let scale = Scale::of(&values);
            let same = |(a, b): (&f64, &f64)| (a - b).abs() <= b.abs() * 1e-9;
            assert_eq!(scale.ticks.len(), ticks.len(), "{values:?}: {:?}", scale.ticks);
            assert!(scale.ticks.iter().zip(&ticks).all(same), "{values:?}: {:?}", scale.ticks);
            assert!(values.iter().all(|value| (0.0..=1.0).contains(&scale.height(*value))), "{values:?}");
        }
    }

    #[test]
    fn names_stand_apart_and_within() {
        let placed = apart(&[10.0, 99.0, 100.0, 100.0], 0.0, 100.0);
        assert_eq!(placed, [10.0, 70.0, 85.0, 100.0]);
        assert_eq!(apart(&[0.0, 0.0, 50.0], 0.0, 100.0), [0.0, 15.0, 50.0]);
    }
}
