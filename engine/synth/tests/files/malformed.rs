//! Files in which one field is wrong, for every field: each is refused with an error that names it.

use crate::raw::{ARRAY, BOOL, Raw, STR, U32};
use brigade_gguf::{Gguf, GgufError};

const F32: u32 = 0;
const Q4_K: u32 = 12;

/// The error of a file that must not open.
fn refusal(raw: &Raw) -> String {
    Gguf::from_bytes(raw.0.as_slice().into(), "m.gguf").unwrap_err().to_string()
}

/// Asserts that each file is refused with all the words.
fn refused(cases: &[(&str, Raw, &[&str])]) {
    for (what, raw, words) in cases {
        let message = refusal(raw);
        for word in words.iter().chain(&["m.gguf"]) {
            assert!(message.contains(word), "{what}: {message:?} lacks {word:?}");
        }
    }
}

/// A file with one tensor, said to have these dimensions, this type and this offset, and so many bytes of data.
fn one_tensor(ne: &[u64], ty: u32, offset: u64, data: usize) -> Raw {
    Raw::header(1, 0).tensor("t", ne, ty, offset).data(data)
}

fn one_key(ty: u32) -> Raw {
    Raw::header(0, 1).str("k").u32(ty)
}

#[test]
fn start_and_counts() {
    let start = |version: u32| Raw::default().bytes(b"GGUF").u32(version).u64(0).u64(0);
    refused(&[
        ("empty", Raw::default(), &["magic", "0 left"]),
        ("other file", Raw::default().bytes(b"PK\x03\x04 and so on"), &["magic", "PK"]),
        ("version 1", start(1), &["version 1", "2 to 3"]),
        ("version 4", start(4), &["version 4"]),
        ("big-endian", start(3 << 24), &["big-endian"]),
        (
            "cut in the counts",
            Raw::default().bytes(b"GGUF").u32(3).u64(0),
            &["key count", "8 bytes"],
        ),
        ("tensors", Raw::header(1 << 40, 0), &["tensor count", "limit"]),
        ("negative tensors", Raw::header(u64::MAX, 0), &["tensor count", "limit"]),
        ("keys", Raw::header(0, 1 << 40), &["key count", "limit"]),
        ("more keys than bytes", Raw::header(0, 60000), &["metadata key 0"]),
    ]);
}

#[test]
fn metadata() {
    let key = |key: &str| Raw::header(0, 1).str(key);
    let alignment = |v| key("general.alignment").u32(U32).u32(v);
    refused(&[
        ("empty key", key("").u32(U32).u32(1), &["metadata key 0", "empty"]),
        (
            "long key",
            key(&"k".repeat(70000)).u32(U32).u32(1),
            &["metadata key 0", "70000", "limit"],
        ),
        (
            "key not text",
            Raw::header(0, 1).u64(1).bytes(&[0xff]).u32(U32).u32(1),
            &["key 0", "UTF-8"],
        ),
        (
            "key too long for the file",
            Raw::header(0, 1).u64(1 << 20),
            &["metadata key 0", "0 left"],
        ),
        ("absurd key", Raw::header(0, 1).u64(u64::MAX), &["metadata key 0", "limit"]),
        (
            "same key twice",
            Raw::header(0, 2).str("k").u32(U32).u32(1).str("k").u32(U32).u32(2),
            &["metadata key 1", "k appears twice"],
        ),
        ("unknown type", one_key(13), &["k", "type id 13"]),
        ("cut value", one_key(U32).bytes(&[1, 2]), &["value of k", "2 left"]),
        ("absurd string", one_key(STR).u64(1 << 40), &["value of k", "limit"]),
        ("bool of 2", one_key(BOOL).bytes(&[2]), &["value of k", "byte 2"]),
        ("array of arrays", one_key(ARRAY).u32(ARRAY).u64(1), &["array k", "array of arrays"]),
        ("array of unknown", one_key(ARRAY).u32(77).u64(1), &["array k", "type id 77"]),
        ("absurd array", one_key(ARRAY).u32(U32).u64(u64::MAX), &["array k", "limit"]),
        ("cut array", one_key(ARRAY).u32(U32).u64(1 << 20).u32(1), &["array k", "4 left"]),
        ("cut strings", one_key(ARRAY).u32(STR).u64(3).str("a").str("b"), &["array k[2]"]),
        ("array of bool 3", one_key(ARRAY).u32(BOOL).u64(2).bytes(&[1, 3]), &["array k", "byte 3"]),
        ("alignment 0", alignment(0), &["general.alignment", "power of two"]),
        ("alignment 48", alignment(48), &["general.alignment", "48"]),
        ("alignment of 2 GiB", alignment(1 << 31), &["general.alignment", "up to"]),
        (
            "alignment of another type",
            key("general.alignment").u32(STR).str("32"),
            &["alignment", "u32"],
        ),
    ]);
}

