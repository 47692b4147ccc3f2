//! Writes the first inputs of each fuzz target into `corpus/`: small valid files, from which the fuzzer gets
//! to all branches sooner than from nothing. Run it with `cargo run --example seeds`.

use brigade_engine::state::SnapshotWriter;
use brigade_gguf::{Gguf, GgufWriter};
use brigade_proto::control::{self, Blob, PrepareRequest, StageSpec, TensorRef, WireType};
use brigade_proto::copies::{WantedBlob, WeightsRequest};
use brigade_proto::pipeline::{self as pb, lane_frame::Body};
use brigade_proto::tls::authority::{Validity, newcomer_certificate};
use brigade_proto::tls::{Authority, NodeKey, Role, Token};
use brigade_quant::GgmlType;
use brigade_synth::{ARCHES, FileType, Shape, Spec, write};
use brigade_worker::records::Key;
use brigade_worker::records::record::{
    About, CHECK_BYTES, Checkpoint, Id, NewRecord, PREAMBLE_BYTES, Whose, checkpoint_head, encode,
};
use prost::Message;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

/// Architectures whose headers differ most: a few, since the corpus is kept in the repository.
const MODELS: [&str; 4] = ["llama", "deepseek2", "rwkv7", "qwen3next"];

/// When the certificates were made.
const NOW: u64 = 1_800_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    gguf()?;
    frame()?;
    texts()?;
    records()?;
    names()?;
    cluster()
}

fn save(target: &str, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    std::fs::create_dir_all(&corpus)?;
    std::fs::write(corpus.join(name), bytes)
}

/// The head of a bundle with a page and a rest, between the number of its records' bytes and those.
fn records() -> Result<(), Box<dyn Error>> {
    let about = |tail: Option<Key>| About {
        id: Id { chain: [1; 16], line: [2; 16], tail },
        layer: 3,
        print: blake3::hash(b"layer 3"),
        len: 70,
        has_pages: true,
        alone: tail.is_none(),
        pages: u32::from(tail.is_none()),
    };
    let page = vec![(0, true, vec![7; 6].into()), (1, true, vec![8; 2].into())];
    let rest = vec![(0, true, vec![].into()), (256, false, vec![9; 3].into())];
    let new = [(None, page), (Some([6; 16]), rest)];
    let new = new.map(|(tail, parts)| NewRecord { about: about(tail), parts });
    let bundle = encode(Whose { realm: [4; 16], owner: [5; 16] }, [3; 32], &new);
    let n_data = 11;
    let inside = &bundle[PREAMBLE_BYTES..];
    let (head, data) = inside.split_at(inside.len() - n_data);
    let head = &head[..head.len() - CHECK_BYTES];
    save("records", "two", &[&[n_data as u8], head, data].concat())?;
    let prints = vec![blake3::hash(b"layer 3")];
    let of = Checkpoint { name: [7; 16], layers: 3..4, prints, at: Some((70, [8; 16])) };
    let bundle = checkpoint_head(&of, [3; 32], &new);
    let head = &bundle[PREAMBLE_BYTES..bundle.len() - CHECK_BYTES];
    Ok(save("records", "checkpoint", &[&[n_data as u8], head, data].concat())?)
}

/// A token, a name, an id; certificates of an authority, of a node and of a newcomer, a key, a list of revoked keys.
/// All of them are thrown away: they open nothing.
fn cluster() -> Result<(), Box<dyn Error>> {
    let key = NodeKey::generate()?;
    save("tokens", "token", Token::generate(key.id())?.to_string().as_bytes())?;
    save("tokens", "name", b"gpu-1.rack2")?;
    save("tokens", "id", key.id().to_string().as_bytes())?;
    save("tokens", "coordinator", format!("desk:{}:17", key.id()).as_bytes())?;
    let (of, pem) = Authority::create(NOW)?;
    save("certificates", "authority.pem", pem.as_bytes())?;
    let of = Authority::load(of, "ca", &pem)?;
    let validity = Validity::from_now(NOW, Duration::from_secs(3600));
    let node = of.issue_to(&key, Role::Worker, "lab", validity)?;
    save("certificates", "node", &node)?;
    save("certificates", "newcomer", &newcomer_certificate(&key, "lab", NOW)?)?;
    Ok(save("certificates", "revoked", key.id().as_bytes())?)
}

