//! Every cap on what a peer may send. A message over one of them is refused with the cap's name.
//!
//! A peer is a **stranger** until one of its calls names the coordinator that holds the worker. The memory that all
//! strangers together can occupy is about:
//!
//! - [`MAX_STRANGER_BYTES`] of messages that are not complete, and [`PREPARES_AT_ONCE`] decoded manifests;
//! - for each of [`MAX_CONNECTIONS`] connections, one HTTP/2 frame, 64 KiB more over TLS, and [`MAX_STREAMS`] calls of
//!   some 20 KiB;
//! - bytes on their way into the gate, within HTTP/2's windows ([`crate::net::STREAM_WINDOW_BYTES`] for each call).

/// Bytes of one lane or result frame: 512 rows of nine 7168-wide f32 vectors and room to spare.
/// Only a lane that was accepted may have frames above [`MAX_SMALL_BYTES`].
pub const MAX_FRAME_BYTES: usize = 256 << 20;
/// Bytes of a lane's frame beside its boundary and its tokens. This is enough for sampler settings and lists of pages
/// for every slot at once; a list of pages has some 50 KiB for a million positions.
pub const MAX_FRAME_OPS_BYTES: usize = 64 << 20;
/// Bytes of a Prepare and its answer, the largest control messages: about 100 bytes a tensor.
pub const MAX_CONTROL_BYTES: usize = 32 << 20;
/// Bytes of every message that has no larger cap, and of a lane's first frame: two names of
/// [`MAX_NAME_BYTES`], a reason, and the lists of a worker's abilities.
pub const MAX_SMALL_BYTES: usize = 32 << 10;
/// Bytes of a message that brings a piece of weights or of a state: the piece, its blob, a name.
pub const MAX_PIECE_BYTES: usize = MAX_CHUNK_BYTES + MAX_SMALL_BYTES;
/// Bytes received, on all connections together, of messages that are not complete yet, and of
/// Prepares that are being answered: four of the largest. Accepted streams do not count.
pub const MAX_STRANGER_BYTES: usize = 4 * MAX_CONTROL_BYTES;
/// The same as [`MAX_STRANGER_BYTES`], from one address: the half, so that no address takes all.
pub const MAX_PEER_BYTES: usize = MAX_STRANGER_BYTES / 2;
/// Prepares that a process decodes and answers at a time. A manifest of [`MAX_TENSORS`] takes some
/// 30 MB; one coordinator has one on its way to a worker.
pub const PREPARES_AT_ONCE: usize = 4;
/// Connections of a process. A worker has four from its coordinator, one from the stage before it,
/// and a few from commands that look; a coordinator has one from every worker that joins.
pub const MAX_CONNECTIONS: usize = 256;
/// Connections from one address: enough for many workers on one machine, too few to take all.
pub const MAX_PEER_CONNECTIONS: usize = 128;
/// Calls open at once on a connection; the rest wait at the caller's.
pub const MAX_STREAMS: u32 = 16;
/// Bytes of a call's headers: a path and a few fixed ones; a failure travels in an answer's.
pub const MAX_HEADER_BYTES: u32 = 16 << 10;
/// Bytes that a TLS handshake counts as among all strangers' bytes, until it is over. rustls keeps messages of up to
/// 64 KiB, and as much is read off the socket at once.
pub const HANDSHAKE_BYTES: usize = 128 << 10;
/// Time from a connection to its first call, the handshakes below it included. A coordinator that has no call to make
/// yet dials again later.
pub const FIRST_CALL_MS: u64 = 10_000;
/// Bytes in which a connection to the port of a node with several stages says which one it is for: a TLS client's first message
/// has a few hundred, and 2 KiB with the largest keys there are.
pub const MAX_GREETING_BYTES: usize = 4 << 10;
/// Bytes that a node tells one of its stages at once: its word for the stage, or a key with its certificates.
pub const MAX_WORD_BYTES: usize = 8 << 10;
/// Time a stranger's connection may have no open call.
pub const IDLE_MS: u64 = 60_000;
/// Time from a stranger's call to the end of its first message: a 32 MiB Prepare at 1 MiB/s.
pub const MESSAGE_MS: u64 = 30_000;
/// Calls of strangers from one address that a worker answers a second. A coordinator makes a handful
/// when it connects, and then one a second.
pub const STRANGER_CALLS_PER_SECOND: u32 = 100;
/// Calls of strangers from one address that are answered at once after a pause.
pub const STRANGER_BURST: u32 = 100;
/// Time a stranger's call waits for its turn before it is told to come back: below a handshake's
/// patience, long enough that a flood's calls are few.
pub const STRANGER_WAIT_MS: u64 = 2_000;
/// Addresses whose calls are counted at a time.
pub const MAX_PEERS: usize = 1024;
/// Sequences whose states a worker reads or writes at a time: a snapshot is held whole in memory.
pub const STATES_AT_ONCE: usize = 1;
/// Silence after which a transfer of a state is given up, and time one waits for its turn.
pub const STATE_STALL_MS: u64 = 30_000;
/// Limit of the step from a coordinator's last epoch, or from 0, to a new one: one a second for 136 years. So 2^64 -
/// 1, after which there is no further epoch, is out of reach.
pub const MAX_EPOCH_STEP: u64 = 1 << 32;
/// Coordinators whose last epoch a worker remembers after others have held it.
pub const MAX_PAST_OWNERS: usize = 16;

