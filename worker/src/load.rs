//! Where an order's bytes are, whether its stage fits, and loading it.
//!
//! The coordinator's own file serves when this machine sees the same one; else a file at the same
//! path with the same content; else the cache, filled by pushes. Nothing is loaded before the
//! stage is known to fit the memory limit. All of it blocks: callers are on blocking threads.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use blake3::Hash;
use brigade_engine::gguf::{Gguf, GgufError, TensorInfo};
use brigade_proto::control::WeightSource;
use brigade_proto::failure::{Failure, FailureKind};

use crate::backend::{BuildOrder, BuiltFacts, StageBackend, StageNeeds};
use crate::cache::{BlobState, Cache, CacheError};
use crate::executor::StageRunner;
use crate::hashes::{FileId, HashStore};
use crate::order::Order;
use crate::weights::Weights;

/// Finds and loads stages.
#[derive(Clone)]
pub struct Loader {
    /// The engine.
    pub backend: Arc<dyn StageBackend>,
    /// Pushed blobs.
    pub cache: Cache,
    /// Remembered hashes of local files.
    pub hashes: HashStore,
    /// Whether a model file that the coordinator names may be read.
    pub model_files: bool,
    /// This machine.
    pub host_id: String,
    /// Bytes a stage may take.
    pub memory_limit: u64,
}

/// What is known of an order before it is loaded.
#[derive(Debug, Default)]
pub struct Located {
    /// Where its bytes are, or will be once `missing` is pushed.
    pub source: WeightSource,
    /// The manifest has no hashes, and only those could help.
    pub needs_hashes: bool,
    /// Blobs to be pushed, with the bytes of each that are here already.
    pub missing: Vec<(Hash, u64, u64)>,
    /// What the stage takes; without the header only the file's bytes are known.
    pub needs: StageNeeds,
}

/// A model at hand.
struct Found {
    source: WeightSource,
    model: Arc<Gguf>,
    /// Complete blobs by tensor; empty where `model` has the data.
    blobs: Vec<(String, PathBuf)>,
}

/// One way of looking for an order's bytes.
enum Search {
    Found(Found),
    NeedsHashes,
    Missing { blobs: Vec<(Hash, u64, u64)>, header: Option<Arc<Gguf>> },
}

impl Loader {
    /// Looks for the order's bytes and checks that its stage fits.
    ///
    /// # Errors
    /// NoMemory, Unsupported, BadMessage (the manifest is not the stage's), Io.
    pub fn locate(&self, order: &Order) -> Result<Located, Failure> {
        let (located, model) = match self.search(order)? {
            Search::Found(found) => {
                let located = Located { source: found.source, ..Located::default() };
                (located, Some(found.model))
            }
            Search::NeedsHashes => (Located { needs_hashes: true, ..Located::default() }, None),
            Search::Missing { blobs: missing, header } => {
                let source = WeightSource::Cache;
                (Located { source, missing, ..Located::default() }, header)
            }
        };
        let needs = match model {
            Some(model) => self.needs(order, &model)?,
            None => StageNeeds { weight_bytes: order.tensor_bytes(), ..StageNeeds::default() },
        };
        self.check_memory(order, &needs)?;
        Ok(Located { needs, ..located })
    }

    /// Builds the stage of an order whose bytes are all here.
    ///
    /// # Errors
    /// As [`Loader::locate`], WrongPhase if bytes are missing after all, and the engine's.
    pub fn load(
        &self,
        order: &Order,
        progress: Box<dyn FnMut(u64) + Send>,
    ) -> Result<(Box<dyn StageRunner>, Loaded), Failure> {
        let found = match self.search(order)? {
            Search::Found(found) => found,
            Search::NeedsHashes | Search::Missing { .. } => {
                let why = "weights are missing: call Prepare again and push what it names";
                return Err(Failure::refusal(FailureKind::WrongPhase, why));
            }
        };
        let needs = self.needs(order, &found.model)?;
        self.check_memory(order, &needs)?;
        let Found { source, model, blobs } = found;
        let weights = if blobs.is_empty() {
            Weights::File(model.clone())
        } else {
            let named = blobs.iter().map(|(name, path)| (name.clone(), path.as_path()));
            Weights::map_blobs(named).map_err(unreadable)?
        };
        read_ahead(order, &model, &weights).map_err(unreadable)?;
        let build =
            BuildOrder { model, weights: Arc::new(weights), spec: order.spec.clone(), progress };
        let (runner, facts) = self.backend.build(build)?;
        check_ends(order, runner.as_ref())?;
        Ok((runner, Loaded { source, facts }))
    }

