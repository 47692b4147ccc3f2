//! Finds the bytes of an order, checks that its stage fits, and loads it.
//!
//! The first choice is the coordinator's own file, when this machine sees the same one. The second is a file at the
//! same path with the same content. The third is the cache, which pushes fill. Nothing is loaded before the stage is
//! known to fit the memory limit. All of this blocks, so callers are on blocking threads.
//!
//! A path in an order comes from a peer and may name any file. Answers therefore reveal nothing of its content.

mod cached;

use std::collections::HashSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blake3::Hash;
use brigade_gguf::{FileState, Gguf, GgufError, TensorFiles, TensorInfo};
use brigade_proto::control::{FileHint, StageSpec, WeightSource};
use brigade_proto::failure::{Failure, FailureKind};
use tokio_util::sync::CancellationToken;

use super::order::{Content, Order};
use crate::backend::{
    BuildOrder, BuiltFacts, KeptWeights, Left, StageBackend, StageNeeds, StageRunner,
};
use crate::machine::ledger::{Amount, Held, Lacking, Ledger};
use crate::machine::reading_threads::Pool;
use crate::weights::cache::{Cache, CacheError, Pinned, Purpose};
use crate::weights::hashes::{HashStore, hinted_state};
use crate::weights::reader::{Source, Weights};

/// Finds and loads stages.
#[derive(Clone)]
pub struct Loader {
    /// The engine that builds stages.
    pub backend: Arc<dyn StageBackend>,
    /// The cache of pushed blobs.
    pub cache: Cache,
    /// Remembered hashes of local files.
    pub hashes: HashStore,
    /// Threads that read weights.
    pub pool: Pool,
    /// Whether a model file that the coordinator names may be read.
    pub model_files: bool,
    /// The identity of this machine.
    pub host_id: String,
    /// Number of this start of the worker ([`crate::host::instance`]).
    pub instance: u64,
    /// What stages may take, and experts of the host's memory where a stage lies elsewhere and they may lie there.
    pub ledger: Ledger,
}

/// Facts about an order's bytes before it is loaded.
#[derive(Debug, Default)]
pub struct Located {
    /// Where its bytes are, or will be once `missing` is pushed.
    pub source: WeightSource,
    /// The manifest has no hashes, and only those could help.
    pub needs_hashes: bool,
    /// Blobs to be pushed, with the bytes of each that are here already.
    pub missing: Vec<(Hash, u64, u64)>,
    /// The memory that the stage needs; without the header only the file's bytes are known.
    pub needs: StageNeeds,
    /// Its blobs in the cache, if it is loaded from there.
    pub pinned: Option<Pinned>,
}

/// A model at hand.
pub struct Found {
    source: WeightSource,
    /// The model's header.
    model: Arc<Gguf>,
    weights: Source,
    /// The identity of its weights.
    pub content: Content,
    /// The tensors and the memory of the stage.
    pub needs: StageNeeds,
    /// Its blobs in the cache, if it is loaded from there.
    pub pinned: Option<Pinned>,
}

/// The room for loading ahead beside a stage that runs.
pub struct Room {
    /// Free bytes of memory.
    pub nbytes: u64,
    /// Memory that the stage was granted.
    pub taken: Amount,
    /// Layers that it has and goes on with.
    pub has: Range<usize>,
}

/// The result of loading ahead.
pub struct LoadedAhead {
    /// The weights, by layer.
    pub kept: KeptWeights,
    /// Their bytes in memory.
    pub nbytes: u64,
    /// Bytes that were read for them.
    pub read_bytes: u64,
    /// The memory for them and the stage.
    pub held: Held,
    /// Their blobs in the cache, if they were loaded from there.
    pub pinned: Option<Pinned>,
}

/// A model's header and its open files.
struct Opened {
    model: Arc<Gguf>,
    files: TensorFiles,
}

/// One way of looking for an order's bytes.
enum Search {
    Found(Found),
    NeedsHashes,
    Missing { blobs: Vec<(Hash, u64, u64)>, header: Option<Arc<Gguf>>, pinned: Pinned },
}

