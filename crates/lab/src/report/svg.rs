//! The plot: curves, and a panel of horizontal bars for every other scenario and metric, readable
//! on light and on dark ground (the colours follow the reader's scheme; the ground is drawn, so
//! that a viewer without a scheme shows the light form).
//!
//! The reader's font is unknown: room is kept for a wide one ([`width`]), and text without room is
//! cut.

use super::curves;
use super::table::{Choice, distinct, figure};
use super::{Document, Metric, Row};
use std::fmt::Write as _;

const COLUMNS: usize = 3;
const PANEL_WIDTH: f64 = 400.0;
/// Between a panel and the next one on its right.
const GUTTER: f64 = 20.0;
/// The names of bars take no more than this.
const LABEL_MAX: f64 = 180.0;
const BAR_HEIGHT: f64 = 13.0;
const BAR_STEP: f64 = 18.0;
const TITLE_HEIGHT: f64 = 44.0;
pub(super) const MARGIN: f64 = 16.0;
const HEAD_HEIGHT: f64 = 56.0;
/// The distance between a text and its object.
const APART: f64 = 6.0;

const STYLE: &str = "\
    .ground{fill:#ffffff}.text{fill:#1f2328}.quiet{fill:#59636e}.bar{fill:#8c9bab}.default{fill:#0969da}\
    .axis{stroke:#d1d9e0}.curve{fill:none;stroke-width:1.5}.first{stroke-width:3}.lead{fill:none;stroke-width:0.75;opacity:0.6}\
    text{font:12px system-ui,sans-serif}.title{font-weight:600}\
    .c0{stroke:#0969da}.c1{stroke:#bc4c00}.c2{stroke:#1a7f37}.c3{stroke:#8250df}.c4{stroke:#cf222e}\
    .c5{stroke:#0e7c86}.c6{stroke:#bf3989}.c7{stroke:#59636e}.second{stroke-dasharray:7 4}\
    @media(prefers-color-scheme:dark){\
    .ground{fill:#0d1117}.text{fill:#f0f6fc}.quiet{fill:#9198a1}.bar{fill:#65727f}.default{fill:#4493f8}\
    .axis{stroke:#3d444d}.c0{stroke:#4493f8}.c1{stroke:#f0883e}.c2{stroke:#3fb950}.c3{stroke:#ab7df8}.c4{stroke:#f85149}\
    .c5{stroke:#39c5cf}.c6{stroke:#db61a2}.c7{stroke:#9198a1}}";

/// One panel of bars: a scenario by its variants, or, where each scenario has one variant only,
/// that by its scenarios.
struct Panel<'a> {
    title: String,
    metric: Metric,
    bars: Vec<(&'a str, &'a Row)>,
}

impl Panel<'_> {
    fn height(&self) -> f64 {
        TITLE_HEIGHT + self.bars.len() as f64 * BAR_STEP + MARGIN
    }
}

