//! Whether a model's adapters are adapters of that model: its architecture, and tensors that it has, in their shapes.

use brigade_gguf::adapters::Adapter;
use brigade_gguf::{Gguf, TensorInfo, adapters};
use brigade_spec::{
    LAYER_ROWS, MAX_ADAPTERS, ModelError, OUTPUT, TOKEN_EMBD, TOKEN_EXPERTS, heads,
};

/// Metadata key of an adapter's kind.
const TYPE: &str = "adapter.type";
/// Metadata key of an adapter that is for the tokens behind certain ones only.
const INVOCATION: &str = "adapter.alora.invocation_tokens";

/// Parts of the names of tensors that no adapter changes: they are no projections, or the loader computes other tensors from
/// them.
const NOT_ADAPTED: [&str; 22] = [
    "_norm",
    ".attn_k_b.",
    ".attn_v_b.",
    ".attn_kv_b.",
    "conv1d",
    ".shortconv.conv.",
    "lerp",
    "position_embd",
    LAYER_ROWS,
    "altup_",
    // What joins blocks and head to several streams.
    ".hc_",
    // Positions that become one entry have a vector each, by their place among them, which is added to gates.
    "_compressor_ape",
    "output_hc_",
    // What makes streams of embedded n-grams.
    ".ple_",
    "token_types",
    // Groups of heads have a matrix each.
    ".attn_output_a.",
    TOKEN_EXPERTS,
    "rope_",
    ".attn_rel_b.",
    ".time_mix_first.",
    // Nothing computes with these.
    "blk.0.time_mix_v1.",
    "blk.0.time_mix_v2.",
];

/// Ending of the name of a projection to one value, which files have as a vector.
const ONE_ROW: &str = ".ffn_gate_inp_shexp.weight";

/// Checks the adapters of a model, whose tensors the loader has put into the model's directory.
///
/// # Errors
/// There are too many; or names the file, and what is wrong with it.
pub(crate) fn check(model: &Gguf) -> Result<(), ModelError> {
    let n = model.adapters().len();
    if n > MAX_ADAPTERS {
        let why = format!("{n} adapters, the limit is {MAX_ADAPTERS}: load fewer");
        return Err(ModelError::Unsupported(why));
    }
    for adapter in model.adapters() {
        check_kind(model, adapter)?;
    }
    for tensor in model.tensors() {
        if let Some((name, adapter)) = adapters::name_in_file(&tensor.name) {
            let Some(file) = model.adapters().get(adapter) else { continue };
            check_tensor(model, name, adapter)
                .map_err(|why| refused(file, &format!("tensor {name} {why}")))?;
        }
    }
    Ok(())
}

fn refused(adapter: &Adapter, why: &str) -> ModelError {
    ModelError::Unsupported(format!("adapter {}: {why}", adapter.file))
}

fn check_kind(model: &Gguf, adapter: &Adapter) -> Result<(), ModelError> {
    let meta = &adapter.meta;
    let (ours, theirs) = (model.architecture()?, meta.opt_str("general.architecture")?);
    if theirs != Some(ours) {
        let theirs = theirs.unwrap_or("no architecture");
        let why =
            format!("it is for {theirs}, and the model is {ours}: take an adapter of this model");
        return Err(refused(adapter, &why));
    }
    match meta.opt_str(TYPE)? {
        Some("lora") => {}
        other => {
            let kind = other.unwrap_or("not said");
            let why = format!("its kind ({TYPE}) is {kind:?}: adapters of the kind \"lora\" run");
            return Err(refused(adapter, &why));
        }
    }
    if meta.get(INVOCATION).is_some() {
        let why = "it is an activated adapter (aLoRA), which is for the tokens behind its invocation only: take a plain \
                   LoRA adapter";
        return Err(refused(adapter, why));
    }
    match meta.opt_f32(adapters::ALPHA)? {
        Some(alpha) if !alpha.is_finite() => {
            Err(refused(adapter, &format!("its {} is {alpha}, which is no scale", adapters::ALPHA)))
        }
        _ => Ok(()),
    }
}

/// Whether an adapter can change a tensor of a model: it is a projection, which is computed as it stands.
pub fn takes_adapter(tensor: &TensorInfo) -> bool {
    let name = &*tensor.name;
    let is_matrix = tensor.n_dims > 1 && name.ends_with(".weight") || name.ends_with(ONE_ROW);
    is_matrix && !heads::has(name) && !NOT_ADAPTED.iter().any(|part| name.contains(part))
}

/// Refuses adapters of the head that makes logits, in a model that makes none.
///
/// # Errors
/// As [`check`].
pub(crate) fn check_encoder(model: &Gguf) -> Result<(), ModelError> {
    let of_head =
        |(adapter, _): &(usize, &Adapter)| adapters::pair(model, OUTPUT, *adapter).is_some();
    match model.adapters().iter().enumerate().find(of_head) {
        Some((_, file)) => {
            Err(refused(file, &format!("it changes {OUTPUT}, which an encoder has no use for")))
        }
        None => Ok(()),
    }
}

/// Fault of an adapter's tensor, as the end of a sentence.
fn check_tensor(model: &Gguf, name: &str, adapter: usize) -> Result<(), String> {
    const REMAKE: &str = "make the adapter again without it, or merge it into the model";
    let Some(base) = adapters::base_of(name) else {
        return Err(format!(
            "is no low-rank change (its name ends neither with .lora_a nor .lora_b): {REMAKE}"
        ));
    };
    let Some(own) = model.tensor(base) else {
        return Err(
            "is for a tensor that the model does not have: is it an adapter of another model?"
                .into(),
        );
    };
    if !takes_adapter(own) {
        return Err(format!("changes {base}, to which brigade applies no adapter: {REMAKE}"));
    }
    let Some(adapters::Pair { a, b }) = adapters::pair(model, base, adapter) else {
        return Err("lacks its other half (.lora_a, .lora_b): fetch the adapter again".into());
    };
    // The rows of the embedding are looked up in `a`, which is as long as the vocabulary.
    let wanted = if base == TOKEN_EMBD {
        (a.ne[1] == own.ne[1], b.ne[1] == own.ne[0], a.ne[0] == b.ne[0])
    } else {
        (a.ne[0] == own.ne[0], b.ne[1] == own.ne[1], a.ne[1] == b.ne[0])
    };
    let matrices = |tensor: &TensorInfo| [tensor.ne[2], tensor.ne[3]];
    let rank = b.ne[0];
    if wanted != (true, true, true) || [matrices(a), matrices(b)] != [matrices(own); 2] || rank == 0
    {
        return Err(format!(
            "does not fit: lora_a has dimensions {:?} and lora_b {:?}, the model's tensor {:?}: is it an adapter of \
             another model?",
            a.dims(),
            b.dims(),
            own.dims()
        ));
    }
    Ok(())
}
