//! Several models behind one door: which model a request gets, and what a key sees of the models that it may not use.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use brigade_dialect::text_model::TextModel;
use brigade_line::handle::Status;
use brigade_line::health::Loading;
use brigade_line::keys::{Force, KeyFile, KeyGroups, KeyRecord, KeyRing, Secret};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::*;
use crate::fleet::member::{NEED_A_LINE, OF_TEXT_ALONE};
use crate::tests::{Play, SECRET, played};

/// Positions of a sequence.
const N_CTX: u32 = 256;

/// A model that answers every request with this text.
pub(crate) struct Model {
    pub(crate) names: &'static [&'static str],
    pub(crate) says: &'static str,
    pub(crate) status: Status,
}

fn up(names: &'static [&'static str], says: &'static str) -> Model {
    Model { names, says, status: Status::Ready(Arc::default()) }
}

fn two() -> Vec<Model> {
    vec![up(&["first", "one"], "abc"), up(&["second"], "xyz")]
}

fn members(models: Vec<Model>, access: Access) -> Vec<Member> {
    let door = door(access);
    models.into_iter().map(|model| Member::fixed(app_behind(model, &door))).collect()
}

pub(crate) fn app_behind(Model { names, says, status }: Model, door: &Arc<Door>) -> App {
    let mut text = TextModel::sample();
    text.set_names(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    played(Play::TextAndEos(says), status, text, N_CTX, door.clone()).app
}

pub(crate) fn door(access: Access) -> Arc<Door> {
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    Arc::new(Door { access, ..Door::of_this_process(metrics, CancellationToken::new()) })
}

fn fleet(models: Vec<Model>, access: Access) -> Router {
    router(
        Fleet::new(members(models, access)).unwrap(),
        Hosts::of_this_process(),
        Origins::default(),
    )
}

async fn ask(
    router: &Router,
    method: &str,
    path: &str,
    key: Option<&str>,
    body: String,
) -> (u16, Value) {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let request = request.body(Body::from(body)).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::String(text)))
}

async fn get(router: &Router, path: &str) -> (u16, Value) {
    ask(router, "GET", path, None, String::new()).await
}

/// The model that answers a completion naming `model`, and the text of the answer.
async fn says(router: &Router, model: Option<&str>) -> Result<(String, String), String> {
    let mut body = json!({ "prompt": "q", "max_tokens": 9 });
    body["model"] = json!(model);
    let (status, answer) = ask(router, "POST", "/v1/completions", None, body.to_string()).await;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match status {
        200 => Ok((text(&answer["model"]), text(&answer["choices"][0]["text"]))),
        _ => Err(text(&answer["error"]["message"])),
    }
}

#[tokio::test]
async fn a_request_is_answered_by_the_model_that_it_names() {
    let router = fleet(two(), Access::Open);
    let of = |model: &str, says: &str| Ok((model.to_owned(), says.to_owned()));
    assert_eq!(says(&router, Some("second")).await, of("second", "xyz"));
    assert_eq!(says(&router, Some("one")).await, of("first", "abc"), "another name of it");
    assert_eq!(says(&router, None).await, of("first", "abc"), "the first one is meant");
    assert_eq!(says(&router, Some("")).await, of("first", "abc"));
    let error = says(&router, Some("third")).await.unwrap_err();
    assert!(error.contains("\"third\" is not served here: first, one, second are"), "{error}");
    // Ollama calls it `name`, too.
    let body = json!({ "name": "second" }).to_string();
    let (status, shown) = ask(&router, "POST", "/api/show", None, body).await;
    assert_eq!(status, 200, "{shown}");
    // A large body is read elsewhere, and means the same.
    let body = json!({ "content": "a".repeat(100_000), "model": "second" }).to_string();
    let (status, tokens) = ask(&router, "POST", "/tokenize", None, body).await;
    assert_eq!(status, 200, "{tokens}");
    let (status, error) = ask(&router, "POST", "/v1/completions", None, "{".to_owned()).await;
    assert!(status == 400 && error.to_string().contains("not valid JSON"), "{error}");
}

#[tokio::test]
async fn addresses_without_a_body_are_asked_for_a_model() {
    let router = fleet(two(), Access::Open);
    let alias = |answer: &Value| answer["model_alias"].as_str().unwrap_or_default().to_owned();
    assert_eq!(alias(&get(&router, "/props").await.1), "first");
    assert_eq!(alias(&get(&router, "/props?model=second").await.1), "second");
    assert_eq!(alias(&get(&router, "/props?x=1&model=s%65cond").await.1), "second");
    assert_eq!(get(&router, "/props?model=third").await.0, 404);
    let ids = |list: &Value, key: &str| -> Vec<String> {
        let all = list.as_array().unwrap().iter();
        all.map(|one| one[key].as_str().unwrap().to_owned()).collect()
    };
    let (_, list) = get(&router, "/v1/models").await;
    assert_eq!(ids(&list["data"], "id"), ["first", "one", "second"]);
    let (_, list) = get(&router, "/api/tags").await;
    assert_eq!(ids(&list["models"], "name"), ["first", "one", "second"]);
    assert_eq!(get(&router, "/v1/models/second").await.1["id"], "second");
}

