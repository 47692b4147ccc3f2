//! llama.cpp's addresses about the server itself: `/props`, `/lora-adapters`, `/slots`, `/version`,
//! `/apply-template`. Also `/line`, for the web page.

use axum::Json;
use axum::extract::{Request, State};
use brigade_line::adapters::Adapter;
use brigade_line::handle::Status;
use brigade_sched::DRAFT_DEPTHS;
use serde_json::{Value, json};

use crate::app::App;
use crate::clients::name::Name;
use crate::error::ApiError;
use crate::fleet::{Fleet, Meant};
use crate::request::chat_request::ChatRequest;

/// Handles `GET /version`.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// `GET /props`: the context, the places, the template, what the model can do.
pub(crate) async fn props(Meant(app): Meant) -> Json<Value> {
    let token = |id: Option<u32>| id.and_then(|id| app.text.tokenizer().token_text(id));
    let (bos, eos) = (app.text.tokenizer().bos(), app.text.tokenizer().eos());
    let template = app.text.tokenizer().chat_template(None);
    let (mut tools, mut thinks) = (false, false);
    if let Some((dialect, facts)) = app.text.dialect() {
        tools = dialect.channels || (facts.declares_tools && dialect.calls.is_some());
        thinks = dialect.channels || dialect.reasoning.is_some();
    }
    Json(json!({
        "default_generation_settings": { "n_ctx": app.limits.now().n_ctx, "params": {} },
        "total_slots": app.max_seqs, "model_alias": app.text.name(), "model_path": app.text.name(),
        "chat_template": template, "bos_token": token(bos), "eos_token": token(eos),
        "modalities": { "vision": false, "audio": false },
        "chat_template_caps": { "supports_tools": tools, "supports_tool_calls": tools,
                                "supports_parallel_tool_calls": tools, "supports_reasoning": thinks },
        "build_info": concat!("brigade-", env!("CARGO_PKG_VERSION")),
    }))
}

/// `GET /lora-adapters`: the model's adapters, with how much of each a request uses that says nothing.
pub(crate) async fn adapters(Meant(app): Meant) -> Json<Value> {
    let adapter = |(id, adapter): (usize, &Adapter)| json!({ "id": id, "path": adapter.name, "scale": adapter.scale, "task_name": "", "prompt_prefix": "" });
    Json(app.adapters.iter().enumerate().map(adapter).collect())
}

/// `GET /slots`: the places for sequences. The server does not know which slots are busy, so it reports the first
/// ones as busy.
pub(crate) async fn slots(Meant(app): Meant) -> Json<Value> {
    let (running, n_ctx) = (app.engine.running(), app.limits.now().n_ctx);
    let slot = |id: u32| {
        let place =
            json!({ "id": id, "n_ctx": n_ctx, "is_processing": false, "speculative": false });
        let Some(sequence) = running.get(id as usize) else { return place };
        let [right, wrong] = sequence.drafts;
        json!({
            "id": id, "n_ctx": n_ctx, "is_processing": true, "speculative": sequence.is_drafted,
            "n_prompt_tokens": sequence.n_prompt, "n_decoded": sequence.n_drawn,
            "drafts": { "right": right, "wrong": wrong, "windows": sequence.windows },
        })
    };
    Json(Value::Array((0..app.max_seqs).map(slot).collect()))
}

/// `GET /line`: the figures of the line for the page. Workers are not named, since their names are for the operator;
/// of the kept prompts, each client sees its own.
pub(crate) async fn line(
    State(fleet): State<Fleet>,
    Meant(app): Meant,
    request: Request,
) -> Json<Value> {
    app.door.metrics.run_upkeep();
    let text = app.door.metrics.render();
    let text = match fleet.only_name() {
        Some(_) => text,
        None => of_model(&text, app.text.name()),
    };
    let sum = |name: &str| gauge(&text, name);
    let stages: Vec<Value> = of_stages(&text, "brigade_stage_busy_share")
        .into_iter()
        .map(|(stage, busy)| {
            let memory = of_stages(&text, "brigade_stage_memory_bytes");
            let bytes = memory.iter().find(|(other, _)| *other == stage).map_or(0.0, |(_, b)| *b);
            json!({ "stage": stage, "busy_share": busy, "memory_bytes": bytes })
        })
        .collect();
    let layers: Vec<Value> = match app.engine.status() {
        Status::Ready(line) => {
            line.stages.iter().map(|s| json!([s.layers.start, s.layers.end])).collect()
        }
        _ => Vec::new(),
    };
    let (there, spare) = {
        let roll = app.roll.borrow();
        (roll.there(), roll.spare.len())
    };
    Json(json!({
        "stages": stages, "layers": layers, "workers": there, "spare": spare,
        "generated_tokens": sum("brigade_generated_tokens_total"),
        "running": sum("brigade_requests_running"), "waiting": sum("brigade_requests_waiting"),
        "kv_blocks_used": sum("brigade_kv_blocks_used"), "kv_blocks": sum("brigade_kv_blocks"),
        "kept": sum("brigade_kept_sequences"), "in_flight": sum("brigade_ubatches_in_flight"),
        "down": sum("brigade_line_down_total"), "prefixes": prefixes(&app, &request),
        "drafts": drafts(&text), "drawn_parts": sum("brigade_drawn_parts_total"),
        "rows_in_vain": sum("brigade_rows_in_vain_total"),
    }))
}

