//! What cargo's manifests and lock files say, read as text.

use std::collections::BTreeMap;

/// The name of a manifest's package.
///
/// # Panics
/// It has none.
pub fn name(manifest: &str) -> String {
    let line = manifest.lines().find(|line| line.starts_with("name = "));
    line.and_then(|line| line.split('"').nth(1)).expect("a package has a name").to_owned()
}

/// Names in the `[dependencies]` section of a manifest, but for those that only a feature needs.
pub fn dependencies(manifest: &str) -> Vec<String> {
    let section = manifest.lines().skip_while(|l| l.trim() != "[dependencies]").skip(1);
    let lines = section.take_while(|l| !l.starts_with('['));
    let lines = lines.filter(|l| !l.trim().is_empty() && !l.starts_with('#'));
    let names = lines.filter(|l| !l.contains("optional = true"));
    names.map(|l| l.split(['.', ' ', '=']).next().unwrap_or_default().to_owned()).collect()
}

/// Names of the packages of a lock file, each with those that it needs.
///
/// # Panics
/// The text is no lock file.
pub fn locked(lock: &str) -> BTreeMap<String, Vec<String>> {
    let quoted = |line: &str| line.split(['"', ' ']).nth(1).unwrap_or_default().to_owned();
    let mut packages = BTreeMap::<String, Vec<String>>::new();
    for package in lock.split("[[package]]").skip(1) {
        let needs = package.lines().filter(|line| line.starts_with(" \""));
        let needs = needs.map(|line| quoted(line.trim_start()));
        packages.entry(name(package)).or_default().extend(needs);
    }
    packages
}
