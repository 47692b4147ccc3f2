//! Draws the simulated lines. For each test there are panels of tokens per second and of busy share, over the
//! number of stages.

use super::svg::{Panel, draw};
use super::{Costs, LATENCIES_MS, LINKS, Row, STAGES, TESTS};

/// Lines of the picture: link and latency. More would not be told apart.
const SHOWN: [(&str, f64); 6] = [
    (LINKS[2].0, LATENCIES_MS[0]),
    (LINKS[1].0, LATENCIES_MS[0]),
    (LINKS[0].0, LATENCIES_MS[0]),
    (LINKS[1].0, LATENCIES_MS[1]),
    (LINKS[1].0, LATENCIES_MS[2]),
    (LINKS[1].0, LATENCIES_MS[3]),
];

/// Panels beside each other.
const COLUMNS: usize = 3;

/// Draws all of the table that can be told apart.
pub fn plot(rows: &[Row], costs: &Costs) -> String {
    let tests: Vec<String> = TESTS.iter().map(|test| test.name()).collect();
    let mut panels = Vec::new();
    for tests in tests.chunks(COLUMNS) {
        panels.extend(
            tests.iter().map(|test| {
                panel(rows, test, "tokens per second", None, |row| row.tokens_per_second)
            }),
        );
        panels.extend(tests.iter().map(|test| {
            panel(rows, test, "mean busy share (%)", Some(100.0), |row| row.busy_mean * 100.0)
        }));
    }
    let legend: Vec<String> =
        SHOWN.iter().map(|(link, ms)| format!("{link}, {ms} ms one way")).collect();
    draw(
        &format!("Simulated lines of equal stages. {}", costs.describe()),
        &panels,
        COLUMNS,
        &legend,
    )
}

fn panel(
    rows: &[Row],
    test: &str,
    y_label: &str,
    y_max: Option<f64>,
    value: impl Fn(&Row) -> f64,
) -> Panel {
    let at = |link: &str, ms: f64, stages: usize| {
        let found = rows.iter().find(|row| {
            row.test == test && row.link == link && row.latency_ms == ms && row.stages == stages
        });
        found.map_or(0.0, &value)
    };
    Panel {
        title: test.to_owned(),
        x_label: "stages".to_owned(),
        y_label: y_label.to_owned(),
        x: STAGES.iter().map(ToString::to_string).collect(),
        series: SHOWN
            .iter()
            .map(|&(link, ms)| STAGES.iter().map(|&stages| at(link, ms, stages)).collect())
            .collect(),
        y_max,
    }
}