/// Renders the plot of the chosen rows.
pub(super) fn render(document: &Document, default_variant: &str, choice: &Choice) -> String {
    let rows: Vec<&Row> = document.rows.iter().filter(|row| choice.wants(row)).collect();
    let curves = curves::of(&rows);
    let in_bars: Vec<&Row> =
        rows.iter().copied().filter(|row| !curves.iter().any(|panel| panel.has(row))).collect();
    let panels = panels(&in_bars);
    let lines: Vec<&[Panel<'_>]> = panels.chunks(COLUMNS).collect();
    let tallest = |line: &[Panel<'_>]| line.iter().map(Panel::height).fold(0.0, f64::max);
    let width = PANEL_WIDTH * COLUMNS as f64 + MARGIN * 2.0;
    // Side by side, and then the bars.
    let pairs: Vec<&[curves::Curves<'_>]> = curves.chunks(curves::BESIDE).collect();
    let highest = |pair: &[curves::Curves<'_>]| pair.iter().map(curves::Curves::height).fold(0.0, f64::max);
    let height = HEAD_HEIGHT
        + pairs.iter().map(|pair| highest(pair)).sum::<f64>()
        + lines.iter().map(|line| tallest(line)).sum::<f64>();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\">\n<title>{}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"ground\" width=\"{width}\" height=\"{height}\"/>\n",
        escape(&document.experiment)
    );
    head(&mut svg, document, width - MARGIN * 2.0);
    let mut top = HEAD_HEIGHT;
    for pair in pairs {
        for (column, panel) in pair.iter().enumerate() {
            panel.draw(&mut svg, (column as f64 * curves::WIDTH, top), default_variant);
        }
        top += highest(pair);
    }
    for line in lines {
        for (column, panel) in line.iter().enumerate() {
            draw(&mut svg, panel, MARGIN + PANEL_WIDTH * column as f64, top, default_variant);
        }
        top += tallest(line);
    }
    svg.push_str("</svg>\n");
    svg
}

fn head(svg: &mut String, document: &Document, room: f64) {
    let machine = &document.machine;
    let quick = if document.quick { ", quick run" } else { "" };
    text(svg, "text title", MARGIN, 24.0, "start", &document.experiment);
    let origin = format!(
        "commit {}, {}, {} cores of {}, Linux {}{quick}",
        document.commit, document.when, machine.cores, machine.cpu, machine.kernel
    );
    text(svg, "quiet", MARGIN, 42.0, "start", &cut(&origin, room));
}

fn panels<'a>(rows: &[&'a Row]) -> Vec<Panel<'a>> {
    // By metric first, as the tables are: panels that one looks at together stand together.
    let mut panels = Vec::new();
    for metric in distinct(rows.iter().map(|row| row.metric)) {
        let of_metric: Vec<&Row> = rows.iter().copied().filter(|row| row.metric == metric).collect();
        let mut single: Vec<Panel<'_>> = Vec::new();
        for scenario in distinct(of_metric.iter().map(|row| row.scenario.as_str())) {
            let of_scenario: Vec<&Row> =
                of_metric.iter().copied().filter(|row| row.scenario == scenario).collect();
            if let [row] = of_scenario[..] {
                let title = format!("{}, {}", metric.name, row.variant);
                match single.iter_mut().find(|panel| panel.title == title) {
                    Some(panel) => panel.bars.push((&row.scenario, row)),
                    None => single.push(Panel { title, metric, bars: vec![(&row.scenario, row)] }),
                }
                continue;
            }
            let bars = of_scenario.into_iter().map(|row| (row.variant.as_str(), row)).collect();
            panels.push(Panel { title: format!("{}, {scenario}", metric.name), metric, bars });
        }
        panels.append(&mut single);
    }
    panels
}

fn draw(svg: &mut String, panel: &Panel<'_>, left: f64, top: f64, default_variant: &str) {
    let room = PANEL_WIDTH - GUTTER;
    text(svg, "text title", left, top + 18.0, "start", &cut_bold(&panel.title, room));
    text(svg, "quiet", left, top + 34.0, "start", &cut(&panel.metric.axis(), room));
    let widest = |texts: &mut dyn Iterator<Item = f64>| texts.fold(0.0, f64::max);
    let labels = widest(&mut panel.bars.iter().map(|(name, _)| width(name))).min(LABEL_MAX);
    let shown = panel.bars.iter().filter_map(|(_, row)| row.shown());
    let values = widest(&mut shown.clone().map(|value| width(&figure(value))));
    let largest = widest(&mut shown.clone());
    let bars_left = left + labels + APART;
    let bars_width = room - labels - values - APART * 2.0;
    for (index, (name, row)) in panel.bars.iter().enumerate() {
        let bar_top = top + TITLE_HEIGHT + index as f64 * BAR_STEP;
        let base_line = bar_top + BAR_HEIGHT - 2.0;
        text(svg, "text", bars_left - APART, base_line, "end", &cut(name, labels));
        let Some(value) = row.shown() else {
            let why = row.note.split(':').next().unwrap_or_default();
            text(svg, "quiet", bars_left + APART, base_line, "start", &cut(why, room - labels - APART * 2.0));
            continue;
        };
        let class = if row.variant == default_variant { "default" } else { "bar" };
        let length = if largest > 0.0 { bars_width * value.max(0.0) / largest } else { 0.0 };
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{bars_left:.1}\" y=\"{bar_top:.1}\" width=\"{length:.1}\" \
             height=\"{BAR_HEIGHT}\" rx=\"2\"/>"
        );
        text(svg, "text", bars_left + length + APART, base_line, "start", &figure(value));
    }
    let (axis_top, axis_bottom) = (top + TITLE_HEIGHT - 3.0, top + panel.height() - MARGIN);
    let _ = writeln!(
        svg,
        "<line class=\"axis\" x1=\"{bars_left:.1}\" x2=\"{bars_left:.1}\" y1=\"{axis_top:.1}\" \
         y2=\"{axis_bottom:.1}\"/>"
    );
}

