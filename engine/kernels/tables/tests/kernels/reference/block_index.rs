//! Scores and choice of blocks of positions in plain f64. Tests compare the kernels with them.

use brigade_kernels::BlockSizes;

/// The score of each block of `keys`, the positions that a row sees: the greatest product of `q` with a key of the block.
pub(crate) fn scores(q: &[f32], keys: &[Vec<f32>], sizes: BlockSizes) -> Vec<f64> {
    let product =
        |key: &Vec<f32>| q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
    let score =
        |block: &[Vec<f32>]| block.iter().map(product).fold(f64::NEG_INFINITY, |a, b| a.max(b));
    keys.chunks(sizes.positions).map(score).collect()
}

/// The blocks with these scores that a row attends to, ascending: the newest, and the best of the others, of equal ones
/// the lower. All where there are no more than it attends to.
pub(crate) fn choose(scores: &[f64], sizes: BlockSizes) -> Vec<u32> {
    if scores.len() <= sizes.per_row {
        return (0..scores.len() as u32).collect();
    }
    let n_older = scores.len() - sizes.newest;
    let mut order: Vec<u32> = (0..n_older as u32).collect();
    // Equal ones stay in their order.
    order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
    order.truncate(sizes.per_row - sizes.newest);
    order.extend(n_older as u32..scores.len() as u32);
    order.sort_unstable();
    order
}