#[test]
fn tensor_directory() {
    let named = |name: &str| Raw::header(1, 0).tensor(name, &[8], F32, 0).data(32);
    refused(&[
        ("empty name", named(""), &["tensor 0 name", "empty"]),
        ("long name", named(&"n".repeat(64)), &["tensor 0 name", "64", "limit is 63"]),
        (
            "five dimensions",
            one_tensor(&[8, 1, 1, 1, 1], F32, 0, 32),
            &["tensor 0 (t)", "5 of them"],
        ),
        (
            "a dimension of 0",
            one_tensor(&[8, 0], F32, 0, 32),
            &["tensor 0 (t)", "dimension 1 is 0"],
        ),
        ("a negative dimension", one_tensor(&[u64::MAX], F32, 0, 32), &["dimension 0 is -1"]),
        ("removed type", one_tensor(&[8], 4, 0, 32), &["tensor 0 (t) type", "id 4"]),
        ("unknown type", one_tensor(&[8], 999, 0, 32), &["tensor 0 (t) type", "id 999"]),
        (
            "part of a block",
            one_tensor(&[255], Q4_K, 0, 144),
            &["(t)", "255", "Q4_K blocks of 256"],
        ),
        ("elements overflow", one_tensor(&[1 << 40, 1 << 40], F32, 0, 32), &["(t)", "overflow"]),
        ("bytes overflow", one_tensor(&[1 << 62], F32, 0, 32), &["(t)", "overflow"]),
        (
            "misaligned",
            one_tensor(&[8], F32, 16, 48),
            &["tensor 0 (t) offset", "16", "alignment 32"],
        ),
        ("offset overflows", one_tensor(&[8], F32, u64::MAX - 31, 32), &["(t) offset", "overflow"]),
        ("beyond the end", one_tensor(&[8], F32, 1 << 40, 32), &["(t) offset", "cut off"]),
        ("one byte short", one_tensor(&[8], F32, 0, 31), &["(t) offset", "cut off"]),
        ("entry cut", Raw::header(1, 0).str("t").u32(1).u64(8), &["tensor 0 (t) type", "0 left"]),
        (
            "same name twice",
            Raw::header(2, 0).tensor("t", &[8], F32, 0).tensor("t", &[8], F32, 32).data(64),
            &["tensor 1", "t appears twice"],
        ),
        (
            "overlap",
            Raw::header(2, 0).tensor("a", &[16], F32, 0).tensor("b", &[8], F32, 32).data(64),
            &["tensor b offset", "overlap", "tensor a"],
        ),
    ]);
}

#[test]
fn the_same_files_without_the_fault_open() {
    for raw in [
        Raw::header(0, 0),
        one_key(U32).u32(7),
        one_key(BOOL).bytes(&[1]),
        one_key(ARRAY).u32(STR).u64(2).str("a").str("b"),
        Raw::header(0, 1).str("general.alignment").u32(U32).u32(64),
        one_tensor(&[8], F32, 0, 32),
        Raw::header(2, 0).tensor("a", &[8], F32, 0).tensor("b", &[8], F32, 32).data(64),
        // Neither in order nor dense, which others may write.
        Raw::header(2, 0).tensor("a", &[8], F32, 96).tensor("b", &[8], F32, 32).data(128),
    ] {
        Gguf::from_bytes(raw.0.into(), "m.gguf").unwrap();
    }
}

#[test]
fn paths_that_are_no_files() {
    for path in ["/nonexistent/m.gguf", "/"] {
        let error = Gguf::open(path).unwrap_err();
        assert!(
            matches!(error, GgufError::Io { .. }) && error.to_string().starts_with(path),
            "{error}"
        );
    }
}

#[test]
fn packed_headers() {
    let model = Gguf::from_bytes(one_tensor(&[8], F32, 0, 32).0.into(), "m.gguf").unwrap();
    let good = model.header_bytes();
    let with = |at: usize, bytes: &[u8]| {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        bad
    };
    for (what, bytes, word) in [
        ("empty", vec![], "packed headers"),
        ("other magic", with(0, b"X"), "magic"),
        ("no shards", with(8, &0_u32.to_le_bytes()), "count"),
        ("too many shards", with(8, &u32::MAX.to_le_bytes()), "limit"),
        ("one shard more than there is", with(8, &2_u32.to_le_bytes()), "packed header 1"),
        ("absurd length", with(12, &u64::MAX.to_le_bytes()), "limit"),
        ("cut", good[..good.len() - 1].to_vec(), "packed header 0"),
        ("trailing bytes", [&good[..], &[0]].concat(), "1 bytes follow"),
    ] {
        let message = Gguf::from_header_bytes(&bytes, "m.gguf").unwrap_err().to_string();
        assert!(message.contains(word), "{what}: {message}");
    }
}
