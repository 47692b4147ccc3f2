//! A model that is split over several files.

use crate::support::TempPath;
use brigade_gguf::{Gguf, GgufError, GgufWriter};
use brigade_quant::GgmlType;

/// Header of one shard, and its one tensor.
#[derive(Clone)]
struct Shard {
    no: u16,
    count: u16,
    tensors: i32,
    tensor: &'static str,
}

fn shards() -> Vec<Shard> {
    let shard = |no, tensor| Shard { no, count: 3, tensors: 3, tensor };
    vec![shard(0, "a"), shard(1, "b"), shard(2, "c")]
}

/// Writes the shards beside each other; keeps the files until dropped.
fn write(prefix: &str, shards: &[Shard]) -> Result<Vec<TempPath>, GgufError> {
    let mut paths = Vec::new();
    for (i, shard) in shards.iter().enumerate() {
        let path = TempPath::new(&format!("{prefix}-{:05}-of-{:05}.gguf", i + 1, shards.len()));
        let mut w = GgufWriter::new();
        if i == 0 {
            w.set("general.architecture", "test")?;
        }
        w.set("split.no", &shard.no)?;
        w.set("split.count", &shard.count)?;
        w.set("split.tensors.count", &shard.tensors)?;
        w.tensor(shard.tensor, GgmlType::F32, &[4])?;
        let mut out = w.start(std::fs::File::create(&path.0).unwrap()).unwrap();
        out.write(&[i as u8; 16]).unwrap();
        out.finish().unwrap();
        paths.push(path);
    }
    Ok(paths)
}

#[test]
fn looks_like_one_file() {
    let paths = write("good", &shards()).unwrap();
    let model = Gguf::open(&paths[0].0).unwrap();
    assert_eq!(model.architecture().unwrap(), "test");
    let names: Vec<_> = model.tensors().iter().map(|t| (t.name.as_str(), t.shard)).collect();
    assert_eq!(names, [("a", 0), ("b", 1), ("c", 2)]);
    for (i, name) in ["a", "b", "c"].into_iter().enumerate() {
        assert_eq!(model.data(model.require(name).unwrap()).unwrap(), [i as u8; 16]);
    }
    assert!(model.paths().eq(paths.iter().map(|path| &path.0)));

    let copy = Gguf::from_header_bytes(&model.header_bytes(), "copy").unwrap();
    assert_eq!(copy.tensors(), model.tensors());
    assert_eq!(copy.header_bytes(), model.header_bytes());
}

/// The error of three shards after `change`.
fn refusal(prefix: &str, change: impl Fn(&mut Vec<Shard>)) -> String {
    let mut shards = shards();
    change(&mut shards);
    let paths = write(prefix, &shards).unwrap();
    Gguf::open(&paths[0].0).unwrap_err().to_string()
}

/// Prefix of the files' names, what is changed, words of the error.
type Case = (&'static str, fn(&mut Vec<Shard>), &'static [&'static str]);

#[test]
fn inconsistent_shards_are_refused_by_name() {
    let cases: [Case; 5] = [
        ("order", |s| s[2].no = 1, &["order-00003-of-00003.gguf", "split.no", "is 1, expected 2"]),
        ("total", |s| s[0].tensors = 4, &["split.tensors.count", "4 tensors", "hold 3"]),
        ("twice", |s| s[2].tensor = "a", &["twice-00003", "a is in another file too"]),
        ("first", |s| s[0].no = 1, &["split.no", "file 2 of 3", "open the first"]),
        ("count", |s| s[0].count = 4, &["split.count", "-00001-of-00004.gguf"]),
    ];
    for (prefix, change, words) in cases {
        let message = refusal(prefix, change);
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
}

#[test]
fn a_missing_shard_is_named() {
    let paths = write("missing", &shards()).unwrap();
    std::fs::remove_file(&paths[1].0).unwrap();
    let message = Gguf::open(&paths[0].0).unwrap_err().to_string();
    assert!(message.contains("missing-00002-of-00003.gguf"), "{message}");
}

#[test]
fn a_later_shard_alone_is_refused() {
    let paths = write("later", &shards()).unwrap();
    let message = Gguf::open(&paths[1].0).unwrap_err().to_string();
    assert!(message.contains("file 2 of 3: open the first"), "{message}");
    let bytes = std::fs::read(&paths[0].0).unwrap();
    let message = Gguf::from_bytes(bytes.into(), "bytes").unwrap_err().to_string();
    assert!(message.contains("3 files make the model, 1 given"), "{message}");
}
