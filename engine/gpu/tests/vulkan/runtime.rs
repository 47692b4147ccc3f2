//! Memory, order, kept kernels and errors of the runtime.

use std::path::PathBuf;
use std::time::Duration;

use brigade_gpu::{DeviceOptions, Gpu, GpuError, Purpose};

use crate::common::{Random, bytes_of, gpu, on, values_of};

#[test]
fn devices_tell_what_they_are() {
    match Gpu::devices() {
        Ok(devices) => devices.iter().for_each(|facts| println!("{facts:?}")),
        Err(error) => println!("skipped: no Vulkan device ({error})"),
    }
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    if let Ok(devices) = Gpu::devices() {
        let error = Gpu::open(devices.len(), &DeviceOptions::default()).unwrap_err();
        assert!(matches!(error, GpuError::NoDevice { .. }), "{error}");
    }
}

#[test]
fn new_memory_is_zero_and_recycled_memory_is_again() {
    let Some(gpu) = gpu() else { return };
    for purpose in [Purpose::Weights, Purpose::States] {
        for _ in 0..3 {
            let mut buffers: Vec<_> =
                [4, 252, 4096, 100_000].map(|len| gpu.buffer(len, purpose).unwrap()).into();
            for buffer in &mut buffers {
                let bytes = bytes_of(buffer);
                assert!(bytes.iter().all(|b| *b == 0), "{purpose:?} of {}", buffer.len());
                buffer.write(0, &vec![0xa5; buffer.len()]);
            }
        }
    }
    let fresh = gpu.buffer(5000, Purpose::Activations).unwrap();
    assert!(fresh.bytes().iter().all(|b| *b == 0));
}

#[test]
fn every_dispatch_sees_what_those_before_it_wrote() {
    let Some(gpu) = gpu() else { return };
    // More than a batch, so that some were handed over already when the host waits.
    let (mut x, one) = (on(&gpu, &[0.0; 1000]), on(&gpu, &[1.0; 1000]));
    for _ in 0..1000 {
        gpu.add(x.span_mut(), one.span());
    }
    assert!(values_of(&x).iter().all(|x| *x == 1000.0));
}

#[test]
fn memory_goes_to_its_next_owner_behind_the_commands_of_the_last() {
    let Some(gpu) = gpu() else { return };
    for i in 0..200 {
        let mut first = gpu.buffer(40_000, Purpose::Activations).unwrap();
        let ones = on(&gpu, &[1.0; 10_000]);
        gpu.scale(first.span_mut(), 0.0);
        gpu.add(first.span_mut(), ones.span());
        drop(first);
        drop(ones);
        let mut second = gpu.buffer(40_000, Purpose::States).unwrap();
        let mut third = gpu.buffer(40_000, Purpose::Activations).unwrap();
        gpu.scale(third.span_mut(), 0.0);
        gpu.add(second.span_mut(), third.span());
        assert!(values_of(&second).iter().all(|x| *x == 0.0), "round {i}");
    }
}

#[test]
fn uploads_stay_until_the_next_finish() {
    let Some(gpu) = gpu() else { return };
    for round in 0..3 {
        let mut sums = on(&gpu, &[0.0; 5000]);
        for i in 0..200 {
            let table = vec![i as f32; 5000];
            gpu.add(sums.span_mut(), gpu.upload(bytemuck::cast_slice(&table)));
            if i % 50 == 0 {
                let _ = sums.bytes();
            }
        }
        assert!(values_of(&sums).iter().all(|x| *x == 19_900.0), "round {round}");
        gpu.finish().unwrap();
    }
}

/// More bytes than the ring of chunks has, odd pieces of them, and ops between.
#[test]
fn bytes_come_to_memory_that_the_host_does_not_see_and_back() {
    let options = DeviceOptions { apart: true, ..DeviceOptions::default() };
    let Ok(gpu) = Gpu::open(0, &options) else { return };
    let mut random = Random(9);
    let bytes: Vec<u8> = (0..(60 << 20) / 8).flat_map(|_| random.bits().to_le_bytes()).collect();
    let (weights, more) = (gpu.keep(&bytes).unwrap(), gpu.keep(&bytes[3..1000]).unwrap());
    let mut read = Vec::new();
    for range in [0..bytes.len(), 4..20, (16 << 20) - 8..(16 << 20) + 8, 12..12] {
        read.clear();
        weights.read(range.clone(), &mut read).unwrap();
        assert!(read == bytes[range.clone()], "{range:?}");
    }
    read.clear();
    more.read(0..996, &mut read).unwrap();
    assert!(read == bytes[3..999]);
    let mut states = gpu.buffer(4000, Purpose::States).unwrap();
    for round in 1..4 {
        let values = [round as f32; 500];
        states.write(800, bytemuck::cast_slice(&values));
        gpu.scale(states.span_mut(), 2.0);
        read.clear();
        states.read(796..2804, &mut read).unwrap();
        let found: &[f32] = bytemuck::cast_slice(&read);
        assert!(found[0] == 0.0 && found[501] == 0.0, "{round}");
        assert!(found[1..501].iter().all(|x| *x == 2.0 * round as f32), "{round}");
    }
    gpu.finish().unwrap();
}

