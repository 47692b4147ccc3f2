//! The delta rule, row by row, in plain f64. Tests compare the kernels with it.

use brigade_kernels::{Decay, DeltaShape};

/// One sequence's operands in f64, laid out as [`brigade_kernels::DeltaRows`] says.
pub(crate) struct Delta<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a [f32],
    pub(crate) v: &'a [f32],
    pub(crate) decay: &'a [f32],
    pub(crate) beta: &'a [f32],
}

/// Outputs `[n, n_head, d_v]`; `state` is `[n_head, d_k, d_v]` and follows.
pub(crate) fn delta_scan(shape: &DeltaShape, x: &Delta<'_>, state: &mut [f64]) -> Vec<f64> {
    let DeltaShape { n_head, d_k, d_v, .. } = *shape;
    let n_rows = x.beta.len() / n_head;
    let mut out = vec![0.0; n_rows * n_head * d_v];
    for row in 0..n_rows {
        for head in 0..n_head {
            let key = (row * shape.n_key_head + shape.key_head(head)) * d_k;
            let (q, k) = (&x.q[key..][..d_k], &x.k[key..][..d_k]);
            let rh = row * n_head + head;
            let v = &x.v[rh * d_v..][..d_v];
            let s = &mut state[head * d_k * d_v..][..d_k * d_v];
            for i in 0..d_k {
                let a = match shape.decay {
                    Decay::PerChannel => x.decay[rh * d_k + i],
                    Decay::PerHead => x.decay[rh],
                };
                s[i * d_v..][..d_v].iter_mut().for_each(|s| *s *= f64::from(a));
            }
            for j in 0..d_v {
                let read = |s: &[f64], by: &[f32]| -> f64 {
                    (0..d_k).map(|i| s[i * d_v + j] * f64::from(by[i])).sum()
                };
                let error = f64::from(x.beta[rh]) * (f64::from(v[j]) - read(s, k));
                for i in 0..d_k {
                    s[i * d_v + j] += f64::from(k[i]) * error;
                }
                out[rh * d_v + j] = read(s, q) / (d_k as f64).sqrt();
            }
        }
    }
    out
}
