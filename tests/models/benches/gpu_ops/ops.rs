//! Products by type and rows, and attention by positions.

use brigade_gpu::{
    AttendPages, AttendVariant, Gpu, GpuBuffer, KV_PAGE, KvLayout, KvType, Purpose, RowForm,
    ValuePlace, WeightType as W,
};

use brigade_engine::ops::{AttendPart, KernelTime, PageId, Weights};
use brigade_engine::quant::GgmlType as T;

use crate::warm::Warm;
use crate::{Options, random};

const TYPES: [T; 5] = [T::Q4_K, T::Q6_K, T::Q8_0, T::MXFP4, T::F16];
/// Rows and columns of the weights: of an 8B model.
const SHAPES: [(usize, usize); 2] = [(4096, 4096), (14336, 4096)];
const N_ROWS: [usize; 5] = [1, 8, 32, 64, 512];
/// Bytes of all copies of a matrix, so that no cache holds them.
const COPIED: usize = 256 << 20;

pub fn products(options: &Options, warm: &mut Warm) -> Result<(), String> {
    let gpu = options.open(true)?;
    println!(
        "| type | weights | rows | us | GB/s of weights | TOPS | kernel |\n|---|---|---|---|---|---|---|"
    );
    for ty in TYPES.into_iter().filter(|ty| options.wants(&format!("{ty:?}"))) {
        for (rows, cols) in SHAPES {
            let (rows, cols) = if options.small { (rows / 64, cols / 16) } else { (rows, cols) };
            let all = if options.small { 1 } else { COPIED };
            one_matrix(&gpu, warm, ty, rows, cols, all)?;
        }
    }
    Ok(())
}

fn one_matrix(
    gpu: &Gpu,
    warm: &mut Warm,
    ty: T,
    rows: usize,
    cols: usize,
    all: usize,
) -> Result<(), String> {
    let bytes = W::from(ty).packed_bytes(rows, cols);
    let copies = all.div_ceil(bytes);
    let weights = keep(gpu, &random::bytes(bytes * copies))?;
    for n_rows in N_ROWS {
        let x = formed(gpu, gpu.row_form(ty.into(), n_rows), n_rows, cols)?;
        let mut out = room(gpu, 4 * n_rows * rows)?;
        let mut pass = || {
            for copy in 0..copies {
                let panels = weights.span().part(copy * bytes..(copy + 1) * bytes);
                let w = Weights { ty, rows, cols, scale: 1.0, panels };
                gpu.product(&w, x.span(), n_rows, out.span_mut());
            }
            of(gpu.kernel_times(), "product")
        };
        // The first pass compiles.
        pass();
        warm.up()?;
        let (seconds, kernel) = pass();
        let seconds = seconds / copies as f64;
        println!(
            "| {ty:?} | {rows} x {cols} | {n_rows} | {:.1} | {:.0} | {:.2} | {kernel} |",
            seconds * 1e6,
            bytes as f64 / seconds / 1e9,
            2.0 * (n_rows * rows * cols) as f64 / seconds / 1e12,
        );
    }
    Ok(())
}

/// Positions behind which rows attend, and how many rows there are.
const BEHIND: [(usize, usize); 6] =
    [(1024, 1), (32768, 1), (131_072, 1), (0, 512), (8192, 512), (32768, 512)];
/// Query heads, heads of keys, and their width: of an 8B model.
const HEADS: (usize, usize, usize) = (32, 8, 128);

pub fn attention(options: &Options, warm: &mut Warm) -> Result<(), String> {
    let gpu = options.open(true)?;
    println!("| pages | behind | rows | us | GB/s of pages | TFLOPS |\n|---|---|---|---|---|---|");
    for ty in [KvType::F16, KvType::Q8_0, KvType::F32] {
        for (behind, n_rows) in BEHIND {
            let behind = if options.small { behind / 256 } else { behind };
            one_attention(&gpu, warm, ty, behind, n_rows)?;
        }
    }
    Ok(())
}

fn one_attention(
    gpu: &Gpu,
    warm: &mut Warm,
    ty: KvType,
    behind: usize,
    n_rows: usize,
) -> Result<(), String> {
    let (n_head, n_kv_head, dim) = HEADS;
    let layout = KvLayout {
        n_kv_head,
        head_dim_k: dim,
        head_dim_v: dim,
        values: ValuePlace::Apart,
        index_dim: 0,
        ty,
    };
    let positions = behind + n_rows;
    let n_pages = positions.div_ceil(KV_PAGE);
    // Zeros: any bytes would be numbers too large, and infinities take other ways.
    let bytes = n_pages * layout.page_bytes();
    let pool = gpu.buffer(bytes, Purpose::States).map_err(|error| error.to_string())?;
    let q = keep(gpu, bytemuck::cast_slice(&random::values(n_rows * n_head * dim)))?;
    let mut out = room(gpu, 4 * n_rows * n_head * dim)?;
    let pages: Vec<PageId> = (0..n_pages as u32).map(PageId).collect();
    let parts = [AttendPart { pages: &pages, first_pos: behind, n_rows, first_row: 0 }];
    let over = AttendPages {
        layout: &layout,
        pool: pool.span(),
        parts: &parts,
        n_head,
        scale: 0.09,
        variant: AttendVariant::default(),
    };
    let mut pass = || -> Result<f64, String> {
        gpu.attend(&over, q.span(), out.span_mut()).map_err(|error| error.to_string())?;
        let seconds = of(gpu.kernel_times(), "attend").0;
        gpu.finish().map_err(|error| error.to_string())?;
        Ok(seconds)
    };
    pass()?;
    warm.up()?;
    let seconds = pass()?;
    let pairs = n_rows * behind + n_rows * (n_rows + 1) / 2;
    println!(
        "| {ty:?} | {behind} | {n_rows} | {:.1} | {:.0} | {:.2} |",
        seconds * 1e6,
        bytes as f64 / seconds / 1e9,
        4.0 * (pairs * n_head * dim) as f64 / seconds / 1e12,
    );
    Ok(())
}

/// Seconds of the kernels whose name begins so, and the name of the longest.
fn of(times: Vec<KernelTime>, name: &str) -> (f64, &'static str) {
    let mine = || times.iter().filter(|time| time.name.starts_with(name));
    (
        mine().map(|time| time.took.as_secs_f64()).sum(),
        mine().next().map_or("none", |time| time.name),
    )
}

fn keep(gpu: &Gpu, bytes: &[u8]) -> Result<GpuBuffer, String> {
    gpu.keep(bytes).map_err(|error| error.to_string())
}

fn room(gpu: &Gpu, len: usize) -> Result<GpuBuffer, String> {
    gpu.buffer(len, Purpose::Activations).map_err(|error| error.to_string())
}

/// Rows in a form that products read.
fn formed(gpu: &Gpu, form: RowForm, n_rows: usize, cols: usize) -> Result<GpuBuffer, String> {
    let x = keep(gpu, bytemuck::cast_slice(&random::values(n_rows * cols)))?;
    let mut out = room(gpu, n_rows * form.row_bytes(cols))?;
    match form {
        RowForm::Floats => return Ok(x),
        RowForm::Blocks => gpu.quantize(x.span(), out.span_mut()),
        RowForm::Halves => gpu.halve(x.span(), cols, out.span_mut()),
    }
    Ok(out)
}
