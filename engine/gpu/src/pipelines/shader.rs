//! Compiled kernels, and the modes that they are loaded with.

use crate::vulkan::facts::FloatControls;

/// A kernel: a static beside the op that runs it.
pub(crate) struct Shader {
    /// Name of the shader's file.
    pub(crate) name: &'static str,
    /// Bytes of its SPIR-V.
    pub(crate) code: &'static [u8],
}

/// Declares a kernel: the SPIR-V of `shaders/<name>.comp`.
macro_rules! shader {
    ($name:literal) => {
        $crate::pipelines::shader::Shader {
            name: $name,
            code: include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/spirv/", $name, ".spv")),
        }
    };
}
pub(crate) use shader;

/// Most bytes of push constants: what every device has.
pub(crate) const MAX_PUSH: usize = 128;

const OP_ENTRY_POINT: u32 = 15;
const OP_EXECUTION_MODE: u32 = 16;
const OP_CAPABILITY: u32 = 17;
/// Words before the first instruction.
const HEADER: usize = 5;

/// Capabilities of SPIR-V and the execution modes that need them.
const DENORM_PRESERVE: (u32, u32) = (4464, 4459);
const SIGNED_ZERO_INF_NAN_PRESERVE: (u32, u32) = (4466, 4461);
const ROUNDING_MODE_RTE: (u32, u32) = (4467, 4462);

impl Shader {
    /// Words of its SPIR-V, with the modes of f32 arithmetic that the device can be held to.
    pub(crate) fn words(&self, controls: FloatControls) -> Vec<u32> {
        let words = self.code.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let words: Vec<u32> = words.collect();
        let modes = [
            (controls.keep_subnormals, DENORM_PRESERVE),
            (controls.keep_signs_and_infinities, SIGNED_ZERO_INF_NAN_PRESERVE),
            (controls.round_to_even, ROUNDING_MODE_RTE),
        ];
        let modes = modes.into_iter().filter_map(|(wanted, mode)| wanted.then_some(mode));
        with_modes(&words, &modes.collect::<Vec<_>>())
    }
}

/// Adds capabilities before all instructions, and modes behind the entry point.
fn with_modes(words: &[u32], modes: &[(u32, u32)]) -> Vec<u32> {
    let mut out = words[..HEADER].to_vec();
    for (capability, _) in modes {
        out.extend([2 << 16 | OP_CAPABILITY, *capability]);
    }
    let mut at = HEADER;
    while at < words.len() {
        let (op, len) = (words[at] & 0xffff, ((words[at] >> 16).max(1)) as usize);
        let instruction = &words[at..(at + len).min(words.len())];
        out.extend(instruction);
        if op == OP_ENTRY_POINT {
            for (_, mode) in modes {
                out.extend([4 << 16 | OP_EXECUTION_MODE, instruction[2], *mode, 32]);
            }
        }
        at += len;
    }
    out
}
