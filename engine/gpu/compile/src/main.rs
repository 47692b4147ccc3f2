//! Makes the SPIR-V of the GPU kernels: `shaders/*.comp` to `spirv/*.spv`, for Vulkan 1.3. With `--check` it compares
//! instead, and names what differs. Nothing else writes these files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};

mod exact;
mod shader;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut check = false;
    let mut only = BTreeSet::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--check" => check = true,
            name if !name.starts_with('-') => _ = only.insert(name.to_owned()),
            _ => bail!("usage: brigade-gpu-compile [--check] [NAME OF A SHADER]..."),
        }
    }
    let root = root()?;
    let (shaders, spirv) = (root.join("shaders"), root.join("spirv"));
    std::fs::create_dir_all(&spirv).context("the folder of SPIR-V")?;
    let sources = files(&shaders, "comp")?;
    let mut failures = Vec::new();
    for name in only.iter().filter(|name| !sources.contains(*name)) {
        failures.push(format!("{name}: there is no shaders/{name}.comp"));
    }
    let wanted = sources.iter().filter(|name| only.is_empty() || only.contains(*name));
    for name in wanted {
        if let Err(error) = make(&shaders, &spirv, name, check) {
            failures.push(format!("{name}: {error:#}"));
        }
    }
    for name in files(&spirv, "spv")?.difference(&sources) {
        failures.push(format!("{name}: spirv/{name}.spv has no source any more; remove it"));
    }
    if failures.is_empty() { Ok(()) } else { Err(anyhow!("{}", failures.join("\n"))) }
}

/// The crate of the kernels, in the checkout that this is run in.
fn root() -> Result<PathBuf> {
    let here = std::env::current_dir()?;
    let crates = here.ancestors().map(|folder| folder.join("engine/gpu"));
    crates
        .into_iter()
        .find(|root| root.join("shaders").is_dir())
        .context("run this in a checkout: there is no engine/gpu/shaders here")
}

/// Compiles one shader, and writes or compares it.
fn make(shaders: &Path, spirv: &Path, name: &str, check: bool) -> Result<()> {
    let code = shader::compile(shaders, name)?;
    let path = spirv.join(format!("{name}.spv"));
    let old = std::fs::read(&path).unwrap_or_default();
    if old == code {
        return Ok(());
    }
    if check {
        bail!("spirv/{name}.spv is not what its source gives; run brigade-gpu-compile");
    }
    std::fs::write(&path, &code).with_context(|| format!("writing {}", path.display()))?;
    println!("{name}: {} bytes", code.len());
    Ok(())
}

/// Names, without the ending, of the files in `folder` that have it.
fn files(folder: &Path, ending: &str) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path: PathBuf = entry?.path();
        if path.extension().is_some_and(|e| e == ending) {
            let name = path.file_stem().and_then(|name| name.to_str());
            names.insert(name.context("a name that is not UTF-8")?.to_owned());
        }
    }
    Ok(names)
}
