//! A model's file with other metadata and other tensors, for tests of what files in the wild are like.

use std::path::Path;

use brigade_gguf::{Gguf, GgufWriter, Value};
use brigade_quant::GgmlType;

/// A tensor of a file: its name, its type and its sizes, the fastest-varying first.
pub type Shape = (String, GgmlType, Vec<usize>);

/// Takes a key and its value: `true` where it has written another one, or none.
pub type OtherKey<'a> = &'a mut dyn FnMut(&mut GgufWriter, &str, Value<'_>) -> bool;

/// Writes the metadata of `from`, but for what `other` writes itself.
fn keys(from: &Gguf, other: OtherKey<'_>) -> GgufWriter {
    let mut writer = GgufWriter::new();
    for (key, value) in from.meta().iter().filter(|(key, _)| *key != "general.alignment") {
        if !other(&mut writer, key, value) {
            writer.set(key, &value).expect("a key that was read");
        }
    }
    writer
}

/// The tensors of a file.
pub fn tensors(model: &Gguf) -> Vec<Shape> {
    let shape = |t: &brigade_gguf::TensorInfo| (t.name.clone(), t.ty, t.dims().to_vec());
    model.tensors().iter().map(shape).collect()
}

/// Writes the header of a model with these tensors instead of its own, and no data.
///
/// # Panics
/// If a file cannot be read or written.
pub fn header(from: &Gguf, to: &Path, tensors: &[Shape]) {
    let mut writer = keys(from, &mut |_, _, _| false);
    for (name, ty, dims) in tensors {
        writer.tensor(name, *ty, dims).expect("a tensor that a reader accepts");
    }
    let mut out = std::fs::File::create(to).expect("a file to write to");
    writer.write_header_only(&mut out).expect("room for a header");
}

/// Writes the model at `from` with other metadata, and with tensors of zeros beside its own.
///
/// # Panics
/// If a file cannot be read or written.
pub fn model(from: &Path, to: &Path, other: OtherKey<'_>, extra: &[(&str, &[usize])]) {
    let from = Gguf::open(from).expect("a model");
    let mut writer = keys(&from, other);
    for (name, ty, dims) in tensors(&from) {
        writer.tensor(&name, ty, &dims).expect("a tensor that was read");
    }
    for (name, dims) in extra {
        writer.tensor(name, GgmlType::F32, dims).expect("a tensor that a reader accepts");
    }
    let mut stream = writer.start(std::fs::File::create(to).expect("a file")).expect("a header");
    for tensor in from.tensors() {
        stream.write(from.data(tensor).expect("its data")).expect("room");
    }
    for (_, dims) in extra {
        stream.write(&vec![0; 4 * dims.iter().product::<usize>()]).expect("room");
    }
    stream.finish().expect("all data");
}