/// Answers of a hub, a manifest, a lock, names, requests to fetch, and a configuration file.
fn names() -> Result<(), Box<dyn Error>> {
    let hash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    save("hub", "listing", LISTING.replace("HASH", hash).as_bytes())?;
    save("hub", "manifest", MANIFEST.replace("HASH", hash).as_bytes())?;
    save("hub", "lock", LOCK.replace("HASH", hash).as_bytes())?;
    save("hub", "hugging-face", b"hf:user/repo:Q4_K_M")?;
    save("hub", "ollama", b"ollama:user/name:tag")?;
    save("hub", "address", b"https://host/folder/file.gguf?query")?;
    let spans =
        vec![control::Span { offset: 64, nbytes: 9 }, control::Span { offset: 96, nbytes: 1 }];
    let fetch = control::FetchRequest {
        epoch: 1,
        coordinator_id: "c".into(),
        address: "https://host/file?signature".into(),
        file_bytes: 100,
        etag: "\"1\"".into(),
        file_sha256: vec![1; 32].into(),
        spans,
        private_hosts: vec!["host:80".into()],
    };
    save("fetch", "fetch", &fetch.encode_to_vec())?;
    let blob = Blob { blake3: vec![3; 32].into(), nbytes: 100 };
    let holder = control::Holder { address: "10.0.0.1:7".into(), key: vec![].into() };
    let (epoch, coordinator_id, blobs, holders) = (1, "c".into(), vec![blob], vec![holder]);
    let gather = control::GatherRequest { epoch, coordinator_id, blobs, holders };
    save("fetch", "gather", &gather.encode_to_vec())?;
    let wanted = WantedBlob { blake3: vec![3; 32].into(), nbytes: 100, offset: 9 };
    save("fetch", "weights", &WeightsRequest { blobs: vec![wanted] }.encode_to_vec())?;
    Ok(save("options", "small", OPTIONS.as_bytes())?)
}

const LISTING: &str = r#"{"sha": "0123456789012345678901234567890123456789", "siblings": [{"rfilename": "README.md", "size": 3},
 {"rfilename": "a/b-Q4_K_M-00001-of-00001.gguf", "size": 9, "lfs": {"sha256": "HASH", "size": 9}}],
 "cardData": {"license": "other", "license_name": "own"}}"#;

const MANIFEST: &str = r#"{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:HASH", "size": 7}]}"#;

const LOCK: &str = r#"{"version": 1, "models": [{"name": "hf:u/r:Q8_0", "usual": true, "commit": "1", "licence": null,
 "quant": "Q8_0", "last_used": 1, "files": [{"url": "https://host/x.gguf", "size": 1, "sha256": "HASH",
 "own": "hf/u/r/1/x.gguf"}, {"size": 1, "sha256": "HASH", "elsewhere": {"path": "/x.gguf", "mtime_ns": 1}}]}],
 "tensors": {"HASH": {"blk.0.w": "HASH"}}}"#;

const OPTIONS: &str = "version = 1\n[serve]\nlisten = \"a:1\"\nctx = 4_096\nworker = ['a:1']\nno-auth = true\n\
[[model]]\nname = \"a\"\nmodel = \"b.gguf\"\n[worker]\njoin = \"a:2\"\n[run]\ntemp = 0.5\n";

