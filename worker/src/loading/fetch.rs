//! Fetches tensors from the source of their model, by byte range, into the cache. Their hashes are not known before;
//! this worker computes and reports them.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use blake3::Hash;
use brigade_hub::client::Client;
use brigade_hub::error::HubError;
use brigade_hub::ranges::{self, FileAt};
use brigade_proto::control::FetchRequest;
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::{MAX_BLOB_BYTES, MAX_NAME_BYTES, MAX_PRIVATE_HOSTS, MAX_SPANS};

use super::load::cache_failure;
use crate::weights::cache::{BlobWriter, Cache, CacheError, Needed};

/// Connections at a time.
const AT_ONCE: usize = 4;

/// Bytes between two tensors that are read over rather than asked around.
const GAP: u64 = 64 << 10;

/// Bytes of neighbouring tensors that one request asks for.
const RANGE_BYTES: u64 = 64 << 20;

/// Bytes of a SHA-256.
const SHA256_BYTES: usize = 32;

/// A validated request.
#[derive(Debug)]
pub struct Fetch {
    file: FileAt,
    sha256: Vec<u8>,
    spans: Vec<Range<u64>>,
    private_hosts: Vec<String>,
}

/// Progress of a fetch.
#[derive(Debug)]
pub enum Step {
    /// So many bytes have arrived.
    Bytes(u64),
    /// A span is in the cache.
    Done(usize, Hash),
}

/// The reason for which a fetch ended.
#[derive(Debug)]
enum Ended {
    Source(HubError),
    Cache(CacheError),
    Over,
}

impl From<HubError> for Ended {
    fn from(error: HubError) -> Self {
        Self::Source(error)
    }
}

impl From<CacheError> for Ended {
    fn from(error: CacheError) -> Self {
        Self::Cache(error)
    }
}

impl Fetch {
    /// Checks a request against every cap.
    ///
    /// # Errors
    /// BadMessage, naming the field.
    pub fn parse(request: FetchRequest) -> Result<Self, Failure> {
        let bad = |why: String| Failure::refusal(FailureKind::BadMessage, why);
        let FetchRequest { address, file_bytes, etag, file_sha256, spans, private_hosts, .. } =
            request;
        for (field, text) in [("address", &address), ("etag", &etag)] {
            if text.len() > MAX_NAME_BYTES {
                return Err(bad(format!(
                    "fetch.{field} has {} bytes, at most {MAX_NAME_BYTES}",
                    text.len()
                )));
            }
        }
        if file_sha256.len() != SHA256_BYTES {
            return Err(bad(format!(
                "fetch.file_sha256 has {} bytes, not {SHA256_BYTES}",
                file_sha256.len()
            )));
        }
        if spans.is_empty() || spans.len() > MAX_SPANS {
            return Err(bad(format!("fetch.spans: {}, 1 to {MAX_SPANS} are allowed", spans.len())));
        }
        let hosts_fit = private_hosts.iter().all(|host| host.len() <= MAX_NAME_BYTES);
        if private_hosts.len() > MAX_PRIVATE_HOSTS || !hosts_fit {
            return Err(bad(format!("fetch.private_hosts: at most {MAX_PRIVATE_HOSTS} names")));
        }
        let mut end = 0;
        let mut checked = Vec::with_capacity(spans.len());
        for span in &spans {
            let until = span.offset.checked_add(span.nbytes).filter(|until| *until <= file_bytes);
            let until =
                until.filter(|_| span.offset >= end && (1..=MAX_BLOB_BYTES).contains(&span.nbytes));
            end = until.ok_or_else(|| {
                bad("fetch.spans lie in order in their file, and have bytes".to_string())
            })?;
            checked.push(span.offset..end);
        }
        let etag = Some(etag).filter(|etag| !etag.is_empty());
        let file = FileAt { url: address, size: file_bytes, etag };
        Ok(Self { file, sha256: file_sha256.to_vec(), spans: checked, private_hosts })
    }

    /// The spans' parts, for which the cache has room to make.
    pub fn needed(&self) -> Vec<Needed> {
        let needed = |span: &Range<u64>| Needed {
            hash: self.key(span),
            nbytes: span.end - span.start,
            may_be_absent: false,
        };
        self.spans.iter().map(needed).collect()
    }

