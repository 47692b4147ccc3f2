//! Ops beside a GPU that the host runs: what the GPU lacks, and what writes on both sides. Their operands come to the host and go
//! back, and the bits are those of a stage without a GPU.

use brigade_engine::device::{Device, DeviceName, Devices, Memory, Rows};
use brigade_engine::ops::{Combine, Conv, ConvRows, KeepAbove, Pairing, ScanPart, ViewMut};

/// A device with the GPU, and one that has the same kernels without it; `None` where there is no driver.
fn both() -> Option<[Device; 2]> {
    if let Err(reason) = brigade_engine::device::gpus() {
        println!("skipped: {reason}");
        return None;
    }
    let open = |name: &str| {
        let name: DeviceName = name.parse().unwrap();
        Devices::default().open(&name, 1, None).unwrap()
    };
    Some([open("vulkan:0"), open("unfused")])
}

/// Rows where the device has its own, of values that differ.
fn rows(device: &Device, n: usize, cols: usize, first: f32) -> Rows {
    let values = (0..n * cols).map(|i| (first + i as f32 * 0.37).sin()).collect();
    device.scratch().adopt(Rows::new(values, cols))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn states_of_the_host_and_rows_of_the_gpu_are_both_written() {
    let Some(devices) = both() else { return };
    let (channels, taps, n) = (24, 4, 5);
    let weights: Vec<f32> = (0..channels * taps).map(|i| (i as f32).cos()).collect();
    let conv = Conv::new(&weights, taps, None, true);
    let [with, without] = devices.map(|device| {
        let mut states: Memory<f32> = device.host_memory(2 * conv.state_len()).unwrap();
        let before: Vec<f32> = (0..states.len()).map(|i| i as f32 * 0.01).collect();
        states.write(0, &before);
        let (x, mut out) = (rows(&device, n, channels, 1.0), rows(&device, n, channels, 2.0));
        let untouched = bits(&out.read());
        device.run(ConvRows {
            conv: &conv,
            parts: &[ScanPart { from: 0, slot: 1, first_pos: 0, first_row: 0, n_rows: n }],
            states: states.view_mut(),
            at: conv.alone(),
            x: x.columns(0),
            out: out.view_mut(),
        });
        assert_ne!(bits(&out.read()), untouched, "the rows were written");
        assert_ne!(&states.read(0..states.len())[..], before, "the states were written");
        (bits(&out.read()), bits(&states.read(0..states.len())))
    });
    assert_eq!(with, without);
}

fn what_the_gpu_has_no_kernel_for_is_written_back() {
    let Some(devices) = both() else { return };
    let [with, without] = devices.map(|device| {
        let mut x = rows(&device, 6, 1, 1.0);
        let before = bits(&x.read());
        device.run(KeepAbove { x: x.view_mut(), d: 1, deviations: 1.0 });
        assert_ne!(bits(&x.read()), before, "the rows were written");
        bits(&x.read())
    });
    assert_eq!(with, without);
}

fn what_the_host_writes_may_be_read_of_the_gpu() {
    let Some(devices) = both() else { return };
    let [with, without] = devices.map(|device| {
        let mut sum = vec![0.5; 40];
        let y = rows(&device, 5, 8, 3.0);
        device.run(Combine { x: ViewMut::Host(&mut sum), y: y.view(), with: Pairing::Add });
        bits(&sum)
    });
    assert_ne!(with, bits(&[0.5; 40]));
    assert_eq!(with, without);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        states_of_the_host_and_rows_of_the_gpu_are_both_written,
        what_the_gpu_has_no_kernel_for_is_written_back,
        what_the_host_writes_may_be_read_of_the_gpu;
];
