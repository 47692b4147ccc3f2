# Short names for what is done often. Each is a thin line over cargo or .ci; `just --list` shows them.

# Format, lints and the repository's own rules, without running the other tests.
check:
    cargo fmt --all --check
    cargo clippy --release --workspace --all-targets --locked -- -D warnings
    cargo test --release --workspace --locked --test tidy

# What the formatter and clippy can correct by themselves.
fix:
    cargo clippy --release --workspace --all-targets --fix --allow-dirty --allow-staged
    cargo fmt --all

# One architecture against llama.cpp's golden logits: just test-model qwen3
test-model NAME:
    BRIGADE_TEST_MODEL={{NAME}} cargo test --release --workspace --test golden golden_models -- --nocapture

# Tests over HTTP.
test-http:
    cargo test --release --workspace --test http --test http_limits --test keys --test https --test streams

# The GPU's kernels, and real processes on the device vulkan:0.
test-gpu:
    cargo test --release --workspace --no-run
    cargo test --release -p brigade-gpu
    .ci/gpu

# Documents and the scheduler's scripts, as far as they are made from code, written anew.
bless:
    BRIGADE_BLESS=1 cargo test --release --workspace --test arch_table
    BRIGADE_UPDATE_GOLDEN=1 cargo test --release --workspace --test sched_scripts

# Everything that a change must pass, then the suites for nights.
nightly:
    .ci/run
    cargo test --release --workspace --no-fail-fast -- --ignored --nocapture
    BRIGADE_TEST_ALL_PAIRS=1 cargo test --release -p brigade-gpu
    if command -v mdbook >/dev/null; then mdbook build docs; else echo '!! SKIPPED: the manual as a book: no mdbook'; fi

# Kernels, hops and a whole line, beside this machine's limits.
bench:
    cargo bench -p brigade-engine --bench kernels
    cargo bench -p brigade-worker --bench hop
    cargo run --release -- bench --parallel 1,8
