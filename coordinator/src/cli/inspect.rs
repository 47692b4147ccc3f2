//! `brigade inspect`: what is in a model file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use brigade_engine::gguf::{ArrayRef, Value};
use clap::Args;
use serde::Serialize;
use serde_json::{Map, json};

use super::args::KvArg;
use super::output;
use crate::model::Model;
use crate::plan::{ModelFacts, SequenceBytes, format_bytes};

/// Values of an array that are shown.
const SHOWN_VALUES: usize = 8;

/// Characters of a string that are shown.
const SHOWN_CHARS: usize = 96;

/// Show what is in a GGUF file.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade inspect model.gguf
  brigade inspect model-00001-of-00003.gguf --json")]
pub struct InspectArgs {
    /// GGUF file, or the first file of a split one
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Type of the KV cache that sizes are given for
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    kv_type: KvArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Tensors of one type.
#[derive(Default, Serialize)]
struct TypeSum {
    tensors: usize,
    elements: u64,
    bytes: u64,
}

/// Runs the command.
pub fn execute(args: InspectArgs) -> Result<()> {
    let model = Model::open_header_only(&args.model)
        .with_context(|| format!("cannot open {}", args.model.display()))?;
    let metadata: Map<String, serde_json::Value> =
        model.gguf.meta().iter().map(|(key, value)| (key.to_string(), show(value))).collect();
    let mut types = BTreeMap::<String, TypeSum>::new();
    for t in model.gguf.tensors() {
        let sum = types.entry(t.ty.to_string()).or_default();
        sum.tensors += 1;
        sum.elements += t.n_elems() as u64;
        sum.bytes += t.nbytes;
    }
    let facts = model.facts(args.kv_type.engine())?;
    let sequence = SequenceBytes::of(&facts.layers);
    if args.json {
        return output::json(&json!({
            "name": facts.name,
            "architecture": model.spec.arch,
            "layers": facts.layers,
            "embedding_bytes": facts.embedding_bytes,
            "head_bytes": facts.head_bytes,
            "tied": model.is_tied(),
            "n_ctx_train": facts.n_ctx_train,
            "n_vocab": model.n_vocab(),
            "kv_bytes_per_token": sequence.kv_bytes_per_token,
            "conv_bytes_per_sequence": sequence.conv_bytes,
            "scan_bytes_per_sequence": sequence.scan_bytes,
            "state_bytes_per_sequence": sequence.conv_bytes + sequence.scan_bytes,
            "weight_bytes": model.weight_bytes(),
            "tensor_types": types,
            "header_hash": model.header_hash.to_hex().as_str(),
            "metadata": metadata,
        }));
    }
    for (key, value) in &metadata {
        output::line(format_args!("{key} = {value}"))?;
    }
    output::line(format_args!(""))?;
    print_tables(&types, &facts)?;
    output::line(format_args!(""))?;
    output::line(format_args!(
        "embedding {}, head {}{}",
        format_bytes(facts.embedding_bytes),
        format_bytes(facts.head_bytes),
        if model.is_tied() { " (the same tensor)" } else { "" }
    ))?;
    output::line(format_args!(
        "weights {}, {sequence}, trained on {} positions",
        format_bytes(model.weight_bytes()),
        facts.n_ctx_train,
    ))?;
    Ok(())
}

/// Bytes by tensor type, then by layer.
fn print_tables(types: &BTreeMap<String, TypeSum>, facts: &ModelFacts) -> Result<()> {
    let rows: Vec<Vec<String>> = types
        .iter()
        .map(|(ty, s)| {
            vec![ty.clone(), s.tensors.to_string(), s.elements.to_string(), format_bytes(s.bytes)]
        })
        .collect();
    output::table(&["type", "tensors", "elements", "bytes"], &rows)?;
    output::line(format_args!(""))?;
    let rows: Vec<Vec<String>> = facts
        .layers
        .iter()
        .enumerate()
        .map(|(i, l)| {
            vec![
                i.to_string(),
                format_bytes(l.weight_bytes),
                format_bytes(l.kv_bytes),
                format_bytes(l.conv_bytes),
                format_bytes(l.scan_bytes),
            ]
        })
        .collect();
    let heads = ["layer", "weights", "KV a token", "conv state", "scan state"];
    output::table(&heads, &rows)
}

/// A value as JSON; long arrays and strings are cut, with their length said.
fn show(value: Value<'_>) -> serde_json::Value {
    match value {
        Value::U8(v) => json!(v),
        Value::I8(v) => json!(v),
        Value::U16(v) => json!(v),
        Value::I16(v) => json!(v),
        Value::U32(v) => json!(v),
        Value::I32(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::I64(v) => json!(v),
        Value::F32(v) => json!(v),
        Value::F64(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::Str(bytes) => json!(cut(&String::from_utf8_lossy(bytes))),
        Value::Array(array) => show_array(array),
    }
}

fn show_array(array: ArrayRef<'_>) -> serde_json::Value {
    let mut values: Vec<serde_json::Value> = array.iter().take(SHOWN_VALUES).map(show).collect();
    if array.len() > SHOWN_VALUES {
        values.push(json!(format!("... {} in all", array.len())));
    }
    json!(values)
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => format!("{}... ({} bytes)", &text[..at], text.len()),
        None => text.to_string(),
    }
}
