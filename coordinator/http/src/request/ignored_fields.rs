//! Fields of the supported APIs that endpoints ignore, each with the reason why it has no effect here. Every other
//! field is read, or refused with an error. `fields_tests` walks the APIs' lists of fields.

use crate::request::fields::Unread;

/// Fields that any endpoint may have.
pub const COMMON: Unread = &[
    ("user", "who asks is told by the key"),
    ("metadata", "nothing is stored, so that nothing can be found by it"),
    ("safety_identifier", "nobody is reported"),
    ("service_tier", "there is one"),
    ("priority", "a key's priority counts"),
    ("request_id", "requests are named here; the header x-request-id has it"),
    ("keep_alive", "it is for models that are loaded on demand, by Ollama's addresses"),
];

/// Fields of requests for text, OpenAI's, llama.cpp's and vLLM's.
pub const GENERATING: Unread = &[
    ("store", "nothing is stored"),
    ("prompt_cache_key", "prompts that begin alike are found without"),
    ("prompt_cache_retention", "what is kept depends on the room there is"),
    ("cache_prompt", "what is reused never changes an answer"),
    ("n_cache_reuse", "what is reused never changes an answer"),
    ("id_slot", "the scheduler chooses the slot"),
    ("t_max_prompt_ms", "the prompt is computed as a whole"),
    ("adaptive_decay", "it means nothing without adaptive_target, which is refused"),
    ("n_keep", "a context never shifts"),
    ("n_discard", "a context never shifts"),
    ("min_keep", "the steps of the chain keep one token at least"),
    ("samplers", "the steps of the chain have one order; a setting turns each off"),
    ("backend_sampling", "where tokens are drawn changes none"),
    ("timings_per_token", "timings come at the end"),
    ("return_progress", "GET /line has it"),
    ("sse_ping_interval", "silent streams are kept open"),
    ("speculative.n_max", "what is guessed ahead never changes an answer"),
    ("speculative.n_min", "what is guessed ahead never changes an answer"),
    ("speculative.p_min", "what is guessed ahead never changes an answer"),
    ("skip_special_tokens", "control tokens are no text here"),
    ("spaces_between_special_tokens", "control tokens are no text here"),
    ("guided_decoding_backend", "there is one"),
    ("guided_whitespace_pattern", "white space is what the form allows"),
    ("add_special_tokens", "the tokenizer's file says what it adds"),
];

/// Ignored fields of chats.
pub const CHAT: Unread = &[
    (
        "verbosity",
        "no model that runs here was trained on it; a template may have it: chat_template_kwargs",
    ),
    ("reasoning_format", "reasoning is told from content wherever the model's markers are known"),
    ("include_reasoning", "reasoning has a field of its own"),
    ("thinking_forced_open", "the template says whether reasoning is begun"),
    ("parse_tool_calls", "calls are read wherever the model's markers are known"),
    ("mm_processor_kwargs", "texts have none"),
];

/// Fields of a tool and of its function. The template has all of them, and may write what it knows.
pub const TOOL: Unread = &[("defer_loading", "all tools are in the prompt")];

/// Fields of a content's part.
pub const PART: Unread = &[
    ("annotations", "what a text refers to is in the text"),
    ("logprobs", "they were for who read the answer"),
];

/// Fields of a message.
pub const MESSAGE: Unread = &[("annotations", "what a text refers to is in the text")];

/// Fields of a call in an earlier answer.
pub const CALL: Unread = &[
    ("index", "calls come in their order"),
    ("extra_content", "another server's own, which nobody else can read"),
];

/// Ignored fields of `/v1/completions`.
pub const COMPLETION: Unread = &[];

/// Ignored fields of `stream_options`.
pub const STREAM_OPTIONS: Unread = &[
    ("include_obfuscation", "pieces are not padded"),
    ("continuous_usage_stats", "counts come at the end"),
];

/// Fields of `/v1/rerank` and of text-embeddings-inference's shape of it.
pub const RERANK: Unread = &[
    ("cache_salt", "nothing is reused of such requests"),
    ("raw_scores", "scores are the head's own, as they are"),
    ("truncate", "a text that is too long is refused, and never cut"),
    ("truncation_direction", "a text that is too long is refused, and never cut"),
    ("rank_fields", "documents have one text"),
];

/// Fields of `/v1/embeddings` and `/api/embed`.
pub const EMBEDDING: Unread = &[
    ("cache_salt", "nothing is reused of such requests"),
    ("truncate", "a text that is too long is refused, and never cut"),
    ("add_special_tokens", "the tokenizer's file says what it adds"),
    ("options", "a vector is computed in one way"),
    ("input_type", "a model's words before a text are the client's to write"),
];