impl Loader {
    /// Looks for the order's bytes, those of tensors in memory (`held`) apart, and checks that its stage fits.
    ///
    /// # Errors
    /// NoMemory, Busy (other stages of the node have the memory, or the cache), Unsupported, BadMessage (the manifest is not the
    /// stage's), Storage, Io.
    pub fn locate(
        &self,
        order: &Order,
        held: &HashSet<String>,
        purpose: Purpose,
        given_up: &CancellationToken,
    ) -> Result<Located, Failure> {
        let (located, model) = match self.search(order, held, purpose, given_up)? {
            Search::Found(Found { source, pinned, model, .. }) => {
                (Located { source, pinned, ..Located::default() }, Some(model))
            }
            Search::NeedsHashes => (Located { needs_hashes: true, ..Located::default() }, None),
            Search::Missing { blobs: missing, header, pinned } => {
                let (source, pinned) = (WeightSource::Cache, Some(pinned));
                (Located { source, missing, pinned, ..Located::default() }, header)
            }
        };
        let needs = match model {
            Some(model) => self.needs(order, &model)?,
            None => StageNeeds { weight_bytes: order.tensor_bytes(), ..StageNeeds::default() },
        };
        self.check_memory(order, &needs)?;
        Ok(Located { needs, ..located })
    }

    /// Finds the bytes of an order, all of which are here by now, except those of tensors in memory (`held`).
    ///
    /// # Errors
    /// As [`Loader::locate`], WrongPhase if bytes are missing after all.
    pub fn find(
        &self,
        order: &Order,
        held: &HashSet<String>,
        purpose: Purpose,
        given_up: &CancellationToken,
    ) -> Result<Found, Failure> {
        let found = match self.search(order, held, purpose, given_up)? {
            Search::Found(found) => found,
            Search::NeedsHashes | Search::Missing { .. } => {
                let why =
                    "weights are missing: call Prepare again and push the tensors that it names";
                return Err(Failure::refusal(FailureKind::WrongPhase, why));
            }
        };
        let needs = self.needs(order, &found.model)?;
        self.check_memory(order, &needs)?;
        Ok(Found { needs, ..found })
    }

    /// Builds the stage of an order. It takes weights from `kept` whose tensors are all in `held`, and reads the
    /// others. Once `given_up` is cancelled it stops between two tensors, and loaded weights stay in `kept`. After
    /// any other failure they are freed.
    ///
    /// # Errors
    /// StaleEpoch when given up, Io where a file changed while it was read, and the engine's.
    pub fn load(
        &self,
        order: &Order,
        found: Found,
        held: &HashSet<String>,
        given_up: &CancellationToken,
        kept: &mut KeptWeights,
        progress: Box<dyn FnMut(u64) + Send>,
    ) -> Result<(Box<dyn StageRunner>, Loaded), Failure> {
        kept.retain(&|tensor| held.contains(tensor));
        let layers = order.spec.layer_begin as usize..order.spec.layer_end as usize;
        let kept_layers = kept.layers().filter(|layer| layers.contains(layer)).count();
        let Found { source, model, weights, content, needs, .. } = found;
        let weights = Arc::new(Weights::new(weights, self.pool.clone(), given_up.clone()));
        for wanted in order.tensors.iter().filter(|tensor| !held.contains(&tensor.name)) {
            weights.will_need(model.require(&wanted.name).map_err(unreadable)?);
        }
        let spec = order.spec.clone();
        let read = Arc::new(AtomicU64::new(0));
        let progress = counting(read.clone(), progress);
        let left = self.left_by(&needs);
        let build = BuildOrder { model, weights: weights.clone(), spec, left, progress };
        let built = self.backend.build(build, kept);
        weights.end_loading();
        let unchanged = weights.check_unchanged().map_err(unreadable);
        if given_up.is_cancelled() && unchanged.is_ok() {
            if let Ok((runner, _)) = built {
                *kept = runner.into_kept();
            }
            let why = "loading was given up: the epoch is over";
            return Err(Failure::refusal(FailureKind::StaleEpoch, why));
        }
        let checked = unchanged.and(built).and_then(|(runner, facts)| {
            check_ends(order, runner.as_ref())?;
            Ok((runner, facts))
        });
        let (runner, facts) = checked.inspect_err(|_| *kept = KeptWeights::default())?;
        let read_bytes = read.load(Ordering::Relaxed);
        Ok((runner, Loaded { source, facts, needs, content, read_bytes, kept_layers }))
    }

