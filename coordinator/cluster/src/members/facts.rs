//! Facts about each worker for the planner: its memory and its speed. Also its features, so that an older release is
//! not asked for newer ones.
//!
//! Each worker measures its speed when it starts, on a machine that may be doing other things. Workers on one
//! machine that have the same kernel table and the same number of threads are therefore taken as equal when
//! their figures are close. Otherwise noise would decide the cuts.

use brigade_plan::{ByClass, HostExperts, HostFacts, ProductClass, WorkerFacts};
use brigade_proto::address::{Address, FIRST_STAGE};
use brigade_proto::control::{Capabilities, Feature, HostPart, ProductSpeeds};
use brigade_worker::backend::expert_placement::ALL_LAYERS;

/// Largest ratio between figures of like workers of one machine that counts as noise. Beyond it
/// the machine has unlike cores.
const NOISE: f64 = 2.0;

/// Facts of workers, in the same order; `workers` are their names and capabilities.
pub fn worker_facts<'a>(
    workers: impl IntoIterator<Item = (&'a str, &'a Capabilities)>,
) -> Vec<WorkerFacts> {
    let workers: Vec<_> = workers.into_iter().collect();
    let best = |caps: &Capabilities, value: &dyn Fn(&Capabilities) -> f64| {
        let own = value(caps);
        let like = workers.iter().filter(|(_, other)| are_alike(caps, other));
        let near = like.map(|(_, other)| value(other)).filter(|v| *v <= own * NOISE);
        near.fold(own, f64::max)
    };
    workers
        .iter()
        .map(|(name, caps)| WorkerFacts {
            name: (*name).to_string(),
            memory: caps.memory_limit,
            gbps: best(caps, &|c| c.gb_per_second),
            gops: ByClass::from_fn(|class: ProductClass| best(caps, &|c| products(c)[class])),
            link: None,
            host: caps.host.as_ref().map(host_facts),
            holds: 0..0,
            node: None,
            disk: None,
        })
        .collect()
}

/// How fast a worker multiplies, by the class of weights, 10^9 operations a second.
pub fn products(caps: &Capabilities) -> ByClass<f64> {
    by_class(caps.gop_per_second, caps.products)
}

/// One of a release that measures one class says nothing of others: they are taken to be as fast.
fn by_class(gop_per_second: f64, others: Option<ProductSpeeds>) -> ByClass<f64> {
    match others {
        None => ByClass::all(gop_per_second),
        Some(ProductSpeeds { q6_k, q8_0, f16 }) => {
            ByClass { nibble: gop_per_second, halves: q6_k, byte: q8_0, float: f16 }
        }
    }
}

fn host_facts(host: &HostPart) -> HostFacts {
    HostFacts {
        memory: (!host.is_shared).then_some(host.memory_limit),
        gbps: host.gb_per_second,
        gops: by_class(host.gop_per_second, host.products),
        sent_gbps: Some(host.sent_gb_per_second).filter(|n| n.is_finite()).unwrap_or(0.0).max(0.0),
        sent_beside: host.sent_beside,
        experts: match host.experts_before {
            None => HostExperts::Auto,
            Some(ALL_LAYERS) => HostExperts::All,
            Some(n) => HostExperts::Layers(n),
        },
    }
}

/// Checks that the planner can reckon with what a worker says of itself.
///
/// # Errors
/// A value is no number that the planner can use.
pub fn check(caps: &Capabilities) -> Result<(), String> {
    let products = by_class(caps.gop_per_second, caps.products).values();
    let speed = ("memory speed in GB/s", caps.gb_per_second);
    let speeds = products.map(|gops| ("computing speed in GOP/s", gops));
    let of_host = caps.host.iter().flat_map(|host| {
        let products = by_class(host.gop_per_second, host.products).values();
        let speed = ("host's memory speed in GB/s", host.gb_per_second);
        products.map(|gops| ("host's computing speed in GOP/s", gops)).into_iter().chain([speed])
    });
    for (what, value) in speeds.into_iter().chain([speed]).chain(of_host) {
        if !(value.is_finite() && value > 0.0) {
            return Err(format!("its {what} is {value}; it must be a number above 0"));
        }
    }
    Ok(())
}

