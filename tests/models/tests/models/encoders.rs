//! Every golden encoder against llama.cpp's vectors, whole and cut.
//!
//! Vectors are within 1e-4 of llama.cpp's (relative 2-norm), for each kind of pooling. The rows are the same bits for
//! every number of stages, at every cut, beside other texts and alone, and on every op table.

use std::path::{Path, PathBuf};

use brigade_engine::batch::{SeqOp, SeqPart, SlotId, UBatch, Want};
use brigade_engine::heads::{Classifier, Heads};
use brigade_gguf::Gguf;
use brigade_model_tests::golden::{Encoders, same_bits};
use brigade_model_tests::line::{self, Line, LineConfig, into_hidden};

const LIMIT: f64 = 1e-4;

/// The rows of all texts, with the stages cut at `cuts`; all texts in one ubatch.
fn rows(model: &Path, config: &LineConfig, texts: &[Vec<u32>]) -> Vec<Vec<Vec<f32>>> {
    let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
    Line::open(model, config).texts(&texts)
}

fn cut(cuts: Vec<usize>) -> LineConfig {
    LineConfig { cuts, ..LineConfig::default() }
}

fn pooled(pooling: &str, rows: &[Vec<f32>]) -> Vec<f64> {
    let wide = |row: &Vec<f32>| row.iter().map(|v| f64::from(*v)).collect();
    match pooling {
        "cls" => wide(&rows[0]),
        "last" => wide(&rows[rows.len() - 1]),
        _ => (0..rows[0].len())
            .map(|i| rows.iter().map(|row| f64::from(row[i])).sum::<f64>() / rows.len() as f64)
            .collect(),
    }
}

/// Vector that the heads make of the rows of a text.
fn vector(heads: &Heads, pooling: &str, rows: &[Vec<f32>]) -> Vec<f64> {
    let pooled = pooled(pooling, rows);
    let Some(projections) = &heads.projections else { return pooled };
    let narrow: Vec<f32> = pooled.into_iter().map(|v| v as f32).collect();
    projections.apply(&narrow).into_iter().map(f64::from).collect()
}

/// ||ours - theirs|| / ||theirs||.
fn error(ours: &[f64], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len(), "width of a vector");
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let apart = squares(&mut ours.iter().zip(theirs).map(|(a, b)| a - b));
    (apart / squares(&mut theirs.iter().copied())).sqrt()
}

fn vectors_match_llama_cpp_at_every_number_of_stages() {
    let golden = Encoders::repository();
    let mut n_projected = 0;
    for (name, entry) in &golden.models {
        let path = entry.synth.make();
        let (model, files) = Gguf::open_files(&path).unwrap();
        let spec = brigade_models::describe(&model).unwrap();
        let heads = Heads::read(&model, spec.n_embd, true, &files).unwrap();
        let n_layer = spec.n_layer();
        n_projected += usize::from(heads.projections.is_some());
        let whole = rows(&path, &cut(Vec::new()), &golden.texts);
        let every = (1..n_layer).map(|at| vec![at]);
        let splits: Vec<_> =
            every.chain([Line::even_cuts(n_layer, 3), (1..n_layer).collect()]).collect();
        for cuts in &splits {
            let again = rows(&path, &cut(cuts.clone()), &golden.texts);
            for (whole, again) in whole.iter().zip(&again) {
                assert!(same_bits(whole, again), "{name}: rows depend on the cuts {cuts:?}");
            }
        }
        assert_eq!(entry.pooled.len(), 3, "{name}: kinds of pooling");
        for (pooling, theirs) in &entry.pooled {
            assert_eq!(theirs.len(), golden.texts.len(), "{name}");
            for (rows, theirs) in whole.iter().zip(theirs) {
                let ours = vector(&heads, pooling, rows);
                let error = error(&ours, theirs);
                println!("{name:20} {pooling:5} {} splits  error {error:.2e}", splits.len() + 1);
                assert!(error <= LIMIT, "{name}, {pooling}: error {error:e}");
            }
        }
    }
    assert_eq!(n_projected, 1, "models whose vectors go through matrices");
}

