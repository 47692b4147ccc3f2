//! An order is a validated Prepare request: what to load. It is parsed once, before anything acts on it.

use std::collections::{HashMap, HashSet};

use blake3::Hash;
use brigade_gguf::FileState;
use brigade_proto::address::Address;
use brigade_proto::control::{
    Blob, CheckpointMode, FileHint, KvType, PrepareRequest, StageSpec, WireType,
};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::frame::{FrameError, at_most};
use brigade_proto::limits::*;
use brigade_proto::tls::KeyId;
use brigade_proto::tls::key::KEY_ID_BYTES;
use bytes::Bytes;

use crate::weights::hashes::hinted_state;

/// A coordinator's order for a stage, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// The layers of the stage and its limits.
    pub spec: StageSpec,
    /// The next stage; `None` on the last one.
    pub next_hop: Option<Address>,
    /// Key of the stage before this one, where that speaks TLS.
    pub previous_key: Option<KeyId>,
    /// Key of the next stage, where that speaks TLS.
    pub next_key: Option<KeyId>,
    /// Type of outgoing boundaries.
    pub wire_type: WireType,
    /// Where copies of states go; `None`: none are taken.
    pub checkpoints: Option<CheckpointOrder>,
    /// Keys of all workers of the line, where they speak TLS: these may fetch copies.
    pub line_keys: Vec<KeyId>,
    /// The model's name, for logs.
    pub model_name: String,
    /// The header: its hash names the model.
    pub header: (Hash, u64),
    /// The manifest: exactly the stage's tensors.
    pub tensors: Vec<TensorWanted>,
    /// Where the model may lie on this machine.
    pub files: Vec<FileHint>,
}

/// The order about copies of sequences' states.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointOrder {
    /// The destination of copies.
    pub mode: CheckpointMode,
    /// Worker that keeps them.
    pub buddy: Option<Address>,
    /// The buddy's key, where it speaks TLS.
    pub buddy_key: Option<KeyId>,
    /// Key of the worker whose copies this one keeps, where that speaks TLS.
    pub kept_key: Option<KeyId>,
    /// Bytes that copies may take in this worker's memory.
    pub memory_bytes: u64,
}

/// A tensor of the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorWanted {
    /// The tensor's name in the directory.
    pub name: String,
    /// Bytes of the tensor.
    pub nbytes: u64,
    /// The hash of its content; `None` where the coordinator has not hashed it.
    pub hash: Option<Hash>,
}

/// The identity of a loaded stage's weights. A header is not enough: a model that was trained further has the same
/// one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The files of this machine they were read from, in this state; empty if there were none.
    pub files: Vec<FileState>,
    /// Hashes of the tensors, as the manifest orders them; empty where they are not known.
    pub hashes: Vec<Hash>,
}

/// The properties that must agree for a loaded stage to serve another order: everything but its place in the line.
#[derive(Clone, Debug, PartialEq)]
pub struct StageKey {
    header: Hash,
    spec: StageSpec,
    tensors: Vec<String>,
    content: Content,
}

impl StageKey {
    /// Whether the stage has what `order` asks for: the same layers with the same limits, and weights
    /// that are known to be the same. `host_id` is this machine's.
    pub fn serves(&self, order: &Order, host_id: &str) -> bool {
        let wanted = order.content(host_id);
        let same_files = !wanted.files.is_empty() && wanted.files == self.content.files;
        let same_hashes = !wanted.hashes.is_empty() && wanted.hashes == self.content.hashes;
        let same_shape = *self == StageKey { content: self.content.clone(), ..order.key(wanted) };
        same_shape && (same_files || same_hashes)
    }

    /// The tensors in memory that are known to be equal to those of `order` with the same names, for any layers.
    /// `host_id` is this machine's.
    pub fn same_tensors(&self, order: &Order, host_id: &str) -> HashSet<String> {
        let mut same = self.same_bytes(order, host_id);
        // A layer whose experts are to lie elsewhere is loaded anew.
        let moved = match (self.spec.host_experts, order.spec.host_experts) {
            (Some(had), Some(wants)) => had.min(wants) as usize..had.max(wants) as usize,
            (None, None) => 0..0,
            // Where they lie is known to the worker's options alone.
            (Some(_), None) | (None, Some(_)) => 0..usize::MAX,
        };
        same.retain(|name| {
            brigade_spec::layer_of(name).is_none_or(|layer| !moved.contains(&layer))
        });
        same
    }

