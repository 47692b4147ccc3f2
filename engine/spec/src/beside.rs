//! Values beside a token's row of the residual stream, which some models carry through their layers and across a cut.

/// Values that a token carries through the layers beside its row of the residual stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Beside {
    /// No values; most models.
    #[default]
    Nothing,
    /// The first layer's values, as wide as the residual stream.
    FirstValue,
    /// The rows that come into the first layer.
    Embedding,
    /// The positions that an index chose, as whole numbers. They go along only to layers that attend to the same.
    Chosen,
    /// The place of the adapter that each row uses, a whole number ([`SwitchSpec`](super::SwitchSpec)).
    Adapters,
    /// A row for each layer to come, `row` values wide (0: none), then the keys and values of each pair that layers lend.
    ForLayers {
        /// Width of a layer's row.
        row: usize,
        /// Pairs of keys and values that layers lend.
        lent: usize,
    },
}

impl Beside {
    /// Number of the tensor beside the stream with the places of adapters.
    pub const ADAPTERS: usize = 0;

    /// Number of the tensor beside the stream with the rows that come into the first layer.
    pub const EMBEDDING: usize = 0;

    /// Number of the tensor beside the stream with the layers' rows.
    pub const ROWS: usize = 0;

    /// Number of the tensor beside the stream with the keys of a pair that is lent; the values are in the next.
    #[inline]
    pub const fn keys(pair: usize) -> usize {
        Self::ROWS + 1 + 2 * pair
    }

    /// Tensors beside the stream that are for layers, where `lent` pairs are lent.
    #[inline]
    pub const fn n_for_layers(lent: usize) -> usize {
        Self::keys(lent)
    }

    /// Number of the tensor beside the stream that the host reads; `None`: it reads none.
    #[inline]
    pub fn of_host(self) -> Option<usize> {
        (self == Self::Adapters).then_some(Self::ADAPTERS)
    }
}

/// Rows that cross a cut, tensor by tensor; each is `[n_rows, width]` in f32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundarySpec {
    /// Width of each tensor, in values; 0 where no layer behind the cut reads it.
    pub widths: Vec<usize>,
    /// Whether values must arrive as they are: some of them are positions or numbers of adapters, and a rounded one would be
    /// another.
    pub exact: bool,
}

impl BoundarySpec {
    /// Values a token sends across the cut.
    #[inline]
    pub fn width(&self) -> usize {
        self.widths.iter().sum()
    }
}
