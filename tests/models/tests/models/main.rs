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
    brigade_harness::main(brigade_harness::modules![
        arch_table,
        beside,
        chat_templates,
        control_vectors,
        copies,
        demo_model,
        depth,
        encoders,
        golden,
        golden_types,
        invariance,
        kept,
        lora,
        masks,
        own_drafts,
        positions,
        shapes,
        tables,
        tensors,
        tokenizer_ids,
        tokenizer_vectors,
        warm,
        windows,
    ])
}