    fn search(&self, order: &Order) -> Result<Search, Failure> {
        if !self.model_files {
            return order.blobs().map_or(Ok(Search::NeedsHashes), |b| self.search_cache(order, &b));
        }
        if let Some(model) = self.shared_file(order)? {
            let source = WeightSource::SharedFile;
            return Ok(Search::Found(Found { source, model, blobs: Vec::new() }));
        }
        if let Some(model) = self.same_path(order) {
            let Some(hashes) = order.tensors.iter().map(|t| t.hash).collect::<Option<Vec<_>>>()
            else {
                return Ok(Search::NeedsHashes);
            };
            if self.has_content(order, &model, &hashes)? {
                let source = WeightSource::LocalFile;
                return Ok(Search::Found(Found { source, model, blobs: Vec::new() }));
            }
        }
        match order.blobs() {
            None => Ok(Search::NeedsHashes),
            Some(blobs) => self.search_cache(order, &blobs),
        }
    }

    /// The coordinator's file, if this machine sees the very same one.
    fn shared_file(&self, order: &Order) -> Result<Option<Arc<Gguf>>, Failure> {
        let same = |hint: &brigade_proto::control::FileHint| {
            let id = FileId { nbytes: hint.nbytes, mtime_ns: hint.mtime_ns, inode: hint.inode };
            hint.host_id == self.host_id
                && FileId::of(hint.path.as_ref()).is_ok_and(|own| own == id)
        };
        if order.files.is_empty() || !order.files.iter().all(same) {
            return Ok(None);
        }
        let model = Gguf::open(&order.files[0].path).map_err(unreadable)?;
        if !is_named(&model, order) {
            let why = format!(
                "{} does not have the header that the coordinator read from it: it has changed",
                order.files[0].path
            );
            return Err(Failure::refusal(FailureKind::Corrupt, why));
        }
        Ok(Some(Arc::new(model)))
    }

    /// A file of this machine that may be a copy: same path, same size, same header.
    fn same_path(&self, order: &Order) -> Option<Arc<Gguf>> {
        let sized = |hint: &brigade_proto::control::FileHint| {
            FileId::of(hint.path.as_ref()).is_ok_and(|own| own.nbytes == hint.nbytes)
        };
        if !order.files.iter().all(sized) {
            return None;
        }
        let model = Gguf::open(&order.files.first()?.path).ok()?;
        is_named(&model, order).then(|| Arc::new(model))
    }

    fn has_content(&self, order: &Order, model: &Gguf, hashes: &[Hash]) -> Result<bool, Failure> {
        let io = |e: &dyn std::fmt::Display| Failure::refusal(FailureKind::Io, e.to_string());
        let tensors = directory(order, model)?;
        let own = self.hashes.tensor_hashes(model, &tensors, &|_, _| ()).map_err(|e| io(&e))?;
        let same = own == hashes;
        if !same {
            tracing::warn!(file = model.name(), "has other weights than the coordinator's file");
        }
        Ok(same)
    }

