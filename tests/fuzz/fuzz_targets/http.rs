//! Bodies of HTTP requests. Any bytes give a request, or an error in OpenAI's shape that names the problem.

#![no_main]

use brigade_http::{Endpoint, check_body};
use brigade_line::request::Limits;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits { n_ctx: 512, n_vocab: 1000, answer: 1024, encoder: None };
    for endpoint in [Endpoint::Chat, Endpoint::Completion] {
        if let Err(error) = check_body(endpoint, bytes, &limits) {
            let body = error.body();
            assert!(error.status().is_client_error(), "{body}");
            assert!(body["error"]["message"].as_str().is_some_and(|text| !text.is_empty()));
        }
    }
});
