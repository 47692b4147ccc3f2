//! `brigade run --state-out` and `--state-in`: a run goes on where another one ended, at another cut,
//! with the tokens of one that never stopped.

use std::path::PathBuf;
use std::process::Output;

use brigade_tests::process::run;

/// A file of its own for each test.
fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Runs the demo model and returns what it printed.
fn run_ids(tokens: &[u32], n: usize, more: &[&str]) -> Output {
    let (tokens, n) = (list(tokens), n.to_string());
    let mut args = vec!["run", "--tokens", &tokens, "-n", &n, "--temp", "0", "--ids"];
    args.extend(more);
    run(&args)
}

fn ids(output: &Output) -> Vec<u32> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn says(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_run_goes_on_from_a_file_at_another_cut() {
    let path = file("goes-on.state");
    let path = path.to_str().unwrap();
    // More than one page of positions.
    let prompt: Vec<u32> = (1..90).map(|i| 1 + i % 60).collect();
    let whole = ids(&run_ids(&prompt, 16, &["--workers", "1"]));
    let first = ids(&run_ids(&prompt, 8, &["--workers", "2", "--state-out", path]));
    assert_eq!(first, whole[..8]);
    let longer = [&prompt[..], &first].concat();
    let second = run_ids(&longer, 8, &["--workers", "3", "--state-in", path]);
    assert_eq!(ids(&second), whole[8..]);
    // The last token drawn has no state yet.
    let told = format!("restored {} tokens, prefill 1 tokens", longer.len() - 1);
    assert!(says(&second).contains(&told), "{}", says(&second));
}

#[test]
fn a_file_that_does_not_fit_is_refused_with_the_reason() {
    let path = file("refused.state");
    let path = path.to_str().unwrap();
    let prompt: Vec<u32> = (1..20).collect();
    let first = ids(&run_ids(&prompt, 2, &["--workers", "2", "--state-out", path]));
    let longer = [&prompt[..], &first].concat();
    let refused = |tokens: &[u32], more: &[&str], word: &str| {
        let output = run_ids(tokens, 1, &[&["--workers", "2", "--state-in", path], more].concat());
        assert!(!output.status.success());
        assert!(says(&output).contains(word), "{word}: {}", says(&output));
    };
    refused(&[7, 7, 7], &[], "0 in common");
    refused(&longer[..5], &[], "5 in common");
    refused(&longer, &["--kv-type", "f32"], "wanted");
    let mut damaged = std::fs::read(path).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(path, damaged).unwrap();
    refused(&longer, &[], "hash");
}