/// Bodies, templates, messages, a snapshot, a file of keys.
fn texts() -> Result<(), Box<dyn Error>> {
    save("http", "chat", CHAT.as_bytes())?;
    save("http", "completion", COMPLETION.as_bytes())?;
    save("template", "chatml", TEMPLATE.as_bytes())?;
    save("template", "said", &[TEMPLATE.as_bytes(), b"\0Hello <|im_end|>"].concat())?;
    save("control", "prepare", &prepare().encode_to_vec())?;
    let join = control::JoinRequest { address: "10.0.0.2:7070".into(), ..Default::default() };
    save("control", "join", &join.encode_to_vec())?;
    let mut snapshot = SnapshotWriter::new("model", 2, &[5, 6], &[(0, blake3::hash(b"layer 0"))]);
    snapshot.section(0, 0, &[1, 2, 3, 4]);
    let snapshot = snapshot.finish();
    // The target puts the hash behind it.
    save("snapshot", "small", &snapshot[..snapshot.len() - 32])?;
    save("push", "whole", &[0, 52, 1])?;
    Ok(save("keys", "one", KEYS.as_bytes())?)
}

const CHAT: &str = r#"{"messages": [{"role": "system", "content": [{"type": "text", "text": "a"}]},
 {"role": "user", "content": "b"}], "tools": [{"type": "function", "function": {"name": "f",
 "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}], "tool_choice": "auto",
 "temperature": 0.5, "max_tokens": 3, "stop": ["c"], "logit_bias": {"7": -1}, "n": 2, "stream": true,
 "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 2, "timeout": 9.5}"#;

const COMPLETION: &str =
    r#"{"prompt": [[1, 2], [3]], "max_tokens": -1, "seed": 4, "echo": false, "logprobs": 1}"#;

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m['content'] }}<|im_end|>\n\
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const KEYS: &str = r#"{"version": 1, "keys": [{"name": "a", "shown": "bgd-0", "created": 1, "concurrent": 2,
 "hash": "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262", "priority": "low", "admin": false}]}"#;

fn gguf() -> Result<(), Box<dyn Error>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/gguf");
    std::fs::create_dir_all(&corpus)?;
    let save = |name: &str, bytes: &[u8]| std::fs::write(corpus.join(name), bytes);

    save("empty", &GgufWriter::new().start(Vec::new())?.finish()?)?;
    let small = small(&mut GgufWriter::with_alignment(8)?)?;
    save("small", &small)?;
    save("small-headers", &Gguf::from_bytes(small.into(), "small")?.header_bytes())?;
    for arch in ARCHES.iter().filter(|arch| MODELS.contains(&arch.name())) {
        // Headers only: weights would be most of the bytes, and nothing looks at them.
        let path = corpus.join(arch.name());
        let header = |shape| {
            let arch = *arch;
            let spec = Spec { arch, shape, quant: FileType::Q4_K_M, seed: 1, header_only: true };
            write(&spec, &path)
        };
        let shape = Shape { n_layer: 1, vocab: 354, ..Shape::named("tiny-moe")? };
        // Some have experts always, some never, and of those some an embedding that is the output.
        let dense = Shape { experts: None, ..shape.clone() };
        header(shape)
            .or_else(|_| header(dense.clone()))
            .or_else(|_| header(Shape { tied: true, ..dense }))?;
        save(&format!("{}-headers", arch.name()), &Gguf::open_header_only(&path)?.header_bytes())?;
    }
    println!("{} seeds in {}", std::fs::read_dir(&corpus)?.count(), corpus.display());
    Ok(())
}

/// A frame for each end of the line, with ops that open, copy, cut and close sequences; an order, and the small bodies.
fn frame() -> Result<(), Box<dyn Error>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/frame");
    std::fs::create_dir_all(&corpus)?;
    let save = |name: &str, bytes: &[u8]| std::fs::write(corpus.join(name), bytes);
    let body = |body| pb::LaneFrame { body: Some(body) }.encode_to_vec();
    let ubatch = ubatch();
    save("ubatch-first", &body(Body::Ubatch(ubatch.clone())))?;
    let data = vec![1; 3 * 4 * 4].into();
    let boundary = pb::Boundary { dtype: WireType::F32.into(), n_rows: 3, width: 4, data };
    save("ubatch-next", &body(Body::Ubatch(pb::Ubatch { boundary: Some(boundary), ..ubatch })))?;
    save("open", &body(Body::Open(pb::LaneOpen { epoch: 1, ..Default::default() })))?;
    let failure = pb::Failure { kind: 10, stage: 2, reason: "why".into() };
    save("abort", &body(Body::Abort(failure)))?;
    save("prepare", &prepare().encode_to_vec())?;
    println!("{} seeds in {}", std::fs::read_dir(&corpus)?.count(), corpus.display());
    Ok(())
}

