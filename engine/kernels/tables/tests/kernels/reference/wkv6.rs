//! RWKV-6's time mixing, one head at a time, in plain f64. Tests compare the kernels with it.

/// Rows of one head, `[n, d]` each, named as the op's are; `own` is `[d]`.
pub(crate) struct Wkv6<'a> {
    pub d: usize,
    pub r: &'a [f32],
    pub w: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub own: Option<&'a [f32]>,
}

impl Wkv6<'_> {
    /// `[n, d]` from a state of zeros.
    pub(crate) fn run(&self) -> Vec<f64> {
        let d = self.d;
        let mut state = vec![0.0; d * d];
        let mut out = Vec::new();
        for t in 0..self.r.len() / d {
            let at = |x: &[f32], j: usize| f64::from(x[t * d + j]);
            for i in 0..d {
                let mut y = 0.0;
                for (j, s) in state[i * d..(i + 1) * d].iter_mut().enumerate() {
                    let learnt = at(self.v, i) * at(self.k, j);
                    let old = *s;
                    *s = old * at(self.w, j) + learnt;
                    let seen = self.own.map_or(*s, |own| old + f64::from(own[j]) * learnt);
                    y += seen * at(self.r, j);
                }
                out.push(y);
            }
        }
        out
    }
}

/// A decay from what a projection and its bias give together.
pub(crate) fn decay(w: f64) -> f64 {
    (-w.exp()).exp()
}
