//! Gathers weights from other workers' caches. The coordinator alone tells the hashes; bytes without the right hash
//! are refused.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use blake3::Hash;
use brigade_proto::control::{Blob, GatherRequest};
use brigade_proto::copies::copies_client::CopiesClient;
use brigade_proto::copies::{WantedBlob, WeightsPart, WeightsRequest};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::{
    CHUNK_BYTES, MAX_BLOB_BYTES, MAX_CHUNK_BYTES, MAX_GATHERED, MAX_HOLDERS, MAX_PIECE_BYTES,
    STATE_STALL_MS,
};
use brigade_proto::net::{Network, with_causes};
use brigade_proto::task::{self, joined};
use brigade_proto::tls::Role;
use brigade_proto::tls::verify::Expected;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;
use tonic::Status;

use crate::copies::fetch::Keeper;
use crate::loading::fetch::Step;
use crate::loading::load::cache_failure;
use crate::loading::order::{hash_from_wire, key_from_wire};
use crate::state::blocking;
use crate::weights::cache::{BlobState, BlobWriter, Cache, CacheError, Needed};

/// Messages made and not yet taken by the transport, and pieces received and not yet written.
const QUEUE: usize = 4;

/// Patience with a holder that does not answer at all: the source may.
const DIAL_WITHIN: Duration = Duration::from_secs(5);

/// Patience with the other end.
const STALL: Duration = Duration::from_millis(STATE_STALL_MS);

/// A request for blobs that others may have, checked.
#[derive(Clone, Debug)]
pub struct Gather {
    blobs: Vec<(Hash, u64)>,
    holders: Vec<Keeper>,
}

/// A blob that is asked for: its number, and how much of it is there.
type Wanted = (usize, u64);

/// Why a holder brought less than was asked for.
#[derive(Debug)]
enum Ended {
    /// The request was given up.
    Over,
    /// The holder failed; another holder, or the source, may have better luck.
    Holder(String),
    Cache(CacheError),
}

impl Gather {
    /// Checks a request against every cap.
    ///
    /// # Errors
    /// BadMessage, naming the field.
    pub fn parse(request: GatherRequest) -> Result<Self, Failure> {
        let GatherRequest { blobs, holders, .. } = request;
        if blobs.is_empty() || blobs.len() > MAX_GATHERED {
            return Err(bad(format!("gather.blobs are {}, 1 to {MAX_GATHERED}", blobs.len())));
        }
        if holders.is_empty() || holders.len() > MAX_HOLDERS {
            return Err(bad(format!("gather.holders are {}, 1 to {MAX_HOLDERS}", holders.len())));
        }
        let blob = |Blob { blake3, nbytes }: &Blob| checked("gather.blobs", blake3, *nbytes);
        let blobs = blobs.iter().map(blob).collect::<Result<_, _>>()?;
        let mut keepers = Vec::new();
        for holder in holders {
            let address = holder.address.parse();
            let address = address.map_err(|e| bad(format!("gather.holders.address: {e}")))?;
            let key = key_from_wire("gather.holders.key", &holder.key)?;
            keepers.push(Keeper { address, key });
        }
        Ok(Self { blobs, holders: keepers })
    }

    /// The blobs of this request, for which the cache has room to make.
    pub fn needed(&self) -> Vec<Needed> {
        let needed = |&(hash, nbytes): &(Hash, u64)| Needed { hash, nbytes, may_be_absent: false };
        self.blobs.iter().map(needed).collect()
    }

    /// Copies the holders' blobs into `cache`. `step` gets the progress, and returns whether to go on.
    ///
    /// # Errors
    /// The cache's. A holder that cannot be reached, or lacks a blob, is not an error.
    pub async fn run<S>(&self, cache: &Cache, network: &Network, step: S) -> Result<(), Failure>
    where
        S: Fn(Step) -> bool + Clone + Send + 'static,
    {
        for holder in &self.holders {
            let wanted = self.wanted(cache, step.clone()).await?;
            if wanted.is_empty() {
                break;
            }
            match self.from(holder, wanted, cache, network, step.clone()).await {
                Ok(()) => {}
                Err(Ended::Over) => break,
                Err(Ended::Holder(why)) => {
                    tracing::info!(holder = %holder.address, why, "another worker does not send weights");
                }
                Err(Ended::Cache(error)) => return Err(cache_failure(error)),
            }
        }
        Ok(())
    }

    /// The blobs that are not complete here. Complete ones are reported to `step`.
    async fn wanted<S>(&self, cache: &Cache, step: S) -> Result<Vec<Wanted>, Failure>
    where
        S: Fn(Step) -> bool + Send + 'static,
    {
        let (cache, blobs) = (cache.clone(), self.blobs.clone());
        blocking(move || {
            let mut wanted = Vec::new();
            for (i, (hash, nbytes)) in blobs.into_iter().enumerate() {
                match cache.state(&hash, nbytes).map_err(cache_failure)? {
                    BlobState::Partial(have) => wanted.push((i, have)),
                    BlobState::Complete(_) => drop(step(Step::Done(i, hash))),
                }
            }
            Ok(wanted)
        })
        .await
    }

