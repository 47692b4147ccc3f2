//! The table: a row for each setting of the sampling chain. Everything else that knows settings by name is written from it:
//! the structs beside it, the wire (`proto/src/sampling.rs`), requests, options of commands, and checks.
//!
//! It is a macro because the wire's messages have fields and no list of them. Code that needs the fields' names gives
//! it a macro of its own. The compiler notes a row that the wire does not have.

/// Hands all rows to the macro `$each`. A row reads:
///
/// ```text
/// /// What the engine's field means.
/// field: its type = its default => what else is to be said (a `Rule`), the name of its setting;
/// ```
///
/// `field` is also the name of the wire's field. The groups stand in structs of their own, here and on the wire. The order is
/// that of the options of commands.
#[macro_export]
macro_rules! for_each_setting {
    ($each:ident) => {
        $each! {
            chain {
                /// `<= 0`: greedy (the first maximum wins).
                temperature: f32 = 0.8 => number("temperature", 0.0, 100.0).in_apis(OTHERS)
                    .option("temp", "temp", &["temperature"], "Temperature; 0 picks the most probable token");
                /// `0`: off.
                top_k: u32 = 40 => count("top_k").minus_one_is(MinusOne::Off).in_apis(OTHERS)
                    .option("top_k", "top-k", &[], "Keep the K most probable tokens; 0: all");
                /// `>= 1`: off.
                top_p: f32 = 0.95 => number("top_p", 0.0, 1.0).in_apis(OTHERS)
                    .option("top_p", "top-p", &[], "Keep the most probable tokens that reach this mass; 1: all");
                /// `<= 0`: off.
                min_p: f32 = 0.05 => number("min_p", 0.0, 1.0).in_apis(&[Api::Responses, Api::Ollama])
                    .option("min_p", "min-p", &[], "Drop tokens below this share of the best one's probability; 0: none");
                /// `>= 1`: off.
                typical_p: f32 = 1.0 => number("typical_p", 0.0, 1.0).also(&["typ_p"]).in_apis(&[Api::Ollama])
                    .option("typical_p", "typical-p", &["typical", "typ-p"], "Locally typical sampling; 1: off");
                /// `1`: off. What it divides by is above 0.
                repeat_penalty: f32 = 1.0 => number("repeat_penalty", 0.01, 100.0).computes(Sound::AboveZero)
                    .also(&["repetition_penalty"]).in_apis(&[Api::Ollama])
                    .option("repeat_penalty", "repeat-penalty", &["repetition-penalty"],
                        "Divide the logits of recent tokens by this; 1: off");
                /// Window of the penalties in tokens (prompt included); `0`: penalties off.
                penalty_last_n: u32 = 64 => count("repeat_last_n").minus_one_is(MinusOne::Context)
                    .also(&["penalty_last_n"]).in_apis(&[Api::Ollama])
                    .option("repeat_last_n", "repeat-last-n", &["penalty-last-n"],
                        "Tokens that the penalties look back on, prompt included; -1: the whole context");
                /// `0`: off.
                presence_penalty: f32 = 0.0 => number("presence_penalty", -100.0, 100.0).in_apis(&[Api::Ollama])
                    .option("presence_penalty", "presence-penalty", &[],
                        "Subtract this once from the logit of a recent token");
                /// `0`: off.
                frequency_penalty: f32 = 0.0 => number("frequency_penalty", -100.0, 100.0).in_apis(&[Api::Ollama])
                    .option("frequency_penalty", "frequency-penalty", &[],
                        "Subtract this from the logit of a recent token for each time it occurred");
                /// Keeps logits within so many standard deviations of the largest; `<= 0`: off.
                top_n_sigma: f32 = 0.0 => number("top_n_sigma", -1.0, 100.0);
                /// Share of draws in which the most probable tokens are left out (XTC); `<= 0`: off.
                xtc_probability: f32 = 0.0 => number("xtc_probability", 0.0, 1.0);
                /// Least probability of the tokens of which XTC keeps only the least probable; above 0.5: off.
                xtc_threshold: f32 = 0.1 => number("xtc_threshold", 0.0, 1.0);
                /// The temperature goes from `temperature - range` to `temperature + range` with the distribution's
                /// entropy; `<= 0`: it is fixed.
                dynatemp_range: f32 = 0.0 => number("dynatemp_range", 0.0, 100.0);
                /// How it grows with the entropy.
                dynatemp_exponent: f32 = 1.0 => number("dynatemp_exponent", 0.0, 100.0);
            }
            dry {
                /// `0`: off.
                multiplier: f32 = 0.0 => number("dry_multiplier", 0.0, 100.0);
                /// A run of `n` tokens costs `multiplier * base^(n - allowed_length)`.
                base: f32 = 1.75 => number("dry_base", 1.0, 100.0);
                /// Runs shorter than this cost nothing.
                allowed_length: u32 = 2 => count("dry_allowed_length");
                /// Tokens that are looked back on; [`WHOLE_CONTEXT`](crate::WHOLE_CONTEXT): all.
                last_n: u32 = WHOLE_CONTEXT => count("dry_penalty_last_n").minus_one_is(MinusOne::Context)
                    .only_if(|params| params.dry.is_on());
            }
            mirostat {
                /// Surprise aimed at, in bits. llama.cpp's.
                tau: f32 = 5.0 => number("mirostat_tau", 0.0, 100.0).computes(Sound::FromZero).in_apis(&[Api::Ollama]);
                /// Share of the difference by which mu moves. llama.cpp's.
                eta: f32 = 0.1 => number("mirostat_eta", 0.0, 1.0).computes(Sound::FromZero).in_apis(&[Api::Ollama]);
            }
        }
    };
}
