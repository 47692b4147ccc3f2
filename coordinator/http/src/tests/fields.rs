//! The fields of the supported APIs. Each field is read, refused with an error, or on the list of ignored fields.
//! Without this test a new field could be ignored silently.

use brigade_dialect::text_model::TextModel;
use brigade_line::request::Limits;
use serde_json::{Map, Value, json};

use crate::compat::anthropic;
use crate::compat::llama_cpp::tokens;
use crate::compat::llama_cpp::{completion, infill};
use crate::compat::ollama;
use crate::compat::responses;
use crate::error::ApiError;
use crate::openai::completions;
use crate::openai::embeddings;
use crate::openai::rerank;
use crate::request::chat_request::ChatRequest;
use crate::request::fields::Fields;
use crate::request::fields::tests::UNKNOWN;

/// Parses a body.
type Reader = fn(&[u8], &Limits, &TextModel) -> Result<(), ApiError>;

/// An API: its address, a good body, what reads it, and all fields that its documentation has.
struct Api {
    path: &'static str,
    body: Value,
    read: Reader,
    fields: &'static str,
}

const DRAWING: &str = "frequency_penalty logit_bias max_tokens n presence_penalty seed stop stream stream_options temperature \
    top_p user top_k min_p typical_p repetition_penalty repeat_penalty repeat_last_n length_penalty stop_token_ids \
    include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens \
    truncate_prompt_tokens prompt_logprobs allowed_token_ids bad_words use_beam_search guided_json guided_regex guided_choice \
    guided_grammar guided_json_object guided_decoding_backend guided_whitespace_pattern structured_outputs priority request_id \
    logits_processors return_tokens_as_token_ids return_token_ids cache_salt kv_transfer_params vllm_xargs structural_tag \
    response_format n_predict top_n_sigma xtc_probability xtc_threshold dynatemp_range dynatemp_exponent penalty_last_n \
    mirostat mirostat_tau mirostat_eta dry_multiplier dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers \
    samplers grammar json_schema n_probs min_keep n_keep n_discard n_indent t_max_predict_ms id_slot cache_prompt \
    n_cache_reuse return_tokens post_sampling_probs response_fields lora timings_per_token return_progress n_cmpl \
    backend_sampling speculative.n_max speculative.n_min speculative.p_min adaptive_target adaptive_decay sse_ping_interval \
    grammar_lazy grammar_triggers preserved_tokens tfs_z";

const CHAT: &str = "messages model audio functions function_call logprobs max_completion_tokens metadata modalities \
    parallel_tool_calls prediction prompt_cache_key prompt_cache_retention reasoning_effort safety_identifier service_tier store \
    tool_choice tools top_logprobs verbosity web_search_options best_of echo add_generation_prompt continue_final_message \
    add_special_tokens documents chat_template chat_template_kwargs mm_processor_kwargs include_reasoning reasoning_format \
    thinking_forced_open parse_tool_calls thinking_token_budget enable_thinking thinking";

const COMPLETION: &str =
    "prompt model best_of echo logprobs suffix prompt_embeds add_special_tokens store metadata";

const MESSAGES: &str = "model messages max_tokens container context_management inference_geo mcp_servers metadata output_config \
    output_format service_tier speed stop_sequences stream system temperature thinking tool_choice tools top_k top_p \
    cache_control";

const RESPONSES: &str = "background context_management conversation include input instructions max_output_tokens max_tool_calls \
    metadata model parallel_tool_calls previous_response_id prompt prompt_cache_key prompt_cache_retention reasoning \
    safety_identifier service_tier store stream stream_options temperature text tool_choice tools top_logprobs top_p truncation \
    user client_metadata";

const OLLAMA_CHAT: &str = "model messages tools think format options stream keep_alive logprobs top_logprobs truncate shift";

const OLLAMA_GENERATE: &str = "model prompt suffix images format options system template context stream raw keep_alive think \
    logprobs top_logprobs truncate shift width height steps";