    /// Loads the weights that an order's stage lacks, beside the layers that are there, while those are computed.
    /// Between two tensors it ends early once `given_up` is cancelled.
    ///
    /// # Errors
    /// NoMemory, saying how much is lacking, and else as [`Loader::load`].
    pub fn load_ahead(
        &self,
        order: &Order,
        found: Found,
        room: Room,
        given_up: &CancellationToken,
        progress: Box<dyn FnMut(u64) + Send>,
    ) -> Result<LoadedAhead, Failure> {
        let Found { model, weights, needs, pinned, .. } = found;
        let had = self.needs_of(order, &model, &room.has)?;
        let nbytes = needs.weight_bytes - had.weight_bytes;
        let host = self.in_host(&needs).saturating_sub(self.in_host(&had));
        let loading = nbytes.saturating_add(needs.loading_bytes);
        let host_left = self.ledger.limit().host.saturating_sub(room.taken.host);
        for (what, take, left) in
            [("weights", loading, room.nbytes), ("experts in the host's memory", host, host_left)]
        {
            if take > left {
                let why = format!(
                    "the missing {what} of layers [{}, {}) take {take} bytes while they are loaded, and {left} are free beside the running stage",
                    order.spec.layer_begin, order.spec.layer_end
                );
                return Err(Failure::refusal(FailureKind::NoMemory, why));
            }
        }
        let granted = |beside: u64| {
            let both = room.taken.plus(Amount { stage: beside, host });
            self.ledger.stage(both).map_err(|lacking| busy(order, lacking))
        };
        let while_loading = granted(loading)?;
        let weights = Arc::new(Weights::new(weights, self.pool.clone(), given_up.clone()));
        let read = Arc::new(AtomicU64::new(0));
        let progress = counting(read.clone(), progress);
        let (spec, left) = (order.spec.clone(), Left::default());
        let build = BuildOrder { model, weights: weights.clone(), spec, left, progress };
        let kept = self.backend.load_ahead(build, room.has);
        weights.end_loading();
        let kept = kept?;
        weights.check_unchanged().map_err(unreadable)?;
        // It is less than what there is, so it is always granted.
        let held = granted(nbytes)?;
        drop(while_loading);
        Ok(LoadedAhead { kept, nbytes, read_bytes: read.load(Ordering::Relaxed), held, pinned })
    }

    /// What a stage with these needs leaves of this worker's memory.
    fn left_by(&self, needs: &StageNeeds) -> Left {
        let limit = self.ledger.limit().stage;
        Left { bytes: limit.saturating_sub(needs.stage_bytes()), limit }
    }

    /// The memory of some of an order's layers.
    fn needs_of(
        &self,
        order: &Order,
        model: &Gguf,
        layers: &Range<usize>,
    ) -> Result<StageNeeds, Failure> {
        if layers.is_empty() {
            return Ok(StageNeeds::default());
        }
        let (layer_begin, layer_end) = (layers.start as u32, layers.end as u32);
        let spec = StageSpec { layer_begin, layer_end, ..order.spec.clone() };
        self.backend.needs(model, &spec)
    }

    fn search(
        &self,
        order: &Order,
        held: &HashSet<String>,
        purpose: Purpose,
        given_up: &CancellationToken,
    ) -> Result<Search, Failure> {
        let hashes = order.hashes();
        if self.model_files {
            if let Some(opened) = self.shared_file(order) {
                let found = found(WeightSource::SharedFile, opened, Vec::new());
                return Ok(Search::Found(found));
            }
            if let Some(opened) = self.same_path(order) {
                let Some(hashes) = hashes else { return Ok(Search::NeedsHashes) };
                if self.has_content(order, &opened, &hashes, given_up)? {
                    let found = found(WeightSource::LocalFile, opened, hashes);
                    return Ok(Search::Found(found));
                }
            }
        }
        match (order.blobs(), order.hashes()) {
            (Some(blobs), Some(hashes)) => self.search_cache(order, &blobs, hashes, held, purpose),
            _ => Ok(Search::NeedsHashes),
        }
    }

