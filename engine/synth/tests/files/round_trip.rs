//! The reader reads what the writer writes, and what is sent to another process is the same there.

use crate::support::TempPath;
use brigade_gguf::{Gguf, GgufError, GgufWriter, Value};
use brigade_quant::GgmlType;

/// A file with every kind of metadata and two tensors; returns its bytes.
pub fn small_file(alignment: u32) -> Vec<u8> {
    let mut w = GgufWriter::with_alignment(alignment).unwrap();
    metadata(&mut w).unwrap();
    w.tensor("a.weight", GgmlType::F32, &[5, 3]).unwrap();
    w.tensor("b.weight", GgmlType::Q8_0, &[64, 2, 2]).unwrap();
    let mut out = w.start(Vec::new()).unwrap();
    out.write(&a_data()[..7]).unwrap();
    out.write(&a_data()[7..]).unwrap();
    out.write(&b_data()).unwrap();
    out.finish().unwrap()
}

fn metadata(w: &mut GgufWriter) -> Result<(), GgufError> {
    w.set("general.architecture", "test")?;
    w.set("u8", &1_u8)?;
    w.set("i8", &-1_i8)?;
    w.set("u16", &2_u16)?;
    w.set("i16", &-2_i16)?;
    w.set("u32", &3_u32)?;
    w.set("i32", &-3_i32)?;
    w.set("u64", &4_u64)?;
    w.set("i64", &-4_i64)?;
    w.set("f32", &0.5_f32)?;
    w.set("f64", &0.25_f64)?;
    w.set("bool", &true)?;
    w.set("strings", &["a", "", "čtyři"][..])?;
    w.set("bytes", &[&b"\xff\x00"[..], b"b"][..])?;
    w.set("u8s", &[1_u8, 2, 3][..])?;
    w.set("i32s", &[-1_i32, 0, 1][..])?;
    w.set("u32s", &[7_u32, 8][..])?;
    w.set("f32s", &[1.5_f32, f32::MIN][..])?;
    w.set("bools", &[true, false][..])?;
    w.set("empty", &[0_f32; 0][..])
}

fn a_data() -> Vec<u8> {
    (0..60).collect()
}

fn b_data() -> Vec<u8> {
    (0..8 * 34).map(|i| (i * 7) as u8).collect()
}

fn open(bytes: Vec<u8>) -> Gguf {
    Gguf::from_bytes(bytes.into(), "small").unwrap()
}

#[test]
fn metadata_come_back_typed() {
    let file = open(small_file(32));
    let m = file.meta();
    assert_eq!(file.architecture().unwrap(), "test");
    assert_eq!((m.u32("u32").unwrap(), m.u16("u16").unwrap(), m.i32("i32").unwrap()), (3, 2, -3));
    assert_eq!((m.f32("f32").unwrap(), m.bool("bool").unwrap()), (0.5, true));
    assert_eq!(m.get("i64"), Some(Value::I64(-4)));
    assert_eq!(m.get("f64"), Some(Value::F64(0.25)));
    let strings: Vec<&[u8]> = m.byte_strs("strings").unwrap().iter().collect();
    assert_eq!(strings, ["a".as_bytes(), b"", "čtyři".as_bytes()]);
    assert_eq!(m.byte_strs("bytes").unwrap().iter().next(), Some(&b"\xff\x00"[..]));
    assert_eq!(m.raw_bytes("u8s").unwrap(), [1, 2, 3]);
    assert_eq!(m.i32s("i32s").unwrap(), [-1, 0, 1]);
    assert_eq!(m.i32s("u32s").unwrap(), [7, 8]);
    assert_eq!(m.f32s("f32s").unwrap(), [1.5, f32::MIN]);
    assert_eq!(m.bools("bools").unwrap(), [true, false]);
    assert_eq!(m.f32s("empty").unwrap(), [0.0; 0]);
    assert_eq!(m.opt_u32("absent").unwrap(), None);
    let keys: Vec<&str> = m.iter().map(|(key, _)| key).collect();
    assert_eq!((keys[0], keys[1], keys.len()), ("general.alignment", "general.architecture", 21));
}

