//! A GGUF file written by hand. It has one f32 tensor for each layer, whose first value is `addend * (layer +
//! 1)`.

use std::path::{Path, PathBuf};

use brigade_gguf::Gguf;
use brigade_proto::control::{Blob, FileHint, TensorRef};

const ALIGNMENT: usize = 32;
const STRING: u32 = 8;
const U32: u32 = 4;

pub fn write_model(dir: &Path, name: &str, n_layers: u32, values: usize, addend: f32) -> PathBuf {
    let mut file = b"GGUF".to_vec();
    let string = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    file.extend(3_u32.to_le_bytes());
    file.extend(u64::from(n_layers).to_le_bytes());
    file.extend(2_u64.to_le_bytes());
    string(&mut file, "general.architecture");
    file.extend(STRING.to_le_bytes());
    string(&mut file, "fake");
    string(&mut file, "fake.block_count");
    file.extend(U32.to_le_bytes());
    file.extend(n_layers.to_le_bytes());
    let tensor_bytes = (values * 4).next_multiple_of(ALIGNMENT);
    for layer in 0..n_layers {
        string(&mut file, &format!("blk.{layer}.w"));
        file.extend(1_u32.to_le_bytes());
        file.extend((values as u64).to_le_bytes());
        file.extend(0_u32.to_le_bytes());
        file.extend((u64::from(layer) * tensor_bytes as u64).to_le_bytes());
    }
    file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
    for layer in 0..n_layers {
        let start = file.len();
        for i in 0..values {
            let value =
                if i == 0 { addend * (layer + 1) as f32 } else { (i as u32 ^ layer) as f32 };
            file.extend(value.to_le_bytes());
        }
        file.resize(start + tensor_bytes, 0);
    }
    let path = dir.join(name);
    std::fs::write(&path, file).unwrap();
    path
}

/// A model as its coordinator knows it.
pub struct Model {
    pub gguf: Gguf,
    pub header: Vec<u8>,
}

impl Model {
    pub fn open(path: &Path) -> Self {
        let gguf = Gguf::open(path).unwrap();
        let header = gguf.header_bytes();
        Self { gguf, header }
    }

    pub fn header_blob(&self) -> Blob {
        blob(&self.header)
    }

    pub fn manifest(&self, layers: std::ops::Range<u32>, hashed: bool) -> Vec<TensorRef> {
        layers
            .map(|i| {
                let name = format!("blk.{i}.w");
                let mut blob = blob(self.bytes(&name));
                if !hashed {
                    blob.blake3.clear();
                }
                TensorRef { name, blob: Some(blob) }
            })
            .collect()
    }

    pub fn bytes(&self, tensor: &str) -> &[u8] {
        self.gguf.data(self.gguf.require(tensor).unwrap()).unwrap()
    }

    /// The bytes behind a blob of this model.
    pub fn blob_bytes(&self, wanted: &Blob) -> &[u8] {
        let all = self.gguf.tensors().iter().map(|t| self.bytes(&t.name));
        std::iter::once(&self.header[..])
            .chain(all)
            .find(|bytes| blob(bytes) == *wanted)
            .expect("a blob of this model")
    }

    pub fn hints(&self, host_id: &str) -> Vec<FileHint> {
        let path = self.gguf.paths().next().unwrap();
        let (_, files) = Gguf::open_files(path).unwrap();
        brigade_worker::weights::hashes::file_hints(&files, host_id).unwrap()
    }
}

pub fn blob(bytes: &[u8]) -> Blob {
    let blake3 = blake3::hash(bytes).as_bytes().to_vec().into();
    Blob { blake3, nbytes: bytes.len() as u64 }
}
