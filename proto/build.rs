//! Compiles the `.proto` files with protox, which is written in Rust, so that no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["control.proto", "pipeline.proto", "copies.proto"], ["proto"])?;
    // `bytes(".")`: payloads are slices of the received message, not copies.
    // The codec counts a message's fields before it decodes them.
    let codec = "crate::codec::CountedCodec";
    tonic_prost_build::configure().bytes(".").codec_path(codec).compile_fds(files)?;
    Ok(())
}