/// The test fills a buffer from several threads at once, with more bytes than the ring has, and with pieces larger than
/// a chunk.
#[test]
fn bytes_are_filled_piece_by_piece() {
    let options = DeviceOptions { apart: true, ..DeviceOptions::default() };
    let Ok(apart) = Gpu::open(0, &options) else { return };
    let Some(seen) = gpu() else { return };
    let word = |seed: u32, i: usize| (i as u32).wrapping_mul(0x9e37_79b1) ^ seed;
    let check = |gpu: &Gpu, len: usize, piece: usize, seed: u32| {
        let mut next = 0;
        let filled = gpu.keep_with(len, piece, &mut |range, out| {
            assert_eq!((range.start, range.len()), (next, out.len()), "one after the other");
            assert!(out.len().is_multiple_of(piece), "whole pieces");
            next = range.end;
            for (i, bytes) in out.chunks_exact_mut(4).enumerate() {
                bytes.copy_from_slice(&word(seed, range.start / 4 + i).to_le_bytes());
            }
        });
        let (filled, mut read) = (filled.unwrap(), Vec::new());
        assert_eq!(next, len, "all of it");
        filled.read(0..len, &mut read).unwrap();
        let words = read.chunks_exact(4).enumerate();
        let is_right = |(i, bytes): (usize, &[u8])| bytes == word(seed, i).to_le_bytes();
        assert!(words.into_iter().all(is_right), "{len} bytes by {piece}");
    };
    for gpu in [&apart, &seen] {
        for (len, piece) in [(0, 0), (0, 12), (12, 12), (70 << 20, 7 << 20), (34 << 20, 17 << 20)] {
            check(gpu, len, piece, 7);
        }
    }
    std::thread::scope(|scope| {
        for t in 0..4 {
            let (apart, check) = (&apart, &check);
            scope.spawn(move || {
                for round in 0..6 {
                    let pieces = 40 + 13 * (t as usize);
                    check(apart, pieces * 52_428, 52_428, 100 * t + round);
                }
            });
        }
    });
    apart.finish().unwrap();
}

/// Bytes that a thread brought stay while other threads finish their work.
#[test]
fn uploads_of_a_thread_stay_whoever_else_finishes() {
    let Some(gpu) = gpu() else { return };
    std::thread::scope(|scope| {
        for t in 0..4 {
            let gpu = gpu.clone();
            scope.spawn(move || {
                for i in 0..40 {
                    let mut x = on(&gpu, &[0.0; 300]);
                    let table = gpu.upload(bytemuck::cast_slice(&[(t * 100 + i) as f32; 300]));
                    std::thread::yield_now();
                    gpu.add(x.span_mut(), table);
                    assert!(values_of(&x).iter().all(|x| *x == (t * 100 + i) as f32));
                    gpu.finish().unwrap();
                }
            });
        }
    });
}

#[test]
fn threads_may_share_a_device() {
    let Some(gpu) = gpu() else { return };
    std::thread::scope(|scope| {
        for t in 0..4 {
            let gpu = gpu.clone();
            scope.spawn(move || {
                for i in 0..50 {
                    let (mut x, y) = (on(&gpu, &[t as f32; 777]), on(&gpu, &[i as f32; 777]));
                    gpu.mul(x.span_mut(), y.span());
                    assert!(values_of(&x).iter().all(|x| *x == (t * i) as f32));
                }
            });
        }
    });
}

#[test]
fn a_limit_on_memory_is_kept_and_what_is_idle_makes_room() {
    let limit = Some(96 << 20);
    let options = DeviceOptions { memory_limit: limit, ..DeviceOptions::default() };
    let Ok(gpu) = Gpu::open(0, &options) else { return };
    let error = gpu.buffer(200 << 20, Purpose::Weights).unwrap_err();
    assert!(matches!(error, GpuError::OutOfMemory { limit: Some(_), .. }), "{error}");
    let half = gpu.buffer(60 << 20, Purpose::Activations).unwrap();
    assert!(gpu.buffer(60 << 20, Purpose::Weights).is_err());
    drop(half);
    let weights = gpu.buffer(60 << 20, Purpose::Weights).unwrap();
    assert!(gpu.used_bytes() <= 96 << 20);
    drop(weights);
    assert_eq!(gpu.used_bytes(), 0);
}

#[test]
fn results_are_written_by_the_device_and_read_by_the_host() {
    let Some(gpu) = gpu() else { return };
    let mut logits = gpu.buffer(4000, Purpose::Results).unwrap();
    gpu.fill(logits.span_mut(), 3.0);
    assert!(values_of(&logits).iter().all(|x| *x == 3.0));
}

