//! Types of weights, and how their panels lie: what the shaders are told of a format. The numbers of [`Codes`], [`Levels`]
//! and [`Heads`] are those of `product_codes.glsl` and `product_scales.glsl`.

use brigade_quant::GgmlType;

/// A type of weights, by the name that it has in model files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(
    missing_docs,
    clippy::upper_case_acronyms,
    non_camel_case_types,
    reason = "names of the files"
)]
pub enum WeightType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    NVFP4,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    TQ1_0,
    TQ2_0,
    Q1_0,
    Q2_0,
}

/// Layout of a code's bits in the planes.
#[derive(Clone, Copy)]
pub(super) enum Codes {
    Bytes = 0,
    Nibbles = 1,
    NibblesAndBits = 2,
    NibblesAndPairs = 3,
    Pairs = 4,
    PairsAndBits = 5,
    Bits = 6,
    PairsAndDirections = 7,
}

/// Numbers that codes stand for.
#[derive(Clone, Copy)]
pub(super) enum Levels {
    Plain = 0,
    Signed = 1,
    E2m1 = 2,
    Iq4 = 3,
    Iq2 = 4,
    Iq3Xxs = 5,
    Iq3S = 6,
    Iq1 = 7,
}

/// Layout of the scales in the head of a record.
#[derive(Clone, Copy)]
pub(super) enum Heads {
    Half = 0,
    HalfAndMin = 1,
    KMins = 2,
    Q2K = 3,
    Q3K = 4,
    Q6K = 5,
    Iq4Xs = 6,
    E8m0 = 7,
    E4m3 = 8,
    Eighths = 9,
    Odd2 = 10,
    Odd3Xxs = 11,
    Odd3S = 12,
    Odd1 = 13,
}

/// A quantised format, in the constants of the shaders.
#[derive(Clone, Copy)]
pub(super) struct Format {
    codes: Codes,
    levels: Levels,
    heads: Heads,
    /// Blocks of 32 columns in a record.
    pub(super) blocks: u32,
    /// Whether each half of a block has its own scale.
    halves: bool,
    /// Number that is subtracted from a code.
    offset: u32,
}

impl From<GgmlType> for WeightType {
    /// # Panics
    /// For a type without a kernel, of which no matrix is packed.
    fn from(ty: GgmlType) -> Self {
        macro_rules! of_the_same_name {
            ($($name:ident)*) => {
                match ty {
                    $(GgmlType::$name => Self::$name,)*
                    other => unreachable!("a packed matrix of {other}"),
                }
            };
        }
        of_the_same_name!(
            F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 NVFP4
            IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S TQ1_0 TQ2_0 Q1_0 Q2_0
        )
    }
}

impl WeightType {
    /// Whether products read the 8-bit form of the activations ([`quantize`](crate::Gpu::quantize)); others read f32.
    pub fn wants_blocks(self) -> bool {
        self.format().is_some()
    }

    /// Bytes of packed weights `[rows, cols]`.
    ///
    /// # Panics
    /// If the columns are not whole units of the type.
    pub fn packed_bytes(self, rows: usize, cols: usize) -> usize {
        rows.div_ceil(16) * self.panel_bytes(cols)
    }

    /// Bytes of sixteen rows.
    pub(super) fn panel_bytes(self, cols: usize) -> usize {
        let Some(format) = self.format() else {
            return cols * 16 * if self == Self::F32 { 4 } else { 2 };
        };
        let unit = 32 * format.blocks as usize;
        assert!(cols.is_multiple_of(unit), "{cols} columns of {self:?}, which come in {unit}");
        cols / unit * 4 * format.record_words() as usize
    }