const OLLAMA_OPTIONS: &str = "num_keep seed num_predict top_k top_p min_p tfs_z typical_p repeat_last_n temperature \
    repeat_penalty presence_penalty frequency_penalty mirostat mirostat_tau mirostat_eta penalize_newline stop numa num_ctx \
    num_batch num_gpu main_gpu low_vram vocab_only use_mmap use_mlock num_thread f16_kv logits_all embedding_only \
    draft_num_predict";

fn apis() -> Vec<Api> {
    let mut all = of_text();
    all.extend(of_other_programs());
    all.extend(of_vectors());
    all
}

/// OpenAI's and llama.cpp's addresses for text.
fn of_text() -> Vec<Api> {
    let user = json!([{ "role": "user", "content": "a" }]);
    vec![
        Api {
            path: "/v1/chat/completions",
            body: json!({ "messages": user }),
            read: |b, l, t| ChatRequest::read(b, l, t).map(drop),
            fields: CHAT,
        },
        Api {
            path: "/v1/chat/completions",
            body: json!({ "messages": user }),
            read: |b, l, t| ChatRequest::read(b, l, t).map(drop),
            fields: DRAWING,
        },
        Api {
            path: "/v1/completions",
            body: json!({ "prompt": "a" }),
            read: |b, l, t| completions::plain(Fields::parse(b)?, l, t).map(drop),
            fields: COMPLETION,
        },
        Api {
            path: "/v1/completions",
            body: json!({ "prompt": "a" }),
            read: |b, l, t| completions::plain(Fields::parse(b)?, l, t).map(drop),
            fields: DRAWING,
        },
        Api {
            path: "/completion",
            body: json!({ "prompt": "a" }),
            read: |b, l, t| completion::read(b, l, t).map(drop),
            fields: DRAWING,
        },
        Api {
            path: "/completion",
            body: json!({ "prompt": "a" }),
            read: |b, l, t| completion::read(b, l, t).map(drop),
            fields: "prompt model logprobs echo best_of suffix t_max_prompt_ms",
        },
        Api { path: "/infill", body: json!({}), read: infill::tests::read_any, fields: DRAWING },
        Api {
            path: "/infill",
            body: json!({}),
            read: infill::tests::read_any,
            fields: "input_prefix input_suffix input_extra prompt model t_max_prompt_ms",
        },
    ]
}

/// The same in other words.
fn of_other_programs() -> Vec<Api> {
    let user = json!([{ "role": "user", "content": "a" }]);
    vec![
        Api {
            path: "/v1/messages",
            body: json!({ "messages": user, "max_tokens": 3 }),
            read: |b, _, _| anthropic::check(b),
            fields: MESSAGES,
        },
        Api {
            path: "/v1/responses",
            body: json!({ "input": "a" }),
            read: |b, _, _| responses::check(b),
            fields: RESPONSES,
        },
        Api {
            path: "/api/chat",
            body: json!({ "messages": user }),
            read: |b, _, _| ollama::check_chat(b),
            fields: OLLAMA_CHAT,
        },
        Api {
            path: "/api/generate",
            body: json!({ "prompt": "a" }),
            read: |b, _, _| ollama::check_generate(b),
            fields: OLLAMA_GENERATE,
        },
    ]
}

/// APIs of vectors and of tokens.
fn of_vectors() -> Vec<Api> {
    vec![
        Api {
            path: "/v1/embeddings",
            body: json!({ "input": "a" }),
            read: embeddings::check,
            fields: "input model dimensions encoding_format user embd_normalize normalize truncate_prompt_tokens \
                add_special_tokens priority request_id pooling pooling_type messages lora truncate options keep_alive prompt_name \
                truncation_direction input_type",
        },
        Api {
            path: "/v1/rerank",
            body: json!({ "query": "a", "documents": ["b"] }),
            read: rerank::check,
            fields: "query documents model top_n return_documents return_text texts raw_scores truncate truncation_direction \
                max_chunks_per_doc max_tokens_per_doc rank_fields truncate_prompt_tokens user priority lora",
        },
        Api {
            path: "/tokenize",
            body: json!({ "content": "a" }),
            read: |b, _, t| tokens::check(b, t),
            fields: "content add_special parse_special with_pieces prompt model add_special_tokens messages return_token_strs",
        },
    ]
}

