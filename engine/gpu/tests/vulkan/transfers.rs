//! Places that the transfer queue fills while kernels compute. Devices with one queue use that under two names.

use std::time::Instant;

use brigade_engine::kernels::{DeviceError, DeviceFault};
use brigade_gpu::{DeviceOptions, Gpu, TransferQueue};
use brigade_ops::{Accelerator, Buffer, Copy, Part, PartMut, Purpose, View, ViewMut};

use crate::common::Random;

/// Values of a place.
const N: usize = 5000;
const LEN: usize = N * size_of::<f32>();
const N_PLACES: usize = 3;
/// Times that a place is filled, and that one is used.
const ROUNDS: usize = 300;

/// The first GPU as a card with a transfer queue, which is lost after so many batches.
fn transferring(lose_after: Option<u64>) -> Option<Gpu> {
    let found = Gpu::devices().inspect_err(|error| println!("skipped: no Vulkan device ({error})"));
    let own = found.ok()?.first()?.transfer_queue;
    let queue = if own == TransferQueue::Kernels { TransferQueue::Shared } else { own };
    let options = DeviceOptions { apart: true, lose_after, ..DeviceOptions::default() };
    Some(Gpu::open_with(0, &options, Some(queue)).expect("a GPU that was listed"))
}

/// Fills places in any order, and copies what they have to `out`, a row a round. Returns the value that each row shall have.
fn fill_and_use(
    gpu: &Gpu,
    random: &mut Random,
    out: &mut dyn Buffer,
) -> Result<Vec<f32>, DeviceError> {
    let device: &dyn Accelerator = gpu;
    let place = |_| device.alloc(LEN, Purpose::Weights);
    let mut places = (0..N_PLACES).map(place).collect::<Result<Vec<_>, _>>()?;
    let (mut values, mut wanted) = ([0.0; N_PLACES], Vec::new());
    for round in 0..ROUNDS {
        for _ in 0..random.below(3) {
            let at = random.below(N_PLACES);
            values[at] = (1 + round) as f32 + at as f32 / 8.0;
            places[at].write(0, bytemuck::cast_slice(&[values[at]; N]));
        }
        let at = random.below(N_PLACES);
        let from = View::Device(Part::of(&*places[at], 0..LEN));
        let to = ViewMut::Device(PartMut::of(out, round * LEN..(round + 1) * LEN));
        device.run(Copy { from, to }.into())?;
        wanted.push(values[at]);
        if random.below(20) == 0 {
            // Its memory goes to the next one, with what was on its way.
            places.remove(at);
            places.insert(at, place(0)?);
            values[at] = 0.0;
        }
    }
    Ok(wanted)
}

#[test]
fn places_have_what_they_were_filled_with_when_kernels_read_them() {
    let Some(gpu) = transferring(None) else { return };
    assert!(gpu.has_transfers());
    let mut random = Random(9);
    for history in 0..4 {
        let device: &dyn Accelerator = &gpu;
        let mut out = device.alloc(ROUNDS * LEN, Purpose::States).expect("room");
        let wanted = fill_and_use(&gpu, &mut random, &mut *out).expect("a device that works");
        let mut bytes = Vec::new();
        out.read(0..ROUNDS * LEN, &mut bytes).expect("room");
        let rows = bytemuck::cast_slice::<u8, f32>(&bytes).chunks(N);
        for (round, (row, wanted)) in rows.zip(wanted).enumerate() {
            assert!(row.iter().all(|x| *x == wanted), "history {history}, round {round}");
        }
    }
}

/// The host reads a place behind what fills it, and a milestone is behind that too.
#[test]
fn a_place_is_read_behind_the_transfers_to_it() {
    let Some(gpu) = transferring(None) else { return };
    let device: &dyn Accelerator = &gpu;
    // More than a chunk of the ring.
    let len = 40 << 20;
    let mut place = device.alloc(len, Purpose::Weights).expect("room");
    for value in 1..5u8 {
        place.write(0, &vec![value; len]);
        device.milestone().wait().expect("a device that works");
        let mut bytes = Vec::new();
        place.read(0..len, &mut bytes).expect("room");
        assert!(bytes.iter().all(|byte| *byte == value), "{value}");
        // Twice, with nothing between.
        place.write(0, &vec![value + 100; len]);
        place.write(4, &[value; 4]);
        bytes.clear();
        place.read(0..12, &mut bytes).expect("room");
        let [one, other] = [value + 100, value].map(|value| [value; 4]);
        assert_eq!(bytes, [one, other, one].concat());
    }
}

/// A device that is lost, wherever it is in its work, ends with that error.
#[test]
fn a_device_that_is_lost_while_places_are_filled_says_so() {
    let mut n_lost = 0;
    for lose_after in [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89] {
        let Some(gpu) = transferring(Some(lose_after)) else { return };
        let device: &dyn Accelerator = &gpu;
        let mut out = device.alloc(ROUNDS * LEN, Purpose::States).expect("room");
        // What is told to a lost device is refused, or nothing is done.
        let told = fill_and_use(&gpu, &mut Random(lose_after), &mut *out);
        let error = told.and_then(|_| device.milestone().wait()).expect_err("it was lost");
        assert_eq!(error.fault, DeviceFault::Failed, "after {lose_after}: {error}");
        assert!(error.text.contains("the GPU was lost"), "after {lose_after}: {error}");
        n_lost += 1;
    }
    println!("{n_lost} devices were lost");
}

/// Seconds that the device takes for what `work` tells it.
fn seconds(device: &dyn Accelerator, work: &mut dyn FnMut()) -> f64 {
    device.milestone().wait().expect("a device that works");
    let begun = Instant::now();
    work();
    device.milestone().wait().expect("a device that works");
    begun.elapsed().as_secs_f64()
}

/// What a transfer queue wins: copies alone, kernels alone, and both at once.
#[test]
#[ignore = "prints times"]
fn transfers_and_kernels_take_so_long_alone_and_together() {
    const BYTES: usize = 64 << 20;
    const TIMES: usize = 16;
    let Some(gpu) = transferring(None) else { return };
    let device: &dyn Accelerator = &gpu;
    let bytes = vec![1u8; BYTES];
    let mut places = [0; 2].map(|_| device.alloc(BYTES, Purpose::Weights).expect("room"));
    let mut x = gpu.buffer(BYTES, Purpose::States).expect("room");
    let mut fill = |at: usize| places[at % 2].write(0, &bytes);
    let mut compute = |n: usize| (0..n).for_each(|_| gpu.scale(x.span_mut(), 1.0));
    fill(0);
    // As many kernels as take as long as a copy.
    let one = seconds(device, &mut || fill(1));
    let of_kernels = seconds(device, &mut || compute(16)) / 16.0;
    let n = ((one / of_kernels) as usize).clamp(1, 10_000);
    let copies = seconds(device, &mut || (0..TIMES).for_each(&mut fill));
    let kernels = seconds(device, &mut || compute(TIMES * n));
    let both = seconds(device, &mut || {
        for at in 0..TIMES {
            fill(at);
            compute(n);
            Gpu::begin(&gpu);
        }
    });
    let gbps = (TIMES * BYTES) as f64 / copies / 1e9;
    let (first, second) = (copies * 1e3, kernels * 1e3);
    println!("{}: {}", gpu.facts().name, gpu.facts().transfer_queue);
    println!(
        "{gbps:.1} GB/s: copies {first:.1} ms, kernels {second:.1} ms, both at once {:.1} ms",
        both * 1e3
    );
}