/// The series of one model among several.
fn of_model(text: &str, model: &str) -> String {
    let name = model.replace('\\', "\\\\").replace('"', "\\\"");
    let label = format!("model=\"{name}\"");
    text.lines().filter(|line| line.contains(&label)).collect::<Vec<_>>().join("\n")
}

/// The kept prompt prefixes that the client's key may see, largest first.
fn prefixes(app: &App, request: &Request) -> Value {
    let owner = request.extensions().get::<Name>().map(|name| name.usage.share());
    let cached = app.engine.cached().of(owner.unwrap_or_default().owner);
    json!({ "states": cached.states, "bytes": cached.bytes, "hits": cached.hits, "largest": cached.largest })
}

/// Drafts that were right and wrong, by how far ahead they were.
fn drafts(text: &str) -> Value {
    let of = |depth: &str, outcome: &str| {
        let labels = [format!("depth=\"{depth}\""), format!("outcome=\"{outcome}\"")];
        let lines = text.lines().filter(|line| line.starts_with("brigade_drafts_total{"));
        let lines = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    let row = |depth: &str| json!({ "depth": depth, "right": of(depth, "right"), "wrong": of(depth, "wrong") });
    DRAFT_DEPTHS.into_iter().map(row).collect()
}

/// Values of a metric that stages have, by the stage's number.
fn of_stages(text: &str, name: &str) -> Vec<(u64, f64)> {
    let value = |line: &str| -> Option<(u64, f64)> {
        let labels = line.strip_prefix(name)?.strip_prefix('{')?;
        let stage = labels.split("stage=\"").nth(1)?.split('"').next()?.parse().ok()?;
        Some((stage, labels.rsplit(' ').next()?.parse().ok()?))
    };
    let mut all: Vec<(u64, f64)> = text.lines().filter_map(value).collect();
    all.sort_by_key(|(stage, _)| *stage);
    all
}

/// The sum of a metric over all its labels.
fn gauge(text: &str, name: &str) -> f64 {
    let value = |line: &str| -> Option<f64> {
        let rest = line.strip_prefix(name)?;
        rest.starts_with([' ', '{']).then(|| rest.rsplit(' ').next()?.parse().ok())?
    };
    text.lines().filter_map(value).sum()
}

/// `POST /apply-template`: renders a chat as the model reads it, so that an author can see what the template leaves
/// out.
pub(crate) async fn apply_template(
    Meant(app): Meant,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (body, limits) = (app.door.bodies.take(request).await?, app.limits.now());
    let read = app.door.bodies.read(body, app.text.clone(), move |bytes, text| {
        ChatRequest::read(bytes, &limits, text)?.shown(text)
    });
    let (prompt, _room) = read.await?;
    let text = app.text.tokenizer().decode(&prompt.tokens, true).map_err(ApiError::from)?;
    Ok(Json(json!({ "prompt": text })))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_stages_value_is_found_by_its_number() {
        let text = "x{worker=\"a b\",stage=\"1\"} 0.5\nx{stage=\"0\"} 1\nxy{stage=\"2\"} 1\n";
        assert_eq!(super::of_stages(text, "x"), [(0, 1.0), (1, 0.5)]);
    }

    #[test]
    fn a_gauge_is_found_by_its_whole_name() {
        let text = "# TYPE x gauge\nx_total 3\nx{a=\"b\"} 2\nx{a=\"c\"} 1\n";
        assert_eq!((super::gauge(text, "x"), super::gauge(text, "y")), (3.0, 0.0));
    }
}
