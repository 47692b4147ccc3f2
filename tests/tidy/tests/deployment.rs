//! The files for operators agree with each other and with the program: access of workers to GPUs, and the places of
//! data.

use std::path::Path;

fn read(name: &str) -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().nth(2).expect("this package is `tests/tidy`");
    std::fs::read_to_string(root.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The lines of a file that are not comments.
fn lines(name: &str) -> Vec<String> {
    let text = read(name);
    let said =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    said.map(str::to_owned).collect()
}

#[test]
fn a_drop_in_gives_a_worker_the_devices_that_it_opens() {
    let unit = lines("deploy/systemd/brigade-worker.service");
    let drop_in = lines("deploy/systemd/gpu.conf");
    let has = |lines: &[String], line: &str| lines.iter().any(|l| l == line);
    // Settings of the unit that hide or forbid them are taken back.
    for (setting, instead) in [
        ("PrivateDevices=yes", "PrivateDevices=no"),
        ("MemoryDenyWriteExecute=yes", "MemoryDenyWriteExecute=no"),
    ] {
        assert!(has(&unit, setting) && has(&drop_in, instead), "{setting}");
    }
    // The device files that the worker's own sandbox allows.
    let sandbox = read("worker/src/machine/sandbox.rs");
    for (opened, allowed) in
        [("\"dri\"", "char-drm"), ("\"kfd\"", "char-kfd"), ("\"nvidia\"", "char-nvidia")]
    {
        assert!(sandbox.contains(opened), "the sandbox opens {opened} no longer");
        assert!(has(&drop_in, &format!("DeviceAllow={allowed} rw")), "{allowed}");
    }
    let path = "brigade-worker.service.d/gpu.conf";
    assert!(read("docs/operations.md").contains(path), "the manual says where it goes");
}

#[test]
fn an_image_and_a_profile_have_vulkan_and_the_devices() {
    let image = lines("deploy/Dockerfile");
    let stage =
        image.iter().position(|line| line == "FROM slim AS gpu").expect("a target for GPUs");
    let of_gpu = image[stage..].join("\n");
    assert!(of_gpu.contains("libvulkan1") && of_gpu.contains("mesa-vulkan-drivers"), "{of_gpu}");
    assert!(of_gpu.contains("USER 10001"), "it does not run as root");
    let last = image.iter().rfind(|line| line.starts_with("FROM "));
    assert_eq!(
        last.map(String::as_str),
        Some("FROM slim"),
        "what is built where no target is named"
    );
    let compose = read("deploy/compose.yaml");
    let worker = compose.split("\n  worker-gpu:\n").nth(1).expect("a service for GPUs");
    let worker = worker.split("\n\n").next().unwrap_or_default();
    for line in ["profiles: [gpu]", "target: gpu", "devices: [\"/dev/dri:/dev/dri\"]", "group_add:"]
    {
        assert!(worker.contains(line), "{line}: {worker}");
    }
    assert!(read("deploy/compose.nvidia.yaml").contains("gpus: all"));
}

#[test]
fn a_services_data_is_called_by_one_path() {
    for name in [
        "docs/operations.md",
        "docs/cluster.md",
        "deploy/README.md",
        "deploy/systemd/brigade.toml",
        "deploy/systemd/brigade-coordinator.service",
    ] {
        assert!(
            !read(name).contains("/var/lib/private"),
            "{name}: root reaches it by /var/lib too"
        );
    }
}

/// Runs a program of the system's over files; `None` where it is not installed.
fn judged(program: &str, args: &[&str]) -> Option<std::process::Output> {
    match std::process::Command::new(program).args(args).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("SKIPPED: {program} is not installed");
            None
        }
        output => Some(output.unwrap_or_else(|e| panic!("{program}: {e}"))),
    }
}

#[test]
fn systemd_takes_the_units() {
    let dir = std::env::temp_dir().join(format!("brigade-units-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    for name in ["brigade-coordinator.service", "brigade-worker.service"] {
        // The program need not be installed where the units are judged.
        let unit = read(&format!("deploy/systemd/{name}"));
        assert!(unit.contains("ExecStart=/usr/local/bin/brigade "), "{name}");
        let path = dir.join(name);
        let unit = unit.replace("/usr/local/bin/brigade ", "/bin/true ");
        std::fs::write(&path, unit).expect("written");
        let path = path.to_str().expect("a path");
        if let Some(output) = judged("systemd-analyze", &["verify", "--man=no", path]) {
            let said = String::from_utf8_lossy(&output.stderr);
            println!("systemd-analyze verify {name}: {}", output.status);
            assert!(output.status.success() && said.trim().is_empty(), "{name}: {said}");
        }
    }
    std::fs::remove_dir_all(dir).expect("removed");
}

/// Reads a file with a parser of YAML; volumes that services name must be declared, and files that they bind exist.
const COMPOSE: &str = r#"
import os, sys
try:
    import yaml
except ImportError:
    print("SKIPPED: python3 has no yaml")
    sys.exit(0)
class Loader(yaml.SafeLoader):
    pass
# Compose's own: what another file says is taken back.
Loader.add_constructor("!reset", lambda loader, node: [])
for path in sys.argv[1:]:
    with open(path) as file:
        compose = yaml.load(file, Loader)
    services, volumes = compose["services"], compose.get("volumes") or {}
    for name, service in services.items():
        assert isinstance(service, dict), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0] if isinstance(volume, str) else volume["source"]
            if source.startswith("."):
                at = os.path.join(os.path.dirname(path), source)
                assert os.path.exists(at) or source == "./models", f"{name}: {source} is not there"
            elif not source.startswith(("/", "$", "~")):
                assert source in volumes, f"{name}: volume {source} is not declared"
        for other in service.get("depends_on", []):
            assert other in services, f"{name}: depends on {other}"
    print(f"{os.path.basename(path)}: {len(services)} services")
"#;

#[test]
fn the_compose_files_are_yaml_whose_volumes_are_declared() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().nth(2).expect("this package is `tests/tidy`");
    let files = ["deploy/compose.yaml", "deploy/compose.nvidia.yaml"].map(|name| root.join(name));
    let files: Vec<&str> = files.iter().filter_map(|file| file.to_str()).collect();
    if let Some(output) = judged("python3", &[&["-c", COMPOSE], &files[..]].concat()) {
        println!("{}", String::from_utf8_lossy(&output.stdout).trim());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }
}
