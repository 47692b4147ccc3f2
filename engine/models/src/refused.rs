//! Architectures that llama.cpp has a name for and that do not run here, each with the reason. A reader who has such a
//! file is told what it is, not only that it is unknown.

/// Names, and what keeps them from running.
const REFUSED: &[(&[&str], &str)] = &[
    (&["t5"], "it is an encoder with a decoder"),
    (&["clip"], "it reads images for another model and writes no text"),
    (&["wavtokenizer-dec", "qwen3tts", "pockettts"], "it makes sound"),
    (
        &["eagle3", "dflash", "gemma4-assistant"],
        "it drafts tokens for another model, and is none by itself",
    ),
    (
        &["dream", "llada", "llada-moe", "rnd1"],
        "it is a diffusion model: it does not write from left to right",
    ),
    (&["gptj"], "llama.cpp has its name too, and does not run it either"),
];

/// Architectures that llama.cpp names and that do not run here, with the reason.
pub fn refused() -> impl Iterator<Item = (&'static str, &'static str)> {
    REFUSED.iter().flat_map(|(names, reason)| names.iter().map(move |name| (*name, *reason)))
}
