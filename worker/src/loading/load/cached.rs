//! Looks for a stage's bytes in the cache, and pins them there.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::sync::Arc;

use blake3::Hash;
use brigade_gguf::Gguf;
use brigade_proto::control::WeightSource;
use brigade_proto::failure::{Failure, FailureKind};

use super::{Found, Loader, Search, cache_failure, unreadable};
use crate::backend::StageNeeds;
use crate::loading::order::{Content, Order};
use crate::weights::cache::{BlobState, CachedBlob, Needed, Purpose};
use crate::weights::reader::Source;

impl Loader {
    /// The order's bytes in the cache, those in memory (`held`) apart. They are pinned, and those that are missing have room.
    pub(super) fn search_cache(
        &self,
        order: &Order,
        blobs: &[(Hash, u64)],
        hashes: Vec<Hash>,
        held: &HashSet<String>,
        purpose: Purpose,
    ) -> Result<Search, Failure> {
        // The header's blob and then one a tensor, in the manifest's order.
        let names = std::iter::once("").chain(order.tensors.iter().map(|t| t.name.as_str()));
        // Several parts of a stage are made of tensors outside the layers, so that one of them is here does not
        // mean that the others are.
        let in_memory = |name: &str| held.contains(name) && brigade_spec::layer_of(name).is_some();
        let wanted: Vec<Needed> = blobs
            .iter()
            .zip(names.clone())
            .map(|(&(hash, nbytes), name)| Needed { hash, nbytes, may_be_absent: in_memory(name) })
            .collect();
        // From here on nobody evicts what is found.
        let pinned = self.cache.pin(&order.model_name, &wanted, purpose).map_err(cache_failure)?;
        let (mut missing, mut found, mut seen) = (Vec::new(), HashMap::new(), HashSet::new());
        for (&Needed { hash, nbytes, may_be_absent }, name) in wanted.iter().zip(names) {
            match self.cache.state(&hash, nbytes).map_err(cache_failure)? {
                BlobState::Complete(blob) => drop(found.insert(name.to_owned(), blob)),
                _ if may_be_absent => {}
                BlobState::Partial(offset) if seen.insert(hash) => {
                    missing.push((hash, nbytes, offset));
                }
                BlobState::Partial(_) => {}
            }
        }
        let header = self.cached_header(order)?;
        let Some(model) = header.clone().filter(|_| missing.is_empty()) else {
            return Ok(Search::Missing { blobs: missing, header, pinned });
        };
        let (weights, pinned) = (Source::Blobs(found), Some(pinned));
        let content = Content { files: Vec::new(), hashes };
        let (source, needs) = (WeightSource::Cache, StageNeeds::default());
        Ok(Search::Found(Found { source, model, weights, content, needs, pinned }))
    }

    fn cached_header(&self, order: &Order) -> Result<Option<Arc<Gguf>>, Failure> {
        let (hash, nbytes) = order.header;
        let Some(blob) = self.cache.lookup(&hash, nbytes).map_err(cache_failure)? else {
            return Ok(None);
        };
        let CachedBlob { path, .. } = blob;
        let bytes = fs::read(&path)
            .map_err(|e| Failure::refusal(FailureKind::Io, format!("{}: {e}", path.display())))?;
        let model = Gguf::from_header_bytes(&bytes, &order.model_name).map_err(unreadable)?;
        Ok(Some(Arc::new(model)))
    }
}