    /// Fetches all spans into `cache`, where there is room for them. `step` gets the progress, and returns whether to
    /// go on.
    ///
    /// # Errors
    /// Io where the source cannot be reached or its file differs; otherwise the cache's. Bytes that have arrived stay
    /// for the next call.
    pub fn run(&self, cache: &Cache, step: &(dyn Fn(Step) -> bool + Sync)) -> Result<(), Failure> {
        let client = Client::without_token(self.private_hosts.clone()).map_err(io)?;
        self.run_with(&client, cache, step)
    }

    /// The same as [`Fetch::run`], with a client that may have a token.
    ///
    /// # Errors
    /// As [`Fetch::run`].
    pub fn run_with(
        &self,
        client: &Client,
        cache: &Cache,
        step: &(dyn Fn(Step) -> bool + Sync),
    ) -> Result<(), Failure> {
        let keys: Vec<Hash> = self.spans.iter().map(|span| self.key(span)).collect();
        let stretches = self.stretches();
        let (next, done, over) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let failed = Mutex::new(None);
        let work = || {
            while !over.load(Ordering::Relaxed) {
                let Some(stretch) = stretches.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    return;
                };
                let bytes = |n: u64| {
                    !over.load(Ordering::Relaxed)
                        && step(Step::Bytes(done.fetch_add(n, Ordering::Relaxed) + n))
                };
                if let Err(error) =
                    self.stretch(client, cache, &keys, stretch.clone(), &bytes, step)
                {
                    over.store(true, Ordering::Relaxed);
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE.min(stretches.len()) {
                scope.spawn(work);
            }
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(Ended::Source(error)) => Err(io(error)),
            Some(Ended::Cache(error)) => Err(cache_failure(error)),
            Some(Ended::Over) => Err(Failure::refusal(
                FailureKind::StaleEpoch,
                "the coordinator that asked for the weights is gone",
            )),
        }
    }

    /// The name of a span's bytes until their hash is known. It depends on the file and its state.
    fn key(&self, span: &Range<u64>) -> Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"brigade fetch 1");
        hasher.update(&self.sha256);
        hasher.update(self.file.etag.as_deref().unwrap_or_default().as_bytes());
        hasher.update(&span.start.to_le_bytes());
        hasher.update(&span.end.to_le_bytes());
        hasher.finalize()
    }

    /// Spans that one request each asks for, by their numbers.
    fn stretches(&self) -> Vec<Range<usize>> {
        let mut found: Vec<Range<usize>> = Vec::new();
        for (i, span) in self.spans.iter().enumerate() {
            match found.last_mut() {
                Some(last)
                    if span.start - self.spans[last.end - 1].end <= GAP
                        && span.end - self.spans[last.start].start <= RANGE_BYTES =>
                {
                    last.end = i + 1;
                }
                _ => found.push(i..i + 1),
            }
        }
        found
    }

    fn stretch(
        &self,
        client: &Client,
        cache: &Cache,
        keys: &[Hash],
        spans: Range<usize>,
        bytes: &dyn Fn(u64) -> bool,
        step: &dyn Fn(Step) -> bool,
    ) -> Result<(), Ended> {
        let mut filler = Filler { fetch: self, cache, keys, spans, at: 0, open: None, bytes, step };
        filler.begin()?;
        let Some(open) = &filler.open else { return Ok(()) };
        // Bytes of the first span that are here are not requested again. Bytes of later spans that are here are
        // skipped while reading.
        filler.at = self.spans[filler.spans.start].start + open.have();
        let range = filler.at..self.spans[filler.spans.end - 1].end;
        ranges::read(client, &self.file, range, &mut |data| filler.take(data))
    }
}

fn io(error: HubError) -> Failure {
    Failure::refusal(FailureKind::Io, error.to_string())
}

/// Parts the bytes of a stretch into its spans.
struct Filler<'a> {
    fetch: &'a Fetch,
    cache: &'a Cache,
    keys: &'a [Hash],
    /// Spans that are not complete; the first one is open.
    spans: Range<usize>,
    /// Where in the file the next byte is from.
    at: u64,
    open: Option<BlobWriter>,
    bytes: &'a dyn Fn(u64) -> bool,
    step: &'a dyn Fn(Step) -> bool,
}

