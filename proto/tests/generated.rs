//! The types in `generated` agree with the `.proto` files. They are committed because generating them takes 28
//! crates, which a build then does without. `BRIGADE_BLESS=1` writes them again.

use std::path::{Path, PathBuf};

const FILES: [&str; 3] = ["control.proto", "pipeline.proto", "copies.proto"];

/// Makes the types in `folder`. protox is written in Rust, so no `protoc` is needed.
fn generate(here: &Path, folder: &Path) {
    let files = protox::compile(FILES, [here.join("proto")]).expect("the files are valid");
    // `bytes(".")`: payloads are slices of the received message, not copies.
    // The codec counts a message's fields before it decodes them.
    let codec = "crate::codec::CountedCodec";
    let build = tonic_prost_build::configure().bytes(".").codec_path(codec).out_dir(folder);
    build.compile_fds(files).expect("types are made of them");
}

/// Files of a folder by name, with their text.
fn texts(folder: &Path) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    let text = |path: &PathBuf| std::fs::read_to_string(path).expect("a text");
    let name = |path: &PathBuf| path.file_name().expect("a name").to_string_lossy().into_owned();
    let mut texts: Vec<_> = paths.iter().map(|path| (name(path), text(path))).collect();
    texts.sort();
    texts
}

#[test]
fn the_types_are_those_of_the_proto_files() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let kept = here.join("generated");
    if std::env::var_os("BRIGADE_BLESS").is_some() {
        generate(here, &kept);
    }
    let fresh = std::env::temp_dir().join(format!("brigade-generated-{}", std::process::id()));
    std::fs::create_dir_all(&fresh).expect("a folder");
    generate(here, &fresh);
    let (kept, made) = (texts(&kept), texts(&fresh));
    std::fs::remove_dir_all(&fresh).expect("removed");
    assert_eq!(made.len(), FILES.len());
    let names = |texts: &[(String, String)]| texts.iter().map(|t| t.0.clone()).collect::<Vec<_>>();
    assert_eq!(names(&kept), names(&made), "files in proto/generated");
    for ((name, kept), (_, made)) in kept.iter().zip(&made) {
        assert!(
            kept == made,
            "proto/generated/{name} is not what the .proto files say: BRIGADE_BLESS=1 writes it anew"
        );
    }
}
