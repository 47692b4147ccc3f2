//! RWKV-7's time mixing, one head at a time, in plain f64. Tests compare the kernels with it.

/// Rows of one head, `[n, d]` each, named as the op's are.
pub(crate) struct Wkv7<'a> {
    pub d: usize,
    pub r: &'a [f32],
    pub w: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub kappa: &'a [f32],
    pub kappa_a: &'a [f32],
}

impl Wkv7<'_> {
    /// `[n, d]` from a state of zeros.
    pub(crate) fn run(&self) -> Vec<f64> {
        let d = self.d;
        let mut state = vec![0.0; d * d];
        let mut out = Vec::new();
        for t in 0..self.r.len() / d {
            let at = |x: &[f32], j: usize| f64::from(x[t * d + j]);
            for i in 0..d {
                let row = &mut state[i * d..(i + 1) * d];
                let known: f64 = (0..d).map(|j| row[j] * at(self.kappa, j)).sum();
                for (j, s) in row.iter_mut().enumerate() {
                    *s = *s * at(self.w, j) + at(self.v, i) * at(self.k, j)
                        - known * at(self.kappa_a, j);
                }
                out.push((0..d).map(|j| row[j] * at(self.r, j)).sum());
            }
        }
        out
    }
}

/// Results of preparing one element of a head: decay, key, `κ`, `κ ⊙ a`. `length` is that of the head's `k ⊙ k_k`.
pub(crate) fn prepare(w: f64, k: f64, a: f64, k_k: f64, k_a: f64, length: f64) -> [f64; 4] {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let (rate, kappa) = (sigmoid(a), k * k_k / length.max(1e-12));
    [(-0.606531 * sigmoid(w)).exp(), k * (1.0 + (rate - 1.0) * k_a), kappa, kappa * rate]
}