    /// The coordinator's file, if this machine sees the very same one, and may read it.
    fn shared_file(&self, order: &Order) -> Option<Opened> {
        let same = |hint: &FileHint| {
            hint.host_id == self.host_id
                && state_at(&hint.path).is_some_and(|own| own == hinted_state(hint))
        };
        let first = order.files.first()?;
        let paths: Vec<PathBuf> = order.files.iter().map(|hint| hint.path.clone().into()).collect();
        if !order.files.iter().all(same) {
            return None;
        }
        let wanted = order.files.iter().map(hinted_state);
        match Gguf::open_listed(&paths) {
            Ok((model, files))
                if is_named(&model, order) && files.states().map(|(_, s)| *s).eq(wanted) =>
            {
                Some(Opened { model: Arc::new(model), files })
            }
            // The peer may name any file, so no word of its contents leaves this process.
            other => {
                let reason = other.err().map(|error| error.to_string());
                let path = &first.path;
                tracing::warn!(
                    path,
                    reason,
                    "the coordinator names a model file that cannot be read here or differs from its own: it is not used"
                );
                None
            }
        }
    }

    /// A file of this machine that may be a copy: same path, same size, same header.
    fn same_path(&self, order: &Order) -> Option<Opened> {
        let sized = |hint: &FileHint| state_at(&hint.path).is_some_and(|s| s.nbytes == hint.nbytes);
        if !order.files.iter().all(sized) {
            return None;
        }
        let paths: Vec<PathBuf> = order.files.iter().map(|hint| hint.path.clone().into()).collect();
        let (model, files) = Gguf::open_listed(&paths).ok()?;
        is_named(&model, order).then(|| Opened { model: Arc::new(model), files })
    }

    fn has_content(
        &self,
        order: &Order,
        opened: &Opened,
        hashes: &[Hash],
        given_up: &CancellationToken,
    ) -> Result<bool, Failure> {
        let io = |e: &dyn std::fmt::Display| Failure::refusal(FailureKind::Io, e.to_string());
        let Opened { model, files } = opened;
        let tensors = directory(order, model)?;
        let own = self.hashes.tensor_hashes(model, files, &tensors, &|_, _| (), given_up);
        let same = own.map_err(|e| io(&e))? == hashes;
        if !same {
            tracing::warn!(file = model.name(), "has other weights than the coordinator's file");
        }
        Ok(same)
    }

    /// The tensors and the memory of the stage; the tensors must be exactly those of the manifest.
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
        let StageNeeds { weight_bytes, state_bytes, loading_bytes, .. } = *needs;
        let copy_bytes = order.copy_bytes();
        let total = self.amount(order, needs).stage;
        let (limit, most) = (self.ledger.limit().stage, self.ledger.most().stage);
        if total <= limit {
            return self.check_host_memory(order, needs);
        }
        let (begin, end) = (order.spec.layer_begin, order.spec.layer_end);
        if total <= most {
            let why = format!(
                "layers [{begin}, {end}) take {total} bytes, and the other stages of this node leave {limit} of {most}: unload \
                 another model, or give it fewer layers"
            );
            return Err(Failure::refusal(FailureKind::Busy, why));
        }
        let why = format!(
            "layers [{begin}, {end}) take {total} bytes ({weight_bytes} of weights, {state_bytes} of \
             state for {} sequences and {} KV pages, or {loading_bytes} for a tensor while it is loaded, {copy_bytes} of \
             checkpoints) and this worker may use {most}: give it fewer \
             layers, less context, or more --memory",
            order.spec.max_seqs, order.spec.n_blocks,
        );
        Err(Failure::refusal(FailureKind::NoMemory, why))
    }

    /// The same as [`Loader::check_memory`], for experts in the host's memory beside a GPU.
    fn check_host_memory(&self, order: &Order, needs: &StageNeeds) -> Result<(), Failure> {
        let host_bytes = self.amount(order, needs).host;
        let (limit, most) = (self.ledger.limit().host, self.ledger.most().host);
        if host_bytes <= limit {
            return Ok(());
        }
        let kind = if host_bytes <= most { FailureKind::Busy } else { FailureKind::NoMemory };
        let why = format!(
            "experts of layers [{}, {}) take {host_bytes} bytes of the host's memory, with their work memory, and this worker may use \
             {limit} of it: give it fewer layers, leave more experts on the GPU, or give the machine more memory",
            order.spec.layer_begin, order.spec.layer_end
        );
        Err(Failure::refusal(kind, why))
    }

    /// The memory of an order's stage, by place.
    fn amount(&self, order: &Order, needs: &StageNeeds) -> Amount {
        let total = needs.stage_bytes().saturating_add(order.copy_bytes());
        Amount { stage: total, host: self.in_host(needs) }
    }

    /// Bytes of a stage in the host's memory beside the memory where it lies.
    fn in_host(&self, needs: &StageNeeds) -> u64 {
        // Experts that lie in one memory with the rest are among the weights.
        let is_apart = self.ledger.most().host > 0;
        if is_apart { needs.host_bytes } else { 0 }
    }

    /// Takes the memory of an order's stage from what the node has; all of its layers are known to fit there.
    ///
    /// # Errors
    /// Busy: another stage of the node was faster.
    pub fn grant(&self, order: &Order, needs: &StageNeeds) -> Result<Held, Failure> {
        let held = self.ledger.stage(self.amount(order, needs));
        held.map_err(|lacking| busy(order, lacking))
    }
}

