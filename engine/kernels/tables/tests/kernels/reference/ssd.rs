//! Mamba-2's recurrence, token by token, in plain f64. Tests compare the kernels with it.

use brigade_kernels::Ssd;

/// One sequence: `x` is `[n, n_head, head_dim]`, `dt` is `[n, n_head]`, `b` and `c` are
/// `[n, n_group, n_state]`, `state` is `[n_head, n_state, head_dim]` and follows.
pub(crate) fn ssd(
    ssd: &Ssd,
    x: &[f32],
    b: &[f32],
    c: &[f32],
    dt: &[f32],
    state: &mut [f64],
) -> Vec<f64> {
    let shape = &ssd.shape;
    let (heads, dim, n_state) = (shape.n_head, shape.head_dim, shape.n_state);
    let mut out = Vec::new();
    for t in 0..x.len() / shape.n_inner() {
        for h in 0..heads {
            let group = h / (heads / shape.n_group);
            let step = f64::from(dt[t * heads + h]) + f64::from(ssd.dt_bias[h]);
            let step = step.max(0.0) + (-step.abs()).exp().ln_1p();
            let decay = (step * f64::from(ssd.a[h])).exp();
            for p in 0..dim {
                let x = f64::from(x[(t * heads + h) * dim + p]);
                let mut y = f64::from(ssd.d[h]) * x;
                for n in 0..n_state {
                    let at = (t * shape.n_group + group) * n_state + n;
                    let s = &mut state[(h * n_state + n) * dim + p];
                    *s = *s * decay + f64::from(b[at]) * step * x;
                    y += f64::from(c[at]) * *s;
                }
                out.push(y);
            }
        }
    }
    out
}
