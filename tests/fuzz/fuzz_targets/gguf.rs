//! GGUF files and packed headers. Any bytes get an answer. Everything can be read of a file that opens.

#![no_main]

use brigade_gguf::{Gguf, Value};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // A file, and what the coordinator would send of one.
    if let Ok(model) = Gguf::from_bytes(bytes.into(), "fuzz") {
        for tensor in model.tensors() {
            let data = model.data(tensor).expect("a file that opens holds its tensors");
            assert_eq!(data.len() as u64, tensor.nbytes);
        }
        read(&model);
    }
    if let Ok(model) = Gguf::from_header_bytes(bytes, "fuzz") {
        assert_eq!(model.header_bytes(), bytes);
        read(&model);
    }
});

/// Reads all metadata, and takes the model through its packed form.
fn read(model: &Gguf) {
    for (key, value) in model.meta().iter() {
        if let Value::Array(array) = value {
            assert_eq!(array.iter().count(), array.len());
        }
        assert!(!format!("{key} = {value} ({})", value.type_name()).is_empty());
        let _ = (model.meta().opt_str(key), model.meta().opt_u32_or_array(key, 4));
    }
    let copy =
        Gguf::from_header_bytes(&model.header_bytes(), "copy").expect("the headers were read once");
    assert_eq!(copy.tensors(), model.tensors());
}