impl Filler<'_> {
    /// Opens the first incomplete span. Bytes of it that an earlier call has left count.
    fn begin(&mut self) -> Result<(), Ended> {
        while !self.spans.is_empty() {
            let span = &self.fetch.spans[self.spans.start];
            let writer =
                self.cache.receive_unnamed(self.keys[self.spans.start], span.end - span.start)?;
            let have = writer.have();
            self.open = Some(writer);
            if have < span.end - span.start {
                return Ok(());
            }
            self.publish()?;
        }
        Ok(())
    }

    fn publish(&mut self) -> Result<(), Ended> {
        if let Some(writer) = self.open.take() {
            (self.step)(Step::Done(self.spans.start, writer.publish()?.0));
            self.spans.start += 1;
        }
        Ok(())
    }

    fn take(&mut self, mut data: &[u8]) -> Result<(), Ended> {
        if !(self.bytes)(data.len() as u64) {
            return Err(Ended::Over);
        }
        while let (Some(writer), false) = (&mut self.open, data.is_empty()) {
            let span = self.fetch.spans[self.spans.start].clone();
            // Skips the gap between two spans, and bytes of this one that are here already.
            let wanted_from = span.start + writer.have();
            let skipped = wanted_from.saturating_sub(self.at).min(data.len() as u64);
            let n = (span.end - wanted_from).min(data.len() as u64 - skipped);
            let (from, until) = (skipped as usize, (skipped + n) as usize);
            writer.write(writer.have(), &data[from..until])?;
            self.at += skipped + n;
            data = &data[until..];
            if self.at == span.end {
                self.publish()?;
                self.begin()?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brigade_proto::control::Span;

    fn request(spans: &[(u64, u64)]) -> FetchRequest {
        let spans = spans.iter().map(|&(offset, nbytes)| Span { offset, nbytes }).collect();
        FetchRequest {
            file_bytes: 1 << 30,
            file_sha256: vec![0; 32].into(),
            spans,
            ..FetchRequest::default()
        }
    }

    #[test]
    fn neighbours_are_asked_for_together() {
        let mib = 1 << 20;
        let fetch = Fetch::parse(request(&[
            (0, mib),
            (mib + 32, mib),
            (9 * mib, mib),
            (10 * mib, 80 * mib),
        ]))
        .unwrap();
        assert_eq!(fetch.stretches(), [0..2, 2..3, 3..4]);
        let keys: std::collections::HashSet<_> =
            fetch.spans.iter().map(|span| fetch.key(span)).collect();
        assert_eq!(keys.len(), 4);
        let mut other = Fetch::parse(request(&[(0, mib)])).unwrap();
        let before = other.key(&other.spans[0]);
        other.file.etag = Some("\"another\"".to_string());
        assert_ne!(other.key(&other.spans[0]), before);
    }

    #[test]
    fn what_breaks_a_cap_is_named() {
        for (change, word) in [
            (
                &(|r: &mut FetchRequest| r.spans.clear()) as &dyn Fn(&mut FetchRequest),
                "fetch.spans",
            ),
            (&|r| r.spans = vec![Span { offset: 1, nbytes: u64::MAX }], "fetch.spans"),
            (
                &|r| r.spans = vec![Span { offset: 9, nbytes: 9 }, Span { offset: 0, nbytes: 9 }],
                "fetch.spans",
            ),
            (&|r| r.spans = vec![Span { offset: 0, nbytes: 0 }], "fetch.spans"),
            (&|r| r.spans = vec![Span::default(); MAX_SPANS + 1], "fetch.spans"),
            (&|r| r.file_sha256 = vec![1; 31].into(), "fetch.file_sha256"),
            (&|r| r.address = "x".repeat(MAX_NAME_BYTES + 1), "fetch.address"),
            (&|r| r.etag = "x".repeat(MAX_NAME_BYTES + 1), "fetch.etag"),
            (
                &|r| r.private_hosts = vec![String::new(); MAX_PRIVATE_HOSTS + 1],
                "fetch.private_hosts",
            ),
        ] {
            let mut bad = request(&[(0, 1)]);
            change(&mut bad);
            let failure = Fetch::parse(bad).unwrap_err();
            assert!(
                failure.kind() == FailureKind::BadMessage && failure.reason.contains(word),
                "{word}"
            );
        }
    }
}
