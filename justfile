# Short names for what is done often. Each is a thin line over cargo or .ci; `just --list` shows them.

# Format, lints and the repository's own rules, without running the other tests.
check:
    cargo fmt --all --check
    cargo clippy --release --workspace --all-targets --locked -- -D warnings
    cargo test --release --workspace --locked --test tidy

# Whether it compiles. Own crates are checked incrementally: ten seconds after an edit of a kernel, and three times as long otherwise.
types:
    CARGO_INCREMENTAL=1 cargo check --release --workspace --locked

# What the formatter and clippy can correct by themselves.
fix:
    cargo clippy --release --workspace --all-targets --fix --allow-dirty --allow-staged
    cargo fmt --all

# One architecture against llama.cpp's golden logits: just test-model qwen3
test-model NAME:
    BRIGADE_TEST_MODEL={{NAME}} cargo test --release --workspace --test models -- golden::golden_models --nocapture

# Tests over HTTP.
test-http:
    cargo test --release --workspace --test http

# The GPU's kernels, and real processes on the device vulkan:0.
test-gpu:
    cargo test --release --workspace --no-run
    cargo test --release --workspace --test vulkan --test gpu_models --test gpu
    .ci/gpu

# Tables of the manual, the protocol's types and the scheduler's scripts, as far as they are made from others, written anew.
bless:
    BRIGADE_BLESS=1 cargo test --release --workspace --test models -- arch_table::
    BRIGADE_BLESS=1 cargo test --release --workspace --test generated
    BRIGADE_BLESS=1 cargo test --release -p brigade-coordinator-unit config::text::
    BRIGADE_UPDATE_GOLDEN=1 cargo test --release --workspace --test scheduler -- sched_scripts::

# What takes too long for every change, all of it or some of its parts: just nightly, just nightly losses crowds
nightly *PARTS:
    .ci/nightly {{PARTS}}

# Kernels, hops and a whole line, beside this machine's limits.
bench:
    cargo bench -p brigade-engine --bench kernels
    cargo bench -p brigade-worker --bench hop
    cargo bench -p brigade-draft
    cargo run --release -- bench --parallel 1,8