/// The failure of a stage whose memory another stage of the node took.
fn busy(order: &Order, lacking: Lacking) -> Failure {
    let (begin, end) = (order.spec.layer_begin, order.spec.layer_end);
    let why = format!("no memory for layers [{begin}, {end}): {lacking}; try again later");
    Failure::refusal(FailureKind::Busy, why)
}

/// The result of loading.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Where the bytes came from.
    pub source: WeightSource,
    /// The memory and the settings of the stage.
    pub facts: BuiltFacts,
    /// The memory that it was granted, copies of states apart.
    pub needs: StageNeeds,
    /// The identity of its weights.
    pub content: Content,
    /// Bytes of tensors that were read for it.
    pub read_bytes: u64,
    /// The stage's layers that were in memory already.
    pub kept_layers: usize,
}

fn found(source: WeightSource, opened: Opened, hashes: Vec<Hash>) -> Found {
    let Opened { model, files } = opened;
    let content = Content { files: files.states().map(|(_, state)| *state).collect(), hashes };
    let needs = StageNeeds::default();
    Found { source, model, weights: Source::Files(files), content, needs, pinned: None }
}

/// Progress that is added up on its way.
fn counting(
    sum: Arc<AtomicU64>,
    mut progress: Box<dyn FnMut(u64) + Send>,
) -> Box<dyn FnMut(u64) + Send> {
    Box::new(move |nbytes| {
        sum.fetch_add(nbytes, Ordering::Relaxed);
        progress(nbytes);
    })
}

/// The state of a regular file at a path.
fn state_at(path: impl AsRef<Path>) -> Option<FileState> {
    let meta = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some(FileState::from(&meta))
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
    let kind = match &error {
        // The next attempt looks anew.
        GgufError::Io { .. } | GgufError::Changed { .. } => FailureKind::Io,
        _ => FailureKind::Unsupported,
    };
    Failure::refusal(kind, error.to_string())
}

/// The failure of a cache error.
pub fn cache_failure(error: CacheError) -> Failure {
    let kind = match &error {
        CacheError::Corrupt { .. } => FailureKind::Corrupt,
        CacheError::Gap { .. } => FailureKind::BadMessage,
        CacheError::Locked { .. } | CacheError::Waits { .. } => FailureKind::Busy,
        CacheError::Pinned { .. } => FailureKind::CacheFull,
        // These do not pass by themselves.
        CacheError::TooLarge { .. }
        | CacheError::NoSpace { .. }
        | CacheError::Unwritable { .. }
        | CacheError::NotAFile { .. } => FailureKind::Storage,
        CacheError::Io { .. } => FailureKind::Io,
    };
    Failure::refusal(kind, error.to_string())
}
