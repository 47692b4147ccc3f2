//! Tables by their names, and numbers of what they compute.

use brigade_kernels::{NUMERICS, NUMERICS_UNFUSED, fast_numerics};
use brigade_kernels_tables::{available, select};

#[test]
fn tables_are_found_by_name_and_the_reference_is_always_there() {
    let tables = available();
    assert_eq!(tables.last().map(|t| t.name), Some("reference"));
    for table in &tables {
        assert_eq!(select(Some(table.name)).expect("listed").name, table.name);
    }
    assert_eq!(select(None).expect("one is there").name, tables[0].name);
}

#[test]
fn fast_math_is_a_class_of_each_device() {
    let [one, other] = ["10de:2684 A 1", "10de:2684 A 2"].map(fast_numerics);
    assert_eq!(one, fast_numerics("10de:2684 A 1"));
    assert_ne!(one, other, "another driver");
    assert!(![NUMERICS, NUMERICS_UNFUSED].contains(&one) && one >> 31 == 1);
}

#[test]
fn an_unknown_name_is_answered_with_the_list() {
    let error = select(Some("mmx")).expect_err("no such table").to_string();
    assert!(error.contains("mmx") && error.contains("reference"), "{error}");
}
