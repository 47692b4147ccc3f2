//! Workers of two devices, as processes: routed experts of some layers with the host, the rest on a GPU. Where they lie changes no
//! token; what cannot be is refused. Machines without a Vulkan driver skip.

use brigade_engine::device::gpus;
use brigade_tests::process::run;

/// A mixture that the repository has, and how many layers it has.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/golden/lfm2moe.gguf");

fn no_gpu() -> bool {
    let reason = gpus().err();
    if let Some(reason) = &reason {
        println!("skipped: {reason}");
    }
    reason.is_some()
}

/// The answer and the remarks of `brigade run` with these options of experts.
fn ids(workers: &str, device: &str, more: &[&str]) -> (bool, String, String) {
    let fixed = ["run", "-m", MODEL, "--tokens", "5,9,11,2", "-n", "8", "--temp", "0", "--ids"];
    let line = ["--workers", workers, "--threads", "1", "--device", device];
    let output = run(&[&fixed[..], &line, more].concat());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

fn where_experts_lie_changes_no_token() {
    if no_gpu() {
        return;
    }
    let of = |workers, device, more: &[&str]| {
        let (ok, out, says) = ids(workers, device, more);
        assert!(ok, "{more:?}: {says}");
        out
    };
    let want = of("1", "vulkan:0", &[]);
    assert!(want.contains('['), "{want}");
    for more in [&["--cpu-moe"][..], &["--n-cpu-moe", "2"], &["--experts", "host"]] {
        assert_eq!(of("1", "vulkan:0", more), want, "{more:?}");
    }
    // Two stages, cut in the middle, and the other way to say it.
    assert_eq!(of("2", "vulkan:0+cpu", &["--experts", "3"]), want);
}

fn more_layers_than_there_are_and_what_contradicts_itself_are_refused() {
    if no_gpu() {
        return;
    }
    let (ok, _, says) = ids("1", "vulkan:0", &["--n-cpu-moe", "99"]);
    assert!(!ok && says.contains("--n-cpu-moe") && says.contains("99 layers"), "{says}");
    let (ok, _, says) = ids("1", "vulkan:0", &["--experts", "most"]);
    assert!(!ok && says.contains("is not auto, device, host"), "{says}");
    let (ok, _, says) = ids("1", "cpu+cpu", &[]);
    assert!(!ok && says.contains("vulkan:0+cpu"), "{says}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        where_experts_lie_changes_no_token,
        more_layers_than_there_are_and_what_contradicts_itself_are_refused;
];