    /// The format, of types that are quantised.
    pub(super) fn format(self) -> Option<Format> {
        use self::{Codes as C, Heads as H, Levels as L};
        let (codes, levels, heads, blocks, halves, offset) = match self {
            Self::F32 | Self::F16 | Self::BF16 => return None,
            Self::Q4_0 => (C::Nibbles, L::Plain, H::Half, 1, false, 8),
            Self::Q4_1 => (C::Nibbles, L::Plain, H::HalfAndMin, 1, false, 0),
            Self::Q5_0 => (C::NibblesAndBits, L::Plain, H::Half, 1, false, 16),
            Self::Q5_1 => (C::NibblesAndBits, L::Plain, H::HalfAndMin, 1, false, 0),
            Self::Q8_0 => (C::Bytes, L::Signed, H::Half, 1, false, 0),
            Self::Q2_K => (C::Pairs, L::Plain, H::Q2K, 8, true, 0),
            Self::Q3_K => (C::PairsAndBits, L::Plain, H::Q3K, 8, true, 4),
            Self::Q4_K => (C::Nibbles, L::Plain, H::KMins, 8, false, 0),
            Self::Q5_K => (C::NibblesAndBits, L::Plain, H::KMins, 8, false, 0),
            Self::Q6_K => (C::NibblesAndPairs, L::Plain, H::Q6K, 8, true, 32),
            Self::IQ4_NL => (C::Nibbles, L::Iq4, H::Half, 1, false, 0),
            Self::IQ4_XS => (C::Nibbles, L::Iq4, H::Iq4Xs, 8, false, 0),
            Self::MXFP4 => (C::Nibbles, L::E2m1, H::E8m0, 1, false, 16),
            Self::NVFP4 => (C::Nibbles, L::E2m1, H::E4m3, 2, true, 16),
            Self::IQ1_S => (C::Pairs, L::Plain, H::Eighths, 8, false, 1),
            Self::IQ1_M => (C::PairsAndDirections, L::Iq1, H::Odd1, 8, true, 9),
            Self::IQ2_XXS => (C::PairsAndBits, L::Iq2, H::Odd2, 8, false, 64),
            Self::IQ2_XS | Self::IQ2_S => (C::PairsAndBits, L::Iq2, H::Odd2, 8, true, 64),
            Self::IQ3_XXS => (C::Nibbles, L::Iq3Xxs, H::Odd3Xxs, 8, false, 64),
            Self::IQ3_S => (C::Nibbles, L::Iq3S, H::Odd3S, 8, false, 16),
            Self::TQ1_0 | Self::TQ2_0 => (C::Pairs, L::Plain, H::Half, 8, false, 1),
            Self::Q1_0 => (C::Bits, L::Plain, H::Half, 4, false, 1),
            Self::Q2_0 => (C::Pairs, L::Plain, H::Half, 2, false, 1),
        };
        Some(Format { codes, levels, heads, blocks, halves, offset })
    }
}

impl Format {
    /// Constants 0 to 8 of the shaders.
    pub(super) fn constants(&self) -> [u32; 9] {
        [
            self.codes as u32,
            self.levels as u32,
            self.heads as u32,
            self.blocks,
            self.head_words(),
            self.plane_words(),
            self.halves.into(),
            self.has_mins().into(),
            self.offset,
        ]
    }

    /// Number of terms that a block of columns adds to a sum.
    pub(super) fn parts(&self) -> u32 {
        match (self.has_mins(), self.halves) {
            (true, true) => 3,
            (true, false) => 2,
            (false, _) => 1,
        }
    }

    /// Columns that share a scale.
    pub(super) fn scale_columns(&self) -> u32 {
        if self.halves { 16 } else { 32 }
    }

    fn has_mins(&self) -> bool {
        matches!(self.heads, Heads::HalfAndMin | Heads::KMins | Heads::Q2K | Heads::Eighths)
    }

    /// Words of a record.
    fn record_words(&self) -> u32 {
        self.head_words() + self.blocks * self.plane_words()
    }

    /// Words of the scales of sixteen rows: each f16 is eight of them, each byte four, each word sixteen.
    fn head_words(&self) -> u32 {
        match self.heads {
            Heads::Half => 8,
            Heads::HalfAndMin => 16,
            Heads::KMins => 8 + 8 + 3 * 16,
            Heads::Q2K => 8 + 8 + 16 * 4,
            Heads::Q3K => 8 + 3 * 16,
            Heads::Q6K => 8 + 16 * 4,
            Heads::Iq4Xs => 8 + 8 + 16,
            Heads::E8m0 => 4,
            Heads::E4m3 => 4 * 4,
            Heads::Eighths => 8 + 16,
            Heads::Odd1 | Heads::Odd2 | Heads::Odd3Xxs | Heads::Odd3S if self.halves => 8 + 2 * 16,
            Heads::Odd1 | Heads::Odd2 | Heads::Odd3Xxs | Heads::Odd3S => 8 + 16,
        }
    }

    /// Words of a block's planes.
    fn plane_words(&self) -> u32 {
        match self.codes {
            Codes::Bytes => 128,
            Codes::Nibbles => 64,
            Codes::NibblesAndBits => 64 + 16,
            Codes::NibblesAndPairs => 64 + 32,
            Codes::Pairs => 32,
            Codes::PairsAndBits => 32 + 16,
            Codes::Bits => 16,
            Codes::PairsAndDirections => 32 + 4,
        }
    }
}