#[test]
fn types_are_strict_and_errors_tell_both() {
    let file = open(small_file(32));
    let m = file.meta();
    for (error, words) in [
        (m.u32("i32").unwrap_err(), ["i32", "is -3 (i32)", "wanted u32"]),
        (m.u32("f32").unwrap_err(), ["f32", "is 0.5 (f32)", "wanted u32"]),
        (m.u32("bool").unwrap_err(), ["bool", "is bool", "wanted u32"]),
        (m.f32("strings").unwrap_err(), ["strings", "array of 3 str", "wanted f32"]),
        (m.u32s("f32s").unwrap_err(), ["f32s", "array of 2 f32", "array of u32"]),
        (m.str("strings").unwrap_err(), ["strings", "array of 3 str", "UTF-8 str"]),
        (m.f32s("bools").unwrap_err(), ["bools", "array of 2 bool", "array of f32"]),
        (m.u32("absent").unwrap_err(), ["absent", "missing", "u32"]),
    ] {
        let message = error.to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
}

/// The number 8 in every type, alone and in a list.
#[test]
fn a_number_may_have_any_type() {
    let mut w = GgufWriter::new();
    macro_rules! eight {
        ($($name:ident),*) => {$(
            w.set(stringify!($name), &(8 as $name)).unwrap();
            w.set(concat!(stringify!($name), "s"), &[8 as $name, 1 as $name][..]).unwrap();
        )*};
    }
    eight!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);
    w.set("large", &(1_u64 << 32)).unwrap();
    w.set("yes", &1_u8).unwrap();
    let mut bytes = Vec::new();
    w.write_header_only(&mut bytes).unwrap();
    let file = Gguf::from_bytes(bytes.into(), "numbers").unwrap();
    let m = file.meta();
    for ty in ["u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64"] {
        let list = format!("{ty}s");
        assert_eq!((m.u16(ty).unwrap(), m.u32(ty).unwrap(), m.i32(ty).unwrap()), (8, 8, 8), "{ty}");
        assert_eq!(m.f32(ty).unwrap(), 8.0, "{ty}");
        assert_eq!(
            (m.u32s(&list).unwrap(), m.i32s(&list).unwrap()),
            (vec![8, 1], vec![8, 1]),
            "{ty}"
        );
        assert_eq!(
            (m.f32s(&list).unwrap(), m.u64s(&list).unwrap()),
            (vec![8.0, 1.0], vec![8, 1]),
            "{ty}"
        );
        assert_eq!(m.u32_or_array(ty, 2).unwrap(), [8, 8], "{ty}");
        assert_eq!(m.u32_or_array(&list, 2).unwrap(), [8, 1], "{ty}");
        assert!(m.bool(ty).is_err() && m.bools(&list).is_err(), "{ty}");
    }
    assert!(m.bool("yes").unwrap());
    let message = m.u32("large").unwrap_err().to_string();
    assert!(message.contains("is 4294967296 (u64), wanted u32"), "{message}");
}

#[test]
fn one_value_or_one_for_each_layer() {
    let file = open(small_file(32));
    let m = file.meta();
    assert_eq!(m.u32_or_array("u32", 3).unwrap(), [3, 3, 3]);
    assert_eq!(m.u32_or_array("u32s", 2).unwrap(), [7, 8]);
    assert_eq!(m.u32_or_array("bools", 2).unwrap(), [1, 0]);
    assert_eq!(m.opt_u32_or_array("absent", 2).unwrap(), None);
    let message = m.u32_or_array("u32s", 3).unwrap_err().to_string();
    assert!(message.contains("array of 2 u32") && message.contains("array of 3 u32"), "{message}");
    assert!(m.u32_or_array("i32", 3).is_err());
    assert!(m.u32_or_array("f32s", 2).is_err());
}

