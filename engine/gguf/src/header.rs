//! One model out of the headers of its files, and the form in which these headers are sent to workers.

use super::adapters::{self, Adapter, GENERAL_TYPE};
use super::bytes::Bytes;
use super::cursor::Cursor;
use super::directory::{TensorInfo, place_tensors};
use super::error::GgufError;
use super::meta::Meta;
use super::parse;
use super::split::{self, MAX_SHARDS, SPLIT_COUNT, SPLIT_NO, SPLIT_TENSORS};
use super::{Gguf, Shard};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// First bytes of packed headers; the digit is the layout's version.
const PACK_MAGIC: [u8; 8] = *b"GGUFHDR1";
/// Most bytes accepted for one shard's header; the largest vocabularies take some 10 MB.
pub const MAX_HEADER_BYTES: u64 = 1 << 30;

/// Extent of the bytes that are known of a shard.
pub(super) enum Extent {
    /// The bytes are the whole file.
    Whole,
    /// At least its header; how long the file is does not matter.
    Header,
    /// At least its header, of a file of this length.
    HeaderOf {
        /// Bytes of the whole file.
        file_len: u64,
    },
}

/// One shard, parsed and checked by itself.
pub(super) struct Part {
    shard: Shard,
    meta: Meta,
    tensors: Vec<TensorInfo>,
}

impl Part {
    /// Parses shard `no`. Its tensors must lie inside the file, where its length is known.
    pub fn new(
        no: usize,
        bytes: Bytes,
        name: String,
        path: Option<PathBuf>,
        extent: Extent,
    ) -> Result<Self, GgufError> {
        let header = parse::parse_header(&bytes, &name)?;
        let (has_data, file_len) = match extent {
            Extent::Whole => (true, Some(bytes.len() as u64)),
            Extent::Header => (false, None),
            Extent::HeaderOf { file_len } => (false, Some(file_len)),
        };
        let tensors = place_tensors(&header, no, file_len, &name)?;
        let meta = Meta::new(bytes.clone(), header.entries);
        Ok(Self {
            shard: Shard { name, path, bytes, header_len: header.len, has_data },
            meta,
            tensors,
        })
    }

    /// Number of files of the model, by this shard's metadata.
    fn split_count(&self) -> Result<usize, GgufError> {
        let count = usize::from(self.meta.opt_u16(SPLIT_COUNT)?.unwrap_or(1)).max(1);
        if count > MAX_SHARDS {
            return Err(self.bad(SPLIT_COUNT, format!("{count} files, the limit is {MAX_SHARDS}")));
        }
        Ok(count)
    }

    /// Paths of the other files of the model whose first file this is.
    pub fn other_paths(&self, first: &Path) -> Result<Vec<PathBuf>, GgufError> {
        let count = self.split_count()?;
        if count == 1 {
            return Ok(Vec::new());
        }
        let no = self.meta.u16(SPLIT_NO)?;
        if no != 0 {
            let problem = format!("this is file {} of {count}: open the first", no + 1);
            return Err(self.bad(SPLIT_NO, problem));
        }
        let path = |no| {
            split::shard_path(first, no, count).ok_or_else(|| {
                let tail = split::first_tail(count);
                self.bad(SPLIT_COUNT, format!("the first of {count} files must be named *{tail}"))
            })
        };
        (1..count).map(path).collect()
    }

    fn bad(&self, field: &str, problem: impl std::fmt::Display) -> GgufError {
        GgufError::malformed(&self.shard.name, field, problem)
    }

    /// Checks that it is an adapter, in one file.
    pub fn check_adapter(&self) -> Result<(), GgufError> {
        if !adapters::is_adapter(&self.meta)? {
            let problem = "is not \"adapter\": give a model by -m, and adapters of it by --lora";
            return Err(self.bad(GENERAL_TYPE, problem));
        }
        match self.split_count()? {
            1 => Ok(()),
            n => Err(self.bad(SPLIT_COUNT, format!("{n} files: an adapter has to be in one"))),
        }
    }

    /// Checks that this is shard `no` of `count`.
    fn check_place(&self, no: usize, count: usize) -> Result<(), GgufError> {
        if no == 0 && self.split_count()? != count {
            let problem = format!("{} files make the model, {count} given", self.split_count()?);
            return Err(self.bad(SPLIT_COUNT, problem));
        }
        if count > 1 && usize::from(self.meta.u16(SPLIT_NO)?) != no {
            let problem =
                format!("is {}, expected {no} by the file's name", self.meta.u16(SPLIT_NO)?);
            return Err(self.bad(SPLIT_NO, problem));
        }
        Ok(())
    }
}