    fn search_cache(&self, order: &Order, blobs: &[(Hash, u64)]) -> Result<Search, Failure> {
        let (mut missing, mut paths, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        for &(hash, nbytes) in blobs {
            match self.cache.state(&hash, nbytes).map_err(cache_failure)? {
                BlobState::Complete(path) => paths.push(path),
                BlobState::Partial(offset) if seen.insert(hash) => {
                    missing.push((hash, nbytes, offset));
                }
                BlobState::Partial(_) => {}
            }
        }
        let header = self.cached_header(order)?;
        let Some(model) = header.clone().filter(|_| missing.is_empty()) else {
            let incoming = missing.iter().map(|(_, nbytes, offset)| nbytes - offset).sum();
            let keep = blobs.iter().map(|(hash, _)| *hash).collect();
            self.cache.make_room(incoming, &keep).map_err(cache_failure)?;
            return Ok(Search::Missing { blobs: missing, header });
        };
        // All are complete: `paths` is the header's and then one a tensor, in the manifest's order.
        let names = order.tensors.iter().map(|t| t.name.clone());
        let blobs = names.zip(paths.into_iter().skip(1)).collect();
        Ok(Search::Found(Found { source: WeightSource::Cache, model, blobs }))
    }

    fn cached_header(&self, order: &Order) -> Result<Option<Arc<Gguf>>, Failure> {
        let (hash, nbytes) = order.header;
        let Some(path) = self.cache.lookup(&hash, nbytes).map_err(cache_failure)? else {
            return Ok(None);
        };
        let bytes = fs::read(&path)
            .map_err(|e| Failure::refusal(FailureKind::Io, format!("{}: {e}", path.display())))?;
        let model = Gguf::from_header_bytes(&bytes, &order.model_name).map_err(unreadable)?;
        Ok(Some(Arc::new(model)))
    }

    /// What the stage takes; its tensors must be exactly the manifest's.
    fn needs(&self, order: &Order, model: &Gguf) -> Result<StageNeeds, Failure> {
        directory(order, model)?;
        let needs = self.backend.needs(model, &order.spec)?;
        let listed: HashSet<&str> = order.tensors.iter().map(|t| t.name.as_str()).collect();
        let used: HashSet<&str> = needs.tensors.iter().map(String::as_str).collect();
        if let Some(name) = used.difference(&listed).next() {
            let why = format!("the manifest lacks tensor {name}, which the stage's layers use");
            return Err(Failure::refusal(FailureKind::BadMessage, why));
        }
        if let Some(name) = listed.difference(&used).next() {
            let why = format!("the manifest has tensor {name}, which the stage does not use");
            return Err(Failure::refusal(FailureKind::BadMessage, why));
        }
        Ok(needs)
    }

    fn check_memory(&self, order: &Order, needs: &StageNeeds) -> Result<(), Failure> {
        let StageNeeds { weight_bytes, state_bytes, .. } = *needs;
        let total = weight_bytes.saturating_add(state_bytes);
        if total <= self.memory_limit {
            return Ok(());
        }
        let why = format!(
            "layers [{}, {}) take {total} bytes ({weight_bytes} of weights, {state_bytes} of \
             state for {} sequences and {} KV pages) and this worker may use {}: give it fewer \
             layers, less context, or more --memory",
            order.spec.layer_begin,
            order.spec.layer_end,
            order.spec.max_seqs,
            order.spec.n_blocks,
            self.memory_limit
        );
        Err(Failure::refusal(FailureKind::NoMemory, why))
    }
}

/// What loading gave.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Where the bytes came from.
    pub source: WeightSource,
    /// What the stage takes and uses.
    pub facts: BuiltFacts,
}

/// A stage at the line's end must be built as one, and no other.
fn check_ends(order: &Order, runner: &dyn StageRunner) -> Result<(), Failure> {
    let shape = runner.shape();
    let first = shape.input_width.is_none();
    let last = shape.output_width.is_none();
    if (first, last) == (order.spec.stage == 0, order.next_hop.is_none()) {
        return Ok(());
    }
    let why = format!(
        "layers [{}, {}) are not those of stage {} of {}: the first stage starts at layer 0 and \
         the last one ends with the model",
        order.spec.layer_begin, order.spec.layer_end, order.spec.stage, order.spec.n_stages
    );
    Err(Failure::refusal(FailureKind::BadMessage, why))
}

/// Starts reading what is about to be used; with `prefault`, waits for it.
fn read_ahead(order: &Order, model: &Gguf, weights: &Weights) -> Result<(), GgufError> {
    for wanted in &order.tensors {
        weights.will_need(model.require(&wanted.name)?);
    }
    if let (true, Weights::File(file)) = (order.spec.prefault, weights) {
        for wanted in &order.tensors {
            file.prefault(file.require(&wanted.name)?)?;
        }
    }
    Ok(())
}

/// The manifest's tensors in the model's directory, sizes equal.
fn directory<'a>(order: &Order, model: &'a Gguf) -> Result<Vec<&'a TensorInfo>, Failure> {
    let bad = |why: String| Failure::refusal(FailureKind::BadMessage, why);
    order
        .tensors
        .iter()
        .map(|wanted| {
            let info = model.require(&wanted.name).map_err(|e| bad(e.to_string()))?;
            if info.nbytes != wanted.nbytes {
                let (here, there) = (info.nbytes, wanted.nbytes);
                return Err(bad(format!(
                    "tensor {} has {here} bytes in the header and {there} in the manifest",
                    wanted.name
                )));
            }
            Ok(info)
        })
        .collect()
}

fn is_named(model: &Gguf, order: &Order) -> bool {
    blake3::hash(&model.header_bytes()) == order.header.0
}

fn unreadable(error: GgufError) -> Failure {
    Failure::refusal(FailureKind::Unsupported, error.to_string())
}

/// The failure of a cache error.
pub fn cache_failure(error: CacheError) -> Failure {
    let kind = match &error {
        CacheError::Corrupt { .. } => FailureKind::Corrupt,
        CacheError::Gap { .. } => FailureKind::BadMessage,
        CacheError::Locked { .. } => FailureKind::Busy,
        CacheError::TooLarge { .. } | CacheError::Io { .. } => FailureKind::Io,
    };
    Failure::refusal(kind, error.to_string())
}
