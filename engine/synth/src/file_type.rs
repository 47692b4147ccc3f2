//! File types ("quants" such as Q4_K_M), and which tensor gets which element type in them.
//!
//! The mixes follow llama.cpp's rule for models without special cases. Layers near both ends, and every third
//! layer between, get more bits for the attention's values and the FFN's way down. The IQ mixes are those of
//! a quantiser that was told which weights matter.

use super::SynthError;
use brigade_quant::GgmlType;

/// Use of a tensor, as far as its element type depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Norms, biases and routers: always f32.
    Precise,
    /// The embedding of tokens.
    Embedding,
    /// Output matrix, or the embedding that stands in for it.
    Output,
    /// The projection to keys.
    AttnK,
    /// The projection to values.
    AttnV,
    /// The attention's way back.
    AttnOutput,
    /// The FFN's way back, dense or of experts.
    FfnDown {
        /// Whether it belongs to experts.
        expert: bool,
    },
    /// Other weights of experts.
    Expert,
    /// Every other matrix.
    Matrix,
}

/// Place of a tensor: layer `il` of `n_layer`, and the model's properties that mixes depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub il: usize,
    pub n_layer: usize,
    /// Query heads for each KV head.
    pub n_gqa: usize,
    pub n_expert: usize,
}

