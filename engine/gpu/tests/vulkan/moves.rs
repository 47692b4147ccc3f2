//! Moves of values, and sums of experts' rows, beside the CPU's, bit for bit.

use brigade_gpu::Gpu;
use brigade_ops::greatest::is_usable;
use brigade_ops::{AddPicked, CopyParts, FewGreatest, Greatest, HalvesToPairs, HeadColumns, Op};

use crate::common::{Random, assert_same, compute, gpu, on, values_of, words_on};

#[test]
fn values_are_filled_and_copied() {
    let Some(gpu) = gpu() else { return };
    let mut random = Random(1);
    for n in [0, 1, 255, 256, 257, 100_003] {
        let x = random.values(n, 1.0);
        let (from, mut to) = (on(&gpu, &x), on(&gpu, &vec![9.0; n]));
        gpu.copy(from.span(), to.span_mut());
        assert_same("copy", &values_of(&to), &x);
        gpu.fill(to.span_mut(), f32::NEG_INFINITY);
        assert_same("fill", &values_of(&to), &vec![f32::NEG_INFINITY; n]);
    }
}

#[test]
fn columns_and_heads_find_their_places() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(2));
    let shapes = [(1, 1, 1, 0, 1), (5, 1, 7, 2, 3), (1, 8, 16, 0, 16), (33, 7, 24, 5, 16)];
    for (n, n_head, stride, first, width) in shapes {
        let columns = HeadColumns { stride, first, width };
        let x = random.values(n * n_head * stride, 1.0);
        let name = format!("{n} rows of {n_head} heads, {columns:?}");
        let from = on(&gpu, &x);
        let mut apart = on(&gpu, &vec![-1.0; n * n_head * width]);
        let mut apart_here = vec![-1.0; n * n_head * width];
        gpu.heads_apart(from.span(), n_head, columns, apart.span_mut());
        compute.heads_apart(&x, n_head, columns, &mut apart_here);
        assert_same(&name, &values_of(&apart), &apart_here);
        let mut back = on(&gpu, &vec![-2.0; x.len()]);
        let mut back_here = vec![-2.0; x.len()];
        gpu.heads_together(apart.span(), n_head, columns, back.span_mut());
        compute.heads_together(&apart_here, n_head, columns, &mut back_here);
        assert_same(&name, &values_of(&back), &back_here);
        gpu.fill_columns(back.span_mut(), columns, 0.5);
        for row in back_here.chunks_exact_mut(stride) {
            row[first..first + width].fill(0.5);
        }
        assert_same(&name, &values_of(&back), &back_here);
    }
}

/// The place of the greatest value of each row, where it can be used; the host finds the same.
fn first_greatest(gpu: &Gpu, x: &[f32], d: usize) -> Vec<Option<u32>> {
    let mut found = words_on(gpu, &vec![0; x.len() / d * 2]);
    gpu.run(Greatest { x: on(gpu, x).span(), d, out: found.span_mut() }.into()).expect("room");
    let found: Vec<u32> = values_of(&found).into_iter().map(f32::to_bits).collect();
    let usable = |words: &[u32]| -> Vec<Option<u32>> {
        let (rows, _) = words.as_chunks::<2>();
        rows.iter().map(|&[key, place]| is_usable(key).then_some(place)).collect()
    };
    let mut here = vec![0; found.len()];
    compute().run(Greatest { x, d, out: &mut here[..] }.into());
    assert_eq!(usable(&here), usable(&found), "the host");
    usable(&found)
}

/// The greatest values of each row with their places.
fn few_greatest(gpu: &Gpu, x: &[f32], d: usize, k: usize) -> Vec<Vec<(u32, u32)>> {
    let mut found = words_on(gpu, &vec![0; x.len() / d * 2 * k]);
    gpu.run(FewGreatest { x: on(gpu, x).span(), d, k, out: found.span_mut() }.into())
        .expect("room");
    few_of(&values_of(&found).into_iter().map(f32::to_bits).collect::<Vec<_>>(), k)
}

