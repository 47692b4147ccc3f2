//! The tensor directory: where each tensor lies. Alignment, overlap and the file's size are checked.

use super::error::GgufError;
use super::parse::{Header, MAX_DIMS};
use brigade_quant::GgmlType;

/// One tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name of the tensor, unique over all shards.
    pub name: String,
    /// Type of the elements.
    pub ty: GgmlType,
    /// Dimensions stored in the file; the rest of `ne` is 1.
    pub n_dims: usize,
    /// Sizes, the fastest-varying (row) dimension first.
    pub ne: [usize; MAX_DIMS],
    /// Index of the file it lies in; 0 unless the model is split, or it is an adapter's.
    pub shard: usize,
    /// Offset of its first byte in that file.
    pub offset: u64,
    /// Size in bytes.
    pub nbytes: u64,
}

impl TensorInfo {
    /// The stored dimensions, the fastest-varying first.
    #[inline]
    pub fn dims(&self) -> &[usize] {
        &self.ne[..self.n_dims]
    }

    /// Number of elements, the product of the dimensions.
    #[inline]
    pub fn n_elems(&self) -> usize {
        self.ne.iter().product()
    }

    /// Elements of a row: the fastest-varying dimension.
    #[inline]
    pub fn row_len(&self) -> usize {
        self.ne[0]
    }

    /// Rows over all other dimensions.
    #[inline]
    pub fn n_rows(&self) -> usize {
        self.ne[1..].iter().product()
    }

    /// Bytes of a row.
    #[inline]
    pub fn row_bytes(&self) -> usize {
        self.ne[0] / self.ty.block_elems() * self.ty.block_bytes()
    }
}

/// Pads `n` up to a multiple of `alignment`, a power of two; `None` on overflow.
pub(super) fn pad_up(n: u64, alignment: u32) -> Option<u64> {
    let mask = u64::from(alignment) - 1;
    Some(n.checked_add(mask)? & !mask)
}

/// Places the tensors of one shard. `file_len` is `None` where only the header is at hand, and the
/// end of the data cannot be checked.
///
/// Any layout of aligned tensors that do not overlap is accepted, dense or not.
pub(super) fn place_tensors(
    header: &Header,
    shard: usize,
    file_len: Option<u64>,
    file: &str,
) -> Result<Vec<TensorInfo>, GgufError> {
    let overflow = || GgufError::malformed(file, "data section", "offset overflows");
    let data_start = pad_up(header.len as u64, header.alignment).ok_or_else(overflow)?;
    let mut tensors = Vec::with_capacity(header.tensors.len());
    for (i, raw) in header.tensors.iter().enumerate() {
        let bad = |problem: String| {
            Err(GgufError::malformed(
                file,
                format_args!("tensor {i} ({}) offset", raw.name),
                problem,
            ))
        };
        if raw.offset % u64::from(header.alignment) != 0 {
            return bad(format!(
                "{} is not a multiple of the alignment {}",
                raw.offset, header.alignment
            ));
        }
        let start = data_start.checked_add(raw.offset);
        let Some((start, end)) = start.and_then(|s| Some((s, s.checked_add(raw.nbytes)?))) else {
            return bad(format!("{} and {} bytes of data overflow", raw.offset, raw.nbytes));
        };
        if let Some(len) = file_len.filter(|len| end > *len) {
            let what = if len <= data_start {
                "is a header without data, enough to plan and to inspect but not to run, or cut off"
            } else {
                "is cut off"
            };
            return bad(format!(
                "its data end at byte {end} of a file of {len} bytes: the file {what}"
            ));
        }
        tensors.push(TensorInfo {
            name: raw.name.clone(),
            ty: raw.ty,
            n_dims: raw.n_dims,
            ne: raw.ne,
            shard,
            offset: start,
            nbytes: raw.nbytes,
        });
    }
    check_overlap(&tensors, file)?;
    Ok(tensors)
}

fn check_overlap(tensors: &[TensorInfo], file: &str) -> Result<(), GgufError> {
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_unstable_by_key(|t| t.offset);
    for pair in by_offset.windows(2) {
        let (a, b) = (pair[0], pair[1]);
        if a.offset + a.nbytes > b.offset {
            let field = format_args!("tensor {} offset", b.name).to_string();
            let problem = format!("its data overlap with those of tensor {}", a.name);
            return Err(GgufError::malformed(file, field, problem));
        }
    }
    Ok(())
}
