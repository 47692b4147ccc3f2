//! `brigade plan --fleet`: the machines that the models of a file would get.

use std::fs;

use brigade_tests::process::run;
use serde_json::{Value, json};

use crate::several_models::fleet::Scratch;

/// The plan for these models, over machines with this much memory each.
fn plan(
    scratch: &Scratch,
    models: &[(&str, Option<&std::path::Path>, &str)],
    memory: &[&str],
) -> Value {
    let config = scratch.config(models);
    let worker = |(i, memory): (usize, &&str)| {
        format!("[[worker]]\nname = \"m{i}\"\nmemory = \"{memory}\"\ngbps = 20.0\ngops = 200.0\n")
    };
    let text: String = memory.iter().enumerate().map(worker).collect();
    let machines = scratch.folder.join("machines.toml");
    fs::write(&machines, text).unwrap();
    let machines = machines.to_str().unwrap();
    let output = run(&["plan", "--fleet", &config, "--cluster", machines, "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn each_model_is_shown_with_the_machines_that_it_would_be_lent() {
    let scratch = Scratch::new("plan");
    let demand = "load = \"demand\"\nctx = 512";
    let wide = format!("{demand}\nexpect = 2");
    let models = [
        ("asked", None, demand),
        ("always", None, "ctx = 512"),
        ("wide", None, wide.as_str()),
        ("own", None, "workers = 1"),
    ];
    let shown = plan(&scratch, &models, &["2G", "1G", "1G", "8G"]);
    let of = |name: &str, field: &str| -> Value {
        let rows = shown["models"].as_array().unwrap().iter();
        rows.clone().find(|row| row["model"] == name).unwrap()[field].clone()
    };
    assert_eq!(shown["models"].as_array().unwrap().len(), 3, "one has workers of its own: {shown}");
    // A model that is loaded with the server gets the smallest machine that holds it, and so on.
    assert_eq!((of("always", "workers"), of("always", "load")), (json!(["m1"]), json!("start")));
    assert_eq!((of("asked", "workers"), of("asked", "load")), (json!(["m2"]), json!("demand")));
    assert_eq!(
        (of("wide", "workers"), of("wide", "in_turns_with")),
        (json!(["m0", "m3"]), json!([]))
    );
    assert_eq!((of("asked", "ctx"), &shown["free"]), (json!(512), &json!([])));
    // With fewer machines they take turns; a model that never fits does not hinder the others.
    let shown = plan(&scratch, &models, &["1G", "1G", "1G"]);
    let row = |name: &str| -> Value {
        let rows = shown["models"].as_array().unwrap().iter();
        rows.clone().find(|row| row["model"] == name).unwrap().clone()
    };
    assert_eq!(row("wide")["in_turns_with"], json!(["asked"]), "{shown}");
    assert_eq!(shown["free"][0][0], "m2");
    // And with too few, one has no room at all.
    let shown = plan(&scratch, &models, &["1G", "1G"]);
    let wide = shown["models"].as_array().unwrap().last().unwrap();
    assert!(wide["never"].as_str().is_some_and(|why| why.contains("1 of 2 workers")), "{shown}");
}

fn stages_of_a_node_share_its_memory() {
    let scratch = Scratch::new("plan-node");
    // Work memory for so many rows makes it as large as a model of 250 MiB.
    let large = "load = \"demand\"\nctx = 512\nmax-seqs = 4\nubatch = 8192";
    let small = "load = \"demand\"\nctx = 512\nmax-seqs = 4";
    let models = [("large", None, large), ("other", None, large), ("small", None, small)];
    let shown = plan(&scratch, &models, &["780M\"\nstages = 3 # \""]);
    let of = |at: usize, field: &str| shown["models"][at][field].clone();
    assert_eq!(of(0, "workers"), json!(["m0.1"]), "{shown}");
    assert_eq!(of(1, "in_turns_with"), json!(["large"]), "{shown}");
    assert_eq!(of(2, "workers").as_array().map(Vec::len), Some(1), "{shown}");
    let free = shown["free"].as_array().unwrap();
    let bytes = |at: usize| of(at, "bytes").as_u64().unwrap();
    assert_eq!(free.len(), 1, "{shown}");
    assert_eq!(free[0][1].as_u64(), Some((780 << 20) - bytes(0) - bytes(2)), "what both leave");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![waits: each_model_is_shown_with_the_machines_that_it_would_be_lent, stages_of_a_node_share_its_memory;];