#[tokio::test]
async fn a_server_is_up_while_one_of_its_models_is() {
    let down = Status::Down { reason: "x".to_owned(), next: None };
    let models = vec![Model { names: &["down"], says: "", status: down }, up(&["up"], "a")];
    let router = fleet(models, Access::Open);
    assert_eq!(get(&router, "/health").await, (200, json!({ "status": "ok" })));
    assert_eq!(get(&router, "/health?model=up").await.0, 200);
    assert_eq!(get(&router, "/health?model=down").await, (503, json!({ "status": "down" })));
    assert_eq!(get(&router, "/health?model=none").await.0, 404);
}

#[tokio::test]
async fn a_name_means_one_model() {
    let twice = vec![up(&["a"], ""), up(&["b", "a"], "")];
    let twice = Fleet::new(members(twice, Access::Open)).unwrap_err();
    assert_eq!(twice, FleetError::Twice("a".to_owned()));
    assert_eq!(Fleet::new(Vec::new()).unwrap_err(), FleetError::Empty);
}

/// Gives every request the same answer about its model.
#[derive(Debug)]
struct Tells(Option<App>, NotLoaded);

impl Loader for Tells {
    fn loaded(&self, _: Wish) -> Coming<'_> {
        let app = self.0.clone().ok_or_else(|| self.1.clone());
        Box::pin(async move { app })
    }

    fn now(&self) -> Option<App> {
        self.0.clone()
    }
}

#[tokio::test]
async fn who_needs_a_model_that_is_not_there_is_told_how_far_it_is() {
    let unknown = Loading::step("starting");
    let known =
        Loading { done_bytes: 1, total_bytes: 4, seconds_left: Some(9), ..Loading::default() };
    let answers = [
        ("loads", NotLoaded::NotYet(known), "is being loaded", Some("9")),
        ("begins", NotLoaded::NotYet(unknown), "is being loaded", Some("5")),
        ("waits", NotLoaded::NoRoom, "no room for the model waits", Some("5")),
        ("never", NotLoaded::Never(SECRET.to_owned()), "never cannot be loaded", Some("5")),
    ];
    let down = || Status::Down { reason: String::new(), next: None };
    let mut all = members(vec![up(&["there"], "abc")], Access::Open);
    for (name, answer, ..) in &answers {
        let model = Model { names: vec![*name].leak(), says: "", status: down() };
        let asleep = app_behind(model, &door(Access::Open));
        all.push(Member::on_demand(asleep, Arc::new(Tells(None, answer.clone()))));
    }
    let up = Model { status: Status::Ready(Arc::default()), names: &["comes"], says: "xyz" };
    let asleep = Model { status: down(), names: &["comes"], says: "" };
    let loader = Tells(Some(app_behind(up, &door(Access::Open))), NotLoaded::NoRoom);
    all.push(Member::on_demand(app_behind(asleep, &door(Access::Open)), Arc::new(loader)));
    let router = router(Fleet::new(all).unwrap(), Hosts::of_this_process(), Origins::default());
    for (name, _, said, retry) in answers {
        let body = json!({ "prompt": "q", "model": name }).to_string();
        let request =
            Request::builder().method("POST").uri("/v1/completions").body(Body::from(body));
        let response = router.clone().oneshot(request.unwrap()).await.unwrap();
        let header = response.headers().get("retry-after").map(|value| value.to_str().unwrap());
        assert_eq!((response.status().as_u16(), header), (503, retry), "{name}");
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let body: Value = serde_json::from_slice(&bytes).unwrap();
        assert!(body["error"]["message"].as_str().unwrap().contains(said), "{body}");
        assert!(!body.to_string().contains(SECRET), "{body}");
        let progress = [&body["loading"]["progress"], &body["loading"]["eta_seconds"]];
        match name {
            "loads" => assert_eq!(progress, [&json!(0.25), &json!(9)]),
            _ => assert_eq!(progress, [&Value::Null, &Value::Null], "no guess: {body}"),
        }
        // Its text side is there all the same.
        let body = json!({ "content": "a", "model": name }).to_string();
        assert_eq!(ask(&router, "POST", "/tokenize", None, body).await.0, 200);
    }
    assert_eq!(says(&router, Some("comes")).await.unwrap().1, "xyz");
    let (_, list) = get(&router, "/v1/models").await;
    let word = |at: usize| list["data"][at]["status"]["value"].clone();
    assert_eq!([word(0), word(1), word(5)], [Value::Null, json!("unloaded"), json!("loaded")]);
    let (_, running) = get(&router, "/api/ps").await;
    assert_eq!(running["models"].as_array().unwrap().len(), 2, "{running}");
    assert_eq!(get(&router, "/health?model=loads").await.0, 200, "a request would be taken");
}

