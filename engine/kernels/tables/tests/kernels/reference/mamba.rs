//! The selective scan of Mamba-1 in plain f64. Tests compare the kernels with it.

/// Constants and rows; `channels = d.len()`, `n_state = a.len() / channels`.
pub(crate) struct Mamba<'a> {
    /// `[channels, n_state]`.
    pub a: &'a [f32],
    pub dt_bias: &'a [f32],
    pub d: &'a [f32],
    /// `[n, channels]`, as are `dt` and `gate`.
    pub u: &'a [f32],
    pub dt: &'a [f32],
    pub gate: &'a [f32],
    /// `[n, n_state]`, as is `c`.
    pub b: &'a [f32],
    pub c: &'a [f32],
}

impl Mamba<'_> {
    /// `[n, channels]` from `state` (`[channels, n_state]`), which follows.
    pub(crate) fn run(&self, state: &mut [f64]) -> Vec<f64> {
        let channels = self.d.len();
        let n_state = self.a.len() / channels;
        let f = |x: &[f32], i: usize| f64::from(x[i]);
        let mut out = Vec::new();
        for t in 0..self.u.len() / channels {
            for c in 0..channels {
                let at = t * channels + c;
                let dt = (f(self.dt, at) + f(self.dt_bias, c)).exp().ln_1p();
                let mut y = f(self.d, c) * f(self.u, at);
                for n in 0..n_state {
                    let state = &mut state[c * n_state + n];
                    *state *= (dt * f(self.a, c * n_state + n)).exp();
                    *state += f(self.b, t * n_state + n) * dt * f(self.u, at);
                    y += *state * f(self.c, t * n_state + n);
                }
                let gate = f(self.gate, at);
                out.push(y * gate / (1.0 + (-gate).exp()));
            }
        }
        out
    }
}