    fn same_bytes(&self, order: &Order, host_id: &str) -> HashSet<String> {
        if self.header != order.header.0 {
            return HashSet::new();
        }
        let files = order.content(host_id).files;
        if !files.is_empty() && files == self.content.files {
            return self.tensors.iter().cloned().collect();
        }
        let wanted: HashMap<&str, Option<Hash>> =
            order.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.hash)).collect();
        let here = self.tensors.iter().zip(&self.content.hashes);
        let same = here.filter(|(name, hash)| wanted.get(name.as_str()) == Some(&Some(**hash)));
        same.map(|(name, _)| name.clone()).collect()
    }

    /// The key of the rest of a stage when only these tensors are in memory.
    pub fn rest(mut self, left: &HashSet<String>) -> Self {
        let has_hashes = self.content.hashes.len() == self.tensors.len();
        let is_left: Vec<bool> = self.tensors.iter().map(|name| left.contains(name)).collect();
        let mut each = is_left.iter();
        self.tensors.retain(|_| each.next() == Some(&true));
        if has_hashes {
            let mut each = is_left.iter();
            self.content.hashes.retain(|_| each.next() == Some(&true));
        }
        self
    }

    /// The model's header hash and the range of layers.
    pub fn place(&self) -> (Hash, std::ops::Range<u32>) {
        (self.header, self.spec.layer_begin..self.spec.layer_end)
    }
}

impl Order {
    /// Checks a request against every cap.
    ///
    /// # Errors
    /// BadMessage, naming the field.
    pub fn parse(request: PrepareRequest) -> Result<Self, Failure> {
        let PrepareRequest { spec, model_name, header, tensors, files, .. } = request;
        let spec = spec.ok_or_else(|| bad("prepare.spec is missing"))?;
        let (next_hop, wire_type) = check_spec(&spec)?;
        let previous_key = key("spec.previous_key", &spec.previous_key, spec.stage > 0)?;
        let next_key = key("spec.next_key", &spec.next_key, next_hop.is_some())?;
        let checkpoints = checkpoints(&spec)?;
        let line_keys = keys_from_wire("spec.line_keys", &spec.line_keys)?;
        name_fits("prepare.model_name", &model_name)?;
        let header = blob("prepare.header", header)?;
        let Some(header_hash) = header.0 else {
            return Err(bad("prepare.header has no hash"));
        };
        limit("prepare.tensors count", tensors.len() as u64, MAX_TENSORS as u64)?;
        limit("prepare.files count", files.len() as u64, MAX_FILES as u64)?;
        let mut names = HashSet::new();
        let mut wanted = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            name_fits("prepare.tensors.name", &tensor.name)?;
            let (hash, nbytes) = blob(&format!("tensor {}", tensor.name), tensor.blob)?;
            if !names.insert(tensor.name.clone()) {
                return Err(bad(format!("tensor {} is listed twice", tensor.name)));
            }
            wanted.push(TensorWanted { name: tensor.name, nbytes, hash });
        }
        for file in &files {
            name_fits("prepare.files.path", &file.path)?;
            name_fits("prepare.files.host_id", &file.host_id)?;
            if file.nbytes == 0 {
                // Pipes and devices have no size: they are never what a hint means.
                return Err(bad(format!("prepare.files: {} has 0 bytes", file.path)));
            }
        }
        let header = (header_hash, header.1);
        let tensors = wanted;
        Ok(Self {
            spec,
            next_hop,
            previous_key,
            next_key,
            wire_type,
            checkpoints,
            line_keys,
            model_name,
            header,
            tensors,
            files,
        })
    }

    /// The key of a stage that was loaded for this order, with these weights.
    pub fn key(&self, content: Content) -> StageKey {
        let spec = StageSpec {
            stage: 0,
            n_stages: 0,
            next_hop: String::new(),
            previous_key: Bytes::new(),
            next_key: Bytes::new(),
            wire_type: 0,
            checkpoints: None,
            line_keys: Bytes::new(),
            ..self.spec.clone()
        };
        let tensors = self.tensors.iter().map(|t| t.name.clone()).collect();
        StageKey { header: self.header.0, spec, tensors, content }
    }

    /// The identity of the weights by this order: the coordinator's files, if it is on this machine, and all hashes,
    /// if it has them.
    pub fn content(&self, host_id: &str) -> Content {
        let here = self.files.iter().all(|file| file.host_id == host_id);
        let files = if here { self.files.iter().map(hinted_state).collect() } else { Vec::new() };
        Content { files, hashes: self.hashes().unwrap_or_default() }
    }

    /// Hashes of all tensors; `None` if one is not known.
    pub fn hashes(&self) -> Option<Vec<Hash>> {
        self.tensors.iter().map(|t| t.hash).collect()
    }

    /// Bytes that copies of states may take in memory.
    pub fn copy_bytes(&self) -> u64 {
        self.checkpoints.as_ref().map_or(0, |order| order.memory_bytes)
    }

    /// Bytes of all tensors.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.nbytes).fold(0, u64::saturating_add)
    }

    /// True if `blob` is the header or one of the tensors.
    pub fn wants(&self, blob: &Blob) -> bool {
        let is =
            |hash: &Hash, nbytes| hash.as_bytes()[..] == blob.blake3[..] && nbytes == blob.nbytes;
        is(&self.header.0, self.header.1)
            || self.tensors.iter().any(|t| t.hash.is_some_and(|hash| is(&hash, t.nbytes)))
    }

    /// Hashes of the header and all tensors; `None` if one is not known.
    pub fn blobs(&self) -> Option<Vec<(Hash, u64)>> {
        let tensors = self.tensors.iter().map(|t| Some((t.hash?, t.nbytes)));
        std::iter::once(Some(self.header)).chain(tensors).collect()
    }
}

