//! Reads a model's hyper-parameters: metadata keys under the architecture's prefix.

use brigade_gguf::{Gguf, GgufError, TensorInfo, Value};
use brigade_spec::{ModelError, layer_of};

use brigade_shapes::MAX_CONV_TAPS;

/// Most layers a model may have; the largest known have under 200.
pub const MAX_LAYERS: usize = 4096;

/// Reads `<arch>.<key>` of a model's metadata.
pub struct Hparams<'m> {
    model: &'m Gguf,
    arch: &'m str,
    n_layer: usize,
    n_drafting: usize,
    n_embd: usize,
}

impl<'m> Hparams<'m> {
    /// Reads what every architecture has.
    ///
    /// # Errors
    /// `general.architecture`, `block_count` or `embedding_length` is missing or absurd, or the
    /// tensor directory has layers that `block_count` does not.
    pub fn new(model: &'m Gguf) -> Result<Self, ModelError> {
        let arch = model.meta().str("general.architecture")?;
        let mut hp = Self { model, arch, n_layer: 0, n_drafting: 0, n_embd: 0 };
        let blocks = hp.need_u32("block_count")? as usize;
        let extra = hp.u32("nextn_predict_layers")?.unwrap_or(0) as usize;
        hp.n_layer = blocks.saturating_sub(extra);
        hp.n_drafting = extra;
        if hp.n_layer == 0 || hp.n_layer > MAX_LAYERS {
            return Err(hp.bad("block_count", &format!("must be in 1..={MAX_LAYERS}")));
        }
        hp.check_layers("block_count", blocks)?;
        hp.n_embd = hp.need_u32("embedding_length")? as usize;
        if hp.n_embd == 0 {
            return Err(hp.bad("embedding_length", "must be positive"));
        }
        Ok(hp)
    }

