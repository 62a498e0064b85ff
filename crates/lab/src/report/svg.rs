//! The plot: curves, and a panel of horizontal bars for every scenario and metric, readable on light and on dark
//! ground (the colours follow the reader's scheme; the ground is drawn, so that a viewer without a
//! scheme shows the light form).

use super::curves;
use super::table::{distinct, figure};
use super::{Document, Row};
use std::fmt::Write as _;

const COLUMNS: usize = 3;
const PANEL_WIDTH: f64 = 400.0;
const LABEL_WIDTH: f64 = 96.0;
const VALUE_WIDTH: f64 = 116.0;
const BAR_HEIGHT: f64 = 13.0;
const BAR_STEP: f64 = 18.0;
const TITLE_HEIGHT: f64 = 30.0;
const MARGIN: f64 = 16.0;
const HEAD_HEIGHT: f64 = 56.0;

const STYLE: &str = "\
    .ground{fill:#ffffff}.text{fill:#1f2328}.quiet{fill:#59636e}.bar{fill:#8c9bab}.default{fill:#0969da}\
    .axis{stroke:#d1d9e0}.curve{fill:none;stroke:#8c9bab;stroke-width:2}.first{stroke:#0969da}\
    text{font:12px system-ui,sans-serif}.title{font-weight:600}\
    @media(prefers-color-scheme:dark){\
    .ground{fill:#0d1117}.text{fill:#f0f6fc}.quiet{fill:#9198a1}.bar{fill:#65727f}.default{fill:#4493f8}\
    .axis{stroke:#3d444d}.curve{stroke:#65727f}.first{stroke:#4493f8}}";

/// The rows of one panel.
struct Panel<'a> {
    title: String,
    rows: Vec<&'a Row>,
}

impl Panel<'_> {
    fn height(&self) -> f64 {
        TITLE_HEIGHT + self.rows.len() as f64 * BAR_STEP + MARGIN
    }
}

/// Renders the plot of all rows.
pub(super) fn render(document: &Document, default_variant: &str) -> String {
    let panels = panels(&document.rows);
    let lines: Vec<&[Panel<'_>]> = panels.chunks(COLUMNS).collect();
    let tallest = |line: &[Panel<'_>]| line.iter().map(Panel::height).fold(0.0, f64::max);
    let width = PANEL_WIDTH * COLUMNS as f64 + MARGIN * 2.0;
    let curves = curves::of(&document.rows);
    // Side by side, and then the bars.
    let beside = (width / curves::WIDTH).floor().max(1.0);
    let curves_height = (curves.len() as f64 / beside).ceil() * curves::HEIGHT;
    let height = HEAD_HEIGHT + curves_height + lines.iter().map(|line| tallest(line)).sum::<f64>();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\">\n<title>{}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"ground\" width=\"{width}\" height=\"{height}\"/>\n",
        escape(&document.experiment)
    );
    head(&mut svg, document);
    for (number, panel) in curves.iter().enumerate() {
        let (column, line) = (number as f64 % beside, (number as f64 / beside).floor());
        let (left, top) = (column * curves::WIDTH, HEAD_HEIGHT + line * curves::HEIGHT);
        panel.draw(&mut svg, (left, top), default_variant);
    }
    let mut top = HEAD_HEIGHT + curves_height;
    for line in lines {
        for (column, panel) in line.iter().enumerate() {
            draw(&mut svg, panel, MARGIN + PANEL_WIDTH * column as f64, top, default_variant);
        }
        top += tallest(line);
    }
    svg.push_str("</svg>\n");
    svg
}

fn head(svg: &mut String, document: &Document) {
    let machine = &document.machine;
    let quick = if document.quick { ", quick run" } else { "" };
    text(svg, "text title", MARGIN, 24.0, "start", &document.experiment);
    let origin = format!(
        "commit {}, {}, {} cores of {}, Linux {}{quick}",
        document.commit, document.when, machine.cores, machine.cpu, machine.kernel
    );
    text(svg, "quiet", MARGIN, 42.0, "start", &origin);
}

fn panels(rows: &[Row]) -> Vec<Panel<'_>> {
    // By metric first, as the tables are: panels that one looks at together stand together.
    let metrics = distinct(rows.iter().map(|row| row.metric));
    let of = |metric| {
        rows.iter().filter(move |row| row.metric == metric).map(move |row| (row.scenario.as_str(), metric))
    };
    distinct(metrics.into_iter().flat_map(of))
        .into_iter()
        .map(|(scenario, metric)| Panel {
            title: format!("{scenario}: {} ({}, {})", metric.name, metric.shown.label(), metric.unit),
            rows: rows.iter().filter(|r| r.scenario == scenario && r.metric == metric).collect(),
        })
        .collect()
}

fn draw(svg: &mut String, panel: &Panel<'_>, left: f64, top: f64, default_variant: &str) {
    text(svg, "text title", left, top + 18.0, "start", &panel.title);
    let largest = panel.rows.iter().filter_map(|row| row.shown()).fold(0.0, f64::max);
    let (bars_left, bars_width) = (left + LABEL_WIDTH, PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH);
    for (index, row) in panel.rows.iter().enumerate() {
        let bar_top = top + TITLE_HEIGHT + index as f64 * BAR_STEP;
        let base_line = bar_top + BAR_HEIGHT - 2.0;
        text(svg, "text", bars_left - 6.0, base_line, "end", &row.variant);
        let Some(value) = row.shown() else {
            let why = row.note.split(':').next().unwrap_or_default();
            text(svg, "quiet", bars_left + 6.0, base_line, "start", why);
            continue;
        };
        let class = if row.variant == default_variant { "default" } else { "bar" };
        let length = if largest > 0.0 { bars_width * value / largest } else { 0.0 };
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{bars_left:.1}\" y=\"{bar_top:.1}\" width=\"{length:.1}\" \
             height=\"{BAR_HEIGHT}\" rx=\"2\"/>"
        );
        text(svg, "text", bars_left + length + 6.0, base_line, "start", &figure(value));
    }
    let (axis_top, axis_bottom) = (top + TITLE_HEIGHT - 3.0, top + panel.height() - MARGIN);
    let _ = writeln!(
        svg,
        "<line class=\"axis\" x1=\"{bars_left:.1}\" x2=\"{bars_left:.1}\" y1=\"{axis_top:.1}\" \
         y2=\"{axis_bottom:.1}\"/>"
    );
}

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
    use super::super::document::example;
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
        let names = elements(&document.svg("default"));
        let figures = document.rows.iter().filter(|row| row.shown().is_some()).count();
        let count = |name: &str| names.iter().filter(|n| *n == name).count();
        assert_eq!(names.first().map(String::as_str), Some("svg"));
        assert_eq!(count("rect"), figures + 1, "one for every figure and the ground");
        assert_eq!(count("line"), 3, "one axis for every panel");
    }

    #[test]
    fn awkward_text_does_not_break_the_plot() {
        let mut document = example::document();
        document.rows[0].variant = "a<b>&\"\u{7}'".to_owned();
        document.experiment = "]]><script>".to_owned();
        let svg = document.svg("default");
        assert!(!elements(&svg).iter().any(|name| name == "script"), "{svg}");
    }

    #[test]
    fn both_colour_schemes_are_served() {
        let svg = example::document().svg("default");
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
            elements(&document.svg("default")).iter().filter(|name| *name == "polyline").count()
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
        assert_eq!(elements(&document.svg("default")).iter().filter(|n| *n == "rect").count(), 1);
    }
}
