//! Every cap on what a peer may send. A message over one of them is refused with its name.

/// Bytes of one lane or result frame: 512 rows of nine 7168-wide f32 vectors and room to spare.
pub const MAX_FRAME_BYTES: usize = 256 << 20;
/// Bytes of one control message; the largest is Prepare's manifest (about 100 bytes a tensor).
pub const MAX_CONTROL_BYTES: usize = 32 << 20;
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
/// Sequence operations in a ubatch.
pub const MAX_OPS: usize = 65_536;
/// Entries of a sequence's logit bias.
pub const MAX_LOGIT_BIAS: usize = 4096;
/// Alternatives reported per sampled token.
pub const MAX_TOP_LOGPROBS: u32 = 1024;
/// Tokens of a vocabulary.
pub const MAX_VOCAB: u32 = 1 << 24;
/// Lanes of a pipeline.
pub const MAX_LANES: u32 = 1;
/// Bytes of a blake3 hash.
pub const HASH_BYTES: usize = 32;

/// Interval of the coordinator's Health calls.
pub const HEARTBEAT_MS: u64 = 1_000;
/// Missed heartbeats after which a worker counts as lost.
pub const HEARTBEATS_MISSED: u32 = 3;
/// Silence after which a worker may be taken by another coordinator: longer than the coordinator's
/// own patience, so that the two never both believe in a lease.
pub const LEASE_MS: u64 = 5_000;
