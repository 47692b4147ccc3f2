//! Reads what metadata say about attention: sizes of heads, and which layers have windows.

use brigade_spec::{AttentionSpec, ModelError};

use super::hparams::Hparams;

/// Heads of layer `il` with the usual scale 1/sqrt(head_dim), neither rotated nor normed.
pub(crate) fn attention_spec(hp: &Hparams<'_>, il: usize) -> Result<AttentionSpec, ModelError> {
    let n_head = hp.need_per_layer("attention.head_count")?[il];
    let n_kv_head = hp.per_layer("attention.head_count_kv")?.map_or(n_head, |heads| heads[il]);
    if n_head == 0 || n_kv_head == 0 || !n_head.is_multiple_of(n_kv_head) {
        return Err(hp.bad(
            "attention.head_count_kv",
            &format!("layer {il}: {n_kv_head} KV heads cannot serve {n_head} query heads"),
        ));
    }
    let (head_dim_k, head_dim_v) = hp.head_dims(n_head)?;
    Ok(AttentionSpec::plain(n_head, n_kv_head, [head_dim_k, head_dim_v]))
}

impl Hparams<'_> {
    /// For each layer, whether it has a window. The key `attention.sliding_window_pattern` is a list of flags, or the
    /// length `n` of a period whose first `n - 1` layers have one. `period` is used where the key is missing.
    ///
    /// # Errors
    /// The list has not one flag for each layer.
    pub fn windowed_layers(&self, period: u32) -> Result<Vec<bool>, ModelError> {
        self.pattern(period, |place, period| place < period - 1)
    }

    /// As [`Self::windowed_layers`], with the layer that has no window at the beginning of each period.
    ///
    /// # Errors
    /// As there.
    pub fn windowed_layers_after(&self, period: u32) -> Result<Vec<bool>, ModelError> {
        self.pattern(period, |place, _| place > 0)
    }

    /// The list, or by the place in a period and its length whether a layer has a window.
    fn pattern(
        &self,
        period: u32,
        has: impl Fn(usize, usize) -> bool,
    ) -> Result<Vec<bool>, ModelError> {
        const KEY: &str = "attention.sliding_window_pattern";
        if let Some(flags) = self.flags(KEY)? {
            if flags.len() < self.n_layer() {
                let problem = format!("{} flags for {} layers", flags.len(), self.n_layer());
                return Err(self.bad(KEY, &problem));
            }
            // Files may list the blocks behind the layers too.
            return Ok(flags);
        }
        let period = self.u32(KEY)?.unwrap_or(period) as usize;
        let windowed = |il: usize| period == 0 || has(il % period, period);
        Ok((0..self.n_layer()).map(windowed).collect())
    }

    /// As [`Self::windowed_layers`], where a period that the file does not list begins with the layer without a
    /// window.
    ///
    /// # Errors
    /// As [`Self::windowed_layers`].
    pub fn windowed_layers_behind(&self, period: u32) -> Result<Vec<bool>, ModelError> {
        const KEY: &str = "attention.sliding_window_pattern";
        if self.flags(KEY)?.is_some() {
            return self.windowed_layers(period);
        }
        let period = self.u32(KEY)?.unwrap_or(period) as usize;
        let windowed = |il: usize| period == 0 || !il.is_multiple_of(period);
        Ok((0..self.n_layer()).map(windowed).collect())
    }

    /// The layers with windows of a model whose file must list them.
    ///
    /// # Errors
    /// The file does not list them, or the list has not one flag for each layer.
    pub fn listed_windows(&self) -> Result<Vec<bool>, ModelError> {
        const KEY: &str = "attention.sliding_window_pattern";
        match self.flags(KEY)? {
            Some(_) => self.windowed_layers(0),
            None => Err(self.bad(KEY, "must be a list with a flag for each layer")),
        }
    }

    /// `attention.sliding_window`; `None` where it is missing or 0.
    ///
    /// # Errors
    /// The key is not a number.
    pub fn window(&self) -> Result<Option<u32>, ModelError> {
        Ok(self.u32("attention.sliding_window")?.filter(|&n| n > 0))
    }
}
