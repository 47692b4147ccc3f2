//! Models in one process, with the engine alone: golden results, the same bits for every cut and ubatch, what is kept of
//! sequences, tokenizers and chat templates.

mod arch_table;
mod beside;
mod chat_templates;
mod control_vectors;
mod copies;
mod demo_model;
mod depth;
mod encoders;
mod golden;
mod golden_types;
mod invariance;
mod kept;
mod lora;
mod masks;
mod own_drafts;
mod positions;
mod shapes;
mod tables;
mod tensors;
mod tokenizer_ids;
mod tokenizer_vectors;
mod warm;
mod windows;

use std::process::ExitCode;

fn main() -> ExitCode {
    // Modules with the longest tests come first.
    brigade_harness::main(brigade_harness::modules![
        invariance,
        tables,
        windows,
        lora,
        golden,
        arch_table,
        beside,
        chat_templates,
        control_vectors,
        copies,
        demo_model,
        depth,
        encoders,
        golden_types,
        kept,
        masks,
        own_drafts,
        positions,
        shapes,
        tensors,
        tokenizer_ids,
        tokenizer_vectors,
        warm,
    ])
}
