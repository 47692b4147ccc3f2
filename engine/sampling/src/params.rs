//! The settings as the engine has them: structs whose fields are the rows of the table.

use std::sync::Arc;

/// Length of a window over tokens that spans the whole context.
pub const WHOLE_CONTEXT: u32 = u32::MAX;

macro_rules! structs {
    (
        chain { $($(#[$doc:meta])* $field:ident: $ty:ty = $default:expr => $rule:expr;)* }
        dry { $($(#[$dry_doc:meta])* $dry:ident: $dry_ty:ty = $dry_default:expr => $dry_rule:expr;)* }
        mirostat { $($(#[$miro_doc:meta])* $miro:ident: $miro_ty:ty = $miro_default:expr => $miro_rule:expr;)* }
    ) => {
        /// Settings of the sampling chain. They act in llama.cpp's default order: logit bias, penalties, DRY, top-n-sigma,
        /// top-k, typical, top-p, min-p, XTC, temperature, draw.
        #[derive(Clone, Debug, PartialEq)]
        pub struct SamplingParams {
            $($(#[$doc])* pub $field: $ty,)*
            /// Added to the logit of a token before anything else; `-inf` bans it.
            pub logit_bias: Vec<(u32, f32)>,
            /// Against repeated runs of tokens.
            pub dry: DryParams,
            /// Mirostat, in the place of top-n-sigma, top-k, typical, top-p, min-p, XTC and the dynamic temperature;
            /// `None`: off.
            pub mirostat: Option<Mirostat>,
        }

        impl Default for SamplingParams {
            fn default() -> Self {
                let (logit_bias, dry, mirostat) = (Vec::new(), DryParams::default(), None);
                Self { $($field: $default,)* logit_bias, dry, mirostat }
            }
        }

        /// "Don't repeat yourself": a token that would go on with a run of tokens that has been there before is made
        /// less probable, the more the longer the run.
        #[derive(Clone, Debug, PartialEq)]
        pub struct DryParams {
            $($(#[$dry_doc])* pub $dry: $dry_ty,)*
            /// Tokens that no run goes across, ascending.
            pub breakers: Arc<[u32]>,
        }

        impl Default for DryParams {
            fn default() -> Self {
                Self { $($dry: $dry_default,)* breakers: Arc::from([]) }
            }
        }

        /// Mirostat, version 2 (Basu et al., "Mirostat", arXiv 2007.14966, algorithm 2): tokens whose surprise `-log2
        /// p` is above mu are left out, and mu follows the surprise of what is drawn. The sender of ubatches keeps mu,
        /// so that a stage has no state of it.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct Mirostat {
            $($(#[$miro_doc])* pub $miro: $miro_ty,)*
        }

        impl Default for Mirostat {
            fn default() -> Self {
                Self { $($miro: $miro_default,)* }
            }
        }
    };
}

crate::for_each_setting!(structs);

impl DryParams {
    /// Whether any run of tokens costs anything.
    pub fn is_on(&self) -> bool {
        self.multiplier > 0.0
    }
}

impl Mirostat {
    /// mu of a text's first token.
    pub fn first_mu(&self) -> f32 {
        2.0 * self.tau
    }
}

impl SamplingParams {
    /// Picks the most probable token, nothing else applied.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether draws keep a surprise from token to token.
    pub fn keeps_surprise(&self) -> bool {
        self.mirostat.is_some()
    }
}
