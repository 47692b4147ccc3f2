//! What it costs to begin and end a region of the threads, and from what size on an op on rows is worth one. Cases are named
//! `fork-join` and `rowwise`.

use std::sync::atomic::{AtomicUsize, Ordering};

use brigade_engine::kernels::Compute;

use crate::common::{Bench, values};

/// Regions of one measured run.
const REGIONS: usize = 1000;
/// Chunks for each thread, as in products of few rows.
const CHUNKS_PER_THREAD: usize = 16;
/// Sizes of ops, in elements.
const SIZES: [usize; 6] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10];
/// Sizes of chunks, in elements.
const CHUNKS: [usize; 4] = [2 << 10, 4 << 10, 8 << 10, 16 << 10];

/// Measures the cases that the filter lets run.
pub fn measure(bench: &Bench) {
    if bench.wants("fork-join") {
        fork_join(bench);
    }
    if bench.wants("rowwise") {
        rowwise(bench, "silu", |compute, x| compute.silu(x));
        rowwise(bench, "scale", |compute, x| compute.scale(x, 1.0));
    }
}

fn fork_join(bench: &Bench) {
    let pool = bench.compute.pool();
    let threads = pool.threads();
    let regions = |name: &str, mut region: Box<dyn FnMut()>| {
        let seconds = bench.seconds(|_| (0..REGIONS).for_each(|_| region()));
        let us = seconds / REGIONS as f64 * 1e6;
        println!("fork-join of {threads} threads, {name}: {us:.2} us, {:.0} a second", 1e6 / us);
    };
    for n_chunks in [2, threads, CHUNKS_PER_THREAD * threads] {
        let chunk = |chunk: usize, _| {
            std::hint::black_box(chunk);
        };
        let region = move || pool.run(n_chunks, &chunk);
        regions(&format!("{n_chunks} empty chunks"), Box::new(region));
    }
    let meet = move || {
        let met = AtomicUsize::new(0);
        pool.run(threads, &|_, _| {
            met.fetch_add(1, Ordering::SeqCst);
            while met.load(Ordering::SeqCst) < threads {
                std::hint::spin_loop();
            }
        });
    };
    regions("in which all meet", Box::new(meet));
}

/// An op on so many elements on one thread, and cut into chunks for all threads, in turn.
fn rowwise(bench: &Bench, name: &str, op: fn(&Compute, &mut [f32])) {
    let pool = bench.compute.pool();
    let alone = Compute::new(bench.compute.kernels(), 1, None).expect("threads start");
    for size in SIZES {
        let x = values(size, 5);
        let mut x_alone = x.clone();
        let mut line = format!("rowwise {name} of {size:6}: alone ");
        for (i, chunk) in CHUNKS.into_iter().enumerate() {
            // Each chunk has values of its own, which stay with whoever had them.
            let cut: Vec<std::sync::Mutex<Vec<f32>>> =
                x.chunks(chunk).map(|part| part.to_vec().into()).collect();
            let [of_one, of_all] = bench.seconds_of([
                &mut |_| (0..REGIONS / 10).for_each(|_| op(&alone, &mut x_alone)),
                &mut |_| {
                    (0..REGIONS / 10).for_each(|_| {
                        pool.run(cut.len(), &|chunk, _| {
                            op(&alone, &mut cut[chunk].lock().expect("no chunk panics"));
                        });
                    });
                },
            ]);
            let us = |seconds: f64| seconds / (REGIONS / 10) as f64 * 1e6;
            if i == 0 {
                line += &format!("{:.2} us, in chunks of", us(of_one));
            }
            line += &format!(" {chunk}: {:.2}", us(of_all));
        }
        println!("{line} us");
    }
}