/// Values for a field of which nothing is known.
fn values() -> [Value; 4] {
    [json!("x"), json!(1), json!(true), json!({ "type": "x" })]
}

const LIMITS: Limits = Limits { n_ctx: 4096, n_vocab: 300, answer: 1024, encoder: None };

/// How a body with one more field is read: what is left unknown.
fn unknown(api: &Api, body: &Value) -> Vec<String> {
    UNKNOWN.take();
    // A complaint is a word about it.
    let _ = (api.read)(body.to_string().as_bytes(), &LIMITS, &TextModel::sample());
    UNKNOWN.take()
}

#[test]
fn every_field_of_the_apis_is_read_refused_or_listed() {
    let (mut n, mut wrong) = (0, Vec::new());
    for api in apis() {
        assert_eq!(unknown(&api, &api.body), [""; 0], "{}", api.path);
        for field in api.fields.split_whitespace() {
            n += 1;
            let mut is_unknown = false;
            for value in values() {
                let mut body: Map<String, Value> = api.body.as_object().unwrap().clone();
                body.insert(field.to_string(), value);
                is_unknown |= unknown(&api, &Value::Object(body)).iter().any(|name| name == field);
            }
            if is_unknown {
                wrong.push(format!("{} {field}", api.path));
            }
        }
        let mut body = api.body.as_object().unwrap().clone();
        body.insert("never_heard_of".to_string(), json!(1));
        assert_eq!(unknown(&api, &Value::Object(body)), ["never_heard_of"], "{}", api.path);
    }
    println!("fields | {n} fields | {} ignored", wrong.len());
    assert!(wrong.is_empty(), "ignored without a word:\n{}", wrong.join("\n"));
}

#[test]
fn so_are_the_options_of_ollama() {
    let generate = |options: Value| {
        UNKNOWN.take();
        let body = json!({ "prompt": "a", "options": options });
        let _ = ollama::check_generate(body.to_string().as_bytes());
        UNKNOWN.take()
    };
    for field in OLLAMA_OPTIONS.split_whitespace() {
        for value in values() {
            let options = Value::Object(Map::from_iter([(field.to_string(), value)]));
            assert_eq!(generate(options), [""; 0], "{field}");
        }
    }
    assert_eq!(generate(json!({ "no_such": 1 })), ["options.no_such"]);
}

/// A field of another kind than it has is never the same as none.
#[test]
fn a_wrong_kind_is_refused() {
    let wrong = [
        ("/v1/responses", json!({ "input": "a", "tools": "none" })),
        ("/v1/responses", json!({ "input": "a", "prompt": { "id": "p" } })),
        ("/v1/responses", json!({ "input": "a", "text": "plain" })),
        ("/v1/responses", json!({ "input": "a", "reasoning": "high" })),
        ("/v1/responses", json!({ "input": "a", "tool_choice": { "type": "file_search" } })),
        ("/v1/responses", json!({ "input": "a", "top_logprobs": 3 })),
        ("/v1/messages", json!({ "messages": [], "tools": "none" })),
        ("/v1/messages", json!({ "messages": [], "tools": [3] })),
        ("/v1/messages", json!({ "messages": [], "tool_choice": "auto" })),
        ("/v1/messages", json!({ "messages": [], "output_config": "x" })),
        ("/v1/messages", json!({ "messages": [], "mcp_servers": [{}] })),
        ("/api/chat", json!({ "messages": [{ "role": "user", "images": "x" }] })),
        ("/api/generate", json!({ "prompt": "a", "raw": "yes" })),
        ("/tokenize", json!({ "content": "a", "with_pieces": "yes" })),
    ];
    for (path, body) in wrong {
        let api = apis().into_iter().find(|api| api.path == path).unwrap();
        let read = (api.read)(body.to_string().as_bytes(), &LIMITS, &TextModel::sample());
        assert_eq!(read.unwrap_err().status(), 400, "{path} {body}");
    }
}
