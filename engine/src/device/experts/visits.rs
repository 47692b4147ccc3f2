//! The choice of a layer's experts that lie with the host and are sent to the GPU for a ubatch. With many rows, the GPU
//! finishes in the time that the host would need, though the weights are sent first. No byte of a result depends on the
//! choice.

use std::ops::Range;

/// Rule by which experts of the host's memory are sent to the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Visits {
    /// Experts are never sent.
    #[default]
    Never,
    /// Experts with so many rows or more are sent: for tests.
    From(usize),
    /// Experts are sent where these speeds make it faster.
    Measured(VisitSpeeds),
}

/// Measured speeds of a GPU and of the host beside it, a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VisitSpeeds {
    /// Bytes of weights that come from the host's memory to the GPU.
    pub sent_bytes: f64,
    /// Whether the GPU computes meanwhile ([`Device::sends_beside`](crate::device::Device::sends_beside)).
    pub sent_beside: bool,
    /// Operations of the GPU's products; a multiply-add is two.
    pub gpu_operations: f64,
    /// Bytes that the host reads from its memory.
    pub host_bytes: f64,
    /// Operations of the host's products.
    pub host_operations: f64,
}

/// Each expert that has rows: its number, and its pairs.
pub type Spans = [(usize, Range<usize>)];

impl Visits {
    /// The experts of `spans` that are to be sent, by their places there, the one with most rows first. An expert has so many
    /// `bytes`, and takes so many operations for a row.
    pub fn chosen(&self, spans: &Spans, bytes: usize, operations: usize) -> Vec<usize> {
        let rows = |place: &usize| spans[*place].1.len();
        let mut by_rows: Vec<usize> = (0..spans.len()).collect();
        by_rows.sort_by_key(|place| (std::cmp::Reverse(rows(place)), *place));
        let n = match self {
            Self::Never => 0,
            Self::From(least) => by_rows.partition_point(|place| rows(place) >= *least),
            Self::Measured(speeds) => {
                let counts: Vec<usize> = by_rows.iter().map(rows).collect();
                speeds.most_useful(&counts, bytes as f64, operations as f64).1
            }
        };
        by_rows.truncate(n);
        by_rows
    }
}

impl VisitSpeeds {
    /// Seconds that an expert with so many rows takes here and there: sent to the GPU, and with the host.
    fn seconds(&self, rows: usize, bytes: f64, operations: f64) -> [f64; 2] {
        let operations = rows as f64 * operations;
        let (way, products) = (bytes / self.sent_bytes, operations / self.gpu_operations);
        // The next expert is on its way while this one is computed.
        let sent = if self.sent_beside { way.max(products) } else { way + products };
        let here = (bytes / self.host_bytes).max(operations / self.host_operations);
        [sent, here]
    }

    /// Number of experts to send so that the slower of host and GPU finishes soonest, and the seconds until then.
    /// `counts` are rows of each expert, the greatest number first.
    fn most_useful(&self, counts: &[usize], bytes: f64, operations: f64) -> (f64, usize) {
        let of = |rows: &usize| self.seconds(*rows, bytes, operations);
        let mut left: f64 = counts.iter().map(|rows| of(rows)[1]).sum();
        let (mut sent, mut best) = (0.0, (left, 0));
        for (n, rows) in counts.iter().enumerate() {
            let [there, here] = of(rows);
            if there >= here {
                break;
            }
            (sent, left) = (sent + there, left - here);
            if f64::max(sent, left) < best.0 {
                best = (f64::max(sent, left), n + 1);
            }
        }
        best
    }

