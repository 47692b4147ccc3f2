//! Bodies of completions, accepted and refused, and the JSON of their answers.

use std::time::Duration;

use super::*;
use brigade_line::generation::{End, EndReason};

fn read(json: &str) -> Result<CompletionRequest, String> {
    let limits = Limits { n_ctx: 64, n_vocab: 100, answer: 1024, encoder: None };
    CompletionRequest::read(Fields::parse(json.as_bytes()).unwrap(), &limits, &TextModel::sample())
        .map_err(|e| e.body()["error"]["message"].as_str().unwrap().to_string())
}

#[test]
fn prompts_come_in_four_forms() {
    let text = |s: &str| Prompt::Text(s.to_string());
    for (json, want) in [
        (r#"{"prompt": "a"}"#, vec![text("a")]),
        (r#"{"prompt": ["a", "b"]}"#, vec![text("a"), text("b")]),
        (r#"{"prompt": [1, 2]}"#, vec![Prompt::Tokens(vec![1, 2])]),
        (r#"{"prompt": [[1], [2]]}"#, vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2])]),
    ] {
        assert_eq!(read(json).unwrap().prompts, want);
    }
}

#[test]
fn without_a_number_a_completion_has_openais_sixteen_tokens() {
    assert_eq!(read(r#"{"prompt": "a"}"#).unwrap().common.max_tokens, Some(16));
    assert_eq!(read(r#"{"prompt": "a", "max_tokens": -1}"#).unwrap().common.max_tokens, None);
    let many = vec!["[1]"; MAX_CHOICES + 1].join(",");
    assert!(read(&format!(r#"{{"prompt": [{many}]}}"#)).unwrap_err().contains("more than 64"));
}

#[test]
fn best_of_draws_more_than_it_shows() {
    let request = read(r#"{"prompt": "a", "best_of": 5, "n": 2}"#).unwrap();
    assert_eq!((request.common.n, request.n, request.top_logprobs), (5, 2, Some(0)));
    assert!(request.hides_logprobs);
    let shown = read(r#"{"prompt": "a", "best_of": 5, "logprobs": 3}"#).unwrap();
    assert!(shown.top_logprobs == Some(3) && !shown.hides_logprobs);
    let same = read(r#"{"prompt": "a", "best_of": 2, "n": 2, "stream": true}"#).unwrap();
    assert_eq!((same.common.n, same.n, same.top_logprobs), (2, 2, None));
}

#[test]
fn the_most_probable_answers_by_token_are_the_best() {
    let choice = |text: &str, logprobs: &[f32]| Choice {
        text: text.to_string(),
        tokens: logprobs
            .iter()
            .map(|l| TokenPiece { id: 1, bytes: vec![], logprob: Some(*l), top: vec![] })
            .collect(),
        end: End {
            reason: EndReason::Stop,
            stop: None,
            n_generated: logprobs.len() as u32,
            n_reused: 0,
            expected: [0, 0],
            n_recomputed: 0,
            numerics_changed: false,
            to_first: Duration::ZERO,
            after_first: Duration::ZERO,
        },
    };
    let drawn = || {
        let long = choice("long", &[-1.0, -1.0, -1.0]);
        vec![choice("none", &[]), choice("bad", &[-2.0]), long, choice("good", &[-0.5, -1.0])]
    };
    let texts = |n| best(drawn(), n).into_iter().map(|c| c.text).collect::<Vec<_>>();
    assert_eq!(texts(2), ["good", "long"], "not the one with the highest sum");
    assert_eq!(texts(4), ["none", "bad", "long", "good"], "nothing to choose: as they came");
}

#[test]
fn what_is_wrong_is_named() {
    for (json, word) in [
        (r#"{}"#, "prompt is required"),
        (r#"{"prompt": 3}"#, "a number"),
        (r#"{"prompt": [1, "a"]}"#, "token ids"),
        (r#"{"prompt": "a", "suffix": "b"}"#, "suffix"),
        (
            r#"{"prompt": "a", "echo": true, "logprobs": 1, "guidance_scale": 2}"#,
            "guidance_scale is for generated tokens",
        ),
        (r#"{"prompt": "a", "best_of": 3, "stream": true}"#, "best_of cannot be streamed"),
        (r#"{"prompt": "a", "best_of": 1, "n": 2}"#, "from n (2) to 64"),
        (r#"{"prompt": "a", "best_of": 65}"#, "best_of is 65"),
        (r#"{"prompt": ["a", "b"], "best_of": 33}"#, "66"),
        (r#"{"prompt": ["a", "b"], "n": 64}"#, "128"),
        (r#"{"prompt": "a", "logprobs": "x"}"#, "logprobs"),
        (r#"{"prompt": []}"#, "prompt is empty"),
        (r#"{"prompt": [-1]}"#, "token ids"),
        (r#"{"prompt": [null]}"#, "not null"),
    ] {
        let message = read(json).unwrap_err();
        assert!(message.contains(word), "{json}: {message}");
    }
}