#[test]
fn tensors_come_back_at_every_alignment() {
    for alignment in [1, 8, 32, 64, 4096] {
        let file = open(small_file(alignment));
        let [a, b] = file.tensors() else { panic!("two tensors") };
        assert_eq!((a.name.as_str(), a.ty, a.dims()), ("a.weight", GgmlType::F32, &[5, 3][..]));
        assert_eq!((b.ne, b.n_dims, b.nbytes), ([64, 2, 2, 1], 3, 8 * 34));
        assert_eq!((b.row_len(), b.n_rows(), b.row_bytes(), b.n_elems()), (64, 4, 68, 256));
        assert!(a.offset % u64::from(alignment) == 0 && b.offset % u64::from(alignment) == 0);
        assert_eq!(b.offset, (a.offset + 60).next_multiple_of(u64::from(alignment)));
        assert_eq!(file.data(a).unwrap(), a_data());
        assert_eq!(file.data(b).unwrap(), b_data());
        assert_eq!(file.tensor("b.weight"), Some(b));
        let message = file.require("c.weight").unwrap_err().to_string();
        assert!(message.contains("c.weight"), "{message}");
    }
}

#[test]
fn a_file_on_disk_is_mapped_and_takes_hints() {
    let path = TempPath::new("small.gguf");
    std::fs::write(&path.0, small_file(32)).unwrap();
    let file = Gguf::open(&path.0).unwrap();
    let tensor = file.require("b.weight").unwrap();
    file.advise_dont_need(tensor);
    assert_eq!(file.data(tensor).unwrap(), b_data());
    assert_eq!(file.paths().collect::<Vec<_>>(), [&path.0]);
}

#[test]
fn a_model_is_read_from_its_open_files_without_a_map() {
    let path = TempPath::new("read.gguf");
    std::fs::write(&path.0, small_file(32)).unwrap();
    let whole = Gguf::open(&path.0).unwrap();
    let (model, files) = Gguf::open_files(&path.0).unwrap();
    assert_eq!((model.tensors(), model.header_bytes()), (whole.tensors(), whole.header_bytes()));
    assert_eq!(model.paths().collect::<Vec<_>>(), [&path.0]);
    let tensor = model.require("b.weight").unwrap();
    let mut part = vec![0; tensor.nbytes as usize - 4];
    files.read(tensor, 4, &mut part).unwrap();
    assert_eq!(part, b_data()[4..]);
    assert!(files.read(tensor, 5, &mut part).is_err(), "beyond the tensor");
    files.check_unchanged().unwrap();
    // Cut off while it is open: an error, where a map would end the process.
    let file = std::fs::File::options().write(true).open(&path.0).unwrap();
    file.set_len(tensor.offset + 1).unwrap();
    let error = files.read(tensor, 4, &mut part).unwrap_err();
    assert!(matches!(error, GgufError::Changed { .. }), "{error}");
    let error = files.check_unchanged().unwrap_err().to_string();
    assert!(error.contains("read.gguf has changed since it was opened"), "{error}");
    let error = Gguf::open_files(&path.0).unwrap_err().to_string();
    assert!(error.contains("cut off"), "{error}");
}

#[test]
fn a_model_that_is_replaced_by_another_file_is_read_as_it_was() {
    let (path, other) = (TempPath::new("replaced.gguf"), TempPath::new("replacing.gguf"));
    for path in [&path, &other] {
        std::fs::write(&path.0, small_file(32)).unwrap();
    }
    let (model, files) = Gguf::open_files(&path.0).unwrap();
    // Longer than a tick of the clock that stamps files.
    std::thread::sleep(std::time::Duration::from_millis(20));
    std::fs::rename(&other.0, &path.0).unwrap();
    files.check_unchanged().unwrap();
    let tensor = model.require("b.weight").unwrap();
    let mut all = vec![0; tensor.nbytes as usize];
    files.read(tensor, 0, &mut all).unwrap();
    assert_eq!(all, b_data());
}