fn check_spec(spec: &StageSpec) -> Result<(Option<Address>, WireType), Failure> {
    let within = |field: &'static str, value: u32, most: u32| {
        if value == 0 {
            return Err(bad(format!("{field} is 0")));
        }
        limit(field, value.into(), most.into())
    };
    within("spec.n_stages", spec.n_stages, MAX_STAGES as u32)?;
    within("spec.layer_end", spec.layer_end, MAX_LAYERS)?;
    within("spec.max_seqs", spec.max_seqs, MAX_SEQS)?;
    within("spec.n_blocks", spec.n_blocks, MAX_BLOCKS)?;
    within("spec.max_ctx", spec.max_ctx, MAX_CTX)?;
    within("spec.max_rows", spec.max_rows, MAX_ROWS)?;
    limit("spec.threads", spec.threads.into(), crate::config::MAX_THREADS as u64)?;
    name_fits("spec.kernels", &spec.kernels)?;
    let StageSpec { stage, n_stages, layer_begin, layer_end, .. } = *spec;
    if stage >= n_stages {
        return Err(bad(format!("spec.stage is {stage} of {n_stages} stages")));
    }
    if layer_begin >= layer_end {
        return Err(bad(format!("spec.layers [{layer_begin}, {layer_end}) are empty")));
    }
    if (stage == 0) != (layer_begin == 0) {
        return Err(bad(format!("stage {stage} cannot start at layer {layer_begin}")));
    }
    if matches!(spec.kv_type(), KvType::Unspecified) {
        return Err(bad("spec.kv_type is not one we know"));
    }
    if matches!(spec.wire_type(), WireType::Unspecified) {
        return Err(bad("spec.wire_type is not one we know"));
    }
    check_control_vectors(spec)?;
    let last = stage + 1 == n_stages;
    let next_hop = match (last, spec.next_hop.as_str()) {
        (true, "") => None,
        (true, _) => return Err(bad("spec.next_hop is set on the last stage")),
        (false, text) => {
            Some(text.parse().map_err(|e| bad(format!("spec.next_hop of stage {stage}: {e}")))?)
        }
    };
    Ok((next_hop, spec.wire_type()))
}

