//! The element types that a GGUF tensor may have: their ids, names, and the elements and bytes of a block.
//!
//! Every id of the format is either known here or refused. How a type is decoded stands in [`super::format`].

use std::fmt;

/// Declares the enum and its table in one place.
macro_rules! ggml_types {
    ($($variant:ident = $id:literal, $name:literal, $elems:literal, $bytes:literal;)*) => {
        /// A tensor element type of the GGUF format.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[allow(non_camel_case_types, reason = "the field's own spelling: Q4_K, IQ2_XXS")]
        pub enum GgmlType {
            $(#[doc = concat!($name, ": ", $elems, " elements in ", $bytes, " bytes.")] $variant = $id,)*
        }

        impl GgmlType {
            /// Every type the format knows, by id.
            pub const ALL: &'static [GgmlType] = &[$(GgmlType::$variant),*];

            /// The type with this id in a tensor directory; `None` for removed and unknown ids.
            pub fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$variant),)* _ => None }
            }

            /// The usual upper-case name, e.g. `Q4_K`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Elements of one block; row lengths are multiples of it.
            pub const fn block_elems(self) -> usize {
                match self { $(Self::$variant => $elems,)* }
            }

            /// Bytes of one block.
            pub const fn block_bytes(self) -> usize {
                match self { $(Self::$variant => $bytes,)* }
            }
        }
    };
}

ggml_types! {
    F32 = 0, "F32", 1, 4;
    F16 = 1, "F16", 1, 2;
    Q4_0 = 2, "Q4_0", 32, 18;
    Q4_1 = 3, "Q4_1", 32, 20;
    Q5_0 = 6, "Q5_0", 32, 22;
    Q5_1 = 7, "Q5_1", 32, 24;
    Q8_0 = 8, "Q8_0", 32, 34;
    Q8_1 = 9, "Q8_1", 32, 36;
    Q2_K = 10, "Q2_K", 256, 84;
    Q3_K = 11, "Q3_K", 256, 110;
    Q4_K = 12, "Q4_K", 256, 144;
    Q5_K = 13, "Q5_K", 256, 176;
    Q6_K = 14, "Q6_K", 256, 210;
    Q8_K = 15, "Q8_K", 256, 292;
    IQ2_XXS = 16, "IQ2_XXS", 256, 66;
    IQ2_XS = 17, "IQ2_XS", 256, 74;
    IQ3_XXS = 18, "IQ3_XXS", 256, 98;
    IQ1_S = 19, "IQ1_S", 256, 50;
    IQ4_NL = 20, "IQ4_NL", 32, 18;
    IQ3_S = 21, "IQ3_S", 256, 110;
    IQ2_S = 22, "IQ2_S", 256, 82;
    IQ4_XS = 23, "IQ4_XS", 256, 136;
    I8 = 24, "I8", 1, 1;
    I16 = 25, "I16", 1, 2;
    I32 = 26, "I32", 1, 4;
    I64 = 27, "I64", 1, 8;
    F64 = 28, "F64", 1, 8;
    IQ1_M = 29, "IQ1_M", 256, 56;
    BF16 = 30, "BF16", 1, 2;
    TQ1_0 = 34, "TQ1_0", 256, 54;
    TQ2_0 = 35, "TQ2_0", 256, 66;
    MXFP4 = 39, "MXFP4", 32, 17;
    NVFP4 = 40, "NVFP4", 64, 36;
    Q1_0 = 41, "Q1_0", 128, 18;
    Q2_0 = 42, "Q2_0", 64, 18;
}

impl GgmlType {
    /// The id in a tensor directory.
    pub fn id(self) -> u32 {
        u32::from(self as u8)
    }

    /// The type with this name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|ty| ty.name().eq_ignore_ascii_case(name))
    }

    /// Bytes of a row of `n` elements; `None` when `n` is not whole blocks or overflows.
    pub fn row_bytes(self, n: usize) -> Option<usize> {
        let blocks = n / self.block_elems();
        n.is_multiple_of(self.block_elems()).then(|| blocks.checked_mul(self.block_bytes()))?
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip_and_removed_ids_are_refused() {
        let known = (0..64).filter_map(GgmlType::from_id).collect::<Vec<_>>();
        assert_eq!(known, GgmlType::ALL);
        for ty in &known {
            assert_eq!(GgmlType::from_id(ty.id()), Some(*ty));
            assert_eq!(GgmlType::from_name(&ty.name().to_lowercase()), Some(*ty));
        }
        for removed in [4, 5, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
            assert_eq!(GgmlType::from_id(removed), None, "id {removed}");
        }
    }

    #[test]
    fn row_bytes_wants_whole_blocks() {
        assert_eq!(GgmlType::Q4_K.row_bytes(512), Some(288));
        assert_eq!(GgmlType::Q4_K.row_bytes(511), None);
        assert_eq!(GgmlType::I64.row_bytes(usize::MAX), None);
    }
}