#[test]
fn times_that_are_set_back_do_not_hide_a_change() {
    let path = TempPath::new("times.gguf");
    std::fs::write(&path.0, small_file(32)).unwrap();
    let (model, files) = Gguf::open_files(&path.0).unwrap();
    let mtime = std::fs::metadata(&path.0).unwrap().modified().unwrap();
    // Longer than a tick of the clock that stamps files.
    std::thread::sleep(std::time::Duration::from_millis(20));
    let file = std::fs::File::options().write(true).open(&path.0).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[77], model.tensors()[0].offset).unwrap();
    file.set_modified(mtime).unwrap();
    assert!(matches!(files.check_unchanged(), Err(GgufError::Changed { .. })));
    let (_, state) = files.states().next().unwrap();
    assert!(!state.is_settled(std::time::SystemTime::now()));
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(10);
    assert!(state.is_settled(later));
}

#[test]
fn header_bytes_make_the_same_model_without_data() {
    let file = open(small_file(32));
    let bytes = file.header_bytes();
    let copy = Gguf::from_header_bytes(&bytes, "copy").unwrap();
    assert_eq!(copy.tensors(), file.tensors());
    assert!(copy.meta().iter().eq(file.meta().iter()));
    assert_eq!(copy.header_bytes(), bytes);
    assert!(!copy.has_data());
    let error = copy.data(&copy.tensors()[0]).unwrap_err().to_string();
    assert!(error.contains("a.weight") && error.contains("header only"), "{error}");
}

#[test]
fn a_header_only_file_opens_as_such_alone() {
    let mut w = GgufWriter::new();
    w.set("general.architecture", "test").unwrap();
    w.tensor("huge.weight", GgmlType::Q4_K, &[1 << 20, 1 << 20]).unwrap();
    let path = TempPath::new("header.gguf");
    w.write_header_only(&mut std::fs::File::create(&path.0).unwrap()).unwrap();

    let message = Gguf::open(&path.0).unwrap_err().to_string();
    assert!(message.contains("huge.weight") && message.contains("cut off"), "{message}");
    let file = Gguf::open_header_only(&path.0).unwrap();
    assert_eq!(file.tensors()[0].nbytes, w.data_bytes());
    assert!(matches!(file.data(&file.tensors()[0]), Err(GgufError::NoData { .. })));
}

#[test]
fn a_tensor_of_another_model_is_refused() {
    let (small, large) = (open(small_file(1)), open(small_file(4096)));
    assert!(small.data(&large.tensors()[1]).is_err());
}

#[test]
fn copied_metadata_are_equal() {
    let file = open(small_file(32));
    let mut w = GgufWriter::with_alignment(32).unwrap();
    for (key, value) in file.meta().iter().filter(|(key, _)| *key != "general.alignment") {
        w.set(key, &value).unwrap();
    }
    let mut bytes = Vec::new();
    w.write_header_only(&mut bytes).unwrap();
    assert!(open(bytes).meta().iter().eq(file.meta().iter()));
}

#[test]
fn the_writer_refuses_what_no_reader_reads() {
    let mut w = GgufWriter::new();
    w.set("k", &1_u32).unwrap();
    w.tensor("t", GgmlType::F32, &[4]).unwrap();
    for (error, word) in [
        (w.set("k", &2_u32), "k"),
        (w.set("", &2_u32), "0 bytes"),
        (w.set("general.alignment", &64_u32), "alignment"),
        (w.tensor("t", GgmlType::F32, &[4]), "already"),
        (w.tensor(&"n".repeat(64), GgmlType::F32, &[4]), "64"),
        (w.tensor("u", GgmlType::Q4_0, &[33]), "Q4_0"),
        (w.tensor("u", GgmlType::F32, &[1, 1, 1, 1, 1]), "dimensions"),
        (w.tensor("u", GgmlType::F32, &[0]), "dimensions"),
        (w.tensor("u", GgmlType::F32, &[1 << 40, 1 << 40]), "overflow"),
        (GgufWriter::with_alignment(3).map(|_| ()), "power of two"),
    ] {
        let message = error.unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    }
    let mut out = w.start(Vec::new()).unwrap();
    assert!(out.write(&[0; 17]).is_err());
    out.write(&[0; 15]).unwrap();
    assert!(out.finish().is_err());
}
