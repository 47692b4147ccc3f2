//! Answers in the formats of many model families. Each format is found from a template in the family's style.
//! Each answer means what it should, however its text was cut.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use brigade_dialect::parser::control_tokens::{control, told, told_dialect};
use brigade_dialect::parser::streaming::Options;
use brigade_dialect::template::detect::detect;
use brigade_dialect::{Dialect, Event, Parser, Shape, Tool, Tools};
use brigade_text::{ChatTemplate, TemplateTokens};
use serde_json::{Value, json};

/// Random cuts of each answer, besides single characters.
const CUTS: u64 = 12;

fn folder() -> PathBuf {
    brigade_model_tests::places::of_tests("data/dialects")
}

/// Control tokens of families whose markup of plain answers is made of them.
fn controls(family: &str) -> Vec<String> {
    let names: &[&str] = match family {
        "command" => {
            &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_ACTION|>", "<|END_ACTION|>"]
        }
        "kimi3" => &["<|open|>", "<|close|>", "<|sep|>"],
        _ => &[],
    };
    names.iter().map(|name| control(name)).collect()
}

fn template(family: &str) -> ChatTemplate {
    let source =
        std::fs::read_to_string(folder().join(format!("{family}.jinja"))).expect("a template");
    let tokens =
        TemplateTokens { bos: "<s>".into(), eos: "</s>".into(), ..TemplateTokens::default() };
    ChatTemplate::from_source(&source, tokens).unwrap_or_else(|e| panic!("{family}: {e}"))
}

/// A family's answers, and the meanings that they are to have.
struct Fixtures {
    tools: Arc<Tools>,
    begins: BTreeMap<String, String>,
    meanings: Vec<Value>,
    outputs: BTreeMap<String, Vec<(usize, String)>>,
}

impl Fixtures {
    fn read() -> Self {
        let text = std::fs::read_to_string(folder().join("outputs.json")).expect("the answers");
        let all: Value = serde_json::from_str(&text).expect("JSON");
        let tools = all["tools"].as_array().expect("tools").iter().map(|tool| Tool {
            name: tool["function"]["name"].as_str().expect("a name").to_string(),
            parameters: tool["function"]["parameters"].clone(),
            strict: false,
        });
        let mut outputs: BTreeMap<String, Vec<(usize, String)>> =
            serde_json::from_value(all["outputs"].clone()).expect("answers by family");
        for (family, answers) in &mut outputs {
            answers.iter_mut().for_each(|(_, text)| *text = told(text, &controls(family)));
        }
        Self {
            tools: Arc::new(Tools::new(tools.collect())),
            begins: serde_json::from_value(all["begins"].clone()).expect("texts by family"),
            meanings: serde_json::from_value(all["meanings"].clone()).expect("meanings"),
            outputs,
        }
    }

    fn parser(&self, family: &str, dialect: &Arc<Dialect>) -> Parser {
        let hidden = controls(family);
        let dialect = Arc::new(told_dialect(dialect, &hidden));
        let options =
            Options { tools: self.tools.clone(), hidden: hidden.into(), ..Options::default() };
        let mut parser = Parser::new(dialect, options);
        if let Some(text) = self.begins.get(family) {
            parser.begin_with(text);
        }
        parser
    }
}

/// The result of parsing an answer.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    reasoning: String,
    content: String,
    /// Id, name and arguments of each call.
    calls: Vec<(String, String, String)>,
}

impl Answer {
    fn add(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Reasoning(text) => self.reasoning.push_str(&text),
                Event::Content(text) => self.content.push_str(&text),
                Event::Call { index, id, name } => {
                    assert_eq!(index, self.calls.len(), "calls are numbered in order");
                    assert!(!id.is_empty() && !name.is_empty());
                    self.calls.push((id, name, String::new()));
                }
                Event::Arguments { index, text } => {
                    assert_eq!(index + 1, self.calls.len(), "arguments belong to the last call");
                    self.calls[index].2.push_str(&text);
                }
            }
        }
    }

    fn of(mut parser: Parser, pieces: &[&str], cut_off: bool) -> Self {
        let mut answer = Self::default();
        for piece in pieces {
            answer.add(parser.push(piece));
        }
        answer.add(parser.finish(cut_off));
        answer
    }

    fn meaning(&self) -> Value {
        let calls: Vec<Value> = self
            .calls
            .iter()
            .map(|(_, name, arguments)| {
                let arguments: Value = serde_json::from_str(arguments)
                    .unwrap_or_else(|e| panic!("{name}: {arguments}: {e}"));
                json!([name, arguments])
            })
            .collect();
        json!({ "reasoning": self.reasoning, "content": self.content, "calls": calls })
    }
}

