//! One shader: its includes put in their places, and compiled.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use glslang::{
    Compiler, CompilerOptions, ShaderInput, ShaderMessage, ShaderSource, ShaderStage,
    SourceLanguage, SpirvVersion, Target, VulkanVersion,
};

use crate::exact::exact;

/// The SPIR-V of `shaders/<name>.comp`, unoptimised: drivers do that, and so the bytes depend on the source alone.
pub fn compile(shaders: &Path, name: &str) -> Result<Vec<u8>> {
    let mut text =
        Text { folder: shaders, lines: String::new(), files: Vec::new(), seen: BTreeSet::new() };
    text.add(&format!("{name}.comp"))?;
    let compiler = Compiler::acquire().context("glslang does not start")?;
    let options = CompilerOptions {
        source_language: SourceLanguage::GLSL,
        target: Target::Vulkan {
            version: VulkanVersion::Vulkan1_3,
            spirv_version: SpirvVersion::SPIRV1_6,
        },
        version_profile: None,
        messages: ShaderMessage::DEFAULT | ShaderMessage::VULKAN_RULES | ShaderMessage::SPV_RULES,
    };
    let source = ShaderSource::from(text.lines.clone());
    let none: Option<&[(&str, Option<&str>)]> = None;
    let input = ShaderInput::new(&source, ShaderStage::Compute, &options, none, None)?;
    let shader = compiler.create_shader(input).map_err(|error| text.explain(&error.to_string()))?;
    let words = shader.compile().map_err(|error| text.explain(&error.to_string()))?;
    let words = exact(&words)?;
    Ok(words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

/// A shader's lines with those of its includes, each file taken once, and which files they are from.
struct Text<'a> {
    folder: &'a Path,
    lines: String,
    files: Vec<String>,
    seen: BTreeSet<String>,
}

impl Text<'_> {
    /// Adds a file of the folder. `#line` tells the compiler where lines are from; files have numbers there.
    fn add(&mut self, file: &str) -> Result<()> {
        if !self.seen.insert(file.to_owned()) {
            return Ok(());
        }
        let number = self.files.len();
        self.files.push(file.to_owned());
        let path = self.folder.join(file);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        for (i, line) in text.lines().enumerate() {
            match include(line) {
                Some(other) => {
                    let new = !self.seen.contains(other);
                    if new {
                        self.lines += &format!("#line 1 {}\n", self.files.len());
                    }
                    self.add(other).with_context(|| format!("{file}:{}", i + 1))?;
                    self.lines += &format!("#line {} {number}\n", i + 2);
                }
                None => {
                    self.lines += line;
                    self.lines.push('\n');
                }
            }
        }
        Ok(())
    }

    /// An error of the compiler with the files' names in place of their numbers.
    fn explain(&self, error: &str) -> anyhow::Error {
        let lines = error.lines().map(|line| {
            let named = self.files.iter().enumerate().find_map(|(i, file)| {
                let rest = line.strip_prefix(&format!("ERROR: {i}:"))?;
                Some(format!("ERROR: {file}:{rest}"))
            });
            named.unwrap_or_else(|| line.to_owned())
        });
        anyhow!("{}", lines.collect::<Vec<_>>().join("\n"))
    }
}

/// The file that a line includes.
fn include(line: &str) -> Option<&str> {
    line.trim().strip_prefix("#include")?.trim().strip_prefix('"')?.strip_suffix('"')
}