/// Keys in a folder of their own, which goes with them.
pub(crate) struct Keys {
    folder: PathBuf,
    pub(crate) access: Access,
    /// A key for the model `first` alone, and one for all.
    pub(crate) secrets: [Secret; 2],
}

impl Keys {
    pub(crate) fn new(name: &str) -> Self {
        Self::with(name, |_| ())
    }

    /// The same, where `change` is made to the key for all models.
    pub(crate) fn with(name: &str, change: impl FnOnce(&mut KeyRecord)) -> Self {
        let folder = std::env::temp_dir().join(format!("brigade-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = KeyFile::in_folder(&folder);
        let secrets = [Secret::new().unwrap(), Secret::new().unwrap()];
        let mut record = KeyRecord::new("one-model", &secrets[0], 0).unwrap();
        record.models = vec!["first".to_owned()];
        file.add(record).unwrap();
        let mut all = KeyRecord::new("all-models", &secrets[1], 0).unwrap();
        all.may_load = true;
        change(&mut all);
        file.add(all).unwrap();
        let (ring, _) = KeyRing::open(file).unwrap();
        let groups = KeyGroups::new(&[], &ring.now()).unwrap();
        Self { folder, access: Access::Keys(ring, groups), secrets }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // The folder is temporary: the system removes what is left.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Every address of the public listener with its method, as the router's source has them. The only addresses with a
/// name in them are those of lists and streams.
fn addresses() -> Vec<(&'static str, &'static str)> {
    let routes = include_str!("../server/router.rs")
        .lines()
        .filter_map(|l| l.trim().strip_prefix(".route("));
    let all: Vec<_> = routes
        .map(|route| {
            let (path, method) = route.split_once(", ").unwrap();
            let path = match path {
                "chat::PATH" => chat::PATH,
                "completions::PATH" => completions::PATH,
                quoted => quoted.trim_matches('"'),
            };
            let method = method.split_once('(').unwrap().0;
            let known = ["get", "post", "delete"].iter().find(|known| **known == method);
            (*known.expect("a method that the test knows"), path)
        })
        .collect();
    assert!(all.len() > 30, "the router's source is read");
    all.into_iter().filter(|(_, path)| !path.contains('{')).collect()
}

/// Addresses that do not depend on a model, or that list the models of a key.
const OF_NO_MODEL: &[&str] = &[
    "/",
    "/page.css",
    "/page.js",
    "/chats.js",
    "/markdown.js",
    "/health",
    "/v1/models",
    "/api/tags",
    "/api/ps",
    "/api/version",
    // Always refused.
    "/api/delete",
];

/// Has the model `hf:u/r:Q8_0` fetched: it tells the same of every fetch, or the model is here.
#[derive(Clone, Debug)]
struct Fetches(Result<Member, NotLoaded>);

impl Fetch for Fetches {
    fn name(&self) -> &str {
        "hf:u/r:Q8_0"
    }

    fn fetched(&self, _wish: Wish, _key: Force) -> Fetched<'_> {
        Box::pin(std::future::ready(self.0.clone()))
    }

    fn here(&self) -> Option<Member> {
        self.0.clone().ok()
    }

    fn how_far(&self) -> Loading {
        Loading::default()
    }
}

impl Fetcher for Fetches {
    fn open(&self, name: &str) -> Option<Arc<dyn Fetch>> {
        (name == "hf:u/r:Q8_0").then(|| Arc::new(self.clone()) as Arc<dyn Fetch>)
    }

    fn members(&self) -> Vec<Member> {
        self.here().into_iter().collect()
    }
}

#[test]
fn each_address_with_a_body_needs_a_line_or_the_text_side_alone() {
    for (method, path) in addresses() {
        let needs = [NEED_A_LINE, OF_TEXT_ALONE].map(|all| all.contains(&path));
        assert_eq!(needs.contains(&true), method == "post", "{method} {path}");
        assert_ne!(needs, [true; 2], "{path}");
    }
}

#[tokio::test]
async fn a_model_is_fetched_for_keys_that_may_load_and_does_not_exist_for_others() {
    let keys = Keys::new("fleet-fetch");
    let [one, all] = keys.secrets.each_ref().map(Secret::reveal);
    let router = |told: Result<Member, NotLoaded>| {
        let fleet = Fleet::new(members(two(), keys.access.clone())).unwrap();
        let fleet = fleet.with_fetcher(Arc::new(Fetches(told)));
        router(fleet, Hosts::of_this_process(), Origins::default())
    };
    let completions = "/v1/completions";
    let body = |model: &str| json!({ "model": model, "prompt": "q", "max_tokens": 9 }).to_string();
    let loading = Loading { done_bytes: 43, total_bytes: 100, ..Loading::default() };
    for (told, status, said) in [
        (NotLoaded::Fetching(loading), 503, "is being fetched"),
        (NotLoaded::Missing("no such model".to_owned()), 404, "no such model"),
        (NotLoaded::Refused("too large".to_owned()), 400, "too large"),
        (NotLoaded::Never(SECRET.to_owned()), 503, "cannot be loaded"),
    ] {
        let router = router(Err(told));
        let (got, answer) = ask(&router, "POST", completions, Some(all), body("hf:u/r:Q8_0")).await;
        assert!(got == status && answer.to_string().contains(said), "{got} {answer}");
        assert!(!answer.to_string().contains(SECRET), "{answer}");
        if said == "is being fetched" {
            let expected = json!({
                "state": "fetching", "model": "hf:u/r:Q8_0", "progress": 0.43, "done_bytes": 43, "total_bytes": 100,
                "eta_seconds": null,
            });
            assert_eq!(answer["loading"], expected);
        }
        // Without the right it is as any unknown name, and so it is at addresses that need no line.
        let (got, of_name) =
            ask(&router, "POST", completions, Some(one), body("hf:u/r:Q8_0")).await;
        let (_, of_none) = ask(&router, "POST", completions, Some(one), body("hf:u/r:Q9_0")).await;
        assert_eq!((got, of_name.to_string()), (404, of_none.to_string().replace("Q9", "Q8")));
        for path in ["/tokenize", "/api/show", "/nothing"] {
            let (got, answer) = ask(&router, "POST", path, Some(all), body("hf:u/r:Q8_0")).await;
            assert_eq!(got, 404, "{path}: {answer}");
        }
    }
    let app = app_behind(up(&["hf:u/r:Q8_0", "hf:u/r"], "pulled"), &door(keys.access.clone()));
    let router = router(Ok(Member::fixed(app).for_loaders()));
    for name in ["hf:u/r:Q8_0", "hf:u/r", "hf.co/u/r:q8_0"] {
        let (status, answer) = ask(&router, "POST", completions, Some(all), body(name)).await;
        assert!(status == 200 && answer["choices"][0]["text"] == "pulled", "{name}: {answer}");
        assert_eq!(ask(&router, "POST", completions, Some(one), body(name)).await.0, 404, "{name}");
        let health = format!("/health?model={name}");
        assert_eq!(ask(&router, "GET", &health, None, String::new()).await.0, 404, "{name}");
    }
    for path in ["/v1/models", "/api/tags", "/api/ps"] {
        let (_, of_one) = ask(&router, "GET", path, Some(one), String::new()).await;
        let (_, of_all) = ask(&router, "GET", path, Some(all), String::new()).await;
        assert!(!of_one.to_string().contains("hf:") && of_all.to_string().contains("hf:u/r:Q8_0"));
    }
}

#[tokio::test]
async fn a_key_for_one_model_has_nothing_of_another_at_any_address() {
    let keys = Keys::new("fleet-keys");
    let router = fleet(two(), keys.access.clone());
    let [one, all] = keys.secrets.each_ref().map(Secret::reveal);
    for (method, path) in addresses() {
        if OF_NO_MODEL.contains(&path) {
            continue;
        }
        let (named, body) = match method {
            "get" => (format!("{path}?model=second"), String::new()),
            _ => (path.to_owned(), json!({ "model": "second" }).to_string()),
        };
        let method = method.to_uppercase();
        let (status, answer) = ask(&router, &method, &named, Some(one), body.clone()).await;
        assert_eq!(status, 403, "{method} {named}: {answer}");
        assert!(answer.to_string().contains("may not use the model second"), "{answer}");
        let (status, answer) = ask(&router, &method, &named, Some(all), body).await;
        assert_ne!(status, 403, "{method} {named}: {answer}");
    }
    for path in ["/v1/models", "/api/tags", "/api/ps"] {
        let (_, of_one) = ask(&router, "GET", path, Some(one), String::new()).await;
        let (_, of_all) = ask(&router, "GET", path, Some(all), String::new()).await;
        assert!(of_one.to_string().contains("first") && !of_one.to_string().contains("second"));
        assert!(of_all.to_string().contains("second"), "{path}: {of_all}");
    }
    let (status, _) = ask(&router, "GET", "/v1/models/second", Some(one), String::new()).await;
    assert_eq!(status, 403);
    // Nor do its refusals name others.
    let body = json!({ "model": "third" }).to_string();
    let (status, error) = ask(&router, "POST", "/v1/completions", Some(one), body).await;
    assert!(status == 404 && !error.to_string().contains("second"), "{error}");
}