fn wanted(meaning: &Value) -> Value {
    let text = |key: &str| meaning[key].as_str().unwrap_or_default();
    let (before, behind) = (text("text"), text("behind"));
    let calls = meaning["calls"].as_array().cloned().unwrap_or_default();
    let before = if calls.is_empty() { before } else { before.trim_end() };
    json!({ "reasoning": text("reasoning"), "content": format!("{before}{behind}"), "calls": calls })
}

/// Numbers that are the same in every run (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn pieces<'a>(&mut self, text: &'a str) -> Vec<&'a str> {
        let longest = 1 + self.below(24);
        let mut pieces = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let n = 1 + self.below(longest);
            let end = rest.char_indices().nth(n).map_or(rest.len(), |(at, _)| at);
            let (piece, after) = rest.split_at(end);
            pieces.push(piece);
            rest = after;
        }
        pieces
    }
}

fn characters(text: &str) -> Vec<&str> {
    text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]).collect()
}

fn answers_of_all_families_mean_what_they_should() {
    let fixtures = Fixtures::read();
    let mut n_answers = 0;
    let mut wrong = Vec::new();
    for (family, outputs) in &fixtures.outputs {
        let (dialect, _) = detect(&template(family));
        let dialect = Arc::new(dialect);
        for (number, text) in outputs {
            n_answers += 1;
            let answer = Answer::of(fixtures.parser(family, &dialect), &[text], false);
            let (got, want) = (answer.meaning(), wanted(&fixtures.meanings[*number]));
            if got != want {
                wrong.push(format!("{family} {number}:\n  {text}\n  got  {got}\n  want {want}"));
            }
        }
    }
    println!("{n_answers} answers of {} families", fixtures.outputs.len());
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(n_answers >= 500 && fixtures.outputs.len() >= 12);
}

fn every_cut_of_the_text_gives_the_same_answer_and_no_markup_shows() {
    let fixtures = Fixtures::read();
    let mut random = Random(1);
    let (mut n_cuts, mut leaks) = (0, 0);
    for (family, outputs) in &fixtures.outputs {
        let (dialect, _) = detect(&template(family));
        let dialect = Arc::new(dialect);
        for (number, text) in outputs {
            let whole = Answer::of(fixtures.parser(family, &dialect), &[text], false);
            let mut cuts = vec![characters(text)];
            cuts.extend((0..CUTS).map(|_| random.pieces(text)));
            for pieces in cuts {
                n_cuts += 1;
                let answer = Answer::of(fixtures.parser(family, &dialect), &pieces, false);
                assert_eq!(answer, whole, "{family} {number}: {pieces:?}");
                let meant = fixtures.meanings[*number].to_string();
                for marker in dialect.markers().into_iter().filter(|m| m.len() > 3) {
                    let shows =
                        answer.content.contains(marker) || answer.reasoning.contains(marker);
                    leaks += usize::from(shows && !meant.contains(marker));
                }
            }
        }
    }
    println!("{n_cuts} cuts, {leaks} markers leaked");
    assert_eq!(leaks, 0);
}

