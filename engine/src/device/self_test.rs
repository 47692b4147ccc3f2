//! A GPU's test before it serves: some ops of each sort, compared bit for bit with the CPU's kernels of the same
//! numbers. A driver that fuses, rounds or orders otherwise is found here and not in somebody's answers. With fast
//! math, products of many rows have other bits; they are held to what they may be off.

use super::{Device, Rows};
use crate::batch::PageId;
use crate::kernels::{
    Decay, DeltaShape, DeviceError, DeviceFault, KernelError, KeyHeads, KvLayout, KvType,
    ValuePlace, unfused,
};
use crate::ops::{
    Attend, AttendOver, AttendPart, AttendVariant, DeltaRows, DeltaScan, DeviceFacts, KvRows,
    KvWrite, OpenDevice, ScanPart,
};
use crate::quant::GgmlType;

/// An op, or some of one sort, and what it makes of inputs that are the same each time.
type Case = (&'static str, fn(&Device) -> Result<Vec<f32>, KernelError>);

const CASES: [Case; 5] = [
    ("exponentials", functions),
    ("norms", norms),
    ("products of few rows", |device| products(device, 3, 80)),
    ("attention", attention),
    ("the delta rule", delta),
];

/// Many rows, on a device without matrix units.
const MANY_ROWS: [Case; 2] = [
    ("products of many rows", |device| products(device, 64, 80)),
    ("float products", float_product),
];

/// As much work as matrix units are used for.
const MANY_ROWS_ON_UNITS: [Case; 2] =
    [("products of many rows", |device| products(device, 64, 8192)), MANY_ROWS[1]];

/// How far products with fast math may be from the CPU's, by their norm: these read rows in 8 bits, and are 0.5 % off.
const FAR_OFF: f64 = 0.02;

/// Compares the device with the CPU.
///
/// # Errors
/// The device computes other bits, and the error says what to do; or it has no memory for the test, or fails.
pub(super) fn test(open: &OpenDevice) -> Result<(), KernelError> {
    let here = Device::cpu(unfused(), 1, None)?;
    let there = Device::beside_host(open.device.clone(), "tested", 1, None)?;
    let many_rows = match (there.has_fast_math(), open.facts.units.any) {
        (true, _) => &[][..],
        (false, true) => &MANY_ROWS_ON_UNITS,
        (false, false) => &MANY_ROWS,
    };
    let differs = first_difference(&here, &there, CASES.iter().chain(many_rows))?;
    there.finish()?;
    if let Some(op) = differs {
        return Err(other_bits(&open.facts, op).into());
    }
    let far = if there.has_fast_math() { first_far_off(&here, &there)? } else { None };
    there.finish()?;
    far.map_or(Ok(()), |op| Err(far_off(&open.facts, op).into()))
}

/// The error of a device that computes other bits than it has to.
fn other_bits(facts: &DeviceFacts, op: &str) -> DeviceError {
    let (device, driver) = (&facts.name, facts.driver_text());
    let less = if facts.units.any { ", try --no-coopmat" } else { "" };
    let text = format!(
        "GPU {device} with driver {driver} computes other bits than stated in {op}: install another version of the driver{less}, or use \
         --device cpu"
    );
    DeviceError { fault: DeviceFault::Unfit, text }
}

/// The error of a device whose matrix units for f16 compute something else than products.
fn far_off(facts: &DeviceFacts, op: &str) -> DeviceError {
    let (device, driver) = (&facts.name, facts.driver_text());
    let text = format!(
        "GPU {device} with driver {driver} is far off in {op} with --fast-math: start without --fast-math, or install another version \
         of the driver"
    );
    DeviceError { fault: DeviceFault::Unfit, text }
}

/// The first case in which two devices give other bits.
fn first_difference<'a>(
    here: &Device,
    there: &Device,
    cases: impl IntoIterator<Item = &'a Case>,
) -> Result<Option<&'static str>, KernelError> {
    for (name, case) in cases {
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        if bits(case(here)?) != bits(case(there)?) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// The first case of many rows in which two devices are [`FAR_OFF`].
fn first_far_off(here: &Device, there: &Device) -> Result<Option<&'static str>, KernelError> {
    for (name, case) in MANY_ROWS_ON_UNITS {
        let (here, there) = (case(here)?, case(there)?);
        let square = |x: f32| f64::from(x).powi(2);
        let off: f64 = here.iter().zip(&there).map(|(a, b)| square(a - b)).sum();
        let norm: f64 = here.iter().map(|x| square(*x)).sum();
        // So that NaN is far off too.
        let is_near = off <= FAR_OFF.powi(2) * norm;
        if !is_near {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Rows of values in -2..2, the same for the same seed.
fn rows(device: &Device, seed: u32, n_rows: usize, cols: usize) -> Rows {
    let mut rows = device.scratch().take(n_rows, cols);
    let mut numbers = Numbers(seed);
    let value = |_| (numbers.next() >> 8) as f32 / (1 << 22) as f32 - 2.0;
    rows.write(&(0..n_rows * cols).map(value).collect::<Vec<_>>());
    rows
}

/// A linear congruential generator (Numerical Recipes, section 7.1): any numbers will do.
struct Numbers(u32);

impl Numbers {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0
    }
}

fn functions(device: &Device) -> Result<Vec<f32>, KernelError> {
    let (mut out, up) = (Vec::new(), rows(device, 2, 3, 101));
    let ops: [&dyn Fn(&mut Rows); 5] = [
        &|x| device.silu_mul_inplace(x, &up),
        &|x| device.gelu_mul(x, &up),
        &|x| device.sigmoid(x),
        &|x| device.softplus(x),
        &|x| device.tanh(x),
    ];
    for op in ops {
        let mut x = rows(device, 1, 3, 101);
        op(&mut x);
        out.extend_from_slice(&x.read());
    }
    Ok(out)
}

fn norms(device: &Device) -> Result<Vec<f32>, KernelError> {
    let (mut normed, mut weighed) = (rows(device, 3, 5, 96), rows(device, 4, 5, 97));
    device.l2_norm(&mut normed, 96, 1e-6);
    device.softmax(&mut weighed, 97);
    Ok([normed.read(), weighed.read()].concat())
}

/// Products of `n_rows` rows with `out` features of two quantised types.
fn products(device: &Device, n_rows: usize, out: usize) -> Result<Vec<f32>, KernelError> {
    // Where the first factor of a block lies, and the second, if there is one.
    let types = [(GgmlType::Q8_0, &[0][..]), (GgmlType::Q4_K, &[0, 2][..])];
    let mut all = Vec::new();
    for (ty, factors) in types {
        let cols = ty.block_elems().max(64);
        let mut bytes = vec![0; out * ty.row_bytes(cols).unwrap_or(0)];
        let mut numbers = Numbers(5);
        bytes.iter_mut().for_each(|byte| *byte = (numbers.next() >> 24) as u8);
        for block in bytes.chunks_exact_mut(ty.block_bytes()) {
            for &at in factors {
                // 1/16 to 1/8 in f16: whatever else is there is a number.
                block[at + 1] = 0x2c | block[at + 1] & 3;
            }
        }
        all.extend(product(device, ty, n_rows, out, cols, &bytes)?);
    }
    Ok(all)
}

fn float_product(device: &Device) -> Result<Vec<f32>, KernelError> {
    let (n_rows, out, cols) = (20, 48, 320);
    let mut bytes = vec![0; out * cols * 2];
    let mut numbers = Numbers(6);
    bytes.iter_mut().for_each(|byte| *byte = (numbers.next() >> 24) as u8);
    // Up to 2 in f16, of either sign.
    bytes.iter_mut().skip(1).step_by(2).for_each(|byte| *byte &= 0xbf);
    product(device, GgmlType::F16, n_rows, out, cols, &bytes)
}

fn product(
    device: &Device,
    ty: GgmlType,
    n_rows: usize,
    out: usize,
    cols: usize,
    bytes: &[u8],
) -> Result<Vec<f32>, KernelError> {
    let w = device.pack(ty, out, cols, bytes)?;
    let mut y = device.scratch().take(n_rows, out);
    device.multiply(&w, &rows(device, 7, n_rows, cols), &mut y);
    Ok(y.read().into_owned())
}

fn attention(device: &Device) -> Result<Vec<f32>, KernelError> {
    let (n_head, n_kv_head, d, n_rows) = (4, 2, 64, 40);
    let layout = KvLayout {
        n_kv_head,
        head_dim_k: d,
        head_dim_v: d,
        values: ValuePlace::Apart,
        index_dim: 0,
        ty: KvType::F16,
    };
    let blocks = [PageId(1), PageId(0)];
    let bytes = blocks.len() * layout.page_bytes();
    let Some(mut pool) = device.memory::<u8>(bytes) else {
        let source = std::io::Error::other("the test at start has no room for its pages");
        return Err(KernelError::Memory { bytes, source });
    };
    let parts = [AttendPart { pages: &blocks, first_pos: 0, n_rows, first_row: 0 }];
    let (q, [k, v]) = (
        rows(device, 8, n_rows, n_head * d),
        [9, 10].map(|seed| rows(device, seed, n_rows, n_kv_head * d)),
    );
    let rows = KvRows { k: k.view(), v: Some(v.view()), index: None };
    device.run(KvWrite { layout: &layout, pool: pool.view_mut(), parts: &parts, rows });
    let mut out = device.scratch().take(n_rows, n_head * d);
    let (layout, parts, variant) = (&layout, &parts[..], AttendVariant::default());
    let over = AttendOver { layout, pool: pool.view(), parts, n_head, scale: 0.125, variant };
    device.run(Attend { over, q: q.view(), out: out.view_mut() });
    Ok(out.read().into_owned())
}

fn delta(device: &Device) -> Result<Vec<f32>, KernelError> {
    let (n_head, d, n) = (2, 48, 5);
    let shape = DeltaShape {
        n_head,
        n_key_head: n_head,
        key_heads: KeyHeads::Grouped,
        d_k: d,
        d_v: d,
        decay: Decay::PerChannel,
    };
    let values = n_head * d * d;
    let Some(mut states) = device.memory::<f32>(values) else {
        let source = std::io::Error::other("the test at start has no room for its state");
        return Err(KernelError::Memory { bytes: values * size_of::<f32>(), source });
    };
    let [mut q, mut k, v, mut decay] = [11, 12, 13, 14].map(|s| rows(device, s, n, n_head * d));
    let mut beta = rows(device, 15, n, n_head);
    [&mut q, &mut k].into_iter().for_each(|x| device.l2_norm(x, d, 1e-6));
    [&mut decay, &mut beta].into_iter().for_each(|x| device.sigmoid(x));
    let [q, k, v, decay, beta] = [&q, &k, &v, &decay, &beta].map(|rows| rows.columns(0));
    let mut out = device.scratch().take(n, n_head * d);
    let parts = [ScanPart::in_place(0, 0, 0, n)];
    device.run(DeltaScan {
        shape: &shape,
        parts: &parts,
        states: states.view_mut(),
        x: DeltaRows { q, k, v, decay, beta },
        out: out.view_mut(),
    });
    let states = states.read(0..values);
    Ok([out.read(), states].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::select;

    #[test]
    fn a_driver_that_fuses_is_found_and_one_that_does_not_passes() {
        let cpu = |name| Device::cpu(select(Some(name)).unwrap(), 1, None).unwrap();
        let here = cpu("unfused");
        let all = || CASES.iter().chain(&MANY_ROWS).chain(&MANY_ROWS_ON_UNITS[..1]);
        assert_eq!(first_difference(&here, &cpu("unfused"), all()).unwrap(), None);
        // The CPU's own kernels round a product and its sum once.
        let found = first_difference(&here, &cpu("reference"), all()).unwrap();
        assert_eq!(found, Some("exponentials"));
        assert_eq!(first_far_off(&here, &cpu("reference")).unwrap(), None);
        for (name, case) in all() {
            let finite = case(&here).unwrap().iter().all(|x| x.is_finite());
            assert!(finite, "{name}: what is compared are numbers");
        }
    }
}
