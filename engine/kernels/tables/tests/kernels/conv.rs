//! Causal convolution against f64, and the same bits for every cut.

use super::scan_parts::{N_ROWS, states_may_be_read_elsewhere};
use super::{Rng, close, compute, same_bits, same_bits_everywhere};
use crate::reference::conv::conv as plain;
use brigade_kernels::{Columns, Conv, ConvRows, DilatedConv, DilatedRows, ScanPart, StateAt};
use brigade_kernels_tables::available;

fn part(slot: usize, first_pos: usize, first_row: usize, n_rows: usize) -> ScanPart {
    ScanPart::in_place(slot, first_pos, first_row, n_rows)
}

#[test]
fn matches_f64_for_all_widths_and_taps() {
    let mut rng = Rng::new(70);
    for (channels, taps, silu) in [(1, 2, false), (16, 4, true), (37, 3, true), (640, 8, false)] {
        let (weight, bias) = (rng.values(channels * taps), rng.values(channels));
        let (n, pad) = (9, 5);
        let x = rng.values(n * (channels + pad));
        let out = same_bits_everywhere("conv", |compute| {
            let conv = Conv::new(&weight, taps, Some(bias.clone().into()), silu);
            let mut states = vec![0.0; 2 * conv.state_len()];
            let mut out = vec![0.0; n * channels];
            let x = Columns { values: &x, stride: channels + pad, first_col: 3 };
            let parts = [part(1, 0, 0, 6), part(0, 0, 6, 3)];
            compute.conv(ConvRows {
                conv: &conv,
                parts: &parts,
                states: &mut states,
                at: conv.alone(),
                x,
                out: &mut out,
            });
            out
        });
        let rows: Vec<f32> =
            x.chunks_exact(channels + pad).flat_map(|row| &row[3..3 + channels]).copied().collect();
        let zeros = vec![0.0; (taps - 1) * channels];
        let (a, b) = rows.split_at(6 * channels);
        let mut want = plain(&weight, taps, &bias, silu, &zeros, a);
        want.extend(plain(&weight, taps, &bias, silu, &zeros, b));
        for (got, want) in out.iter().zip(&want) {
            // Each of the products is at most 1, and silu's slope at most 1.1.
            close("conv", *got, *want, 1e-6 * taps as f64);
        }
    }
}

#[test]
fn states_of_another_slot_are_read() {
    let mut rng = Rng::new(72);
    let (channels, taps) = (37, 4);
    let (weight, x) = (rng.values(channels * taps), rng.values(N_ROWS * channels));
    let conv = Conv::new(&weight, taps, None, true);
    let state_len = conv.state_len();
    states_may_be_read_elsewhere("conv", state_len, channels, |compute, parts, states, out| {
        compute.conv(ConvRows {
            conv: &conv,
            parts,
            states,
            at: conv.alone(),
            x: Columns::whole(&x, channels),
            out,
        });
    });
    let (dilated, taps_of_channels) = (DilatedConv { channels, taps, apart: 2 }, weight.into());
    let state_len = dilated.state_len();
    states_may_be_read_elsewhere(
        "dilated_conv",
        state_len,
        channels,
        |compute, parts, states, out| {
            compute.dilated_conv(DilatedRows {
                conv: &dilated,
                parts,
                states: &*states,
                x: &x,
                weight: &taps_of_channels,
                out,
            });
            compute.keep_last_rows(&dilated, parts, states, &x);
        },
    );
}

#[test]
fn cuts_do_not_change_a_bit() {
    let mut rng = Rng::new(71);
    let (channels, taps, n) = (50, 4, 23);
    let (weight, x) = (rng.values(channels * taps), rng.values(n * channels));
    let conv = Conv::new(&weight, taps, None, true);
    for kernels in crate::all_tables() {
        let compute = compute(kernels, 2);
        let run = |cuts: &[usize]| {
            let mut states = vec![0.0; conv.state_len()];
            let mut out = vec![0.0; n * channels];
            let mut first = 0;
            for &end in cuts {
                let x = Columns { values: &x, stride: channels, first_col: 0 };
                let part = part(0, first, first, end - first);
                compute.conv(ConvRows {
                    conv: &conv,
                    parts: &[part],
                    states: &mut states,
                    at: conv.alone(),
                    x,
                    out: &mut out,
                });
                first = end;
            }
            out.extend(states);
            out
        };
        let whole = run(&[n]);
        same_bits("single rows", &run(&(1..=n).collect::<Vec<_>>()), &whole);
        same_bits("three pieces", &run(&[2, 9, n]), &whole);
    }
}

#[test]
fn states_of_two_convolutions_share_a_slot() {
    let mut rng = Rng::new(72);
    let n = 12;
    let convs = [(20, 4), (33, 3)]
        .map(|(channels, taps)| Conv::new(&rng.values(channels * taps), taps, None, false));
    let x = convs.each_ref().map(|conv| rng.values(n * conv.channels));
    let per_slot = convs.iter().map(Conv::state_len).sum();
    let compute = compute(available()[0], 2);
    let mut shared = vec![0.0; 2 * per_slot];
    let mut first = 0;
    for (conv, x) in convs.iter().zip(&x) {
        let x = Columns::whole(x, conv.channels);
        let (mut alone, mut out) = (vec![0.0; 2 * conv.state_len()], vec![0.0; x.values.len()]);
        compute.conv(ConvRows {
            conv,
            parts: &[part(1, 0, 0, n)],
            states: &mut alone,
            at: conv.alone(),
            x,
            out: &mut out,
        });
        let mut beside = vec![0.0; out.len()];
        let at = StateAt { per_slot, first };
        compute.conv(ConvRows {
            conv,
            parts: &[part(1, 0, 0, n)],
            states: &mut shared,
            at,
            x,
            out: &mut beside,
        });
        same_bits("outputs", &beside, &out);
        let state = &shared[per_slot + first..][..conv.state_len()];
        same_bits("state", state, &alone[conv.state_len()..]);
        first += conv.state_len();
    }
    assert!(shared[..per_slot].iter().all(|s| *s == 0.0), "another slot's state");
}