/// Fields of `/tokenize` and `/detokenize`.
pub const TOKENS: Unread = &[("cache_salt", "nothing is computed")];

/// Ignored fields of `/v1/messages`.
pub const MESSAGES: Unread = &[
    ("context_management", "the whole conversation is read, as it was sent"),
    ("cache_control", "the end of a prompt is kept without"),
    ("inference_geo", "requests run here"),
    ("speed", "there is one"),
    ("betas", "all that there is here is on"),
];

/// Fields of `thinking` in `/v1/messages` and in chats.
pub const THINKING: Unread = &[
    ("budget_tokens", "max_tokens bounds reasoning and answer together"),
    ("display", "reasoning is sent as it is"),
];

/// Fields of a block of a message there, or of the system prompt.
pub const BLOCK: Unread = &[
    ("cache_control", "prompts that begin alike are found without"),
    ("citations", "what a text refers to is in the text"),
    ("signature", "it proves to Anthropic who wrote the reasoning"),
    ("is_error", "the result's text says what went wrong"),
    ("caller", "calls are made by the model alone"),
];

/// Fields of a tool there.
pub const MESSAGES_TOOL: Unread = &[
    ("allowed_callers", "calls are made by the model alone"),
    ("defer_loading", "all tools are in the prompt"),
    ("eager_input_streaming", "what a call says is sent as it comes"),
];

/// Fields of `output_config` there.
pub const OUTPUT_CONFIG: Unread = &[("task_budget", "max_tokens bounds an answer")];

/// Ignored fields of `/v1/responses`.
pub const RESPONSES: Unread = &[
    ("store", "nothing is stored"),
    ("include", "reasoning is sent as it is; what else could be included does not exist here"),
    ("truncation", "a conversation that is too long is refused, and never cut"),
    ("max_tool_calls", "it bounds tools that a server runs: none are run here"),
    ("prompt_cache_key", "prompts that begin alike are found without"),
    ("prompt_cache_retention", "what is kept depends on the room there is"),
    ("stream_options", "pieces are not padded, and the last event has the counts"),
    ("context_management", "the whole conversation is read, as it was sent"),
    ("client_metadata", "nothing is stored, so that nothing can be found by it"),
];

/// Fields of an item of the input there.
pub const RESPONSE_ITEM: Unread = &[
    ("encrypted_content", "nobody but who wrote it can read it"),
    ("phase", "a message is a message, before calls and behind them"),
    ("acknowledged_safety_checks", "none are made here"),
    ("max_output_length", "an output is as long as it came"),
    ("approval_request_id", "nobody is asked here"),
    ("caller", "calls are made by the model alone"),
];

/// Fields of `text` there.
pub const RESPONSE_TEXT: Unread = &[("verbosity", "no model that runs here was trained on it")];

/// Fields of `reasoning` there.
pub const RESPONSE_REASONING: Unread = &[
    ("summary", "reasoning is sent whole"),
    ("generate_summary", "reasoning is sent whole"),
    ("context", "the conversation has what it has"),
];

/// Fields of Ollama's addresses.
pub const OLLAMA: Unread = &[
    ("truncate", "a prompt that is too long is refused, and never cut"),
    ("shift", "a context never shifts"),
    ("width", "it is for pictures"),
    ("height", "it is for pictures"),
    ("steps", "it is for pictures"),
];

/// Ignored fields of Ollama's `options`. Most of them configure loading, which the server's options do here.
pub const OLLAMA_OPTIONS: Unread = &[
    ("num_ctx", "serve --ctx says it"),
    ("num_keep", "a context never shifts"),
    ("num_batch", "serve --ubatch says it"),
    ("num_gpu", "serve --device says it"),
    ("main_gpu", "serve --device says it"),
    ("num_thread", "serve --threads says it"),
    ("numa", "serve --worker-cpus says it"),
    ("low_vram", "serve --memory says it"),
    ("use_mmap", "files are always mapped"),
    ("use_mlock", "weights stay in memory"),
    ("vocab_only", "the model is loaded"),
    ("f16_kv", "serve --kv-type says it"),
    ("logits_all", "a request says which log-probabilities it wants"),
    ("embedding_only", "every model has both"),
    ("penalize_newline", "the penalties are for all tokens"),
    ("draft_num_predict", "what is guessed ahead never changes an answer"),
];

/// Ignored fields of `/api/show`.
pub const OLLAMA_SHOW: Unread = &[
    ("verbose", "all that there is is shown"),
    ("system", "it is shown as the file has it"),
    ("template", "it is shown as the file has it"),
    ("options", "they are shown as they are"),
];