/// Whether a worker says that it knows `feature`: one of an older release knows those before it alone.
pub fn knows(caps: &Capabilities, feature: Feature) -> bool {
    caps.features().any(|known| known == feature)
}

/// Whether a worker can dial another at this address: one of an older release knows no numbers of stages.
pub fn can_dial(caps: &Capabilities, address: &Address) -> bool {
    address.stage() == FIRST_STAGE || knows(caps, Feature::StageAddresses)
}

fn are_alike(a: &Capabilities, b: &Capabilities) -> bool {
    a.host_id == b.host_id && a.threads == b.threads && a.kernels == b.kernels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(host: &str, gb_per_second: f64) -> Capabilities {
        Capabilities {
            host_id: host.to_string(),
            threads: 1,
            gb_per_second,
            gop_per_second: 100.0,
            ..Capabilities::default()
        }
    }

    fn speeds(workers: &[Capabilities]) -> Vec<f64> {
        worker_facts(workers.iter().map(|w| ("w", w))).iter().map(|f| f.gbps).collect()
    }

    #[test]
    fn noise_on_one_machine_is_evened_out() {
        assert_eq!(speeds(&[worker("a", 7.5), worker("a", 5.0)]), [7.5, 7.5]);
    }

    #[test]
    fn speeds_that_are_no_numbers_are_named() {
        assert_eq!(check(&worker("a", 7.5)), Ok(()));
        for bad in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            assert!(check(&worker("a", bad)).unwrap_err().contains("memory speed"));
            let products = Some(ProductSpeeds { q6_k: 90.0, q8_0: 80.0, f16: bad });
            let caps = Capabilities { products, ..worker("a", 7.5) };
            assert!(check(&caps).unwrap_err().contains("computing speed"));
        }
    }

    #[test]
    fn classes_are_as_fast_as_they_are_said_to_be_each_without_noise() {
        let mut workers = [worker("a", 7.5), worker("a", 7.5), worker("b", 7.5)];
        workers[0].products = Some(ProductSpeeds { q6_k: 90.0, q8_0: 80.0, f16: 20.0 });
        workers[1].products = Some(ProductSpeeds { q6_k: 70.0, q8_0: 85.0, f16: 30.0 });
        let facts = worker_facts(workers.iter().map(|w| ("w", w)));
        assert_eq!(facts[0].gops.values(), [100.0, 90.0, 85.0, 30.0]);
        assert_eq!(facts[2].gops, ByClass::all(100.0), "one of the release before");
    }

    #[test]
    fn an_older_release_knows_what_there_was() {
        let mut caps = worker("a", 7.5);
        assert!(!knows(&caps, Feature::Companion), "the first release");
        caps.features = vec![Feature::LoadAhead.into(), Feature::Companion.into()];
        let of = [Feature::LoadAhead, Feature::Companion, Feature::Windows, Feature::LaterDraws];
        assert_eq!(of.map(|feature| knows(&caps, feature)), [true, true, false, false]);
    }

    #[test]
    fn an_older_release_dials_no_stage_by_its_number() {
        let (old, mut new) = (worker("a", 7.5), worker("a", 7.5));
        new.features = vec![Feature::StageAddresses.into()];
        let [first, second] = ["lab:7070", "lab:7070/2"].map(|text| text.parse().unwrap());
        assert!(can_dial(&old, &first) && can_dial(&new, &first));
        assert!(can_dial(&new, &second) && !can_dial(&old, &second));
    }

    #[test]
    fn real_differences_stay() {
        assert_eq!(speeds(&[worker("a", 7.5), worker("b", 5.0)]), [7.5, 5.0]);
        assert_eq!(speeds(&[worker("a", 20.0), worker("a", 5.0)]), [20.0, 5.0]);
        let mut two_threads = worker("a", 10.0);
        two_threads.threads = 2;
        assert_eq!(speeds(&[two_threads, worker("a", 6.0)]), [10.0, 6.0]);
    }
}
