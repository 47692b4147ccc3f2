//! Options of speculation: whether next tokens are drafted, and from which source.

use brigade_draft::{Drafter, Forced, Suffix, WithModel};
use clap::{Args, ValueEnum};

/// `--speculate` as it is typed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SpeculateArg {
    /// Where drafts are likely to be right, so that tokens come sooner
    #[default]
    Auto,
    /// As `auto`, but a stream has one part with drafts on the line at a time: to compare with
    Sync,
    /// Never
    Off,
}

/// `--own-drafts` as it is typed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OwnDraftsArg {
    /// Where the model has such blocks, all workers know them, and tokens come sooner with their drafts
    #[default]
    Auto,
    /// Never: they are not loaded
    Off,
}

/// Options of commands that answer.
#[derive(Clone, Debug, Args)]
pub struct SpeculateArgs {
    /// Whether likely next tokens of a stream are computed beside the one that is drawn, where the line has time for that;
    /// answers are the same
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    speculate: SpeculateArg,
    /// Memory for the texts that next tokens are drafted from: prompts and answers of running requests, and recent answers
    /// to each key
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = brigade_plan::parse_bytes)]
    speculate_memory: u64,
    /// Whether a model's own blocks that draft tokens (MTP, NextN) are loaded with its last layers and used;
    /// --speculate off turns them off too
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    own_drafts: OwnDraftsArg,
}

impl SpeculateArgs {
    /// Parts with drafts that a stream may have on the line at a time.
    pub fn max_windows(&self) -> Option<u32> {
        (self.speculate == SpeculateArg::Sync).then_some(1)
    }

    /// The options as a session takes them.
    pub fn speculate(&self) -> Speculate {
        match self.speculate {
            SpeculateArg::Auto | SpeculateArg::Sync => {
                let own_drafts = self.own_drafts == OwnDraftsArg::Auto;
                Speculate::Auto { memory: self.speculate_memory, own_drafts }
            }
            SpeculateArg::Off => Speculate::Off,
        }
    }
}

/// The drafter of next tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Speculate {
    /// No drafts.
    #[default]
    Off,
    /// Drafts from earlier texts, with a limit of memory.
    Auto {
        /// Limit of the bytes of all texts together.
        memory: u64,
        /// Whether the model's own drafting blocks are used, where they are loaded.
        own_drafts: bool,
    },
    /// Drafts of known answers with a given share of errors, for measurements.
    Forced {
        /// Probability that a draft is right.
        acceptance: f64,
        /// Tokens that a wrong one may be.
        n_vocab: u32,
    },
}

/// The seed that decides which forced drafts are wrong.
const FORCED_SEED: u64 = 0x5eed;

impl Speculate {
    /// Whether the model's own blocks of drafts are loaded.
    pub fn own_drafts(self) -> bool {
        matches!(self, Self::Auto { own_drafts: true, .. })
    }

    /// The drafter for the scheduler.
    pub fn drafter(self) -> Option<Box<dyn Drafter>> {
        match self {
            Self::Off => None,
            Self::Auto { memory, own_drafts: false } => Some(Box::new(Suffix::new(memory))),
            Self::Auto { memory, own_drafts: true } => {
                Some(Box::new(WithModel::new(Box::new(Suffix::new(memory)))))
            }
            Self::Forced { acceptance, n_vocab } => {
                Some(Box::new(Forced::new(acceptance, FORCED_SEED, n_vocab)))
            }
        }
    }
}
