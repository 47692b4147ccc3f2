//! README says of every architecture whether it runs, and the program gives the same reason where it does not.

use std::collections::BTreeMap;

use brigade_gguf::{Gguf, GgufWriter};

/// What README promises of the error against llama.cpp, which `golden` checks.
const LIMIT: f64 = 1e-4;

/// Rows of the tables under "What runs" by the names in their first cell: the cells behind it.
fn rows() -> BTreeMap<String, Vec<String>> {
    let readme = brigade_model_tests::places::root().join("README.md");
    let text = std::fs::read_to_string(readme).unwrap();
    let section = text.split("\n## ").find(|section| section.starts_with("What runs\n")).unwrap();
    let mut rows = BTreeMap::new();
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<String> =
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
        for name in cells[0].split(", ").map(|name| name.trim_matches('`').to_owned()) {
            let twice = rows.insert(name.clone(), cells[1..].to_vec());
            assert!(twice.is_none(), "{name} stands in two rows");
        }
    }
    rows
}

fn every_architecture_that_runs_stands_there_with_its_error() {
    let rows = rows();
    for name in brigade_models::supported() {
        let cells = rows.get(name).unwrap_or_else(|| panic!("README does not list {name}"));
        let error: f64 =
            cells.last().unwrap().parse().unwrap_or_else(|_| panic!("{name}: {cells:?}"));
        assert!(error > 0.0 && error <= LIMIT, "{name}: {error}");
    }
}

fn every_other_one_stands_there_with_its_reason() {
    let rows = rows();
    let mut n_listed = brigade_models::supported().len();
    for (name, reason) in brigade_models::refused() {
        assert!(!brigade_models::supported().contains(&name), "{name} runs");
        let cells = rows.get(name).unwrap_or_else(|| panic!("README does not list {name}"));
        assert_eq!(cells.last().unwrap(), reason, "{name}");
        n_listed += 1;
    }
    assert_eq!(rows.len(), n_listed, "README lists names that the program does not know");
}

fn a_file_of_another_architecture_is_refused_by_name_with_the_reason() {
    let refusal = |name: &str| {
        let mut writer = GgufWriter::new();
        writer.set("general.architecture", name).unwrap();
        let mut bytes = Vec::new();
        writer.write_header_only(&mut bytes).unwrap();
        let model = Gguf::from_bytes(bytes.into(), name).unwrap();
        brigade_models::describe(&model).unwrap_err().to_string()
    };
    for (name, reason) in brigade_models::refused() {
        let message = refusal(name);
        assert!(message.contains(&format!("{name:?}")), "{message}");
        assert!(message.contains(reason) && message.contains("README"), "{message}");
    }
    let message = refusal("gpt5");
    assert!(message.contains("gpt5") && message.contains("qwen3moe"), "{message}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        every_architecture_that_runs_stands_there_with_its_error,
        every_other_one_stands_there_with_its_reason,
        a_file_of_another_architecture_is_refused_by_name_with_the_reason;
];