/// A neighbour's key; none where it is empty.
fn key(field: &str, bytes: &[u8], may_be: bool) -> Result<Option<KeyId>, Failure> {
    if !bytes.is_empty() && !may_be {
        return Err(bad(format!("{field} is set where there is no such worker")));
    }
    key_from_wire(field, bytes)
}

/// The id of a worker's key as it came over the wire; none where it is empty.
///
/// # Errors
/// BadMessage, naming `field`.
pub fn key_from_wire(field: &str, bytes: &[u8]) -> Result<Option<KeyId>, Failure> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let why = || bad(format!("{field} has {} bytes, not {KEY_ID_BYTES}", bytes.len()));
    KeyId::from_bytes(bytes).ok_or_else(why).map(Some)
}

/// The ids of the keys of a line's workers as they came over the wire.
///
/// # Errors
/// BadMessage, naming `field`.
pub fn keys_from_wire(field: &'static str, bytes: &[u8]) -> Result<Vec<KeyId>, Failure> {
    limit(field, bytes.len() as u64, (MAX_STAGES * KEY_ID_BYTES) as u64)?;
    let keys = bytes.chunks(KEY_ID_BYTES).map(|id| key_from_wire(field, id));
    keys.filter_map(Result::transpose).collect()
}

/// Whole finite values, with the id of them all.
fn check_control_vectors(spec: &StageSpec) -> Result<(), Failure> {
    let (values, id) = (&spec.control_vectors, &spec.control_vectors_id);
    let (values, rest) = values.as_chunks::<4>();
    if !rest.is_empty() || values.iter().any(|value| !f32::from_le_bytes(*value).is_finite()) {
        return Err(bad("spec.control_vectors are not f32 values"));
    }
    let wanted = if values.is_empty() { 0 } else { HASH_BYTES };
    if id.len() != wanted {
        let n = id.len();
        return Err(bad(format!("spec.control_vectors_id has {n} bytes, {wanted} are needed")));
    }
    Ok(())
}

fn checkpoints(spec: &StageSpec) -> Result<Option<CheckpointOrder>, Failure> {
    let Some(wanted) = &spec.checkpoints else { return Ok(None) };
    let (mode, memory_bytes) = (wanted.mode(), wanted.memory_bytes);
    limit("spec.checkpoints.memory_bytes", memory_bytes, MAX_MEMORY_BYTES)?;
    let buddy = match mode {
        CheckpointMode::Unspecified => {
            return Err(bad("spec.checkpoints.mode is not one we know"));
        }
        CheckpointMode::Disk => None,
        CheckpointMode::Buddy => {
            let parsed = wanted.buddy.parse();
            Some(parsed.map_err(|e| bad(format!("spec.checkpoints.buddy: {e}")))?)
        }
    };
    let is_buddy = buddy.is_some();
    let buddy_key = key("spec.checkpoints.buddy_key", &wanted.buddy_key, is_buddy)?;
    let kept_key = key("spec.checkpoints.kept_key", &wanted.kept_key, is_buddy)?;
    Ok(Some(CheckpointOrder { mode, buddy, buddy_key, kept_key, memory_bytes }))
}

fn blob(field: &str, blob: Option<Blob>) -> Result<(Option<Hash>, u64), Failure> {
    let Blob { blake3, nbytes } = blob.ok_or_else(|| bad(format!("{field} is missing")))?;
    if nbytes == 0 || nbytes > MAX_BLOB_BYTES {
        return Err(bad(format!("{field} has {nbytes} bytes, 1 to {MAX_BLOB_BYTES} are allowed")));
    }
    if blake3.is_empty() {
        return Ok((None, nbytes));
    }
    Ok((Some(hash_from_wire(field, &blake3)?), nbytes))
}

/// A hash as it came over the wire.
///
/// # Errors
/// BadMessage, naming `field`.
pub fn hash_from_wire(field: &str, bytes: &[u8]) -> Result<Hash, Failure> {
    Hash::from_slice(bytes)
        .map_err(|_| bad(format!("{field}: a blake3 has {HASH_BYTES} bytes, not {}", bytes.len())))
}

fn name_fits(field: &'static str, name: &str) -> Result<(), Failure> {
    limit(field, name.len() as u64, MAX_NAME_BYTES as u64)
}

