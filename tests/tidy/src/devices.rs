//! The table of kinds of devices: which crates it names.

/// The folders of the crates that lines of the `table` name, as in `&brigade_gpu::VULKAN`.
pub fn devices(table: &str) -> Vec<String> {
    let named = table.lines().filter_map(|line| line.trim().strip_prefix("&brigade_"));
    let folder = |krate: &str| format!("engine/{}", krate.replace('_', "-"));
    named.filter_map(|path| Some(folder(path.split_once("::")?.0))).collect()
}

#[test]
fn lines_of_the_table_name_crates() {
    let table = "static ALL: &[&Kind] = &[\n    // All.\n    &brigade_gpu::VULKAN,\n    &brigade_far_off::FAR,\n];";
    assert_eq!(devices(table), ["engine/gpu", "engine/far-off"]);
}
