//! A request that will be refused anyway loads nothing and fetches nothing, at any address.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use brigade_line::handle::Status;
use brigade_line::health::Loading;
use brigade_line::keys::Force;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;
use crate::fleet::member::NEED_A_LINE;
use crate::tests::fleet::{Keys, door};
use crate::tests::kinds::{bodies, model};
use crate::tests::{Play, played};

/// Positions of a sequence.
const N_CTX: u32 = 4096;

/// The name of the model that is not on this machine.
const AWAY: &str = "hf:u/r:Q8_0";

/// Values of which each is wrong in most fields.
fn wrong_kinds() -> [Value; 6] {
    [json!(true), json!(-1), json!(3.5), json!("x"), json!([[]]), json!({ "a": 1 })]
}

/// How often a model was to be loaded, or fetched.
#[derive(Clone, Debug, Default)]
struct Counts(Arc<AtomicUsize>);

impl Counts {
    /// The number since the last call.
    fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }

    fn one_more(&self) -> NotLoaded {
        self.0.fetch_add(1, Ordering::Relaxed);
        NotLoaded::NotYet(Loading::default())
    }
}

impl Loader for Counts {
    fn loaded(&self, _: Wish) -> Coming<'_> {
        let why = self.one_more();
        Box::pin(async move { Err(why) })
    }

    fn now(&self) -> Option<App> {
        None
    }
}

impl Fetch for Counts {
    fn name(&self) -> &str {
        AWAY
    }

    fn fetched(&self, _: Wish, _: Force) -> Fetched<'_> {
        let why = self.one_more();
        Box::pin(async move { Err(why) })
    }

    fn here(&self) -> Option<Member> {
        None
    }

    fn how_far(&self) -> Loading {
        Loading::default()
    }
}

impl Fetcher for Counts {
    fn open(&self, name: &str) -> Option<Arc<dyn Fetch>> {
        (name == AWAY).then(|| Arc::new(self.clone()) as Arc<dyn Fetch>)
    }

    fn members(&self) -> Vec<Member> {
        Vec::new()
    }
}

fn serving(fleet: Fleet) -> Router {
    router(fleet, Hosts::of_this_process(), Origins::default())
}

/// A server of one model that is loaded.
fn warm() -> Router {
    let ready = Status::Ready(Arc::default());
    let played = played(Play::TextAndEos("a"), ready, model(), N_CTX, door(Access::Open));
    serving(Fleet::of_one(played.app))
}

/// A server of the same model, which is not loaded.
fn cold() -> (Router, Counts) {
    let (down, counts) = (Status::Loading(Loading::default()), Counts::default());
    let played = played(Play::NoLine, down, model(), N_CTX, door(Access::Open));
    let asleep = App { engine: Engine::not_loaded(), ..played.app };
    let member = Member::on_demand(asleep, Arc::new(counts.clone()));
    (serving(Fleet::new(vec![member]).unwrap()), counts)
}

/// The answer's status, and its message about an error.
async fn ask(router: &Router, path: &str, key: Option<&str>, body: String) -> (u16, String) {
    let mut request = Request::builder().method("POST").uri(path);
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let response = router.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8_lossy(&bytes).into_owned())
}

/// Good bodies, one or more for each address that needs a line.
fn good() -> Vec<(String, Value)> {
    let mut all: Vec<(String, Value)> =
        bodies().into_iter().filter(|(path, _)| NEED_A_LINE.contains(&path.as_str())).collect();
    let of_rerank = all.iter().find(|(path, _)| path == "/v1/rerank").unwrap().1.clone();
    for path in NEED_A_LINE.iter().filter(|path| path.contains("rerank") && **path != "/v1/rerank")
    {
        all.push(((*path).to_owned(), of_rerank.clone()));
    }
    for path in NEED_A_LINE {
        assert!(all.iter().any(|(of, _)| of == path), "a good body for {path}");
    }
    all
}

/// A body, and the same with a wrong value in each field.
fn variants(body: &Value) -> Vec<Value> {
    let mut all = vec![body.clone()];
    // Those two are read before the model is chosen.
    let names = body.as_object().unwrap().keys();
    for name in names.filter(|name| !["model", "keep_alive"].contains(&name.as_str())) {
        for kind in wrong_kinds() {
            let mut changed = body.clone();
            changed[name] = kind;
            all.push(changed);
        }
    }
    all
}

