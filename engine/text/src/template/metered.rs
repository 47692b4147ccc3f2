//! Compiles a template together with its meter. Behind each instruction that makes a value comes one that
//! counts it. Before each that could make too much comes one that refuses. Nothing else about the program
//! changes.
//!
//! This rests on the template engine's own instructions, whose form that crate does not promise. Its version
//! is therefore pinned. Every instruction is named here, so that a new one does not compile.

use std::collections::BTreeSet;
use std::sync::Arc;

use minijinja::machinery::{
    CodeGenerator, CompiledTemplate, Instruction, Instructions, TemplateConfig, parse,
};
use minijinja::value::{Value, ValueKind};
use minijinja::{AutoEscape, Error, ErrorKind};

use super::folding;

/// Counts a value when it is made.
pub const MADE: &str = "brigade/made";
/// Counts a value put together from others and walks through it.
pub const BUILT: &str = "brigade/built";
/// Notes the right operand of an addition.
pub const RIGHT: &str = "brigade/right";
/// Counts what an addition made.
pub const ADDED: &str = "brigade/added";
/// Puts two values together as text.
pub const CONCAT: &str = "brigade/concat";
/// As [`CONCAT`], where the left value is a text that the previous instruction has put together. That text is dropped.
pub const CONCAT_ONTO: &str = "brigade/concat-onto";
/// Computes `%` of two values, and counts the result.
pub const REMAINDER: &str = "brigade/remainder";
/// Refuses what a namespace may not keep.
pub const KEPT: &str = "brigade/kept";

/// Most lists spread into one call or list by `*`.
const MAX_SPREADS: usize = 8;
/// The slot of a filter that the engine looks up each time.
const NO_SLOT: u8 = !0;

/// Compiles a source with its meter.
///
/// # Errors
/// The engine's, or what would be too large already when compiled.
pub fn compile<'s>(
    name: &'s str,
    source: &'s str,
    config: &TemplateConfig,
) -> Result<CompiledTemplate<'s>, Error> {
    let tree = parse(source, name, config.syntax_config.clone())?;
    folding::check(&tree)?;
    let mut generator = CodeGenerator::new(name, source);
    generator.compile_stmt(&tree);
    let (instructions, blocks) = generator.finish();
    let blocks = blocks.into_iter().map(|(name, block)| Ok((name, metered(&block)?)));
    Ok(CompiledTemplate {
        instructions: metered(&instructions)?,
        blocks: blocks.collect::<Result<_, Error>>()?,
        buffer_size_hint: 0,
        syntax_config: config.syntax_config.clone(),
        initial_auto_escape: AutoEscape::None,
    })
}

/// The settings that sources are compiled with.
pub fn config(syntax: minijinja::syntax::SyntaxConfig) -> TemplateConfig {
    TemplateConfig { syntax_config: syntax, default_auto_escape: Arc::new(|_| AutoEscape::None) }
}

fn metered<'s>(plain: &Instructions<'s>) -> Result<Instructions<'s>, Error> {
    let mut out = Instructions::new(plain.name(), plain.source());
    let onto = chained(plain);
    // Where each instruction has gone, with what stands before it.
    let mut places = Vec::new();
    let mut at = 0;
    while let Some(instruction) = plain.get(at) {
        let mut first = None;
        let mut expanded = expand(instruction)?;
        if matches!(instruction, Instruction::StringConcat) && onto.contains(&at) {
            expanded = vec![call(CONCAT_ONTO, 2)];
        }
        for instruction in expanded {
            let place = match (plain.get_span(at), plain.get_line(at)) {
                (Some(span), _) => out.add_with_span(instruction, span),
                (None, Some(line)) => {
                    out.add_with_line(instruction, line.try_into().unwrap_or(u16::MAX))
                }
                (None, None) => out.add(instruction),
            };
            first.get_or_insert(place);
        }
        places.extend(first);
        at += 1;
    }
    let end = places.len() as u32;
    let mut n = 0;
    while let Some(instruction) = out.get_mut(n) {
        n += 1;
        if let Some(target) = target(instruction) {
            debug_assert!(*target <= end, "a jump within the program");
            *target = places.get(*target as usize).copied().unwrap_or(u32::MAX);
        }
    }
    Ok(out)
}

/// The concatenations whose left operand is what another has just made: `b ~ c` of `a ~ b ~ c`. Nothing between
/// the two reaches that operand, and no jump comes in between.
fn chained(plain: &Instructions<'_>) -> BTreeSet<u32> {
    let mut jumped_to = BTreeSet::new();
    let mut at = 0;
    while let Some(instruction) = plain.get(at) {
        jumped_to.extend(target(&mut instruction.clone()).map(|target| *target));
        at += 1;
    }
    (0..at).filter_map(|at| next_concat(plain, at, &jumped_to)).collect()
}