    async fn from<S>(
        &self,
        Keeper { address, key }: &Keeper,
        wanted: Vec<Wanted>,
        cache: &Cache,
        network: &Network,
        step: S,
    ) -> Result<(), Ended>
    where
        S: Fn(Step) -> bool + Send + 'static,
    {
        let lost = |why: String| Ended::Holder(why);
        network.check(address, key.is_some()).await.map_err(|e| lost(e.to_string()))?;
        let expected = key.map(|key| Expected { role: Role::Worker, key: Some(key) });
        let channel = timeout(DIAL_WITHIN, network.dial(address, expected)).await;
        let channel = channel.map_err(|_| lost("no connection".to_string()))?;
        let channel = channel.map_err(|error| lost(with_causes(&error)))?;
        let mut client = CopiesClient::new(channel).max_decoding_message_size(MAX_PIECE_BYTES);
        let blob = |&(i, offset): &Wanted| {
            let (hash, nbytes) = self.blobs[i];
            WantedBlob { blake3: hash.as_bytes().to_vec().into(), nbytes, offset }
        };
        let request = WeightsRequest { blobs: wanted.iter().map(blob).collect() };
        let from = |status: Status| lost(Failure::from_status(&status).to_string());
        let mut parts = timeout(STALL, client.weights(request))
            .await
            .map_err(|_| lost("no answer".to_string()))?
            .map_err(from)?
            .into_inner();
        let (to_disk, queue) = mpsc::channel(QUEUE);
        let blobs: Vec<(usize, Hash, u64)> =
            wanted.iter().map(|&(i, _)| (i, self.blobs[i].0, self.blobs[i].1)).collect();
        let cache = cache.clone();
        let writing = tokio::task::spawn_blocking(move || write(&cache, &blobs, queue, &step));
        let outcome = loop {
            match timeout(STALL, parts.message()).await {
                Err(_) => break Err(lost(format!("nothing came for {STATE_STALL_MS} ms"))),
                Ok(Err(status)) => break Err(from(status)),
                Ok(Ok(None)) => break Ok(()),
                // A closed queue: the writer says why below.
                Ok(Ok(Some(part))) => {
                    if to_disk.send(part).await.is_err() {
                        break Ok(());
                    }
                }
            }
        };
        drop(to_disk);
        joined(writing.await).await?;
        outcome
    }
}

/// Writes incoming blobs to the cache. A blob that is cut off stays as a part.
fn write(
    cache: &Cache,
    blobs: &[(usize, Hash, u64)],
    mut queue: mpsc::Receiver<WeightsPart>,
    step: &dyn Fn(Step) -> bool,
) -> Result<(), Ended> {
    let mut done = 0;
    let mut open: Option<(usize, BlobWriter)> = None;
    while let Some(WeightsPart { blob, data }) = queue.blocking_recv() {
        let at = blob as usize;
        let not_asked = || Ended::Holder(format!("it sends blob {at}, which is not its turn"));
        let &(number, hash, nbytes) = blobs.get(at).ok_or_else(not_asked)?;
        if data.is_empty() || data.len() > MAX_CHUNK_BYTES {
            return Err(Ended::Holder(format!("it sends {} bytes at once", data.len())));
        }
        let mut writer = match open.take() {
            Some((same, writer)) if same == at => writer,
            Some((before, _)) if before > at => return Err(not_asked()),
            _ => cache.receive(hash, nbytes).map_err(of_cache)?,
        };
        let until = writer.have() + data.len() as u64;
        writer.write(writer.have(), &data).map_err(of_cache)?;
        done += data.len() as u64;
        if !step(Step::Bytes(done)) {
            return Err(Ended::Over);
        }
        if !writer.is_complete(until) {
            open = Some((at, writer));
            continue;
        }
        writer.finish().map_err(of_cache)?;
        if !step(Step::Done(number, hash)) {
            return Err(Ended::Over);
        }
    }
    Ok(())
}

/// Tells a holder's faults from the disk's.
fn of_cache(error: CacheError) -> Ended {
    match error {
        CacheError::Corrupt { .. } | CacheError::Gap { .. } | CacheError::Locked { .. } => {
            Ended::Holder(error.to_string())
        }
        other => Ended::Cache(other),
    }
}

/// The blobs of another worker's request, checked.
///
/// # Errors
/// BadMessage, naming the field.
pub fn wanted(request: &WeightsRequest) -> Result<Vec<(Hash, u64, u64)>, Failure> {
    let n = request.blobs.len();
    if n > MAX_GATHERED {
        return Err(bad(format!("weights.blobs are {n}, the limit is {MAX_GATHERED}")));
    }
    let one = |blob: &WantedBlob| {
        let (hash, nbytes) = checked("weights.blobs", &blob.blake3, blob.nbytes)?;
        if blob.offset >= nbytes {
            return Err(bad(format!("weights.blobs.offset is {} of {nbytes}", blob.offset)));
        }
        Ok((hash, nbytes, blob.offset))
    };
    request.blobs.iter().map(one).collect()
}