fn limit(field: &'static str, value: u64, most: u64) -> Result<(), Failure> {
    at_most(field, value, most).map_err(|e: FrameError| bad(e.to_string()))
}

fn bad(why: impl Into<String>) -> Failure {
    Failure::refusal(FailureKind::BadMessage, why)
}

#[cfg(test)]
mod tests {
    use brigade_proto::control::{Checkpoints, TensorRef};

    use super::*;

    fn request() -> PrepareRequest {
        let spec = StageSpec {
            stage: 1,
            n_stages: 3,
            layer_begin: 2,
            layer_end: 4,
            max_seqs: 4,
            n_blocks: 8,
            max_ctx: 64,
            max_rows: 16,
            kv_type: KvType::F32.into(),
            wire_type: WireType::F32.into(),
            next_hop: "127.0.0.1:9".into(),
            ..StageSpec::default()
        };
        let blob = Blob { blake3: vec![7; HASH_BYTES].into(), nbytes: 10 };
        PrepareRequest {
            spec: Some(spec),
            header: Some(blob.clone()),
            tensors: vec![TensorRef { name: "a".into(), blob: Some(blob) }],
            ..PrepareRequest::default()
        }
    }

    fn copies() -> Checkpoints {
        let key = |n: u8| vec![n; KEY_ID_BYTES].into();
        Checkpoints {
            mode: CheckpointMode::Buddy.into(),
            buddy: "127.0.0.1:10".into(),
            memory_bytes: 1 << 20,
            buddy_key: key(1),
            kept_key: key(2),
        }
    }

    #[test]
    fn an_order_says_whose_copies_are_kept_and_who_has_them() {
        let mut request = request();
        let spec = request.spec.as_mut().unwrap();
        spec.checkpoints = Some(copies());
        spec.line_keys = [2, 3, 1].map(|n| [n; KEY_ID_BYTES]).concat().into();
        let order = Order::parse(request).unwrap();
        let key = |n: u8| KeyId::from_bytes(&[n; KEY_ID_BYTES]).unwrap();
        assert_eq!(order.line_keys, [key(2), key(3), key(1)]);
        let copies = order.checkpoints.unwrap();
        assert_eq!((copies.buddy_key, copies.kept_key), (Some(key(1)), Some(key(2))));
    }

    #[test]
    fn a_good_request_parses() {
        let order = Order::parse(request()).unwrap();
        assert_eq!(order.next_hop.as_ref().unwrap().to_string(), "127.0.0.1:9");
        assert_eq!(order.blobs().unwrap().len(), 2);
    }

    #[test]
    fn a_manifest_without_hashes_has_no_blobs() {
        let mut request = request();
        request.tensors[0].blob.as_mut().unwrap().blake3.clear();
        assert_eq!(Order::parse(request).unwrap().blobs(), None);
    }

    #[test]
    fn the_place_in_the_line_does_not_change_the_key() {
        let mut moved = request();
        let spec = moved.spec.as_mut().unwrap();
        (spec.stage, spec.n_stages, spec.next_hop) = (2, 3, String::new());
        let mut grown = request();
        grown.spec.as_mut().unwrap().max_seqs = 5;
        let order = |r| Order::parse(r).unwrap();
        let key = order(request()).key(order(request()).content("here"));
        let mut others = request();
        let spec = others.spec.as_mut().unwrap();
        spec.next_key = vec![1; KEY_ID_BYTES].into();
        spec.checkpoints = Some(copies());
        assert!(key.serves(&order(moved), "here"));
        assert!(key.serves(&order(others), "here"));
        assert!(!key.serves(&order(grown), "here"));
    }

    #[test]
    fn of_a_stage_that_was_loaded_in_part_only_that_part_is_in_memory() {
        let mut both = request();
        let second = TensorRef {
            name: "b".into(),
            blob: Some(Blob { blake3: vec![8; HASH_BYTES].into(), nbytes: 20 }),
        };
        both.tensors.push(second);
        let order = Order::parse(both).unwrap();
        let key = order.key(order.content("here"));
        let all = HashSet::from(["a".to_owned(), "b".to_owned()]);
        assert_eq!(key.same_tensors(&order, "here"), all);
        let one = HashSet::from(["b".to_owned()]);
        assert_eq!(key.clone().rest(&one).same_tensors(&order, "here"), one);
        assert!(key.rest(&HashSet::new()).same_tensors(&order, "here").is_empty());
    }

