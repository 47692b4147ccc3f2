//! The program that simulates lines (`tests/benches/lines.rs`): its results for long lines, and its prediction of a
//! measured line.

use brigade_sched::sim::{LinkModel, StageModel, Workload};
use brigade_tests::lines::measured::{compare, model_costs, read};
use brigade_tests::lines::plot::plot;
use brigade_tests::lines::{Case, Costs, LINKS, ModelCost, Test, line, markdown, table};
use serde_json::json;

fn costs() -> Costs {
    Costs { prefill: ModelCost::default(), decode: ModelCost::default() }
}

fn case(stages: usize, test: Test) -> Case {
    let (link, bytes_per_second) = LINKS[2];
    Case { stages, link, bytes_per_second, latency_ms: 0.1, test }
}

fn lines_of_4_to_16_stages_are_busy() {
    let tests = [(Test::Prefill(64), 0.95), (Test::Decode(128), 0.90), (Test::Decode(512), 0.90)];
    let all: Vec<(Case, f64)> = tests
        .iter()
        .flat_map(|&(test, aim)| [4, 8, 16].map(|stages| (case(stages, test), aim)))
        .collect();
    let cases: Vec<Case> = all.iter().map(|(case, _)| *case).collect();
    let rows = table(&costs(), &cases).unwrap();
    println!("{}", markdown(&rows, &costs()));
    for (row, (_, aim)) in rows.iter().zip(&all) {
        assert!(row.busy_min >= *aim, "{row:?} is below {aim}");
    }
    // Each test's throughput grows with every stage.
    for pair in rows.windows(2).filter(|pair| pair[0].test == pair[1].test) {
        let gain = pair[1].tokens_per_second / pair[0].tokens_per_second;
        assert!(gain > 1.3, "{pair:?}");
    }
    let svg = plot(&rows, &costs());
    assert!(svg.starts_with("<svg") && svg.contains("tokens per second"));
}

/// Time that a stage of the measured line takes to send a ubatch, in microseconds; the rest of its time is computing.
const SEND_US: f64 = 20.0;

/// The stages of the measured line, which are alike.
const STAGES: usize = 2;

/// A simulation from what `bench` measured of a line predicts it. The measured line is itself simulated, so that its
/// costs are known.
fn a_line_is_predicted_from_what_it_measured() {
    let stage = |test: &str| match test {
        "prefill" => StageModel { fixed_us: 3_000.0, per_row_us: 250.0, jitter: 0.0 },
        _ => StageModel { fixed_us: 6_000.0, per_row_us: 400.0, jitter: 0.0 },
    };
    // Rows as `bench --json` would write them of such a line.
    let row = |test: &str, parallel: u32, tokens: u64, sizes: &[u32]| {
        let link = LinkModel { latency_us: 80.0, per_row_us: 0.0 };
        let model = stage(test);
        let mut sim = line(vec![model; STAGES], link);
        let each = (tokens / u64::from(parallel)) as u32;
        let (prompt, generated) = if test == "prefill" { (each, 1) } else { (1, each) };
        sim.sched.prefill_rows = Some(64);
        let out = sim.run(&Workload::at_once(parallel as usize, prompt, generated)).unwrap();
        let ubatches: Vec<_> = sizes
            .iter()
            .map(|&rows| {
                let us = model.fixed_us + model.per_row_us * f64::from(rows) - SEND_US;
                json!({"rows": rows, "count": 10, "compute_us": [us, us], "send_us": [SEND_US, SEND_US],
                       "deviation": 0.0})
            })
            .collect();
        json!({"model": "m", "workers": STAGES, "parallel": parallel, "test": test, "tokens": tokens,
               "tokens_per_second": tokens as f64 * 1e6 / out.end as f64, "stage_busy": [0.9, 0.9],
               "wire_bytes_per_token": 4096.0, "ubatch": 64, "ubatches": ubatches, "hop_us": 80.0})
    };
    let text = json!([
        row("prefill", 1, 1024, &[64]),
        row("decode", 1, 64, &[1]),
        row("prefill", 8, 8192, &[64, 32]),
        row("decode", 8, 512, &[4]),
    ])
    .to_string();
    let rows = read(&text).unwrap();
    let compared = compare(&rows).unwrap();
    for c in &compared {
        println!(
            "{} x{}: {:.1} measured, {:.1} simulated",
            c.test, c.parallel, c.measured, c.simulated
        );
        assert!((c.ratio() - 1.0).abs() < 0.05, "{c:?}");
    }
    let found = model_costs(&rows).unwrap();
    // Of all stages together.
    let fixed_us = STAGES as f64 * stage("decode").fixed_us;
    let row_us = STAGES as f64 * stage("prefill").per_row_us;
    assert!((found.decode.fixed_us / fixed_us - 1.0).abs() < 0.01, "{found:?}");
    assert!((found.prefill.row_us / row_us - 1.0).abs() < 0.01, "{found:?}");
    assert_eq!(found.prefill.row_bytes, 4096.0);
    assert!(read("[]").is_err() && read("{\"rows\": 1}").is_err());
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes: lines_of_4_to_16_stages_are_busy, a_line_is_predicted_from_what_it_measured;
];
