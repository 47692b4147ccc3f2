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

use super::{folding, shape};

/// Counts a value when it is made.
pub const MADE: &str = "brigade/made";
/// Counts a value put together from others and walks through it.
pub const BUILT: &str = "brigade/built";
/// Looks at the operands of an addition.
pub const ADD_LOOK: &str = "brigade/add-look";
/// Counts what an addition made.
pub const ADDED: &str = "brigade/added";
/// Looks at the operands of a multiplication.
pub const TIMES_LOOK: &str = "brigade/times-look";
/// Looks at two values that are to be compared.
pub const COMPARE_LOOK: &str = "brigade/compare-look";
/// Looks at a value and at that in which it is looked for.
pub const CONTAINS_LOOK: &str = "brigade/contains-look";
/// Looks at a value and at the key of one of its items.
pub const ITEM_LOOK: &str = "brigade/item-look";
/// Looks at the first of some values whose characters or items are gone through.
pub const VALUE_LOOK: &str = "brigade/value-look";
/// Looks at values that are read with all their parts.
pub const READ_LOOK: &str = "brigade/read-look";
/// Counts the items of lists that are spread.
pub const SPREAD_LOOK: &str = "brigade/spread-look";
/// Counts a name that a macro keeps.
pub const ENCLOSED: &str = "brigade/enclosed";
/// Counts a text that was captured.
pub const CAPTURED: &str = "brigade/captured";
/// Puts two values together as text.
pub const CONCAT: &str = "brigade/concat";
/// Computes `%` of two values, and counts the result.
pub const REMAINDER: &str = "brigade/remainder";
/// Refuses what a namespace may not keep.
pub const KEPT: &str = "brigade/kept";

/// Most lists spread into one call or list by `*`.
const MAX_SPREADS: usize = 8;
/// Longest constant text that may be compared or added without a look.
const SHORT_CONSTANT: usize = 64;
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
    shape::check(source, config.syntax_config.clone())?;
    let tree = parse(source, name, config.syntax_config.clone())?;
    folding::check(&tree)?;
    let mut generator = CodeGenerator::new(name, source);
    generator.compile_stmt(&tree);
    let (instructions, blocks) = generator.finish();
    let mut names = BTreeSet::new();
    for program in std::iter::once(&instructions).chain(blocks.values()) {
        shape::count_names(program, &mut names)?;
    }
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
    let jumped_to = jumped_to(plain);
    // Where each instruction has gone, with what stands before it.
    let mut places = Vec::new();
    let mut at = 0;
    while let Some(instruction) = plain.get(at) {
        let mut first = None;
        let before = at.checked_sub(1).and_then(|before| plain.get(before));
        let constant = match before {
            Some(Instruction::LoadConst(value)) if !jumped_to.contains(&at) => Some(value),
            _ => None,
        };
        for instruction in expand(instruction, constant)? {
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

/// The places that jumps lead to.
fn jumped_to(plain: &Instructions<'_>) -> BTreeSet<u32> {
    let all = (0..).map_while(|at| plain.get(at));
    all.filter_map(|instruction| target(&mut instruction.clone()).map(|target| *target)).collect()
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

/// What looks at the `n` values on top of the stack, or at as many as the top one says, and leaves them there.
fn look<'s>(filter: &'static str, n: Option<usize>) -> Vec<Instruction<'s>> {
    let mut all = vec![Instruction::BuildTuple(n), call(filter, 1), Instruction::UnpackLists(1)];
    // Their number lies on top of them now.
    all.extend(n.map(|_| Instruction::DiscardTop));
    all
}

/// An instruction with what counts it. `constant` lies on top of the stack.
fn expand<'s>(
    plain: &Instruction<'s>,
    constant: Option<&Value>,
) -> Result<Vec<Instruction<'s>>, Error> {
    use Instruction as I;
    match plain {
        // Through the formatter, which counts, as text that needs no escapes.
        I::EmitRaw(text) => {
            let text = Value::from_safe_string((*text).to_owned());
            Ok(vec![I::LoadConst(text), I::Emit])
        }
        I::StringConcat => Ok(vec![call(CONCAT, 2)]),
        // The engine's knows numbers only.
        I::Rem => Ok(vec![call(REMAINDER, 2)]),
        I::Enclose(_) => {
            let nothing = I::LoadConst(Value::from(()));
            Ok(vec![plain.clone(), nothing, call(ENCLOSED, 1), I::DiscardTop])
        }
        // The value lies below the namespace.
        I::SetAttr(_) => Ok(vec![I::Swap, call(KEPT, 1), I::Swap, plain.clone()]),
        I::UnpackLists(n) if *n > MAX_SPREADS => {
            let what = format!("{n} lists are spread in one place, the limit is {MAX_SPREADS}");
            Err(Error::new(ErrorKind::InvalidOperation, what))
        }
        _ => {
            let mut all = looks(plain, constant);
            all.push(plain.clone());
            all.extend(count(plain).map(|filter| call(filter, 1)));
            Ok(all)
        }
    }
}

/// What looks at the operands of an instruction before it.
fn looks<'s>(plain: &Instruction<'s>, constant: Option<&Value>) -> Vec<Instruction<'s>> {
    let is_short = |value: &Value| match value.as_str() {
        Some(text) => text.len() <= SHORT_CONSTANT,
        None => value.as_object().is_none(),
    };
    let is_after_short = constant.is_some_and(is_short);
    use Instruction as I;
    match plain {
        I::Add | I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte if is_after_short => Vec::new(),
        I::Add => look(ADD_LOOK, Some(2)),
        I::Mul => look(TIMES_LOOK, Some(2)),
        I::Slice => look(VALUE_LOOK, Some(4)),
        I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte => look(COMPARE_LOOK, Some(2)),
        I::In => look(CONTAINS_LOOK, Some(2)),
        // It is one of these.
        I::CompareAndPreserve(_) => {
            [look(COMPARE_LOOK, Some(2)), look(CONTAINS_LOOK, Some(2))].concat()
        }
        // Names of attributes. A text counts to its end for a place from there.
        I::GetItem if is_after_short && constant.is_some_and(|key| key.as_str().is_some()) => {
            Vec::new()
        }
        I::GetItem => look(ITEM_LOOK, Some(2)),
        I::PushLoop(_) | I::FastRecurse => look(VALUE_LOOK, Some(1)),
        // It may be a loop that is entered again.
        I::CallFunction(_, n @ (Some(1) | None)) => look(VALUE_LOOK, n.map(usize::from)),
        // The only method of the engine's own objects that compares what it is given.
        I::CallMethod("changed", n) => look(READ_LOOK, n.map(usize::from)),
        I::MergeKwargs(n) | I::UnpackLists(n) => look(SPREAD_LOOK, Some(*n)),
        _ => Vec::new(),
    }
}

/// What counts the value that an instruction has left on the stack.
fn count(plain: &Instruction<'_>) -> Option<&'static str> {
    match (plain, effect(plain)) {
        (Instruction::Add, _) => Some(ADDED),
        (Instruction::EndCapture, _) => Some(CAPTURED),
        (Instruction::LoadConst(value), _) if value.kind() == ValueKind::Iterable => Some(MADE),
        (_, Effect::Makes) => Some(MADE),
        (_, Effect::Builds) => Some(BUILT),
        (_, Effect::Nothing) => None,
    }
}

/// Values that an instruction leaves on the stack.
enum Effect {
    /// A value that is new.
    Makes,
    /// A value put together from others.
    Builds,
    /// No new value: nothing, a number, or a value that was there. Unpacked items were counted with their list.
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