fn ubatch() -> pb::Ubatch {
    use pb::seq_op::Op;
    let bias = pb::LogitBias { token: 7, bias: -1.0 };
    let sampler = pb::SamplerSetup {
        temperature: 0.7,
        top_k: 40,
        logit_bias: vec![bias],
        top_logprobs: Some(3),
        ..Default::default()
    };
    let blocks = vec![1, 2];
    let copy = pb::CopyOp {
        src: 0,
        dst: 1,
        len: 5,
        blocks: blocks.clone(),
        sampler: None,
        request: "req-2".into(),
    };
    let ops = [
        Op::Open(pb::OpenOp { slot: 0, blocks, sampler: Some(sampler), request: "req-1".into() }),
        Op::Copy(copy),
        Op::Truncate(pb::TruncateOp { slot: 1, len: 4, from: None, to: None }),
        Op::Close(pb::CloseOp { slot: 2 }),
    ];
    pb::Ubatch {
        ops: ops.into_iter().map(|op| pb::SeqOp { op: Some(op) }).collect(),
        parts: vec![
            pb::SeqPart { slot: 0, pos: 0, tokens: vec![5, 6], want: 1, mu: None, ahead: None },
            pb::SeqPart { slot: 1, pos: 4, tokens: vec![9], want: 2, mu: None, ahead: None },
        ],
        timings: vec![pb::StageTiming {
            queue_us: 1,
            compute_us: 2,
            wire_bytes: 3,
            started_us: 4,
            receive_us: 5,
            last_send_us: 6,
            draft_us: 0,
        }],
        ..Default::default()
    }
}

fn prepare() -> PrepareRequest {
    let blob = Blob { blake3: vec![3; 32].into(), nbytes: 100 };
    let spec = StageSpec {
        stage: 0,
        n_stages: 2,
        layer_begin: 0,
        layer_end: 2,
        max_seqs: 4,
        n_blocks: 8,
        max_ctx: 128,
        max_rows: 16,
        kv_type: 1,
        wire_type: 1,
        next_hop: "127.0.0.1:7".into(),
        ..Default::default()
    };
    PrepareRequest {
        epoch: 1,
        coordinator_id: "c".into(),
        spec: Some(spec),
        header: Some(blob.clone()),
        tensors: vec![TensorRef { name: "blk.0.w".into(), blob: Some(blob) }],
        ..Default::default()
    }
}

/// Every kind of value, two tensors.
fn small(w: &mut GgufWriter) -> Result<Vec<u8>, Box<dyn Error>> {
    w.set("general.architecture", "test")?;
    w.set("u8", &1_u8)?;
    w.set("i8", &1_i8)?;
    w.set("u16", &1_u16)?;
    w.set("i16", &1_i16)?;
    w.set("u32", &1_u32)?;
    w.set("i32", &1_i32)?;
    w.set("u64", &1_u64)?;
    w.set("i64", &1_i64)?;
    w.set("f32", &1_f32)?;
    w.set("f64", &1_f64)?;
    w.set("bool", &true)?;
    w.set("strings", &["a", "bc"][..])?;
    w.set("bools", &[true, false][..])?;
    w.set("numbers", &[1_u32, 2, 3, 4][..])?;
    w.tensor("a", GgmlType::F32, &[2, 2])?;
    w.tensor("b", GgmlType::Q8_0, &[32])?;
    let mut out = std::mem::take(w).start(Vec::new())?;
    out.write(&[1; 16])?;
    out.write(&[2; 34])?;
    Ok(out.finish()?)
}