#[tokio::test]
async fn what_a_loaded_model_refuses_loads_none() {
    let (warm, (cold, counts)) = (warm(), cold());
    let (mut refused, mut loaded) = (0, 0);
    for (path, body) in good() {
        for body in variants(&body) {
            let text = body.to_string();
            let expected = ask(&warm, &path, None, text.clone()).await;
            let got = ask(&cold, &path, None, text.clone()).await;
            let is_refused = (400..500).contains(&expected.0) || expected.0 == 501;
            assert_eq!(counts.take(), usize::from(!is_refused), "{path} {text}: {expected:?}");
            if is_refused {
                assert_eq!(got, expected, "{path} {text}");
                refused += 1;
            } else {
                assert_eq!(got.0, 503, "{path} {text}: {}", got.1);
                loaded += 1;
            }
        }
    }
    println!("{refused} bodies were refused, {loaded} asked for the model");
    assert!(refused > 300 && loaded > 50, "{refused} {loaded}");
}

#[tokio::test]
async fn a_prompt_that_is_too_long_loads_nothing() {
    let (cold, counts) = cold();
    // A letter is a token of this model.
    let long = "a".repeat(N_CTX as usize + 1);
    let chat = json!([{ "role": "user", "content": long }]);
    for (path, body) in [
        ("/v1/chat/completions", json!({ "messages": chat })),
        ("/v1/completions", json!({ "prompt": long })),
        ("/completion", json!({ "prompt": long })),
        ("/v1/messages", json!({ "messages": chat, "max_tokens": 1 })),
        ("/v1/responses", json!({ "input": long })),
        ("/v1/embeddings", json!({ "input": long })),
        ("/api/chat", json!({ "messages": chat })),
        ("/api/generate", json!({ "prompt": long })),
        ("/api/embed", json!({ "input": long })),
        ("/api/embeddings", json!({ "prompt": long })),
    ] {
        let (status, answer) = ask(&cold, path, None, body.to_string()).await;
        assert_eq!((status, counts.take()), (400, 0), "{path}: {answer}");
        assert!(answer.contains("4097") || answer.contains("tokens"), "{path}: {answer}");
    }
}

#[tokio::test]
async fn what_no_model_would_take_fetches_none() {
    let keys = Keys::new("before-loading");
    let key = keys.secrets[1].reveal();
    let counts = Counts::default();
    let ready = Status::Ready(Arc::default());
    let app = |access| played(Play::Eos, ready.clone(), model(), N_CTX, door(access)).app;
    let fleet = Fleet::of_one(app(keys.access.clone())).with_fetcher(Arc::new(counts.clone()));
    let (away, warm) = (serving(fleet), warm());
    for (path, body) in good() {
        let (status, answer) = ask(&away, &path, Some(key), "{".to_owned()).await;
        assert_eq!((status, counts.take()), (400, 0), "{path}: {answer}");
        let mut refused = 0;
        for mut body in variants(&body) {
            let (expected, _) = ask(&warm, &path, None, body.to_string()).await;
            body["model"] = json!(AWAY);
            let (status, answer) = ask(&away, &path, Some(key), body.to_string()).await;
            let is_fetched = counts.take() == 1;
            assert_eq!(is_fetched, status == 503, "{path} {body}: {answer}");
            assert!(is_fetched || (400..500).contains(&status), "{path} {body}: {answer}");
            // It is not refused for what this server's other model is like.
            assert!(is_fetched || expected != 200, "{path} {body}: {answer}");
            refused += usize::from(!is_fetched);
        }
        assert!(refused > 0, "{path} {body}");
    }
}

#[tokio::test]
async fn a_key_that_has_reached_a_limit_loads_nothing() {
    let keys = Keys::with("before-loading-limits", |record| record.requests_per_minute = Some(1));
    let key = keys.secrets[1].reveal();
    let (down, counts) = (Status::Loading(Loading::default()), Counts::default());
    let played = played(Play::NoLine, down, model(), N_CTX, door(keys.access.clone()));
    let ready = Status::Ready(Arc::default());
    let there = crate::tests::fleet::Model { names: &["there"], says: "a", status: ready };
    let there = Member::fixed(crate::tests::fleet::app_behind(there, &played.app.door));
    let asleep = App { engine: Engine::not_loaded(), ..played.app };
    let cold = Member::on_demand(asleep, Arc::new(counts.clone()));
    let router = serving(Fleet::new(vec![there, cold]).unwrap());
    let body = |model: &str| json!({ "model": model, "prompt": "a", "max_tokens": 1 }).to_string();
    let path = "/v1/completions";
    // A wait for a model that does not come is not counted.
    for _ in 0..2 {
        assert_eq!(ask(&router, path, Some(key), body("sample")).await.0, 503);
        assert_eq!(counts.take(), 1);
    }
    assert_eq!(ask(&router, path, Some(key), body("there")).await.0, 200);
    assert_eq!(ask(&router, path, Some(key), body("sample")).await.0, 429);
    assert_eq!(counts.take(), 0);
}
