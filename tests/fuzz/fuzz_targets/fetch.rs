//! Orders to fetch tensors, from a source or from other workers, and requests between workers: counted, decoded,
//! checked.

#![no_main]

use brigade_proto::control::{FetchRequest, GatherRequest};
use brigade_proto::copies::WeightsRequest;
use brigade_proto::count::{Countable, count_fields};
use brigade_proto::limits::{MAX_BLOB_BYTES, MAX_GATHERED, MAX_SPANS};
use brigade_worker::loading::fetch::Fetch;
use brigade_worker::services::gather::{self, Gather};
use brigade_worker::weights::cache::Needed;
use libfuzzer_sys::fuzz_target;
use prost::Message;

fn decoded<M: Countable + Message + Default>(bytes: &[u8]) -> Option<M> {
    count_fields::<M>(bytes).ok()?;
    M::decode(bytes).ok()
}

fn bytes_of(needed: &[Needed]) -> u64 {
    needed.iter().map(|needed| needed.nbytes).sum()
}

fuzz_target!(|bytes: &[u8]| {
    if let Some(fetch) = decoded::<FetchRequest>(bytes).and_then(|r| Fetch::parse(r).ok()) {
        let needed = fetch.needed();
        assert!(bytes_of(&needed) > 0 && (1..=MAX_SPANS).contains(&needed.len()));
    }
    if let Some(gather) = decoded::<GatherRequest>(bytes).and_then(|r| Gather::parse(r).ok()) {
        let needed = gather.needed();
        assert!(bytes_of(&needed) <= MAX_GATHERED as u64 * MAX_BLOB_BYTES);
        assert!((1..=MAX_GATHERED).contains(&needed.len()));
    }
    if let Some(Ok(wanted)) = decoded::<WeightsRequest>(bytes).map(|r| gather::wanted(&r)) {
        assert!(wanted.iter().all(|(_, nbytes, offset)| offset < nbytes));
    }
});
