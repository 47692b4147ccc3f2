//! Compiles the `.proto` files with protox, so that no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["control.proto", "pipeline.proto"], ["proto"])?;
    // `bytes(".")`: payloads are slices of the received message, not copies.
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
