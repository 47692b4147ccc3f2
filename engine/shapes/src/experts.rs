//! The experts of a row, and their weights.

/// The smallest sum that chosen weights are divided by (the smallest normal f16).
pub const LEAST_WEIGHT_SUM: f32 = 6.103_515_6e-5;

/// Experts in groups of consecutive ones, of which the best are open to a token (DeepSeek-V3, arXiv 2412.19437, section
/// 2.1.2): a group counts as the sum of its two highest scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups; divides the number of experts.
    pub count: usize,
    /// Groups that a token may use.
    pub used: usize,
}

/// Computation of the chosen experts' weights from the router's scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpertWeights {
    /// The experts' scores times this factor.
    Scaled(f32),
    /// Divided by their sum, which counts as [`LEAST_WEIGHT_SUM`] at least, and times this.
    Normed(f32),
    /// A softmax over the chosen experts' values, times this factor.
    Softmax(f32),
}

/// Rule by which the experts of a row are chosen. `B` is a vector, wherever it lies.
#[derive(Clone, Copy, Debug)]
pub enum ChooseBy<'a, B> {
    /// Experts with the highest scores, descending. If scores are equal, the lower id comes first.
    Score {
        /// Added to the router's values for the choice alone, `[n_expert]`.
        bias: Option<B>,
        /// Groups that are chosen first.
        groups: Option<ExpertGroups>,
    },
    /// The groups, of so many consecutive experts each, that the experts with the highest scores are in, each as often as it has
    /// one of them. A group weighs what the router gives the expert of its number.
    GroupsOfBest(usize),
    /// The experts are known: their ids, `[n_rows, n_used]`.
    Known(&'a [u32]),
}

/// Rule by which the experts of a row are chosen and weighed.
#[derive(Clone, Copy, Debug)]
pub struct ExpertChoice<'a, B> {
    /// Experts that the router knows.
    pub n_expert: usize,
    /// Experts that a row uses.
    pub n_used: usize,
    /// Rule of the choice.
    pub by: ChooseBy<'a, B>,
    /// Rule of the weights.
    pub weights: ExpertWeights,
}

impl<'a, B> ExpertChoice<'a, B> {
    /// Experts that work: groups count where those are chosen.
    #[inline]
    pub fn n_working(&self) -> usize {
        match self.by {
            ChooseBy::GroupsOfBest(per_group) => self.n_expert / per_group,
            ChooseBy::Score { .. } | ChooseBy::Known(_) => self.n_expert,
        }
    }

    /// The same choice, with its vector seen elsewhere.
    #[inline]
    pub fn map_bias<C>(self, elsewhere: impl FnOnce(B) -> C) -> ExpertChoice<'a, C> {
        let Self { n_expert, n_used, by, weights } = self;
        let by = match by {
            ChooseBy::Score { bias, groups } => {
                ChooseBy::Score { bias: bias.map(elsewhere), groups }
            }
            ChooseBy::GroupsOfBest(per_group) => ChooseBy::GroupsOfBest(per_group),
            ChooseBy::Known(known) => ChooseBy::Known(known),
        };
        ExpertChoice { n_expert, n_used, by, weights }
    }
}