/// The concatenation whose left operand is made at `at`.
fn next_concat(plain: &Instructions<'_>, at: u32, jumped_to: &BTreeSet<u32>) -> Option<u32> {
    plain.get(at).filter(|first| matches!(first, Instruction::StringConcat))?;
    // Values above that operand.
    let mut above = 0_usize;
    for next in at + 1.. {
        let (pops, pushes) = match plain.get(next)? {
            _ if jumped_to.contains(&next) => return None,
            Instruction::StringConcat if above == 1 => return Some(next),
            Instruction::LoadConst(_) | Instruction::Lookup(_) => (0, 1),
            Instruction::GetAttr(_) | Instruction::Not | Instruction::Neg => (1, 1),
            Instruction::GetItem | Instruction::Add | Instruction::Sub | Instruction::Mul => (2, 1),
            Instruction::StringConcat => (2, 1),
            Instruction::Slice => (4, 1),
            Instruction::ApplyFilter(_, Some(n), _)
            | Instruction::CallFunction(_, Some(n))
            | Instruction::CallMethod(_, Some(n)) => (usize::from(*n), 1),
            Instruction::BuildKwargs(n) | Instruction::BuildMap(n) => (2 * n, 1),
            Instruction::BuildList(Some(n)) => (*n, 1),
            _ => return None,
        };
        above = above.checked_sub(pops)? + pushes;
    }
    None
}

/// Target of an instruction's jump, if it has one.
fn target<'i>(instruction: &'i mut Instruction<'_>) -> Option<&'i mut u32> {
    match instruction {
        Instruction::Iterate(target)
        | Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::BuildMacro(_, target, _) => Some(target),
        _ => None,
    }
}

fn call(filter: &'static str, n: u16) -> Instruction<'static> {
    Instruction::ApplyFilter(filter, Some(n), NO_SLOT)
}

/// An instruction with what counts it.
fn expand<'s>(plain: &Instruction<'s>) -> Result<Vec<Instruction<'s>>, Error> {
    let then = |filter| Ok(vec![plain.clone(), call(filter, 1)]);
    match plain {
        // Through the formatter, which counts, as text that needs no escapes.
        Instruction::EmitRaw(text) => {
            let text = Value::from_safe_string((*text).to_owned());
            Ok(vec![Instruction::LoadConst(text), Instruction::Emit])
        }
        Instruction::LoadConst(value) if value.kind() == ValueKind::Iterable => then(MADE),
        Instruction::Add => Ok(vec![call(RIGHT, 1), plain.clone(), call(ADDED, 1)]),
        Instruction::StringConcat => Ok(vec![call(CONCAT, 2)]),
        // The engine's knows numbers only.
        Instruction::Rem => Ok(vec![call(REMAINDER, 2)]),
        // The value lies below the namespace.
        Instruction::SetAttr(_) => {
            Ok(vec![Instruction::Swap, call(KEPT, 1), Instruction::Swap, plain.clone()])
        }
        Instruction::UnpackLists(n) if *n > MAX_SPREADS => {
            let what = format!("{n} lists are spread in one place, the limit is {MAX_SPREADS}");
            Err(Error::new(ErrorKind::InvalidOperation, what))
        }
        _ => match effect(plain) {
            Effect::Makes => then(MADE),
            Effect::Builds => then(BUILT),
            Effect::Nothing => Ok(vec![plain.clone()]),
        },
    }
}

/// Values that an instruction leaves on the stack.
enum Effect {
    /// A value that is new.
    Makes,
    /// A value put together from others.
    Builds,
    /// No new value: nothing, a number, or a value that was there. Captured text was counted as it was written, and
    /// unpacked items with their list.
    Nothing,
}

fn effect(plain: &Instruction<'_>) -> Effect {
    use Instruction as I;
    match plain {
        I::Slice | I::Mul | I::ApplyFilter(..) | I::CallMethod(..) => Effect::Makes,
        I::CallObject(..) | I::BuildMacro(..) | I::Add | I::StringConcat => Effect::Makes,
        I::BuildMap(_) | I::BuildList(_) | I::BuildTuple(_) | I::CallFunction(..) => Effect::Builds,
        I::EmitRaw(_) | I::Emit | I::BeginCapture(_) | I::EndCapture => Effect::Nothing,
        I::LoadConst(_) | I::StoreLocal(_) | I::Lookup(_) | I::GetAttr(_) => Effect::Nothing,
        I::SetAttr(_) | I::GetItem | I::DupTop | I::DiscardTop | I::Swap => Effect::Nothing,
        I::BuildKwargs(_) | I::MergeKwargs(_) | I::UnpackList(_) => Effect::Nothing,
        I::UnpackLists(_) | I::IsUndefined | I::PerformTest(..) => Effect::Nothing,
        I::Sub | I::Div | I::IntDiv | I::Rem | I::Pow | I::Neg | I::Not => Effect::Nothing,
        I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::In => Effect::Nothing,
        I::CompareAndPreserve(_) | I::PushDidNotIterate => Effect::Nothing,
        I::PushLoop(_) | I::PushWith | I::PopFrame | I::PopLoopFrame => Effect::Nothing,
        I::Iterate(_) | I::Jump(_) | I::JumpIfFalse(_) => Effect::Nothing,
        I::JumpIfFalseOrPop(_) | I::JumpIfTrueOrPop(_) | I::Return => Effect::Nothing,
        I::PushAutoEscape | I::PopAutoEscape | I::FastSuper | I::FastRecurse => Effect::Nothing,
        I::CallBlock(_) | I::LoadBlocks | I::Include(_) | I::ExportLocals => Effect::Nothing,
        I::Enclose(_) | I::GetClosure => Effect::Nothing,
    }
}