/// Bytes of one weight chunk's data.
pub const MAX_CHUNK_BYTES: usize = 4 << 20;
/// Bytes of weight data a sender puts into one chunk.
pub const CHUNK_BYTES: usize = 1 << 20;
/// Bytes of a blob (one tensor or one GGUF header).
pub const MAX_BLOB_BYTES: u64 = 1 << 40;
/// Tensors in a manifest.
pub const MAX_TENSORS: usize = 100_000;
/// Files of a split model.
pub const MAX_FILES: usize = 1024;
/// Tensors that one call fetches: so many, and an address, are less than [`MAX_SMALL_BYTES`].
pub const MAX_SPANS: usize = 512;
/// Blobs that one call gathers from other workers: with their holders less than [`MAX_SMALL_BYTES`].
pub const MAX_GATHERED: usize = 256;
/// Workers that one call may ask for blobs.
pub const MAX_HOLDERS: usize = 16;
/// Calls at a time in which a worker fetches or gathers tensors. One coordinator has one, and one that it gave up may last a
/// while; each has a few connections, and a piece of each in memory.
pub const FETCHES_AT_ONCE: usize = 4;
/// Calls at a time in which a worker hands out weights to others.
pub const WEIGHTS_AT_ONCE: usize = 4;
/// Hosts of this network that a fetch may reach.
pub const MAX_PRIVATE_HOSTS: usize = 16;
/// Bytes of a name or an address.
pub const MAX_NAME_BYTES: usize = 4096;
/// Bytes of a failure's reason; longer ones are cut.
pub const MAX_REASON_BYTES: usize = 4096;
/// Bytes of a request's id, as it runs through every process's log.
pub const MAX_REQUEST_ID_BYTES: usize = 128;
/// Bytes of a snapshot beside the state and the tokens: names, lengths, a hash.
pub const SNAPSHOT_FRAME_BYTES: u64 = 1 << 20;
/// Stages of a line.
pub const MAX_STAGES: usize = 256;
/// Layers of a model.
pub const MAX_LAYERS: u32 = 4096;
/// Sequence slots of a stage.
pub const MAX_SEQS: u32 = 65_536;
/// KV pages of a stage.
pub const MAX_BLOCKS: u32 = 1 << 24;
/// Positions of a sequence.
pub const MAX_CTX: u32 = 1 << 24;
/// Rows of a ubatch.
pub const MAX_ROWS: u32 = 16_384;
/// Tokens that a model's own block drafts behind a drawn one.
pub const MAX_DRAFTED: u64 = 16;
/// Sequence operations in a ubatch.
pub const MAX_OPS: usize = 65_536;
/// Entries of a sequence's logit bias.
pub const MAX_LOGIT_BIAS: usize = 4096;
/// Entries of all logit biases of a ubatch: a full one for each of 256 sequences.
pub const MAX_FRAME_BIAS: usize = 256 * MAX_LOGIT_BIAS;
/// Tokens that no repeated run goes across, and those that may not be drawn yet, of one sampler set-up each.
pub const MAX_SAMPLER_TOKENS: usize = 1 << 16;
/// Bytes of one grammar of a sampler set-up.
pub const MAX_GRAMMAR_BYTES: usize = 256 << 10;
/// Grammars, markers, or tokens to begin with, of one constraint.
pub const MAX_MARKERS: usize = 64;
/// Bytes of a marker.
pub const MAX_MARKER_BYTES: usize = 256;
/// Limit for all set-ups in a frame.
pub const MAX_FRAME_MARKERS: usize = 4096 * MAX_MARKERS;
/// Adapters beside a model, and of one sequence.
pub const MAX_ADAPTERS: usize = 64;
/// Limit for all sequences that a frame opens.
pub const MAX_FRAME_ADAPTERS: usize = 4096 * MAX_ADAPTERS;
/// Alternatives reported per sampled token.
pub const MAX_TOP_LOGPROBS: u32 = 1024;
/// Alternatives reported in one result frame: all that are possible for 4096 sampled rows.
pub const MAX_FRAME_TOPS: usize = 4096 * MAX_TOP_LOGPROBS as usize;
/// Names in one list of a worker's abilities.
pub const MAX_ABILITIES: usize = 256;
/// Bytes of memory that a worker may claim: 1 PiB.
pub const MAX_MEMORY_BYTES: u64 = 1 << 50;
/// Compute threads that a worker may claim.
pub const MAX_CLAIMED_THREADS: u32 = 65_536;
/// Most stages that a worker's node may claim to have.
pub const MAX_CLAIMED_STAGES: u32 = 64;
/// The speed that a worker may claim, in 10^9 bytes or operations a second: a hundred times that of today's fastest
/// machines.
pub const MAX_CLAIMED_SPEED: f64 = 1e9;
/// Tokens of a vocabulary.
pub const MAX_VOCAB: u32 = 1 << 24;
/// Lanes of a pipeline.
pub const MAX_LANES: u32 = 1;
/// Bytes of a blake3 hash.
pub const HASH_BYTES: usize = 32;