    /// Seconds that so many experts take which all have so many rows, where each has so many bytes, and takes so many operations for
    /// a row.
    pub fn seconds_of_layer(&self, n: usize, rows: usize, bytes: u64, operations: f64) -> f64 {
        self.most_useful(&vec![rows; n], bytes as f64, operations).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Machines with a card: sent, GPU, memory and host, in 10^9 a second.
    const MACHINES: [[f64; 4]; 4] = [
        [25.0, 60_000.0, 60.0, 2_000.0],
        [12.0, 20_000.0, 40.0, 400.0],
        [50.0, 200_000.0, 300.0, 6_000.0],
        [6.0, 10_000.0, 20.0, 100.0],
    ];
    const BYTES: usize = 2_650_000;
    const OPERATIONS: usize = 2 * 3 * 2048 * 768;

    fn speeds(machine: [f64; 4], sent_beside: bool) -> VisitSpeeds {
        let [sent_bytes, gpu_operations, host_bytes, host_operations] = machine.map(|x| x * 1e9);
        VisitSpeeds { sent_bytes, sent_beside, gpu_operations, host_bytes, host_operations }
    }

    /// Experts that are sent while others are computed take at most half as long as one after the other at best, and more
    /// of them are sent.
    #[test]
    fn what_comes_beside_kernels_is_sent_more_and_takes_less() {
        let operations = OPERATIONS as f64;
        for machine in MACHINES {
            let [after, beside] = [false, true].map(|is_beside| speeds(machine, is_beside));
            for rows in [1, 16, 128, 1024] {
                let of = |speeds: VisitSpeeds| {
                    let n = Visits::Measured(speeds).chosen(&spans(&[rows; 64]), BYTES, OPERATIONS);
                    (speeds.seconds_of_layer(64, rows, BYTES as u64, operations), n.len())
                };
                let ((slow, few), (fast, more)) = (of(after), of(beside));
                assert!(fast <= slow && 2.0 * fast >= slow && more >= few, "{machine:?}, {rows}");
            }
        }
    }

    fn spans(counts: &[usize]) -> Vec<(usize, Range<usize>)> {
        let mut end = 0;
        let mut span = |(expert, n): (usize, &usize)| {
            end += n;
            (expert, end - n..end)
        };
        counts.iter().enumerate().map(&mut span).collect()
    }

    #[test]
    fn decode_stays_with_the_host_and_long_prompts_are_sent() {
        for machine in MACHINES {
            let visits = Visits::Measured(speeds(machine, false));
            let sent = |n| visits.chosen(&spans(&[n; 8]), BYTES, OPERATIONS).len();
            assert_eq!(sent(1), 0, "{machine:?}");
            assert!(sent(2048) >= 4, "{machine:?}: {}", sent(2048));
        }
        assert_eq!(Visits::Never.chosen(&spans(&[9000]), BYTES, OPERATIONS), [0; 0]);
        let forced = Visits::From(3).chosen(&spans(&[2, 3, 1, 9]), BYTES, OPERATIONS);
        assert_eq!(forced, [3, 1], "most rows first");
    }

    /// Beside all subsets of a few experts: the slower of both sides is at most a twentieth later than in the best of them.
    #[test]
    fn what_is_sent_is_nearly_the_best_of_all_subsets() {
        let mut state = 7u64;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let (mut n_near, mut n_cases) = (0, 0);
        for _ in 0..200 {
            let counts: Vec<usize> = (0..10).map(|_| 1 + next(3) * next(700)).collect();
            for (machine, is_beside) in
                MACHINES.into_iter().flat_map(|it| [(it, false), (it, true)])
            {
                let speeds = speeds(machine, is_beside);
                let of = |rows: usize| speeds.seconds(rows, BYTES as f64, OPERATIONS as f64);
                let time = |is_sent: &dyn Fn(usize) -> bool| {
                    let mut sides = [0.0; 2];
                    for (i, rows) in counts.iter().enumerate() {
                        let [there, here] = of(*rows);
                        *(if is_sent(i) { &mut sides[0] } else { &mut sides[1] }) +=
                            if is_sent(i) { there } else { here };
                    }
                    f64::max(sides[0], sides[1])
                };
                // What is bound by the host's memory is not to be sent.
                let useful = |i: usize| of(counts[i])[0] < of(counts[i])[1];
                let all = 0..1u32 << counts.len();
                let allowed = all.filter(|set| (0..10).all(|i| set >> i & 1 == 0 || useful(i)));
                let best = allowed.map(|set| time(&|i| set >> i & 1 == 1)).fold(f64::MAX, f64::min);
                let visits = Visits::Measured(speeds);
                let chosen = visits.chosen(&spans(&counts), BYTES, OPERATIONS);
                n_near += usize::from(time(&|i| chosen.contains(&i)) <= 1.05 * best);
                n_cases += 1;
            }
        }
        println!("{n_near} of {n_cases} within a twentieth of the best");
        assert!(n_near * 100 >= n_cases * 95, "{n_near} of {n_cases}");
    }
}