    #[test]
    fn equal_headers_do_not_make_equal_weights() {
        let host_id = "here".to_string();
        let hint = FileHint { path: "/m".into(), nbytes: 9, host_id, ..FileHint::default() };
        let on_file = || {
            let mut request = request();
            request.tensors[0].blob.as_mut().unwrap().blake3.clear();
            PrepareRequest { files: vec![hint.clone()], ..request }
        };
        let order = |r| Order::parse(r).unwrap();
        let key = order(on_file()).key(order(on_file()).content("here"));
        assert!(key.serves(&order(on_file()), "here"));
        // The same file on another machine, or rewritten, is another one.
        assert!(!key.serves(&order(on_file()), "there"));
        let mut rewritten = on_file();
        rewritten.files[0].ctime_ns += 1;
        assert!(!key.serves(&order(rewritten), "here"));
        // Nothing is said of the weights: nothing serves.
        assert!(!key.serves(&order(PrepareRequest { files: vec![], ..on_file() }), "here"));
        // A file and hashes are not compared with each other.
        assert!(!key.serves(&order(request()), "here"));
        let hashed = order(request()).key(order(request()).content("here"));
        assert!(hashed.serves(&order(request()), "elsewhere"));
        let mut trained = request();
        trained.tensors[0].blob.as_mut().unwrap().blake3 = vec![8; HASH_BYTES].into();
        assert!(!hashed.serves(&order(trained), "here"));
    }

    #[test]
    fn each_wrong_field_is_named() {
        type Change = fn(&mut PrepareRequest, &mut StageSpec);
        let cases: [(&str, Change); 20] = [
            ("n_stages", |_, s| s.n_stages = 100_000),
            ("spec.stage", |_, s| s.stage = 3),
            ("layers", |_, s| s.layer_begin = 4),
            ("layer 0", |_, s| s.layer_begin = 0),
            ("max_rows", |_, s| s.max_rows = 0),
            ("n_blocks", |_, s| s.n_blocks = u32::MAX),
            ("kv_type", |_, s| s.kv_type = 99),
            ("wire_type", |_, s| s.wire_type = 0),
            ("next_hop", |_, s| s.next_hop = "nowhere".into()),
            ("control_vectors are", |_, s| s.control_vectors = vec![0; 5].into()),
            ("control_vectors are", |_, s| {
                s.control_vectors = f32::NAN.to_le_bytes().to_vec().into();
                s.control_vectors_id = vec![1; HASH_BYTES].into();
            }),
            ("control_vectors_id has 0", |_, s| s.control_vectors = vec![0; 8].into()),
            ("control_vectors_id has 3", |_, s| s.control_vectors_id = vec![0; 3].into()),
            ("mode", |_, s| s.checkpoints = Some(Checkpoints { mode: 9, ..copies() })),
            ("buddy", |_, s| s.checkpoints = Some(Checkpoints { buddy: "x".into(), ..copies() })),
            ("no such worker", |_, s| {
                let mode = CheckpointMode::Disk.into();
                s.checkpoints = Some(Checkpoints { mode, ..copies() });
            }),
            ("line_keys has 1", |_, s| {
                s.line_keys = vec![1; KEY_ID_BYTES + 1].into();
            }),
            ("header", |r, _| r.header = None),
            ("tensor a", |r, _| r.tensors[0].blob.as_mut().unwrap().nbytes = 0),
            ("twice", |r, _| r.tensors.push(r.tensors[0].clone())),
        ];
        for (word, change) in cases {
            let mut request = request();
            let mut spec = request.spec.take().unwrap();
            change(&mut request, &mut spec);
            let failure = Order::parse(PrepareRequest { spec: Some(spec), ..request }).unwrap_err();
            assert_eq!(failure.kind(), FailureKind::BadMessage);
            assert!(failure.reason.contains(word), "{word}: {}", failure.reason);
        }
    }
}
