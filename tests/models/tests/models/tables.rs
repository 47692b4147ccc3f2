//! All CPU tables compute the same bits, in whole models too. Each table computes them by itself, and all of
//! them mixed in one line. This machine also computes what machines before it did: the hashes of their logits
//! are in `tests/data/golden/bits.json`.
//!
//! The tables are those that this machine has, or `reference` and the one that `BRIGADE_TEST_KERNELS` names.

use std::collections::BTreeMap;

use brigade_gguf::Gguf;
use brigade_model_tests::golden::Golden;
use brigade_model_tests::line::{self, Line, LineConfig};

/// Rows of a ubatch.
const N_UBATCH: usize = 64;

fn golden_models_are_the_same_bits_on_every_table_and_mixed() {
    let tables: Vec<&'static str> =
        line::compared_tables().iter().map(|table| table.name).collect();
    println!("tables: {}", tables.join(", "));
    for golden in Golden::folders() {
        for (name, entry) in golden.models() {
            let path = golden.model(entry);
            let tokens = &golden.manifest.tokens;
            let logits =
                |config: &LineConfig| bits(Line::open(&path, config).logits(tokens, N_UBATCH));
            let alone = |table| LineConfig { kernels: Some(table), ..LineConfig::default() };
            let first = logits(&alone(tables[0]));
            for table in &tables[1..] {
                let other = logits(&alone(table));
                assert!(first == other, "{name}: {table} differs from {}", tables[0]);
            }
            let n_layer = brigade_models::describe(&Gguf::open(&path).unwrap()).unwrap().n_layer();
            let cuts = Line::even_cuts(n_layer, tables.len().max(2));
            let mixed = LineConfig { cuts, mixed: tables.clone(), ..LineConfig::default() };
            assert!(first == logits(&mixed), "{name}: mixed tables differ from {}", tables[0]);
            println!("{name:20} the same bits");
        }
    }
}

/// One machine has the tables of one processor only. Hashes that all kinds of machines must have show that another
/// kind computes the same bits.
fn golden_models_are_the_bits_of_other_machines() {
    let golden = Golden::repository();
    let path = golden.folder.join("bits.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let recorded: BTreeMap<String, String> = serde_json::from_str(&text).unwrap();
    let mut found = BTreeMap::new();
    for (name, entry) in golden.models() {
        let mut line = Line::open(&golden.model(entry), &LineConfig::default());
        let bits = bits(line.logits(&golden.manifest.tokens, N_UBATCH));
        let bytes: Vec<u8> = bits.into_iter().flat_map(u32::to_le_bytes).collect();
        found.insert(name.clone(), blake3::hash(&bytes).to_hex().to_string());
    }
    let differ = found.iter().filter(|(name, hash)| recorded.get(*name) != Some(*hash));
    let differ: Vec<&String> = differ.map(|(name, _)| name).collect();
    assert!(
        differ.is_empty(),
        "{} on {}: other bits than recorded for {differ:?}. Where the arithmetic was changed on purpose, \
         and the tables of a machine still agree, record them anew in {}:\n{}",
        line::serving().name,
        std::env::consts::ARCH,
        path.display(),
        serde_json::to_string_pretty(&found).unwrap()
    );
}

fn bits(rows: Vec<Vec<f32>>) -> Vec<u32> {
    rows.into_iter().flatten().map(f32::to_bits).collect()
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        golden_models_are_the_same_bits_on_every_table_and_mixed,
        golden_models_are_the_bits_of_other_machines;
];