/// Bytes of a sequence's name, and of a mark of its tokens.
pub const COPY_NAME_BYTES: usize = 16;
/// Sequences that are looked for at a time after a line was lost; more are computed again.
pub const MAX_COPY_NAMES: usize = 1024;
/// Runs of layers for which a worker may list copies: a few for each sequence.
pub const MAX_FOUND: usize = 8 * MAX_COPY_NAMES;
/// Positions of a sequence that a worker says it has copies of: the newest.
pub const COPY_POSITIONS: usize = 64;
/// Places that the copies of one stage's layers may come from.
pub const MAX_COPY_SOURCES: usize = MAX_STAGES;
/// Runs of layers for which a worker may list records of a prompt.
pub const MAX_PREFIX_RUNS: usize = MAX_LAYERS as usize;
/// Positions of a prompt, beside the ends of pages, at which a worker says that it has records: the longest.
pub const PREFIX_POSITIONS: usize = 256;
/// Full pages of a prompt in a message.
pub const MAX_PREFIX_PAGES: usize = 128 << 10;
/// Owners in a message.
pub const MAX_PREFIX_OWNERS: usize = 64 << 10;
/// Bytes of copies that a sender puts into one message: small beside a hop's frames, which share the
/// receiver's thread.
pub const COPY_CHUNK_BYTES: usize = 256 << 10;

/// Interval of the coordinator's Health calls.
pub const HEARTBEAT_MS: u64 = 1_000;
/// Missed heartbeats after which a worker counts as lost.
pub const HEARTBEATS_MISSED: u32 = 3;
/// Silence after which a worker may be taken by another coordinator: longer than the coordinator's
/// own patience, so that the two never both believe in a lease.
pub const LEASE_MS: u64 = 5_000;