/// Joins all shards of a model. `parts` is not empty.
pub(super) fn assemble(parts: Vec<Part>) -> Result<Gguf, GgufError> {
    let count = n_model_files(&parts)?;
    if parts.len() > MAX_SHARDS {
        let problem = format!("{} files with adapters, the limit is {MAX_SHARDS}", parts.len());
        return Err(parts[0].bad(SPLIT_COUNT, problem));
    }
    let mut tensors: Vec<TensorInfo> = Vec::new();
    let mut by_name = HashMap::new();
    let mut shards = Vec::with_capacity(parts.len());
    let (mut metas, mut adapters) = (Vec::with_capacity(count), Vec::new());
    let mut n_own_tensors = 0;
    for (no, mut part) in parts.into_iter().enumerate() {
        if no < count {
            part.check_place(no, count)?;
            n_own_tensors += part.tensors.len();
        } else {
            part.check_adapter()?;
            for tensor in &mut part.tensors {
                tensor.name = adapters::name_in_model(&tensor.name, no - count);
            }
        }
        for tensor in &part.tensors {
            if by_name.insert(tensor.name.clone(), tensors.len()).is_some() {
                return Err(
                    part.bad("tensor directory", format!("{} is in another file too", tensor.name))
                );
            }
            tensors.push(tensor.clone());
        }
        if no < count {
            metas.push(part.meta);
        } else {
            adapters.push(Adapter { file: part.shard.name.clone(), meta: part.meta });
        }
        shards.push(part.shard);
    }
    let name = shards.first().map(|shard| shard.name.clone()).unwrap_or_default();
    let Some(meta) = metas.into_iter().next() else {
        return Err(GgufError::malformed(&name, "packed headers", "hold no file"));
    };
    if count > 1 {
        let told = meta.i32(SPLIT_TENSORS)?;
        if i64::from(told) != n_own_tensors as i64 {
            let problem = format!("{told} tensors, the {count} files hold {n_own_tensors}");
            return Err(GgufError::malformed(&name, SPLIT_TENSORS, problem));
        }
    }
    Ok(Gguf { name, meta, tensors, by_name, adapters, shards })
}

/// Number of parts of the model itself: those before the first adapter. The first part always counts. The first one is,
/// whatever it is.
fn n_model_files(parts: &[Part]) -> Result<usize, GgufError> {
    for (no, part) in parts.iter().enumerate().skip(1) {
        if adapters::is_adapter(&part.meta)? {
            return Ok(no);
        }
    }
    Ok(parts.len())
}

/// The shards' headers one after the other: magic, count (u32), then each as length (u64) and bytes.
pub(super) fn pack(shards: &[Shard]) -> Vec<u8> {
    let size: usize = shards.iter().map(|shard| 8 + shard.header_len).sum();
    let mut out = Vec::with_capacity(PACK_MAGIC.len() + 4 + size);
    out.extend_from_slice(&PACK_MAGIC);
    out.extend_from_slice(&(shards.len() as u32).to_le_bytes());
    for shard in shards {
        out.extend_from_slice(&(shard.header_len as u64).to_le_bytes());
        out.extend_from_slice(&shard.bytes[..shard.header_len]);
    }
    out
}

/// Reverses [`pack`]; the result has no data.
pub(super) fn unpack(bytes: &[u8], name: &str) -> Result<Vec<Part>, GgufError> {
    let mut c = Cursor::new(bytes, name);
    if c.take(PACK_MAGIC.len() as u64, format_args!("packed headers"))? != PACK_MAGIC {
        return Err(c.bad(format_args!("packed headers"), "do not start with their magic"));
    }
    let count = c.u32(format_args!("packed headers count"))? as usize;
    if count == 0 || count > MAX_SHARDS {
        return Err(c.bad(
            format_args!("packed headers count"),
            format!("{count}, the limit is {MAX_SHARDS}"),
        ));
    }
    let mut parts = Vec::new();
    for no in 0..count {
        let field = format_args!("packed header {no}");
        let len = c.u64(field)?;
        if len > MAX_HEADER_BYTES {
            return Err(c.bad(field, format!("{len} bytes, the limit is {MAX_HEADER_BYTES}")));
        }
        let bytes = Bytes::Owned(c.take(len, field)?.into());
        let part = Part::new(no, bytes, name.to_owned(), None, Extent::Header)?;
        if part.shard.header_len as u64 != len {
            let problem = format!("ends after {} of its {len} bytes", part.shard.header_len);
            return Err(c.bad(field, problem));
        }
        parts.push(part);
    }
    if c.remaining() > 0 {
        let problem = format!("{} bytes follow the last one", c.remaining());
        return Err(c.bad(format_args!("packed headers"), problem));
    }
    Ok(parts)
}