/// How wide a text may become, in pixels: that of a wide font.
pub(super) fn width(content: &str) -> f64 {
    const CHARACTER: f64 = 7.4;
    content.chars().count() as f64 * CHARACTER
}

/// As much of a text as has room.
pub(super) fn cut(content: &str, room: f64) -> String {
    if width(content) <= room {
        return content.to_owned();
    }
    let mut kept = String::new();
    for character in content.chars() {
        kept.push(character);
        if width(&kept) + width("…") > room {
            kept.pop();
            break;
        }
    }
    kept + "…"
}

/// Cuts bold letters, which are wider.
pub(super) fn cut_bold(content: &str, room: f64) -> String {
    cut(content, room / BOLD)
}

/// How much wider bold letters are.
const BOLD: f64 = 1.12;

pub(super) fn text(svg: &mut String, class: &str, x: f64, y: f64, anchor: &str, content: &str) {
    let _ = writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
        escape(content)
    );
}

/// Makes any text fit for an XML document.
fn escape(raw: &str) -> String {
    let mut escaped = String::with_capacity(raw.len());
    for character in raw.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::Choice;
    use super::super::document::example;
    use std::path::Path;

    /// Reads the whole document; the names of its elements.
    fn elements(svg: &str) -> Vec<String> {
        let document = roxmltree::Document::parse(svg).expect("well-formed");
        document
            .descendants()
            .filter(|node| node.is_element())
            .map(|node| node.tag_name().name().to_owned())
            .collect()
    }

    #[test]
    fn the_plot_is_well_formed_with_a_bar_for_every_figure() {
        let document = example::document();
        let names = elements(&document.svg("default", &Choice::default()));
        let figures = document.rows.iter().filter(|row| row.shown().is_some()).count();
        let count = |name: &str| names.iter().filter(|n| *n == name).count();
        assert_eq!(names.first().map(String::as_str), Some("svg"));
        assert_eq!(count("rect"), figures + 1, "one for every figure and the ground");
        assert_eq!(count("line"), 3, "one axis for every panel of bars");
    }

    #[test]
    fn awkward_text_does_not_break_the_plot() {
        let mut document = example::document();
        document.rows[0].variant = "a<b>&\"\u{7}'".to_owned();
        document.experiment = "]]><script>".to_owned();
        let svg = document.svg("default", &Choice::default());
        assert!(!elements(&svg).iter().any(|name| name == "script"), "{svg}");
    }

    #[test]
    fn both_colour_schemes_are_served() {
        let svg = example::document().svg("default", &Choice::default());
        assert!(svg.contains("prefers-color-scheme:dark") && svg.contains("class=\"ground\""));
    }

    #[test]
    fn scenarios_with_numbers_make_curves() {
        let mut document = example::document();
        let row = document.rows[0].clone();
        let mut add = |number: u32| {
            let scenario = format!("neighbours-{number}");
            document.rows.push(super::Row { scenario, ..row.clone() });
        };
        add(0);
        add(16);
        let count = |document: &super::Document| {
            elements(&document.svg("default", &Choice::default()))
                .iter()
                .filter(|name| *name == "polyline")
                .count()
        };
        add(4);
        assert_eq!(count(&document), 1);
        document.rows.pop();
        assert_eq!(count(&document), 0, "two points are no curve");
    }

    #[test]
    fn no_rows_make_an_empty_plot() {
        let mut document = example::document();
        document.rows.clear();
        assert_eq!(
            elements(&document.svg("default", &Choice::default())).iter().filter(|n| *n == "rect").count(),
            1
        );
    }

    /// Where something is drawn: from left to right, from above to below.
    #[derive(Clone, Debug)]
    struct Place {
        what: String,
        is_bar: bool,
        x: (f64, f64),
        y: (f64, f64),
    }

    impl Place {
        /// The area that a node with an extent covers, if the reader's font is a wide one.
        fn of(node: roxmltree::Node<'_, '_>) -> Option<Self> {
            let number = |name| node.attribute(name).unwrap().parse::<f64>().unwrap();
            let class = node.attribute("class").unwrap_or_default();
            match node.tag_name().name() {
                "rect" if class != "ground" => {
                    let (x, y) = (number("x"), number("y"));
                    let (x, y) = ((x, x + number("width")), (y, y + number("height")));
                    Some(Self { what: "a bar".to_owned(), is_bar: true, x, y })
                }
                "text" => {
                    let what = node.text().unwrap_or_default().to_owned();
                    let bold = if class.contains("title") { super::BOLD } else { 1.0 };
                    let (x, y, width) = (number("x"), number("y"), super::width(&what) * bold);
                    let left = match node.attribute("text-anchor").unwrap() {
                        "start" => x,
                        "middle" => x - width / 2.0,
                        _ => x - width,
                    };
                    Some(Self { what, is_bar: false, x: (left, left + width), y: (y - 9.0, y + 3.0) })
                }
                _ => None,
            }
        }

        fn overlaps(&self, other: &Self) -> bool {
            let common = |a: (f64, f64), b: (f64, f64)| a.0.max(b.0) + 0.2 < a.1.min(b.1);
            common(self.x, other.x) && common(self.y, other.y)
        }
    }

    /// The nodes that are drawn over another one, or outside of the picture.
    fn collisions(svg: &str) -> Vec<String> {
        let document = roxmltree::Document::parse(svg).expect("well-formed");
        let size = |name| document.root_element().attribute(name).unwrap().parse::<f64>().unwrap();
        let (width, height) = (size("width"), size("height"));
        let places: Vec<Place> = document.descendants().filter_map(Place::of).collect();
        let mut found = Vec::new();
        for (at, place) in places.iter().enumerate() {
            if place.x.0 < 0.0 || place.x.1 > width || place.y.0 < 0.0 || place.y.1 > height {
                found.push(format!("outside: {}, {place:?}", place.what));
            }
            let over = |other: &&Place| !(place.is_bar && other.is_bar) && place.overlaps(other);
            found.extend(places[at + 1..].iter().find(over).map(|other| format!("{place:?} over {other:?}")));
        }
        found
    }

    #[test]
    fn no_text_of_any_plot_lies_over_another_one_or_is_cut_off() {
        let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
        let plots = results.read_dir().unwrap().map(|entry| entry.unwrap().path());
        let plots: Vec<_> = plots.filter(|file| file.extension().is_some_and(|e| e == "svg")).collect();
        assert!(plots.len() >= 8, "{plots:?}");
        for file in plots {
            let found = collisions(&std::fs::read_to_string(&file).unwrap());
            assert!(found.is_empty(), "{}: {found:#?}", file.display());
        }
    }

    #[test]
    fn long_names_and_reasons_are_cut_to_their_room() {
        let mut document = example::document();
        document.machine.cpu = "C".repeat(300);
        for row in &mut document.rows {
            row.scenario = format!("{}-{}", row.scenario, "s".repeat(90));
            row.variant = format!("{}-{}", row.variant, "v".repeat(90));
            row.note = "n".repeat(200);
        }
        let row = document.rows[0].clone();
        for number in [1, 2, 5] {
            for variant in ["a", "b", "c"].iter().cycle().take(3).chain(&["default"]) {
                let (scenario, variant) = (format!("neighbours-{number}"), (*variant).to_owned());
                document.rows.push(super::Row { scenario, variant, ..row.clone() });
            }
        }
        let found = collisions(&document.svg("default", &Choice::default()));
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn what_lies_over_something_is_found() {
        let text = |x: u32, what: &str| {
            format!("<text class=\"text\" x=\"{x}\" y=\"50\" text-anchor=\"start\">{what}</text>")
        };
        let svg = |inner: &str| format!("<svg width=\"100\" height=\"100\">{inner}</svg>");
        assert_eq!(collisions(&svg(&(text(10, "ab") + &text(40, "cd")))), [] as [&str; 0]);
        assert_eq!(collisions(&svg(&(text(10, "ab") + &text(20, "cd")))).len(), 1);
        assert_eq!(collisions(&svg(&text(90, "ab"))).len(), 1, "outside");
    }
}
