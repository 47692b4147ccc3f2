//! Streams of models that are being loaded, with a mock loader.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use brigade_line::handle::Status;
use brigade_line::health::Loading;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tower::ServiceExt;

use super::*;
use crate::tests::fleet::{Model, app_behind, door};
use crate::tests::{Play, played as played_by};

/// The mock loader's last answer.
type Verdict = Result<App, NotLoaded>;

/// Lets requests wait until the test says otherwise.
#[derive(Debug)]
struct Slow {
    verdict: watch::Receiver<Option<Verdict>>,
    /// Half of it is there.
    half: App,
    wishes: mpsc::UnboundedSender<Wish>,
}

/// Says when a request has stopped waiting.
struct Waiting(mpsc::UnboundedSender<Wish>, Wish);

impl Drop for Waiting {
    fn drop(&mut self) {
        // A test that asks nothing of it has ended.
        let _ = self.0.send(self.1);
    }
}

impl Loader for Slow {
    fn loaded(&self, wish: Wish) -> Coming<'_> {
        let (mut verdict, waiting) = (self.verdict.clone(), Waiting(self.wishes.clone(), wish));
        Box::pin(async move {
            let _waiting = waiting;
            verdict.wait_for(Option::is_some).await.unwrap().clone().unwrap()
        })
    }

    fn now(&self) -> Option<App> {
        Some(self.half.clone())
    }
}

/// A server of one model, which comes when it is told to.
struct Played {
    router: Router,
    verdict: watch::Sender<Option<Verdict>>,
    up: App,
    ended: mpsc::UnboundedReceiver<Wish>,
}

fn played() -> Played {
    let of = |status| app_behind(Model { names: &["m"], says: "abc", status }, &door(Access::Open));
    let loading = Loading { done_bytes: 43, total_bytes: 100, ..Loading::default() };
    let down = Status::Down { reason: String::new(), next: None };
    let (verdict, receiver) = watch::channel(None);
    let (wishes, ended) = mpsc::unbounded_channel();
    let loader = Slow { verdict: receiver, half: of(Status::Loading(loading)), wishes };
    let asleep = App { engine: Engine::not_loaded(), ..of(down) };
    let member = Member::on_demand(asleep, Arc::new(loader));
    let router =
        router(Fleet::new(vec![member]).unwrap(), Hosts::of_this_process(), Origins::default());
    Played { router, verdict, up: of(Status::Ready(Arc::default())), ended }
}

async fn post(router: &Router, path: &str, body: &Value) -> axum::response::Response {
    let request = Request::builder().method("POST").uri(path).body(Body::from(body.to_string()));
    router.clone().oneshot(request.unwrap()).await.unwrap()
}

fn body_of(path: &str) -> Value {
    match path {
        "/v1/completions" => json!({ "prompt": "q", "max_tokens": 9, "stream": true }),
        "/v1/responses" => json!({ "input": "q", "max_output_tokens": 9, "stream": true }),
        _ => {
            json!({ "messages": [{"role": "user", "content": "q"}], "max_tokens": 9, "stream": true })
        }
    }
}

const PATHS: [&str; 4] =
    ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"];

async fn text(body: Body) -> String {
    String::from_utf8(to_bytes(body, usize::MAX).await.unwrap().to_vec()).unwrap()
}

/// Without ids and times, which are of each answer its own.
fn shape(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("id: "));
    let plain = |line: &str| match line.strip_prefix("data: ").map(serde_json::from_str::<Value>) {
        Some(Ok(mut value)) => {
            forget(&mut value);
            value.to_string()
        }
        _ => line.to_owned(),
    };
    lines.map(plain).collect::<Vec<_>>().join("\n")
}

fn forget(value: &mut Value) {
    let own = ["id", "item_id", "created", "created_at", "timings", "usage"];
    match value {
        Value::Object(map) => {
            map.retain(|name, _| !own.contains(&name.as_str()));
            map.values_mut().for_each(forget);
        }
        Value::Array(all) => all.iter_mut().for_each(forget),
        _ => {}
    }
}

#[tokio::test]
async fn a_stream_gets_comments_and_then_what_it_would_have_got() {
    for path in PATHS {
        let Played { router, verdict, up, mut ended } = played();
        let response = post(&router, path, &body_of(path)).await;
        assert_eq!(response.status().as_u16(), 200, "{path}: before its model is there");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut body = response.into_body().into_data_stream();
        let first = body.next().await.unwrap().unwrap();
        assert_eq!(first, ": loading 43 %\n\n");
        assert_eq!(body.next().await.unwrap().unwrap(), ": loading 43 %\n\n", "each second");
        verdict.send_replace(Some(Ok(up)));
        let rest = text(Body::new(Body::from_stream(body))).await;
        assert_eq!(ended.recv().await.unwrap().key, None);
        let response = post(&router, path, &body_of(path)).await;
        let there = text(response.into_body()).await;
        assert!(there.contains('a') && !there.contains("error\":{"), "{there}");
        assert_eq!(shape(&rest), shape(&there), "{path}");
    }
}

#[tokio::test]
async fn what_keeps_it_from_being_loaded_is_the_streams_last_event() {
    for path in PATHS {
        let Played { router, verdict, up, .. } = played();
        let response = post(&router, path, &body_of(path)).await;
        verdict.send_replace(Some(Err(NotLoaded::NoRoom)));
        let said = text(response.into_body()).await;
        let event = said.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        assert!(event.contains("there is no room for the model m"), "{path}: {said}");
        // A refusal of the line arrives as an event too.
        verdict.send_replace(None);
        let response = post(&router, path, &body_of(path)).await;
        assert_eq!(response.status().as_u16(), 200);
        let full = TextModel::sample();
        let full = played_by(Play::Full, Status::Ready(Arc::default()), full, 256, up.door.clone());
        verdict.send_replace(Some(Ok(full.app)));
        let said = text(response.into_body()).await;
        assert!(said.contains("data: ") && said.contains("wait"), "{path}: {said}");
        // What is known before the model is there has a status of its own, also a reason why it does not come.
        verdict.send_replace(None);
        let mut bad = body_of(path);
        bad["temperature"] = json!("hot");
        assert_eq!(post(&router, path, &bad).await.status().as_u16(), 400, "{path}");
        verdict.send_replace(Some(Err(NotLoaded::NoRoom)));
        assert_eq!(post(&router, path, &body_of(path)).await.status().as_u16(), 503);
    }
}

#[tokio::test]
async fn who_leaves_stops_waiting_and_others_wait_for_a_while_only() {
    let Played { router, verdict, up, mut ended } = played();
    let response = post(&router, PATHS[0], &body_of(PATHS[0])).await;
    assert!(ended.try_recv().is_err(), "it waits");
    drop(response);
    let of_stream = ended.recv().await.unwrap();
    assert!(of_stream.within > MODEL_WITHIN);
    let waits = tokio::spawn(async move {
        let chat = json!({ "messages": [{"role": "user", "content": "q"}], "stream": true });
        post(&router, "/api/chat", &chat).await.status().as_u16()
    });
    assert!(!waits.is_finished(), "lines of JSON have no comments");
    verdict.send_replace(Some(Ok(up)));
    assert_eq!(waits.await.unwrap(), 200);
    assert_eq!(ended.recv().await.unwrap().within, MODEL_WITHIN);
}
