//! Makes the arithmetic of a module exact: every sum, difference and product of floats is marked as not to be contracted, and
//! operations whose results are the driver's own are refused.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};

const OP_EXT_INST_IMPORT: u32 = 11;
const OP_EXT_INST: u32 = 12;
const OP_DECORATE: u32 = 71;
const NO_CONTRACTION: u32 = 42;
/// Words before the first instruction.
const HEADER: usize = 5;

/// Instructions that may not be fused with others: negation, sum, difference, product, quotient, remainder, products of vectors.
const ARITHMETIC: [u32; 10] = [127, 129, 131, 133, 136, 140, 141, 142, 145, 148];

/// Functions of `GLSL.std.450` that devices compute as they like.
const LOOSE: [(u32, &str); 17] = [
    (13, "sin"),
    (14, "cos"),
    (15, "tan"),
    (18, "atan"),
    (21, "tanh"),
    (25, "atan2"),
    (26, "pow"),
    (27, "exp"),
    (28, "log"),
    (29, "exp2"),
    (30, "log2"),
    (32, "inversesqrt"),
    (46, "mix"),
    (50, "fma"),
    (66, "length"),
    (67, "distance"),
    (69, "normalize"),
];

/// Sums and products over subgroups, in an order of the driver's own.
const LOOSE_SUMS: [(u32, &str); 2] = [(350, "subgroupAdd"), (352, "subgroupMul")];

/// The module with `NoContraction` on all arithmetic of floats.
pub fn exact(words: &[u32]) -> Result<Vec<u32>> {
    let mut marked = BTreeSet::new();
    let mut results = Vec::new();
    let mut imports = BTreeMap::new();
    // Where the decorations end: before the first type.
    let mut annotations = None;
    for (at, op, operands) in instructions(words) {
        match op {
            OP_EXT_INST_IMPORT => _ = imports.insert(operands[0], text(&operands[1..])),
            OP_DECORATE if operands[1] == NO_CONTRACTION => _ = marked.insert(operands[0]),
            OP_EXT_INST if imports.get(&operands[2]).is_some_and(|name| name == "GLSL.std.450") => {
                refuse(&LOOSE, operands[3])?;
            }
            19..=39 if annotations.is_none() => annotations = Some(at),
            _ if ARITHMETIC.contains(&op) => results.push(operands[1]),
            _ => refuse(&LOOSE_SUMS, op)?,
        }
    }
    let Some(annotations) = annotations else { bail!("a module without types") };
    let mut out = words[..annotations].to_vec();
    for id in results.into_iter().filter(|id| !marked.contains(id)) {
        out.extend([3 << 16 | OP_DECORATE, id, NO_CONTRACTION]);
    }
    out.extend(&words[annotations..]);
    Ok(out)
}

fn refuse(loose: &[(u32, &str)], code: u32) -> Result<()> {
    match loose.iter().find(|(c, _)| *c == code) {
        Some((_, name)) => bail!("`{name}` gives other bits on other devices; see numbers.glsl"),
        None => Ok(()),
    }
}

/// Each instruction: where it starts, its code, its operands.
fn instructions(words: &[u32]) -> impl Iterator<Item = (usize, u32, &[u32])> {
    let mut at = HEADER;
    std::iter::from_fn(move || {
        let first = *words.get(at)?;
        let (start, len) = (at, (first >> 16).max(1) as usize);
        at += len;
        Some((start, first & 0xffff, words.get(start + 1..at)?))
    })
}

/// Decodes a literal string of an instruction.
fn text(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    bytes.take_while(|byte| *byte != 0).map(char::from).collect()
}