/// The blobs of `wanted` that are in `cache`, as a stream of messages. It ends when its reader has all, has gone, or reads no
/// more; until then it holds `permit`.
pub fn stream(
    cache: Cache,
    wanted: Vec<(Hash, u64, u64)>,
    permit: OwnedSemaphorePermit,
) -> mpsc::Receiver<Result<WeightsPart, Status>> {
    let (messages, receiver) = mpsc::channel(QUEUE);
    task::spawn(async move {
        let _permit = permit;
        for (i, (hash, nbytes, offset)) in wanted.into_iter().enumerate() {
            let cache = cache.clone();
            let looked = blocking(move || {
                let found = cache.lookup(&hash, nbytes).map_err(cache_failure)?;
                Ok(found.and_then(|blob| File::open(blob.path).ok()))
            });
            let file = match looked.await {
                Ok(Some(file)) => Arc::new(file),
                Ok(None) => continue,
                Err(failure) => {
                    let _ = messages.send(Err(failure.into())).await;
                    return;
                }
            };
            let mut at = offset;
            while at < nbytes {
                let n = (nbytes - at).min(CHUNK_BYTES as u64);
                let data = piece(file.clone(), at..at + n).await;
                let is_end = data.is_err();
                let message = data.map(|data| WeightsPart { blob: i as u32, data: data.into() });
                let sent = timeout(STALL, messages.send(message.map_err(Status::from))).await;
                if is_end || !matches!(sent, Ok(Ok(()))) {
                    return;
                }
                at += n;
            }
        }
    });
    receiver
}

async fn piece(file: Arc<File>, range: Range<u64>) -> Result<Vec<u8>, Failure> {
    blocking(move || {
        let mut data = vec![0; (range.end - range.start) as usize];
        let io = |e: std::io::Error| {
            Failure::refusal(FailureKind::Io, format!("a blob cannot be read: {e}"))
        };
        file.read_exact_at(&mut data, range.start).map(|()| data).map_err(io)
    })
    .await
}

fn checked(field: &str, blake3: &[u8], nbytes: u64) -> Result<(Hash, u64), Failure> {
    if nbytes == 0 || nbytes > MAX_BLOB_BYTES {
        return Err(bad(format!("{field}.nbytes is {nbytes}, 1 to {MAX_BLOB_BYTES}")));
    }
    Ok((hash_from_wire(field, blake3)?, nbytes))
}

fn bad(why: String) -> Failure {
    Failure::refusal(FailureKind::BadMessage, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use brigade_proto::control::Holder;

    fn request() -> GatherRequest {
        let blob = Blob { blake3: vec![1; 32].into(), nbytes: 9 };
        let holder = Holder { address: "10.0.0.1:7".to_string(), key: vec![].into() };
        GatherRequest { blobs: vec![blob], holders: vec![holder], ..GatherRequest::default() }
    }

    #[test]
    fn what_breaks_a_cap_of_a_gathering_is_named() {
        Gather::parse(request()).unwrap();
        type Change = dyn Fn(&mut GatherRequest);
        for (change, word) in [
            (&(|r: &mut GatherRequest| r.blobs.clear()) as &Change, "gather.blobs"),
            (&|r| r.blobs = vec![r.blobs[0].clone(); MAX_GATHERED + 1], "gather.blobs"),
            (&|r| r.blobs[0].nbytes = 0, "gather.blobs.nbytes"),
            (&|r| r.blobs[0].nbytes = MAX_BLOB_BYTES + 1, "gather.blobs.nbytes"),
            (&|r| r.blobs[0].blake3 = vec![1; 31].into(), "gather.blobs"),
            (&|r| r.holders.clear(), "gather.holders"),
            (&|r| r.holders = vec![r.holders[0].clone(); MAX_HOLDERS + 1], "gather.holders"),
            (&|r| r.holders[0].address = "nowhere".to_string(), "gather.holders.address"),
            (&|r| r.holders[0].key = vec![1; 3].into(), "gather.holders.key"),
        ] {
            let mut broken = request();
            change(&mut broken);
            let failure = Gather::parse(broken).unwrap_err();
            assert_eq!(failure.kind(), FailureKind::BadMessage);
            assert!(failure.reason.contains(word), "{word}: {}", failure.reason);
        }
    }

    #[test]
    fn what_breaks_a_cap_of_a_request_for_weights_is_named() {
        let blob = WantedBlob { blake3: vec![1; 32].into(), nbytes: 9, offset: 8 };
        let of = |blobs: Vec<WantedBlob>| wanted(&WeightsRequest { blobs });
        assert_eq!(of(vec![blob.clone()]).unwrap().len(), 1);
        for blobs in [
            vec![blob.clone(); MAX_GATHERED + 1],
            vec![WantedBlob { offset: 9, ..blob.clone() }],
            vec![WantedBlob { nbytes: 0, ..blob.clone() }],
            vec![WantedBlob { blake3: vec![].into(), ..blob }],
        ] {
            assert!(of(blobs).unwrap_err().reason.contains("weights.blobs"));
        }
    }
}