    /// Name of the architecture, `general.architecture`.
    pub fn arch(&self) -> &'m str {
        self.arch
    }

    /// Layers of the normal forward pass (multi-token prediction layers left out).
    pub fn n_layer(&self) -> usize {
        self.n_layer
    }

    /// Blocks of multi-token prediction behind them.
    pub fn n_drafting(&self) -> usize {
        self.n_drafting
    }

    /// Refuses tensors of more layers than the `n` that a key's value makes.
    pub(crate) fn check_layers(&self, key: &str, n: usize) -> Result<(), ModelError> {
        match self.model.tensors().iter().filter_map(|t| layer_of(&t.name)).max() {
            Some(layer) if layer >= n => {
                let problem = format!("makes {n} layers of the file, but there is a blk.{layer}");
                Err(self.bad(key, &problem))
            }
            _ => Ok(()),
        }
    }

    /// Width of the residual stream.
    pub fn n_embd(&self) -> usize {
        self.n_embd
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    /// The value of a key, `None` where it is missing.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.model.meta().opt_u32(&self.key(key))
    }

    /// The value of a key that must be there.
    pub fn need_u32(&self, key: &str) -> Result<u32, GgufError> {
        self.model.meta().u32(&self.key(key))
    }

    /// The value of a key, `None` where it is missing.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.model.meta().opt_f32(&self.key(key))
    }

    /// The value of a key that must be there.
    pub fn need_f32(&self, key: &str) -> Result<f32, GgufError> {
        self.model.meta().f32(&self.key(key))
    }

    /// The value of a key, `None` where it is missing.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.model.meta().opt_bool(&self.key(key))
    }

    /// The value of a key, `None` where it is missing.
    pub fn str(&self, key: &str) -> Result<Option<&'m str>, GgufError> {
        self.model.meta().opt_str(&self.key(key))
    }

    /// A key that is one number for all layers or a list with one for each (`block_count` of them).
    pub fn per_layer(&self, key: &str) -> Result<Option<Vec<usize>>, GgufError> {
        let n = self.need_u32("block_count")? as usize;
        let list = self.model.meta().opt_u32_or_array(&self.key(key), n)?;
        Ok(list.map(|values| values.into_iter().map(|v| v as usize).collect()))
    }

    /// As [`Self::per_layer`], for a key that must be there.
    pub fn need_per_layer(&self, key: &str) -> Result<Vec<usize>, GgufError> {
        self.per_layer(key)?.ok_or_else(|| GgufError::MissingKey {
            key: self.key(key),
            wanted: "u32 or array of u32",
        })
    }

    /// As [`Self::per_layer`], and takes a list with a value for each layer that runs, without the layers behind them.
    pub fn per_run_layer(&self, key: &str) -> Result<Option<Vec<usize>>, GgufError> {
        match self.model.meta().opt_u32_or_array(&self.key(key), self.n_layer()) {
            Ok(list) => Ok(list.map(|values| values.into_iter().map(|v| v as usize).collect())),
            Err(_) => self.per_layer(key),
        }
    }

    /// A list of i32, `None` where it is missing.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.model.meta().opt_i32s(&self.key(key))
    }

    /// A list of at least `n` u64 that must be there.
    ///
    /// # Errors
    /// The list is missing, has another type or is shorter.
    pub fn need_u64s(&self, key: &str, n: usize) -> Result<Vec<u64>, ModelError> {
        let list = self.model.meta().u64s(&self.key(key))?;
        match list.len() {
            len if len < n => Err(self.bad(key, &format!("has {len} numbers, must have {n}"))),
            _ => Ok(list),
        }
    }

    /// A number for each layer, or the one for all of them; `None` where the key is missing.
    ///
    /// # Errors
    /// The list has not one number for each layer.
    pub fn f32_per_layer(&self, key: &str) -> Result<Option<Vec<f32>>, ModelError> {
        self.f32_per_layer_of(&self.key(key))
    }

    /// As [`Self::f32_per_layer`], for a key without the architecture's name before it.
    ///
    /// # Errors
    /// As [`Self::f32_per_layer`].
    pub fn f32_per_layer_of(&self, key: &str) -> Result<Option<Vec<f32>>, ModelError> {
        let meta = self.model.meta();
        let list = match meta.get(key) {
            Some(Value::Array(_)) => meta.opt_f32s(key)?,
            _ => meta.opt_f32(key)?.map(|value| vec![value; self.n_layer + self.n_drafting]),
        };
        match list {
            Some(list) if list.len() < self.n_layer => {
                let problem = format!("{} numbers for {} layers", list.len(), self.n_layer);
                Err(GgufError::BadValue { key: key.to_owned(), problem }.into())
            }
            list => Ok(list),
        }
    }

    /// A list of flags, `None` where the key is missing or a single number.
    pub fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        let (meta, key) = (self.model.meta(), self.key(key));
        match meta.get(&key) {
            Some(Value::Array(_)) => {
                let list = meta.opt_u32s(&key)?;
                Ok(list.map(|list| list.into_iter().map(|flag| flag != 0).collect()))
            }
            _ => Ok(None),
        }
    }

    /// The taps of a causal convolution.
    pub fn conv_taps(&self, key: &str) -> Result<usize, ModelError> {
        let taps = self.need_u32(key)? as usize;
        if !(2..=MAX_CONV_TAPS).contains(&taps) {
            return Err(self.bad(key, &format!("must be in 2..={MAX_CONV_TAPS}")));
        }
        Ok(taps)
    }

    /// Whether the model has a tensor of this name.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.model.tensor(name).is_some()
    }

    /// Rows of a matrix, `None` where the model has none of this name.
    pub fn rows_of(&self, name: &str) -> Option<usize> {
        self.model.tensor(name).map(TensorInfo::n_rows)
    }

    /// Rows of the embedding matrix, which must equal the length of the token list where the file
    /// has one.
    pub fn n_vocab(&self, embedding: &str) -> Result<usize, ModelError> {
        let Some(tensor) = self.model.tensor(embedding) else {
            return Err(GgufError::MissingTensor { name: embedding.to_owned() }.into());
        };
        let rows = tensor.n_rows();
        let tokens = self.model.meta().opt_byte_strs("tokenizer.ggml.tokens")?;
        if let Some(tokens) = tokens.filter(|t| t.len() != rows) {
            return Err(ModelError::Bad(format!(
                "{embedding} has {rows} rows, tokenizer.ggml.tokens {} entries",
                tokens.len()
            )));
        }
        Ok(rows)
    }

    /// Width of a key and of a value head: given, or the embedding shared out over the heads.
    pub fn head_dims(&self, n_head: usize) -> Result<(usize, usize), ModelError> {
        let default = self.n_embd / n_head.max(1);
        let k = self.u32("attention.key_length")?.map_or(default, |n| n as usize);
        let v = self.u32("attention.value_length")?.map_or(default, |n| n as usize);
        if k == 0 || v == 0 {
            return Err(self.bad("attention.key_length", "a head must not be empty"));
        }
        Ok((k, v))
    }

    /// The error that a key's value makes no sense.
    pub fn bad(&self, key: &str, problem: &str) -> ModelError {
        GgufError::BadValue { key: self.key(key), problem: problem.to_owned() }.into()
    }
}