/// Places and bits of values, row by row.
fn few_of(found: &[u32], k: usize) -> Vec<Vec<(u32, u32)>> {
    let row = |row: &[u32]| row[..k].iter().copied().zip(row[k..].iter().copied()).collect();
    found.chunks_exact(2 * k).map(row).collect()
}

#[test]
fn the_first_of_the_greatest_values_is_found() {
    let Some(gpu) = gpu() else { return };
    let mut random = Random(5);
    for (n, d) in [(1, 1), (3, 5), (2, 256), (2, 4096), (1, 4097), (3, 10_000), (0, 7)] {
        // Few different values, so that many are equal.
        let mut x: Vec<f32> = (0..n * d).map(|_| random.below(9) as f32 - 8.0).collect();
        x.iter_mut().step_by(3).for_each(|x| *x = if *x == 0.0 { -0.0 } else { *x });
        let wanted = |row: &[f32]| {
            let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            row.iter().position(|x| *x == most).map(|at| at as u32)
        };
        let rows: Vec<Option<u32>> = x.chunks_exact(d).map(wanted).collect();
        assert_eq!(first_greatest(&gpu, &x, d), rows, "{n} rows of {d}");
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY].into_iter().filter(|_| n > 0) {
            let (mut x, mut rows) = (x.clone(), rows.clone());
            x[d / 2] = bad;
            rows[0] = None;
            assert_eq!(first_greatest(&gpu, &x, d), rows, "{n} rows of {d}");
        }
    }
    let lowest = [f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY, f32::MIN];
    assert_eq!(first_greatest(&gpu, &lowest, 2), [None, Some(1)]);
}

#[test]
fn some_of_the_greatest_values_are_found_with_their_places() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(6));
    for (n, d, k) in [(1, 1, 1), (3, 5, 2), (2, 256, 256), (4, 4097, 40), (2, 20_000, 1024)] {
        let mut x: Vec<f32> = (0..n * d).map(|_| random.below(900) as f32 - 800.0).collect();
        x.iter_mut().step_by(3).for_each(|x| *x = if *x == 0.0 { -0.0 } else { *x });
        x[0] = f32::NEG_INFINITY;
        x[d - 1] = 1.0;
        let wanted = |row: &[f32]| {
            let mut all: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
            all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
            all.truncate(k);
            all.sort_by_key(|(place, _)| *place);
            all.into_iter().map(|(place, value)| (place, value.to_bits())).collect()
        };
        let rows: Vec<Vec<(u32, u32)>> = x.chunks_exact(d).map(wanted).collect();
        assert!(few_greatest(&gpu, &x, d, k) == rows, "{k} of {n} rows of {d}");
        let mut here = vec![0; n * 2 * k];
        compute.run(FewGreatest { x: &x[..], d, k, out: &mut here[..] }.into());
        assert!(few_of(&here, k) == rows, "{k} of {n} rows of {d}: the host");
    }
}

#[test]
fn rows_are_gathered_by_a_list_and_repeated() {
    let Some(gpu) = gpu() else { return };
    let mut random = Random(3);
    for (n, d, picks) in [(1, 1, 1), (3, 17, 1), (9, 64, 40), (100, 300, 257), (4, 8, 0)] {
        let x = random.values(n * d, 1.0);
        let list: Vec<u32> = (0..picks).map(|_| random.below(n) as u32).collect();
        let (from, on_list) = (on(&gpu, &x), words_on(&gpu, &list));
        let mut to = on(&gpu, &vec![0.0; picks * d]);
        gpu.gather_rows(from.span(), d, on_list.span(), to.span_mut());
        let wanted: Vec<f32> =
            list.iter().flat_map(|r| &x[*r as usize * d..][..d]).copied().collect();
        assert_same("gather_rows", &values_of(&to), &wanted);
        gpu.repeat_row(from.span().part(0..4 * d), to.span_mut());
        assert_same("repeat_row", &values_of(&to), &x[..d].repeat(picks));
        for times in [1, 3] {
            let mut to = on(&gpu, &vec![0.0; n * d * times]);
            gpu.repeat_rows(from.span(), d, times, to.span_mut());
            let wanted: Vec<f32> = x.chunks_exact(d).flat_map(|row| row.repeat(times)).collect();
            assert_same("repeat_rows", &values_of(&to), &wanted);
        }
    }
}

