//! Line charts as SVG: panels with axes, ticks, labels and units, and one legend for all of them.

use std::fmt::Write;

/// Size of a panel with its labels, and of the part where lines are drawn.
const PANEL: (f64, f64) = (360.0, 240.0);
const PLOT: (f64, f64) = (270.0, 160.0);
/// Where that part begins in its panel.
const ORIGIN: (f64, f64) = (68.0, 30.0);
/// Height of a legend's line.
const LEGEND_LINE: f64 = 18.0;
/// Width of a legend's entry.
const LEGEND_ENTRY: f64 = 180.0;
/// Space above all panels.
const TOP: f64 = 34.0;
/// Ticks of the vertical axis, about.
const TICKS: f64 = 5.0;

/// Told apart in grey print too, by their dashes (Okabe and Ito's colours).
const STYLES: [(&str, &str); 6] = [
    ("#0072b2", ""),
    ("#e69f00", "7 3"),
    ("#009e73", "2 3"),
    ("#d55e00", "9 3 2 3"),
    ("#000000", "1 2"),
    ("#cc79a7", "12 4"),
];

/// One chart: a line for each series, a point for each x.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The text above the panel.
    pub title: String,
    /// The text below the horizontal axis.
    pub x_label: String,
    /// The text beside the vertical axis, with its unit.
    pub y_label: String,
    /// Names of the x positions, evenly spaced.
    pub x: Vec<String>,
    /// A value of each series at each x, `[n_series][n_x]`.
    pub series: Vec<Vec<f64>>,
    /// Top of the vertical axis; `None`: as the values ask.
    pub y_max: Option<f64>,
}

/// A whole picture: panels in rows of `columns`, a legend with a name for each series.
pub fn draw(title: &str, panels: &[Panel], columns: usize, legend: &[String]) -> String {
    let rows = panels.len().div_ceil(columns);
    let width = PANEL.0 * columns as f64;
    let per_line = ((width - 40.0) / LEGEND_ENTRY).floor().max(1.0) as usize;
    let legend_lines = legend.len().div_ceil(per_line) as f64;
    let height = TOP + PANEL.1 * rows as f64 + LEGEND_LINE * legend_lines + 16.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    text(&mut svg, width / 2.0, 20.0, "middle", 14, title);
    for (i, panel) in panels.iter().enumerate() {
        let at = (PANEL.0 * (i % columns) as f64, TOP + PANEL.1 * (i / columns) as f64);
        let _ = writeln!(svg, "<g transform=\"translate({} {})\">", at.0, at.1);
        draw_panel(&mut svg, panel);
        svg += "</g>\n";
    }
    for (i, name) in legend.iter().enumerate() {
        let x = 40.0 + LEGEND_ENTRY * (i % per_line) as f64;
        let y = TOP + PANEL.1 * rows as f64 + LEGEND_LINE * (i / per_line) as f64 + 6.0;
        polyline(&mut svg, &[(x, y), (x + 30.0, y)], i);
        text(&mut svg, x + 36.0, y + 4.0, "start", 11, name);
    }
    svg + "</svg>\n"
}

fn draw_panel(svg: &mut String, panel: &Panel) {
    let largest = panel.series.iter().flatten().copied().fold(0.0, f64::max);
    let step = tick_step(panel.y_max.unwrap_or(largest));
    let top = panel.y_max.unwrap_or((largest / step).ceil().max(1.0) * step);
    let x_at = |i: usize| {
        let last = panel.x.len().saturating_sub(1).max(1) as f64;
        ORIGIN.0 + PLOT.0 * (0.04 + 0.92 * i as f64 / last)
    };
    let y_at = |value: f64| ORIGIN.1 + PLOT.1 * (1.0 - value / top);
    let bottom = ORIGIN.1 + PLOT.1;
    text(svg, ORIGIN.0 + PLOT.0 / 2.0, ORIGIN.1 - 10.0, "middle", 12, &panel.title);
    let mut tick = 0.0;
    while tick <= top * 1.0001 {
        let y = y_at(tick);
        let _ = writeln!(
            svg,
            "<line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>",
            ORIGIN.0,
            ORIGIN.0 + PLOT.0
        );
        text(svg, ORIGIN.0 - 6.0, y + 4.0, "end", 11, &number(tick, step));
        tick += step;
    }
    for (i, name) in panel.x.iter().enumerate() {
        text(svg, x_at(i), bottom + 16.0, "middle", 11, name);
    }
    let _ = writeln!(
        svg,
        "<path d=\"M{:.1} {:.1}V{bottom:.1}H{:.1}\" fill=\"none\" stroke=\"black\"/>",
        ORIGIN.0,
        ORIGIN.1,
        ORIGIN.0 + PLOT.0
    );
    text(svg, ORIGIN.0 + PLOT.0 / 2.0, bottom + 32.0, "middle", 11, &panel.x_label);
    let _ = writeln!(
        svg,
        "<text transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        ORIGIN.1 + PLOT.1 / 2.0,
        escaped(&panel.y_label)
    );
    for (i, series) in panel.series.iter().enumerate() {
        let points: Vec<_> =
            series.iter().enumerate().map(|(j, value)| (x_at(j), y_at(*value))).collect();
        polyline(svg, &points, i);
        for (x, y) in points {
            let fill = STYLES[i % STYLES.len()].0;
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\" fill=\"{fill}\"/>");
        }
    }
}

/// 1, 2 or 5 times a power of ten, so that about [`TICKS`] of them make `top`.
fn tick_step(top: f64) -> f64 {
    if top <= 0.0 {
        return 1.0;
    }
    let rough = top / TICKS;
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    power * steps.into_iter().find(|step| step * power >= rough * 0.999).unwrap_or(10.0)
}

fn number(value: f64, step: f64) -> String {
    let digits = (-step.log10().floor()).max(0.0) as usize;
    format!("{value:.digits$}")
}

fn polyline(svg: &mut String, points: &[(f64, f64)], style: usize) {
    let (color, dashes) = STYLES[style % STYLES.len()];
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.8\" \
         stroke-dasharray=\"{dashes}\"/>",
        points.join(" ")
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, size: u32, words: &str) {
    let words = escaped(words);
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{words}</text>"
    );
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for (top, step) in [(1.0, 0.2), (0.9, 0.2), (380.0, 100.0), (4_200.0, 1_000.0), (8.0, 2.0)]
        {
            assert_eq!(tick_step(top), step, "{top}");
        }
        assert_eq!((number(0.5, 0.5), number(1500.0, 500.0)), ("0.5".into(), "1500".into()));
    }

    #[test]
    fn every_value_is_inside_its_panel_and_every_name_is_there() {
        let panel = Panel {
            title: "t < u".into(),
            x_label: "stages".into(),
            y_label: "tokens/s".into(),
            x: vec!["4".into(), "8".into()],
            series: vec![vec![1.0, 33.0], vec![0.0, 17.0]],
            y_max: None,
        };
        let svg = draw("all", &[panel.clone(), panel], 2, &["a".into(), "b & c".into()]);
        for name in ["t &lt; u", "stages", "tokens/s", ">4<", "b &amp; c", ">all<"] {
            assert!(svg.contains(name), "{name}");
        }
        assert_eq!(svg.matches("<circle").count(), 8);
        for cy in svg.split("cy=\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            let y: f64 = cy.parse().unwrap();
            assert!((ORIGIN.1..=ORIGIN.1 + PLOT.1).contains(&y), "{y}");
        }
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
    }
}