fn heads_judge_texts_as_llama_cpp_does() {
    let golden = Encoders::repository();
    let mut n_checked = 0;
    for (name, entry) in &golden.models {
        let path = entry.synth.make();
        let (model, files) = Gguf::open_files(&path).unwrap();
        let head = Classifier::read(&model, true, &files).unwrap();
        assert_eq!(head.is_some(), entry.rank.is_some(), "{name}");
        let (Some(head), Some(theirs)) = (head, &entry.rank) else { continue };
        let pooling = if head.reads_mean() { "mean" } else { "cls" };
        let whole = rows(&path, &cut(Vec::new()), &golden.texts);
        for (rows, theirs) in whole.iter().zip(theirs) {
            let row: Vec<f32> = pooled(pooling, rows).into_iter().map(|v| v as f32).collect();
            let error = (f64::from(head.score(&row)) - theirs).abs() / theirs.abs();
            println!("{name:20} judged by {pooling}  error {error:.2e}");
            assert!(error <= LIMIT, "{name}: error {error:e}");
        }
        n_checked += 1;
    }
    assert!(n_checked >= 2, "bert and modern-bert have heads");
}

fn rows_are_the_same_bits_alone_on_every_table_and_in_any_slot() {
    let golden = Encoders::repository();
    for (name, entry) in &golden.models {
        let path = entry.synth.make();
        let whole = rows(&path, &LineConfig::default(), &golden.texts);
        for table in line::compared_tables() {
            let config =
                LineConfig { kernels: Some(table.name), threads: 2, ..LineConfig::default() };
            for (text, whole) in golden.texts.iter().zip(&whole) {
                let alone = rows(&path, &config, std::slice::from_ref(text));
                assert!(same_bits(&alone[0], whole), "{name}: alone on {}", table.name);
            }
            let turned: Vec<_> = golden.texts.iter().rev().cloned().collect();
            let turned = rows(&path, &config, &turned);
            let same = turned.iter().rev().zip(&whole).all(|(a, b)| same_bits(a, b));
            assert!(same, "{name}: in another order on {}", table.name);
        }
    }
}

/// The first encoder, and one of its texts.
fn one() -> (PathBuf, Vec<u32>) {
    let golden = Encoders::repository();
    (golden.models["bert"].synth.make(), golden.texts[0].clone())
}

fn part(pos: u32, tokens: &[u32], want: Want) -> SeqPart {
    SeqPart { slot: SlotId(0), pos, tokens: tokens.to_vec(), want, mu: None, ahead: None }
}

fn one_row_is_that_row_of_all() {
    let (path, text) = one();
    let mut line = Line::open(&path, &cut(vec![2]));
    let all = line.texts(&[&text]).remove(0);
    for (want, pos) in [(Want::HiddenFirst, 0), (Want::HiddenLast, text.len() - 1)] {
        let rows = line.run(vec![Line::open_slot(0, None)], vec![part(0, &text, want)]);
        assert_eq!((rows.len(), rows[0].pos), (1, pos as u32), "{want:?}");
        let row = rows.into_iter().map(into_hidden).collect::<Vec<_>>();
        assert!(same_bits(&row, &all[pos..=pos]), "{want:?}");
        line.run(vec![SeqOp::Close { slot: SlotId(0) }], Vec::new());
    }
}

fn a_later_row_changes_an_earlier_one() {
    let (path, mut text) = one();
    let mut line = Line::open(&path, &LineConfig::default());
    let before = line.texts(&[&text]).remove(0);
    let last = text.len() - 1;
    text[last] += 1;
    let after = line.texts(&[&text]).remove(0);
    assert!(!same_bits(&before[..1], &after[..1]), "the first row sees the last token");
}

fn parts_of_texts_and_tokens_are_refused() {
    let (path, text) = one();
    let mut line = Line::open(&path, &LineConfig::default());
    let mut refused = |ops, part| {
        let ub = UBatch { id: 0, ops, parts: vec![part] };
        line.stages()[0].forward(&ub, None).unwrap_err().to_string()
    };
    for want in [Want::Sample, Want::Logits] {
        let open = Line::open_slot(0, Some(Line::greedy()));
        let why = refused(vec![open], part(0, &text, want));
        assert!(why.contains("encoder"), "{why}");
    }
    let why = refused(Vec::new(), part(4, &text, Want::Hidden));
    assert!(why.contains("in one part"), "{why}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        vectors_match_llama_cpp_at_every_number_of_stages,
        heads_judge_texts_as_llama_cpp_does,
        rows_are_the_same_bits_alone_on_every_table_and_in_any_slot,
        one_row_is_that_row_of_all,
        a_later_row_changes_an_earlier_one,
        parts_of_texts_and_tokens_are_refused;
];