#[test]
fn rows_of_experts_are_added_in_their_order() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(4));
    for (n, d, used) in [(1, 1, 1), (1, 64, 8), (7, 33, 3), (50, 512, 6)] {
        let (mut out, x) = (random.values(n * d, 1.0), random.values(n * used * d, 1.0));
        let weights = random.values(n * used, 1.0);
        let mut pairs: Vec<u32> = (0..(n * used) as u32).collect();
        for i in (1..pairs.len()).rev() {
            pairs.swap(i, random.below(i + 1));
        }
        let (mut there, x_there) = (on(&gpu, &out), on(&gpu, &x));
        let (pairs_there, weights_there) = (words_on(&gpu, &pairs), on(&gpu, &weights));
        let (p, w) = (pairs_there.span(), weights_there.span());
        gpu.scatter_add(there.span_mut(), d, x_there.span(), p, w);
        for (r, out) in out.chunks_exact_mut(d).enumerate() {
            for k in r * used..(r + 1) * used {
                compute.add_scaled(out, &x[pairs[k] as usize * d..][..d], weights[k]);
            }
        }
        assert_same(&format!("{n} rows of {d}, {used} each"), &values_of(&there), &out);
    }
}

#[test]
fn runs_are_copied_between_places_of_any_distance() {
    let Some(gpu) = gpu() else { return };
    let from: Vec<f32> = (0..90).map(|i| i as f32).collect();
    let there = on(&gpu, &from);
    for width in [1, 7, 30] {
        let places = [[60, 0], [3, 60], [3, 30]];
        let mut out = on(&gpu, &[-1.0; 90]);
        for places in [&places[..], &[]] {
            let (from, to) = (there.span(), out.span_mut());
            gpu.copy_parts(CopyParts { from, to, width, places });
        }
        let mut want = vec![-1.0; 90];
        for [at, to] in places {
            want[to..to + width].copy_from_slice(&from[at..at + width]);
        }
        assert_same(&format!("runs of {width}"), &values_of(&out), &want);
    }
}

#[test]
fn rows_of_a_table_are_added() {
    let Some(gpu) = gpu() else { return };
    let mut random = Random(6);
    for (n, d) in [(1, 1), (5, 24), (70, 130)] {
        let (table, mut out) = (random.values(4 * d, 1.0), random.values(n * d, 1.0));
        let picked: Vec<u32> = (0..n as u32).map(|i| i * 7 % 4).collect();
        let (table_there, mut there) = (on(&gpu, &table), on(&gpu, &out));
        let picked_there = words_on(&gpu, &picked);
        let op = AddPicked {
            out: there.span_mut(),
            table: table_there.span(),
            d,
            picked: picked_there.span(),
        };
        gpu.run(Op::AddPicked(op)).expect("room");
        compute().add_picked(AddPicked { out: &mut out, table: &table, d, picked: &picked });
        assert_same(&format!("{n} rows of {d}"), &values_of(&there), &out);
    }
}

#[test]
fn halves_become_pairs() {
    let Some(gpu) = gpu() else { return };
    let mut random = Random(7);
    for (n, d) in [(1, 2), (5, 24), (70, 130)] {
        let mut x = random.values(n * d, 1.0);
        let mut there = on(&gpu, &x);
        let op = HalvesToPairs { x: there.span_mut(), d };
        gpu.run(Op::HalvesToPairs(op)).expect("room");
        compute().halves_to_pairs(HalvesToPairs { x: &mut x, d });
        assert_same(&format!("{n} rows of {d}"), &values_of(&there), &x);
    }
}
