//! Limits the form of a chat template's source, before it is parsed. The template engine follows a chain of operators
//! or of `elif` by calling itself, and its tree takes some hundred times the memory of the text.

use std::collections::BTreeSet;

use minijinja::machinery::{Instruction, Instructions, Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind};

/// Most tokens of a template (published ones reach 10,000).
pub const MAX_TEMPLATE_TOKENS: usize = 1 << 16;
/// Most tokens between the marks of one tag: a chain of operators is as deep as it is long.
pub const MAX_TAG_TOKENS: usize = 1024;
/// Most `elif` of a template: each lies within the one before.
pub const MAX_ELIFS: usize = 256;
/// Most names that a template gives to values. A macro or a loop that enters itself has all of them each time.
pub const MAX_TEMPLATE_NAMES: usize = 1024;

/// Refuses a source beyond the limits.
///
/// # Errors
/// It names the limit. What is no token is the parser's to report.
pub fn check(source: &str, syntax: SyntaxConfig) -> Result<(), Error> {
    let (mut all, mut in_tag, mut elifs) = (0, 0, 0);
    for token in tokenize(source, false, syntax) {
        let Ok((token, _)) = token else { return Ok(()) };
        all += 1;
        in_tag += 1;
        match token {
            Token::BlockStart | Token::VariableStart => in_tag = 0,
            Token::Ident("elif") => elifs += 1,
            _ => {}
        }
        at_most(all, MAX_TEMPLATE_TOKENS, "tokens")?;
        at_most(in_tag, MAX_TAG_TOKENS, "tokens in one tag")?;
        at_most(elifs, MAX_ELIFS, "elif tags")?;
    }
    Ok(())
}

/// Adds the names that a program gives to values.
///
/// # Errors
/// There are more than [`MAX_TEMPLATE_NAMES`].
pub fn count_names<'s>(
    program: &Instructions<'s>,
    names: &mut BTreeSet<&'s str>,
) -> Result<(), Error> {
    for instruction in (0..).map_while(|at| program.get(at)) {
        if let Instruction::StoreLocal(name)
        | Instruction::SetAttr(name)
        | Instruction::Enclose(name) = instruction
        {
            names.insert(*name);
        }
    }
    at_most(names.len(), MAX_TEMPLATE_NAMES, "names of values")
}

fn at_most(n: usize, most: usize, what: &str) -> Result<(), Error> {
    if n <= most {
        return Ok(());
    }
    let text = format!("the template has more than {most} {what}, the limit");
    Err(Error::new(ErrorKind::InvalidOperation, text))
}