#[test]
fn a_device_that_does_not_come_on_is_an_error_that_sticks() {
    let options = DeviceOptions { patience: Duration::ZERO, ..DeviceOptions::default() };
    let Ok(gpu) = Gpu::open(0, &options) else { return };
    let mut x = gpu.buffer(64 << 20, Purpose::Activations).unwrap();
    (0..20).for_each(|_| gpu.tanh(x.span_mut()));
    let error = gpu.finish().unwrap_err();
    assert!(matches!(error, GpuError::TimedOut { .. }), "{error}");
    assert!(gpu.check().is_err() && gpu.buffer(1, Purpose::States).is_err());
    assert_eq!(x.bytes().len(), 64 << 20);
    gpu.silu(x.span_mut());
    assert!(gpu.finish().is_err());
}

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("brigade-gpu-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

#[test]
fn kernels_are_kept_and_a_damaged_file_is_made_anew() {
    let folder = folder("cache");
    let options =
        DeviceOptions { pipeline_cache: Some(folder.clone()), ..DeviceOptions::default() };
    let work = || {
        let gpu = Gpu::open(0, &options).ok()?;
        let mut x = on(&gpu, &[4.0; 100]);
        gpu.sqrt(x.span_mut());
        assert!(values_of(&x).iter().all(|x| *x == 2.0));
        Some(())
    };
    if work().is_none() {
        println!("skipped: no Vulkan device");
        return;
    }
    let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read(&file).unwrap();
    let cut = whole[..whole.len() / 2].to_vec();
    let flip = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    // Two unfinished files: one that was left long ago, and one that is just being written.
    let [left, fresh] = ["new-1", "new-2"].map(|end| file.with_extension(end));
    let an_hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
    std::fs::File::create(&left).unwrap().set_modified(an_hour_ago).unwrap();
    std::fs::File::create(&fresh).unwrap();
    for damaged in [Vec::new(), cut, flip(3), flip(30), flip(whole.len() - 1)] {
        std::fs::write(&file, &damaged).unwrap();
        work().unwrap();
        let again = std::fs::read(&file).unwrap();
        assert!(again != damaged && again.starts_with(&whole[..8]), "the file is whole again");
    }
    assert!(!left.exists() && fresh.exists());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
#[should_panic(expected = "bytes 8..20 of 16")]
fn a_part_ends_within_its_span() {
    let Some(gpu) = gpu() else { panic!("bytes 8..20 of 16") };
    let buffer = gpu.buffer(16, Purpose::Activations).unwrap();
    let _ = buffer.span().part(8..20);
}

/// Time that the host needs to tell a GPU of one kernel, without waiting for it.
#[test]
#[ignore = "prints a time"]
fn recording_an_op_takes_so_long() {
    let Some(gpu) = gpu() else { return };
    let (mut x, y) = (on(&gpu, &[0.0; 64]), on(&gpu, &[1.0; 64]));
    let n = 256;
    let mut times: Vec<f64> = (0..100)
        .map(|_| {
            gpu.finish().unwrap();
            let started = std::time::Instant::now();
            (0..n).for_each(|_| gpu.add(x.span_mut(), y.span()));
            started.elapsed().as_secs_f64() * 1e9 / f64::from(n)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{:.0} ns to record an op, submissions of batches among them", times[times.len() / 2]);
}

#[test]
fn a_timed_device_tells_how_long_each_kernel_took() {
    let timed = DeviceOptions { timed: true, ..DeviceOptions::default() };
    let gpu = match Gpu::open(0, &timed) {
        Ok(gpu) => gpu,
        Err(error) => return println!("skipped: no Vulkan device with a clock ({error})"),
    };
    let (mut x, one) = (on(&gpu, &[1.0; 100_000]), on(&gpu, &[1.0; 100_000]));
    // More than a batch, and two sorts of runs of one kernel.
    for _ in 0..300 {
        gpu.add(x.span_mut(), one.span());
    }
    let (mut short, few) = (on(&gpu, &[1.0; 10]), on(&gpu, &[1.0; 10]));
    for _ in 0..7 {
        gpu.add(short.span_mut(), few.span());
    }
    assert!(values_of(&x).iter().all(|x| *x == 301.0));
    assert!(values_of(&short).iter().all(|x| *x == 8.0));
    let times = gpu.kernel_times();
    let mut runs: Vec<u32> = times.iter().map(|time| time.runs).collect();
    runs.sort_unstable();
    assert_eq!(runs, [7, 300], "{times:?}");
    assert!(times.iter().all(|time| time.name == times[0].name), "{times:?}");
    assert!(times[0].took >= times[1].took && !times[0].took.is_zero(), "{times:?}");
    assert!(gpu.kernel_times().is_empty(), "it begins anew");
}
