//! Values as models write them: JSON, Python and numbers, parts of them, and what the tools of a request take.

pub mod json;
pub mod number;
pub mod pointer;
pub mod python;
pub mod tools;