/// An answer that `max_tokens` ends anywhere is the beginning of the whole one.
fn an_answer_cut_off_anywhere_is_a_beginning_of_the_whole() {
    let fixtures = Fixtures::read();
    let mut n_cuts = 0;
    for (family, outputs) in &fixtures.outputs {
        let (dialect, _) = detect(&template(family));
        let dialect = Arc::new(dialect);
        for (number, text) in outputs {
            let whole = Answer::of(fixtures.parser(family, &dialect), &[text], false);
            for (at, _) in text.char_indices().step_by(3) {
                n_cuts += 1;
                let part = Answer::of(fixtures.parser(family, &dialect), &[&text[..at]], true);
                let place =
                    || format!("{family} {number} at {at}: {:?}\n{part:?}\n{whole:?}", &text[..at]);
                assert!(whole.reasoning.starts_with(part.reasoning.trim_end()), "{}", place());
                assert!(whole.content.starts_with(part.content.trim_end()), "{}", place());
                assert!(part.calls.len() <= whole.calls.len(), "{}", place());
                for (part_call, call) in part.calls.iter().zip(&whole.calls) {
                    assert_eq!((&part_call.0, &part_call.1), (&call.0, &call.1), "{}", place());
                    assert!(call.2.starts_with(&part_call.2), "{}", place());
                }
            }
        }
    }
    println!("{n_cuts} beginnings");
}

/// Ids of calls are the model's where it writes them; others are the same in every run.
fn ids_are_the_models_or_made_from_the_seed() {
    let fixtures = Fixtures::read();
    for (family, want) in [
        ("kimi", vec!["functions.get_weather:0", "functions.get_weather:1"]),
        ("mistral_ids", vec!["abcdef000", "abcdef001"]),
        ("command", vec!["0", "1"]),
    ] {
        let dialect = Arc::new(detect(&template(family)).0);
        let text = &fixtures.outputs[family]
            .iter()
            .find(|(number, _)| *number == 12)
            .expect("it is there")
            .1;
        let answer = Answer::of(fixtures.parser(family, &dialect), &[text], false);
        let ids: Vec<&str> = answer.calls.iter().map(|call| call.0.as_str()).collect();
        assert_eq!(ids, want, "{family}");
    }
    for (family, length) in [("mistral_list", 9), ("mistral", 9), ("hermes", 29), ("gpt_oss", 29)] {
        let dialect = Arc::new(detect(&template(family)).0);
        let text = &fixtures.outputs[family]
            .iter()
            .find(|(number, _)| *number == 12)
            .expect("it is there")
            .1;
        let once = Answer::of(fixtures.parser(family, &dialect), &[text], false);
        let again = Answer::of(fixtures.parser(family, &dialect), &[text], false);
        assert_eq!(once, again);
        assert!(once.calls.iter().all(|call| call.0.len() == length), "{family}: {:?}", once.calls);
        assert_ne!(once.calls[0].0, once.calls[1].0);
    }
}

/// A template's form is found from what it renders, not from names.
fn forms_are_found_by_rendering() {
    let kind = |family: &str| {
        let (dialect, facts) = detect(&template(family));
        let shape = dialect.calls.map(|calls| match calls.shape {
            Shape::Json(shape) if shape.name_is_key => "json, name as key",
            Shape::Json(shape) if shape.id_last => "json, id last",
            Shape::Json(_) => "json",
            Shape::Named(_) => "named",
            Shape::Tagged(_) => "tagged",
            Shape::Python => "python",
        });
        (shape.unwrap_or("none"), facts.declares_tools, facts.writes_calls, facts.arguments_as_text)
    };
    for (family, want) in [
        ("hermes", ("json", true, true, false)),
        ("qwen_coder", ("tagged", true, true, false)),
        ("seed", ("tagged", true, true, false)),
        ("glm", ("tagged", true, true, false)),
        ("minimax", ("tagged", true, true, false)),
        ("lfm", ("python", true, true, false)),
        ("llama", ("json", true, true, false)),
        ("mistral", ("named", true, true, false)),
        ("mistral_ids", ("named", true, true, false)),
        ("mistral_list", ("json, id last", true, true, false)),
        ("apertus", ("json, name as key", true, true, false)),
        ("functionary31", ("named", true, true, true)),
        ("deepseek", ("named", true, true, true)),
        ("granite", ("json", true, false, false)),
        ("gpt_oss", ("none", true, true, false)),
        ("plain", ("json", false, false, false)),
    ] {
        assert_eq!(kind(family), want, "{family}");
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        answers_of_all_families_mean_what_they_should,
        every_cut_of_the_text_gives_the_same_answer_and_no_markup_shows,
        an_answer_cut_off_anywhere_is_a_beginning_of_the_whole,
        ids_are_the_models_or_made_from_the_seed,
        forms_are_found_by_rendering;
];
