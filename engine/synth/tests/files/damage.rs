//! Damaged files: nothing panics, allocates much more than the file, or reads outside of it.
//!
//! A file that still opens is read through in full. All bounds are those of safe slices, so a read out of
//! them would panic.

use crate::round_trip::small_file;
use brigade_gguf::Gguf;
use brigade_synth::{Arch, FileType, Shape, Spec};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Bytes that opening may allocate: a multiple of the file, and something for small ones. An entry
/// of the directory takes some 25 bytes of file at least, and some 250 of memory.
const fn budget(file: usize) -> usize {
    32 * file + (64 << 10)
}

thread_local! {
    /// Bytes that this thread holds, and the most it held since [`peak_of`] began.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

/// The system's allocator, with a count for each thread.
struct Counting;

fn count(bytes: isize) {
    // Fails only while the thread ends, when the count is over.
    let _ = HELD.try_with(|held| {
        let now = held.get().0 + bytes;
        held.set((now, held.get().1.max(now)));
    });
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting does not allocate,
// as the thread-local is initialised at compile time and has no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that `work` held on this thread beyond what was held before.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get().0;
    HELD.set((before, before));
    let result = work();
    (result, (HELD.get().1 - before).max(0) as usize)
}

/// Opens `bytes` and, where that works, reads everything. Returns whether it opened.
fn survive(bytes: &[u8]) -> bool {
    let shared = bytes.into();
    let (model, peak) = peak_of(|| Gguf::from_bytes(shared, "damaged"));
    assert!(peak <= budget(bytes.len()), "{peak} bytes allocated for a file of {}", bytes.len());
    let Ok(model) = model else { return false };
    for (key, value) in model.meta().iter() {
        assert_eq!(model.meta().get(key).map(|v| v.type_name()), Some(value.type_name()));
        if let brigade_gguf::Value::Array(array) = value {
            assert_eq!(array.iter().count(), array.len(), "{key}");
        }
        assert!(!format!("{key} = {value}").is_empty());
    }
    for tensor in model.tensors() {
        assert_eq!(model.data(tensor).unwrap().len() as u64, tensor.nbytes, "{}", tensor.name);
    }
    let copy = Gguf::from_header_bytes(&model.header_bytes(), "copy").unwrap();
    assert_eq!(copy.tensors(), model.tensors());
    true
}

#[test]
fn the_allocation_count_counts() {
    let ((), peak) = peak_of(|| drop(std::hint::black_box(vec![0_u8; 1 << 20])));
    assert!(peak >= 1 << 20);
    let (_, peak) = peak_of(|| ());
    assert_eq!(peak, 0);
}

#[test]
fn every_byte_changed_and_every_length_cut() {
    let good = small_file(32);
    assert!(survive(&good));
    let (mut opened, mut refused) = (0, 0);
    for at in 0..good.len() {
        for change in [|_| 0, |_| 0xff, |b: u8| b ^ 0x80, |b: u8| b.wrapping_add(1)] {
            let mut bad = good.clone();
            bad[at] = change(bad[at]);
            if survive(&bad) { opened += 1 } else { refused += 1 }
        }
    }
    // Changed text and data open; changed counts, types and lengths do not. Both must occur.
    assert!(opened > 100 && refused > 100, "{opened} opened, {refused} refused");
    let data_end = good.len() - good.len() % 32;
    for len in 0..data_end {
        assert!(!survive(&good[..len]) || len >= good.len() - 32, "cut to {len} bytes");
    }
}

#[test]
fn every_length_inflated() {
    let good = small_file(32);
    let values = [1, 1 << 16, 1 << 28, (1 << 28) + 1, 1 << 31, 1 << 40, i64::MAX as u64, u64::MAX];
    for at in 0..good.len() - 8 {
        for value in values {
            let mut bad = good.clone();
            bad[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
            survive(&bad);
        }
    }
}

/// One change to a file; positions are shares of its length.
#[derive(Clone, Debug)]
enum Damage {
    Flip(f64, u8),
    Number(f64, u64),
    Cut(f64),
    Remove(f64, usize),
    Repeat(f64, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = || 0.0..1.0_f64;
    let number = prop_oneof![0..100_u64, (0..64_u32).prop_map(|bit| 1 << bit), any::<u64>()];
    prop_oneof![
        4 => (at(), any::<u8>()).prop_map(|(at, mask)| Damage::Flip(at, mask)),
        4 => (at(), number).prop_map(|(at, n)| Damage::Number(at, n)),
        1 => at().prop_map(Damage::Cut),
        1 => (at(), 1..100_usize).prop_map(|(at, n)| Damage::Remove(at, n)),
        1 => (at(), 1..100_usize).prop_map(|(at, n)| Damage::Repeat(at, n)),
    ]
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let len = bytes.len();
        let place = |at: &f64| (at * len as f64) as usize;
        match self {
            _ if bytes.is_empty() => {}
            Self::Flip(at, mask) => bytes[place(at)] ^= mask,
            Self::Number(at, n) => {
                let at = place(at);
                let end = len.min(at + 8);
                bytes[at..end].copy_from_slice(&n.to_le_bytes()[..end - at]);
            }
            Self::Cut(at) => bytes.truncate(place(at)),
            Self::Remove(at, n) => drop(bytes.drain(place(at)..len.min(place(at) + n))),
            Self::Repeat(at, n) => {
                let again = bytes[place(at)..len.min(place(at) + n)].to_vec();
                bytes.splice(place(at)..place(at), again);
            }
        }
    }
}

/// The header of a synthetic model of an architecture, and one tensor's worth of data.
fn model_file(arch: &str) -> Vec<u8> {
    let path = crate::support::TempPath::new(&format!("damage-{arch}.gguf"));
    let shape = Shape { n_layer: 1, vocab: 354, ..Shape::named("tiny").unwrap() };
    let arch = Arch::named(arch).unwrap();
    let spec = Spec { arch, shape, quant: FileType::Q4_K_M, seed: 1, header_only: false };
    brigade_synth::write(&spec, &path.0).unwrap();
    std::fs::read(&path.0).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn a_small_file_with_many_faults(damages in prop::collection::vec(damage(), 1..6)) {
        let mut bytes = small_file(32);
        damages.iter().for_each(|damage| damage.apply(&mut bytes));
        survive(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_model_with_faults_in_its_header(damages in prop::collection::vec(damage(), 1..4)) {
        // Made once: the strategy runs many times.
        static MODEL: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let good = MODEL.get_or_init(|| model_file("qwen2"));
        let header = Gguf::from_bytes(good.as_slice().into(), "good").unwrap().header_bytes().len() - 20;
        let mut bytes = good[..header].to_vec();
        damages.iter().for_each(|damage| damage.apply(&mut bytes));
        bytes.extend_from_slice(&good[header..]);
        survive(&bytes);
    }
}
