//! `brigade inspect` prints what is in a model file, also of one that is damaged or cannot run here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use brigade_gguf::{ArrayRef, Gguf, Value};
use brigade_hub::heads::Beginning;
use brigade_hub::resolver::Described;
use brigade_line::model::Model;
use brigade_plan::{ModelFacts, SequenceBytes, format_bytes};
use brigade_proto::net::with_causes;
use clap::Args;
use serde::Serialize;
use serde_json::{Map, json};

use crate::cli::options::args::KvArg;
use crate::cli::options::data_dir::DataDirArgs;
use crate::cli::options::hub::HubArgs;
use crate::cli::options::input;
use crate::cli::printing::output;

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
    /// GGUF file, the first file of a split one, or a name: hf:USER/REPO:QUANT, ollama:NAME:TAG, https://HOST/FILE.gguf
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    #[command(flatten)]
    hub: HubArgs,
    #[command(flatten)]
    data_dir: DataDirArgs,
    /// Type of the KV cache that sizes are given for
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    kv_type: KvArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// What came of a model that is not here.
    #[arg(skip)]
    beginning: Option<Beginning>,
}

impl InspectArgs {
    /// Resolves the name to a file; a path stays as it is.
    ///
    /// # Errors
    /// There is no such model, or it cannot be had.
    pub fn find(&mut self) -> Result<()> {
        if let Some(path) = self.hub.filed(&self.model, &self.data_dir)? {
            self.model = path;
        }
        match self.hub.describe(&self.model, &self.data_dir)? {
            Some(Described::Whole(path)) => self.model = path,
            Some(Described::Beginning(beginning)) => {
                self.model.clone_from(&beginning.path);
                self.beginning = Some(beginning);
            }
            None => {}
        }
        Ok(())
    }
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
    let gguf = input::open_model(&args.model, |path| Gguf::open_header_only(path))?;
    let metadata: Map<String, serde_json::Value> =
        gguf.meta().iter().map(|(key, value)| (key.to_string(), show(value))).collect();
    let mut types = BTreeMap::<String, TypeSum>::new();
    for t in gguf.tensors() {
        let sum = types.entry(t.ty.to_string()).or_default();
        sum.tensors += 1;
        sum.elements += t.n_elems() as u64;
        sum.bytes += t.nbytes;
    }
    let missing = match &args.beginning {
        // The layers are not shown by default.
        Some(_) => None,
        None => Gguf::open_files(&args.model).err().map(|error| with_causes(&error)),
    };
    let described = input::open_model(&args.model, Model::open_header_only).and_then(|model| {
        let facts = model.facts(args.kv_type.engine())?;
        Ok((model, facts))
    });
    let cannot_run = described.as_ref().err().map(|error| with_causes(error.as_ref()));
    let mut notes = described.as_ref().map_or(Vec::new(), |(model, _)| model.notes());
    notes.extend(args.beginning.as_ref().map(|beginning| {
        let size = format_bytes(beginning.size);
        format!("its weights were not fetched: {size} in all")
    }));
    if args.json {
        let mut object = match &described {
            Ok((model, facts)) => described_json(model, facts),
            Err(_) => json!({}),
        };
        object["tensor_types"] = json!(types);
        object["metadata"] = json!(metadata);
        object["missing_data"] = json!(missing);
        object["cannot_run"] = json!(cannot_run);
        object["notes"] = json!(notes);
        return output::json(&object);
    }
    for (key, value) in &metadata {
        output::line(format_args!("{key} = {value}"))?;
    }
    output::line(format_args!(""))?;
    print_types(&types)?;
    if let Ok((model, facts)) = &described {
        print_described(model, facts)?;
    }
    for note in notes {
        output::line(format_args!("\nnote: {note}"))?;
    }
    if let Some(reason) = cannot_run {
        output::line(format_args!("\nthis program cannot run it: {reason}"))?;
    }
    if let Some(reason) = missing {
        output::line(format_args!("\nwarning: its tensors are not all there: {reason}"))?;
    }
    Ok(())
}

/// The JSON description of a model that can run.
fn described_json(model: &Model, facts: &ModelFacts) -> serde_json::Value {
    let sequence = SequenceBytes::of(&facts.layers, false);
    json!({
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
        "header_hash": model.header_hash.to_hex().as_str(),
    })
}

fn print_described(model: &Model, facts: &ModelFacts) -> Result<()> {
    output::line(format_args!(""))?;
    print_layers(facts)?;
    if let Some(passes) = facts.passes() {
        output::line(format_args!("{passes}"))?;
    }
    output::line(format_args!(""))?;
    output::line(format_args!(
        "embedding {}, head {}{}",
        format_bytes(facts.embedding_bytes),
        format_bytes(facts.head_bytes),
        if model.is_tied() { " (the same tensor)" } else { "" }
    ))?;
    output::line(format_args!(
        "weights {}, {}, trained on {} positions",
        format_bytes(model.weight_bytes()),
        SequenceBytes::of(&facts.layers, false),
        facts.n_ctx_train,
    ))
}

/// Bytes by tensor type.
fn print_types(types: &BTreeMap<String, TypeSum>) -> Result<()> {
    let rows: Vec<Vec<String>> = types
        .iter()
        .map(|(ty, s)| {
            vec![ty.clone(), s.tensors.to_string(), s.elements.to_string(), format_bytes(s.bytes)]
        })
        .collect();
    output::table(&["type", "tensors", "elements", "bytes"], &rows)
}

/// Prints the bytes of each layer.
fn print_layers(facts: &ModelFacts) -> Result<()> {
    let rows: Vec<Vec<String>> = facts
        .layers
        .iter()
        .enumerate()
        .map(|(i, l)| {
            vec![
                i.to_string(),
                match l.same_weights {
                    Some(first) => format!("those of layer {first}"),
                    None => format_bytes(l.weight_bytes),
                },
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
