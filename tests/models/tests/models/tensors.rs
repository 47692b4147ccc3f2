//! The tensors of a model are checked when its file is opened, by its header alone. The files of every architecture
//! pass. A tensor that is missing, misshapen or unknown is named.

use std::path::{Path, PathBuf};

use brigade_engine::stage::check_tensors;
use brigade_gguf::Gguf;
use brigade_model_tests::each::each;
use brigade_model_tests::rewrite::{Shape as Tensor, header, tensors};
use brigade_synth::{ARCHES, Arch, FileType, SIZES, Shape, Spec};

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("brigade-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.gguf"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The header of a random model; `None` where the architecture does not take the size.
fn synth(arch: Arch, size: &str, path: &Path) -> Option<Gguf> {
    let shape = Shape::named(size).unwrap();
    let spec = Spec { arch, shape, quant: FileType::F32, seed: 1, header_only: true };
    brigade_synth::write(&spec, path).ok()?;
    let model = Gguf::open_header_only(path).unwrap();
    brigade_models::describe(&model).is_ok().then_some(model)
}

/// Fault of the tensors in the file at `path`.
fn fault(path: &Path) -> Option<String> {
    let model = Gguf::open_header_only(path).unwrap();
    let described = brigade_models::described(&model).map_err(|error| error.to_string());
    described.and_then(|d| check_tensors(&d).map_err(|e| e.to_string())).err()
}

fn the_tensors_of_every_architecture_pass() {
    let folder = Folder::new("tensors-pass");
    each(ARCHES, |arch| {
        let mut n = 0;
        let small = SIZES.iter().filter(|(name, _)| {
            name.starts_with("tiny") || name.starts_with("golden") || *name == "base"
        });
        for (size, _) in small {
            let path = folder.file(&format!("{}-{size}", arch.name()));
            if synth(*arch, size, &path).is_none() {
                continue;
            }
            // A size may leave an architecture without what it cannot do without.
            if let Some(why) = fault(&path) {
                assert!(why.contains("is missing"), "{} {size}: {why}", arch.name());
                continue;
            }
            n += 1;
        }
        assert!(n > 0, "{}: no size of it passes", arch.name());
    });
}

/// Without one of these the model computes otherwise: they say by being there that they are used.
fn may_be_missing(name: &str) -> bool {
    name.ends_with(".bias")
        || name.ends_with(".ssm_norm.weight")
        || name == "output.weight"
        || name.starts_with("rope_")
}

fn what_is_missing_misshapen_or_unknown_is_named() {
    let folder = Folder::new("tensors-wrong");
    let models = [
        ("llama", "golden"),
        ("qwen3moe", "golden-moe"),
        ("granitehybrid", "golden"),
        ("deepseek2", "golden-moe"),
        ("gemma3", "golden-wide-tied"),
    ];
    let mut n_wrong = 0;
    for (arch, size) in models {
        let path = folder.file(arch);
        let model = synth(Arch::named(arch).unwrap(), size, &path).unwrap();
        let whole = tensors(&model);
        assert_eq!(fault(&path), None, "{arch}");
        let damaged = folder.file("damaged");
        let mut wrong = |what: &str, name: &str, tensors: &[Tensor]| {
            header(&model, &damaged, tensors);
            let why = fault(&damaged).unwrap_or_else(|| panic!("{arch}: {name} {what} passes"));
            // A part that files have in one of two forms is missed in the other one.
            let names_it = why.contains(name) || why.contains("is missing");
            assert!(names_it, "{arch}: {name} {what}: {why}");
            n_wrong += 1;
        };
        for (i, (name, ty, dims)) in whole.iter().enumerate() {
            if !may_be_missing(name) {
                let mut without = whole.clone();
                without.remove(i);
                wrong("missing", name, &without);
            }
            let mut other = whole.clone();
            let last = dims.len() - 1;
            other[i].2[last] += 1;
            wrong("too large", name, &other);
            other[i] = (format!("{name}_b"), *ty, dims.clone());
            if !may_be_missing(name) {
                wrong("under another name", name, &other);
            }
        }
        let one =
            |name: &str| [whole.as_slice(), &[(name.to_owned(), whole[0].1, vec![32])]].concat();
        for name in ["blk.0.attn_q.extra", "blk.0.never_heard_of.weight", "never_heard_of.weight"] {
            wrong("extra", name, &one(name));
        }
        // What is for other senses is left where it is.
        for name in ["v.blk.0.attn_q.weight", "mm.0.weight", "a.conv1d.weight"] {
            header(&model, &damaged, &one(name));
            assert_eq!(fault(&damaged), None, "{arch}: {name}");
        }
    }
    println!("tensors | {n_wrong} wrong files, each refused by the tensor's name");
}

/// A header may promise sizes that no machine has: nothing of them is allocated.
fn sizes_that_nobody_has_are_no_crash() {
    let folder = Folder::new("tensors-large");
    let path = folder.file("llama");
    let model = synth(Arch::named("llama").unwrap(), "golden", &path).unwrap();
    let whole = tensors(&model);
    for (i, (name, ..)) in whole.iter().enumerate() {
        for first in [true, false] {
            let mut huge = whole.clone();
            let at = if first { 0 } else { huge[i].2.len() - 1 };
            huge[i].2[at] = 1 << 40;
            header(&model, &path, &huge);
            assert!(fault(&path).is_some(), "{name}");
        }
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes: the_tensors_of_every_architecture_pass, what_is_missing_misshapen_or_unknown_is_named,
    sizes_that_nobody_has_are_no_crash;
];