macro_rules! file_types {
    ($($variant:ident = $id:literal, $name:literal, $base:ident;)*) => {
        /// A mix of element types, llama.cpp's `general.file_type`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(non_camel_case_types, reason = "the field's own spelling: Q4_K_M")]
        pub enum FileType {
            $(#[doc = concat!("`", $name, "`: mostly ", stringify!($base), ".")] $variant,)*
        }

        impl FileType {
            /// Every file type offered.
            pub const ALL: &'static [FileType] = &[$(FileType::$variant),*];

            /// Number of the mix in `general.file_type`.
            pub fn id(self) -> u32 {
                match self { $(Self::$variant => $id,)* }
            }

            /// Name of the mix, e.g. `Q4_K_M`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The type of most of its weights.
            pub fn base(self) -> GgmlType {
                match self { $(Self::$variant => GgmlType::$base,)* }
            }
        }
    };
}

file_types! {
    F32 = 0, "F32", F32;
    F16 = 1, "F16", F16;
    BF16 = 32, "BF16", BF16;
    Q4_0 = 2, "Q4_0", Q4_0;
    Q4_1 = 3, "Q4_1", Q4_1;
    Q5_0 = 8, "Q5_0", Q5_0;
    Q5_1 = 9, "Q5_1", Q5_1;
    Q8_0 = 7, "Q8_0", Q8_0;
    Q2_K = 10, "Q2_K", Q2_K;
    Q3_K_S = 11, "Q3_K_S", Q3_K;
    Q3_K_M = 12, "Q3_K_M", Q3_K;
    Q4_K_S = 14, "Q4_K_S", Q4_K;
    Q4_K_M = 15, "Q4_K_M", Q4_K;
    Q5_K_S = 16, "Q5_K_S", Q5_K;
    Q5_K_M = 17, "Q5_K_M", Q5_K;
    Q6_K = 18, "Q6_K", Q6_K;
    IQ1_S = 24, "IQ1_S", IQ1_S;
    IQ1_M = 31, "IQ1_M", IQ1_M;
    IQ2_XXS = 19, "IQ2_XXS", IQ2_XXS;
    IQ2_XS = 20, "IQ2_XS", IQ2_XS;
    IQ2_S = 28, "IQ2_S", IQ2_XS;
    IQ2_M = 29, "IQ2_M", IQ2_S;
    IQ3_XXS = 23, "IQ3_XXS", IQ3_XXS;
    IQ3_S = 26, "IQ3_S", IQ3_S;
    IQ3_M = 27, "IQ3_M", IQ3_S;
    IQ4_NL = 25, "IQ4_NL", IQ4_NL;
    IQ4_XS = 30, "IQ4_XS", IQ4_XS;
    TQ1_0 = 36, "TQ1_0", TQ1_0;
    TQ2_0 = 37, "TQ2_0", TQ2_0;
    MXFP4_MOE = 38, "MXFP4_MOE", Q8_0;
    NVFP4 = 39, "NVFP4", NVFP4;
    Q1_0 = 40, "Q1_0", Q1_0;
    Q2_0 = 41, "Q2_0", Q2_0;
}

impl FileType {
    /// The file type of this name; `Q3_K`, `Q4_K` and `Q5_K` mean the `_M` mixes.
    ///
    /// # Errors
    /// There is none; the message lists those there are.
    pub fn named(name: &str) -> Result<Self, SynthError> {
        let upper = name.to_uppercase();
        let full = match upper.as_str() {
            "Q3_K" | "Q4_K" | "Q5_K" => format!("{upper}_M"),
            _ => upper,
        };
        let found = Self::ALL.iter().find(|ty| ty.name() == full);
        found.copied().ok_or_else(|| SynthError::Unknown {
            what: "quant",
            name: name.to_owned(),
            choices: Self::ALL.iter().map(|ty| ty.name()).collect(),
        })
    }

    /// The element type of a tensor whose rows have `row_len` elements.
    pub(super) fn tensor_type(self, role: Role, place: Place, row_len: usize) -> GgmlType {
        let ty = match role {
            Role::Precise => return GgmlType::F32,
            Role::Output => self.output(),
            Role::AttnV => self.attn_v(place),
            Role::AttnK => self.attn_k(place),
            Role::Embedding => self.embedding(),
            Role::AttnOutput => self.attn_output(place),
            Role::FfnDown { expert } => self.ffn_down(expert, place),
            Role::Expert if self == Self::MXFP4_MOE => GgmlType::MXFP4,
            Role::Expert | Role::Matrix => self.base(),
        };
        whole_blocks(ty, row_len)
    }

    /// Whether it gives some tensors another type than its base.
    fn is_mix(self) -> bool {
        self.base().block_elems() == 256 && self != Self::Q6_K
    }

    /// Whether most of its weights have two bits or fewer of a codebook.
    fn is_iq1_or_iq2(self) -> bool {
        use GgmlType::{IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS};
        matches!(self.base(), IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S)
    }

    /// Type of the tensors that IQ1 and IQ2 mixes keep more precise.
    fn better_than_iq2(self) -> GgmlType {
        if matches!(self, Self::IQ2_S | Self::IQ2_M) { GgmlType::IQ3_S } else { GgmlType::Q2_K }
    }

    fn embedding(self) -> GgmlType {
        match self {
            Self::IQ3_XXS => GgmlType::IQ3_S,
            Self::TQ1_0 | Self::TQ2_0 | Self::Q2_0 => GgmlType::Q4_K,
            _ if self.is_iq1_or_iq2() => self.better_than_iq2(),
            _ => self.base(),
        }
    }

    fn output(self) -> GgmlType {
        if self.is_iq1_or_iq2() || self == Self::IQ3_XXS {
            return GgmlType::Q5_K;
        }
        match self.base() {
            base @ (GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 | GgmlType::Q8_0) => base,
            _ => GgmlType::Q6_K,
        }
    }

    fn attn_k(self, place: Place) -> GgmlType {
        match self {
            _ if place.n_expert == 8 && self.is_iq1_or_iq2() => GgmlType::Q4_K,
            _ if place.n_expert == 8 && self.is_mix() => GgmlType::Q8_0,
            Self::IQ3_XXS => GgmlType::IQ2_S,
            _ => self.base(),
        }
    }

    fn attn_v(self, place: Place) -> GgmlType {
        if self.is_iq1_or_iq2() {
            let shared = place.n_gqa >= 4 || place.n_expert >= 4;
            return if shared { GgmlType::Q4_K } else { self.better_than_iq2() };
        }
        if place.n_expert == 8 && self.is_mix() {
            return GgmlType::Q8_0;
        }
        match self {
            Self::Q2_K if place.n_gqa >= 4 => GgmlType::Q4_K,
            Self::Q2_K => GgmlType::Q3_K,
            Self::Q3_K_M if place.il < 2 => GgmlType::Q5_K,
            Self::Q3_K_M => GgmlType::Q4_K,
            Self::Q4_K_S if place.il < 4 => GgmlType::Q5_K,
            Self::Q4_K_M | Self::Q5_K_M if more_bits(place) => GgmlType::Q6_K,
            Self::IQ4_NL | Self::IQ4_XS if place.n_gqa >= 4 => GgmlType::Q5_K,
            Self::IQ3_XXS | Self::IQ3_S if place.n_gqa >= 4 => GgmlType::Q4_K,
            Self::IQ3_M => GgmlType::Q4_K,
            _ => self.base(),
        }
    }

    fn attn_output(self, place: Place) -> GgmlType {
        match self {
            Self::Q2_K
            | Self::Q3_K_S
            | Self::Q3_K_M
            | Self::Q4_K_S
            | Self::Q4_K_M
            | Self::IQ4_XS
            | Self::IQ4_NL
            | Self::IQ3_XXS
            | Self::IQ3_S
            | Self::IQ3_M
                if place.n_expert == 8 =>
            {
                GgmlType::Q5_K
            }
            _ if place.n_expert == 8 && self.is_iq1_or_iq2() => GgmlType::Q5_K,
            Self::IQ1_S | Self::IQ1_M => GgmlType::IQ2_XXS,
            Self::IQ2_S | Self::IQ2_M | Self::IQ3_XXS => GgmlType::IQ3_S,
            Self::IQ3_M => GgmlType::Q4_K,
            Self::Q2_K => GgmlType::Q3_K,
            Self::Q3_K_M => GgmlType::Q4_K,
            _ => self.base(),
        }
    }

    fn ffn_down(self, expert: bool, place: Place) -> GgmlType {
        let first_eighth = place.il < place.n_layer / 8;
        match self {
            Self::MXFP4_MOE if expert => GgmlType::MXFP4,
            _ if self.is_iq1_or_iq2() && first_eighth => self.better_than_iq2(),
            Self::IQ3_M if first_eighth => GgmlType::Q4_K,
            Self::Q2_K => GgmlType::Q3_K,
            Self::Q3_K_M if place.il < place.n_layer / 16 => GgmlType::Q5_K,
            Self::Q3_K_M if more_bits(place) => GgmlType::Q4_K,
            Self::Q4_K_S | Self::IQ4_NL | Self::IQ4_XS if first_eighth => GgmlType::Q5_K,
            Self::Q5_K_S if first_eighth => GgmlType::Q5_K,
            Self::Q4_K_M | Self::Q5_K_M if more_bits(place) => GgmlType::Q6_K,
            _ => self.base(),
        }
    }
}

/// The first eighth, the last eighth, and every third layer between.
fn more_bits(place: Place) -> bool {
    let Place { il, n_layer, .. } = place;
    il < n_layer / 8 || il >= 7 * n_layer / 8 || (il - n_layer / 8) % 3 == 2
}

/// `ty`, or the type that llama.cpp takes instead where rows are not whole blocks of it.
fn whole_blocks(ty: GgmlType, row_len: usize) -> GgmlType {
    if row_len.is_multiple_of(ty.block_elems()) {
        return ty;
    }
    if !row_len.is_multiple_of(32) {
        return GgmlType::F16;
    }
    match ty {
        GgmlType::Q4_K => GgmlType::Q5_0,
        GgmlType::Q5_K => GgmlType::Q5_1,
        GgmlType::Q6_K => GgmlType::Q8_0,
        GgmlType::TQ1_0 | GgmlType::TQ2_0 | GgmlType::Q1_0 | GgmlType::Q2_0 | GgmlType::NVFP4 => {
            GgmlType::Q4_0
        }
        _ => GgmlType::IQ4_NL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(ty: FileType, role: Role) -> Vec<GgmlType> {
        let place = |il| Place { il, n_layer: 32, n_gqa: 4, n_expert: 0 };
        (0..32).map(|il| ty.tensor_type(role, place(il), 1024)).collect()
    }

    #[test]
    fn medium_mix_gives_half_of_the_values_six_bits() {
        for (ty, base) in [(FileType::Q4_K_M, GgmlType::Q4_K), (FileType::Q5_K_M, GgmlType::Q5_K)] {
            for role in [Role::AttnV, Role::FfnDown { expert: false }] {
                let types = layers(ty, role);
                let six: Vec<_> = (0..32).filter(|il| types[*il] == GgmlType::Q6_K).collect();
                assert_eq!(six, [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]);
                assert_eq!(types.iter().filter(|t| **t == base).count(), 16);
            }
            assert_eq!(layers(ty, Role::Matrix), vec![base; 32]);
            assert_eq!(layers(ty, Role::Output), vec![GgmlType::Q6_K; 32]);
            assert_eq!(layers(ty, Role::Precise), vec![GgmlType::F32; 32]);
        }
    }

    #[test]
    fn small_mixes_have_several_types() {
        use GgmlType::{IQ2_S, IQ2_XXS, IQ3_S, IQ3_XXS, Q2_K, Q4_K, Q5_K};
        let down = Role::FfnDown { expert: false };
        for (ty, roles, want) in [
            (FileType::IQ1_S, [Role::Embedding, Role::AttnOutput, down], [Q2_K, IQ2_XXS, Q2_K]),
            (FileType::IQ2_M, [Role::AttnK, Role::AttnOutput, down], [IQ2_S, IQ3_S, IQ3_S]),
            (FileType::IQ3_XXS, [Role::AttnK, Role::AttnV, down], [IQ2_S, Q4_K, IQ3_XXS]),
        ] {
            assert_eq!(roles.map(|role| layers(ty, role)[0]), want, "{}", ty.name());
            assert_eq!(layers(ty, Role::Output), vec![Q5_K; 32]);
        }
    }

    #[test]
    fn names_round_trip_and_unknown_ones_list_the_choices() {
        for ty in FileType::ALL {
            assert_eq!(FileType::named(&ty.name().to_lowercase()).unwrap(), *ty);
        }
        assert_eq!(FileType::named("q4_k").unwrap(), FileType::Q4_K_M);
        let message = FileType::named("Q9_Z").unwrap_err().to_string();
        assert!(message.contains("Q9_Z") && message.contains("Q4_K_M"), "{message}");
    }

    #[test]
    fn rows_that_are_not_whole_blocks_take_another_type() {
        let place = Place { il: 5, n_layer: 8, n_gqa: 1, n_expert: 0 };
        let ty = |row_len| FileType::Q4_K_S.tensor_type(Role::Matrix, place, row_len);
        assert_eq!((ty(512), ty(96), ty(40)), (GgmlType::Q4_K, GgmlType::Q5_0, GgmlType::F16));
    }
}
