//! Malformed answers: no text of them is lost, no stream is given up, and the cut of the text does not matter.
//! Well-formed answers are in `tests/http/dialects.rs`.

use std::sync::{Arc, LazyLock};

use brigade_text::{ChatTemplate, TemplateTokens};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::parser::control_tokens;
use super::*;
use crate::parser::streaming::Options;
use crate::template::detect::detect;

macro_rules! templates {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!("../../../tests/data/dialects/", $name, ".jinja")))),*]
    };
}

static DIALECTS: LazyLock<Vec<(&str, Arc<Dialect>)>> = LazyLock::new(|| {
    let sources = templates!(
        "hermes",
        "qwen_coder",
        "glm",
        "minimax",
        "deepseek",
        "kimi",
        "kimi3",
        "llama",
        "llama_python",
        "lfm",
        "mistral",
        "mistral_list",
        "gpt_oss",
        "functionary32",
        "command",
        "apertus",
        "deepseek31",
        "dsml",
        "functionary31",
        "granite",
        "mistral_ids",
        "nemotron",
        "olmo",
        "plain",
        "seed"
    );
    let dialect = |source| {
        let template = ChatTemplate::from_source(source, TemplateTokens::default()).unwrap();
        Arc::new(detect(&template).0)
    };
    sources.into_iter().map(|(name, source)| (name, dialect(source))).collect()
});

fn tools() -> Arc<Tools> {
    let parameters = json!({ "properties": {
        "text": { "type": "string" }, "n": { "type": "integer" }, "list": { "type": "array" } } });
    Arc::new(Tools::new(vec![
        Tool { name: "ping".to_string(), parameters: Value::Null, strict: false },
        Tool { name: "write".to_string(), parameters, strict: false },
    ]))
}

/// Reasoning, content, and calls as `NAME(ARGUMENTS)`.
type Answer = (String, String, Vec<String>);

fn read(family: &str, pieces: &[&str], options: Options, cut_off: bool) -> Answer {
    let (_, dialect) = DIALECTS.iter().find(|(name, _)| *name == family).unwrap();
    answer(dialect, pieces, options, cut_off)
}

fn answer(dialect: &Arc<Dialect>, pieces: &[&str], options: Options, cut_off: bool) -> Answer {
    let mut parser = Parser::new(dialect.clone(), options);
    let mut answer = Answer::default();
    let mut add = |events: Vec<Event>| {
        for event in events {
            match event {
                Event::Reasoning(text) => answer.0.push_str(&text),
                Event::Content(text) => answer.1.push_str(&text),
                Event::Call { index, name, .. } => {
                    assert_eq!(index, answer.2.len());
                    answer.2.push(format!("{name} "));
                }
                Event::Arguments { index, text } => answer.2[index].push_str(&text),
            }
        }
    };
    for piece in pieces {
        add(parser.push(piece));
    }
    add(parser.finish(cut_off));
    answer
}

fn options() -> Options {
    Options { tools: tools(), ..Options::default() }
}

fn check(family: &str, text: &str, reasoning: &str, content: &str, calls: &[&str]) {
    let (got_reasoning, got_content, got_calls) = read(family, &[text], options(), false);
    assert_eq!(got_content, content, "{family}: {text}");
    assert_eq!(got_reasoning, reasoning, "{family}: {text}");
    assert_eq!(got_calls, calls, "{family}: {text}");
}

#[test]
fn what_is_no_call_is_content_word_for_word() {
    for (family, text) in [
        ("hermes", "<tool_call>not json</tool_call>"),
        ("hermes", "Write <tool_call> before a call, as in `<tool_call>{\"name\": 3}`."),
        ("hermes", "<tool_call>\n{\"name\": \"pi"),
        ("hermes", "a <tool"),
        ("hermes", "<tool_call>{\"name\": \"two words\", \"arguments\": {}}"),
        ("qwen_coder", "<function=two words>\n</function>"),
        ("glm", "<tool_call>what is this?</tool_call>"),
        ("llama", "{\"name\": \"Alice\", \"age\": 3}"),
        ("llama", "{\"answer\": [1, 2]}"),
        ("llama", "[1, 2]"),
        ("llama_python", "[write is a word]"),
        ("llama_python", "[1, 2]"),
        ("functionary32", ">>> print(1)\n1\n"),
        ("lfm", "f(x) is x"),
    ] {
        check(family, text, "", text, &[]);
    }
}

#[test]
fn calls_with_small_faults_are_calls() {
    for (family, text, calls) in [
        (
            "hermes",
            "<tool_call>\n{\"name\": \"write\", \"arguments\": {\"n\": 1}\n</tool_call>",
            "write {\"n\": 1}",
        ),
        (
            "hermes",
            "<tool_call>\n{\"name\": \"write\", \"arguments\": {\"n\": 1</tool_call>",
            "write {\"n\": 1}",
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"write\", \"arguments\": {\"n\": 1}}}</tool_call>",
            "write {\"n\": 1}",
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"write\", \"arguments\": {\"text\": \"a\nb\"}}",
            "write {\"text\": \"a\\nb\"}",
        ),
        (
            "hermes",
            "<tool_call>{\"arguments\": {\"n\": 1}, \"name\": \"write\"}</tool_call>",
            "write {\"n\":1}",
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"write\", \"arguments\": \"{\\\"n\\\": 1}\"}</tool_call>",
            "write {\"n\": 1}",
        ),
        ("hermes", "<tool_call>{\"name\": \"ping\"}</tool_call>", "ping {}"),
        ("hermes", "<tool_call>{\"name\": \"ping\", \"arguments\": null}</tool_call>", "ping {}"),
        (
            "hermes",
            "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"ping\", \"parameters\": {}}}</tool_call>",
            "ping {}",
        ),
        ("qwen_coder", "<function=ping>\n</function>", "ping {}"),
        (
            "qwen_coder",
            "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>",
            "ping {}",
        ),
        (
            "qwen_coder",
            "<tool_call>\n<function=write>\n<parameter=text>\na</parameter>b\n</parameter>\n</function>\n</tool_call>",
            "write {\"text\": \"a</parameter>b\"}",
        ),
        ("qwen_coder", "<tool_call>\n<function=write>\n<parameter=n>\n1", "write {\"n\": 1}"),
        ("glm", "<tool_call>ping</tool_call>", "ping {}"),
        (
            "kimi",
            "<|tool_calls_section_begin|><|tool_call_begin|>ping<|tool_call_argument_begin|>{}",
            "ping {}",
        ),
        (
            "lfm",
            "<|tool_call_start|>[write('it's', n=2)]<|tool_call_end|>",
            "write {\"text\": \"it's\", \"n\": 2}",
        ),
        ("llama_python", "[write(text=Paris)]", "write {\"text\": \"Paris\"}"),
        ("llama", "<|python_tag|>{\"name\": \"ping\", \"parameters\": {}}", "ping {}"),
        ("gpt_oss", " to=functions.ping<|channel|>commentary json<|message|>{}", "ping {}"),
    ] {
        check(family, text, "", "", &[calls]);
    }
}

#[test]
fn arguments_that_are_no_json_are_passed_on_as_they_are() {
    let text = "<tool_call>{\"name\": \"write\", \"arguments\": {\"text\": \"say \"hi\" now\"}}</tool_call>";
    check("hermes", text, "", "", &["write {\"text\": \"say \"hi\" now\"}}"]);
}

#[test]
fn reasoning_ends_where_it_should() {
    check("hermes", "<think>\na\n</think>\n\nb", "a", "b", &[]);
    check("hermes", "<think>a</think>b <think> c", "a", "b <think> c", &[]);
    check("hermes", "\n<think></think>\nb", "", "b", &[]);
    check("hermes", "a</think>b", "", "a</think>b", &[]);
    check("hermes", "<think>\nhm</think>a</think>b", "hm", "a</think>b", &[]);
    check("granite", "<think>hm</think><response>a</response>\n", "hm", "a", &[]);
    check("granite", "<think>hm</think><response>a</response>b", "hm", "a</response>b", &[]);
    // Models forget to end it before a call; a call of a tool that is not there is a thought.
    let call = "<think>I call\n<tool_call>{\"name\": \"ping\", \"arguments\": {}}</tool_call>";
    check("hermes", call, "I call", "", &["ping {}"]);
    let thought =
        "<think>as in <tool_call>{\"name\": \"pong\", \"arguments\": {}}</tool_call>\n</think>ok";
    let inner = "as in <tool_call>{\"name\": \"pong\", \"arguments\": {}}</tool_call>";
    check("hermes", thought, inner, "ok", &[]);
    check("gpt_oss", "no channels at all", "", "no channels at all", &[]);
    let two =
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b";
    check("gpt_oss", two, "a\n\nb", "", &[]);
}

#[test]
fn special_tokens_that_mean_nothing_are_left_out() {
    let hidden: Arc<[String]> = ["[TOOL_CALLS]", "[ARGS]"].map(control_tokens::control).into();
    let text = "a [TOOL_CALLS]b [ARGS] c";
    let told = control_tokens::told(text, &hidden);
    let options = || Options { hidden: hidden.clone(), ..options() };
    let (_, content, calls) = read("mistral", &[&told], options(), false);
    assert_eq!((content.as_str(), calls.len()), ("a b  c", 0));
    let (_, content, _) = read("mistral", &[text], options(), false);
    assert_eq!(content, text, "letters are text");
}

/// Texts about a dialect's markers, with a marker that may begin the answer's reasoning only within them.
fn texts_about_markers(dialect: &Dialect) -> Vec<String> {
    let mut texts = Vec::new();
    for marker in dialect.markers() {
        texts.push(format!("a {marker} b"));
        texts.push(format!("a{marker}"));
        texts.push(format!("a {marker}{marker} b"));
        texts.push(format!("`{marker}`, then \n\n{marker}\n"));
    }
    let mut pairs: Vec<&Pair> = dialect.reasoning.iter().collect();
    if let Some(calls) = &dialect.calls {
        pairs.extend(calls.section.iter().chain(&calls.call));
        if let Shape::Tagged(shape) = &calls.shape {
            pairs.extend([&shape.name, &shape.key, &shape.value]);
        }
    }
    for Pair { open, close } in pairs {
        for inner in ["", " ", "\n", "x y", "\n\n"] {
            texts.push(format!("a {open}{inner}{close} b"));
            texts.push(format!("a {close}{inner}{open} b"));
            texts.push(format!("a {open}{inner}{close}{open}{inner}{close}"));
        }
    }
    texts
}

/// The same, and markers that begin the text.
fn texts_of_markers(dialect: &Dialect) -> Vec<String> {
    let at_start = dialect.markers().into_iter().flat_map(|marker| {
        [marker.to_string(), format!("{marker} b"), format!("{marker}{marker}")]
    });
    texts_about_markers(dialect).into_iter().chain(at_start).collect()
}

fn check_verbatim(family: &str, dialect: &Arc<Dialect>, text: &str, options: &Options) {
    let characters: Vec<String> = text.chars().map(String::from).collect();
    let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
    let mut cuts: Vec<Vec<&str>> = vec![vec![text], characters];
    for (at, _) in text.char_indices().skip(1) {
        cuts.push(vec![&text[..at], &text[at..]]);
    }
    for pieces in cuts {
        let got = answer(dialect, &pieces, options.clone(), false);
        let want = (String::new(), text.to_string(), Vec::new());
        assert_eq!(got, want, "{family}: {pieces:?}, tools: {}", !options.tools.is_empty());
    }
}

/// The names of a dialect's markers as control tokens, and the dialect that knows them as such.
fn told(dialect: &Dialect) -> (Arc<[String]>, Arc<Dialect>) {
    let names: Arc<[String]> = dialect.markers().into_iter().map(control_tokens::control).collect();
    let told = Arc::new(control_tokens::told_dialect(dialect, &names));
    (names, told)
}

#[test]
fn markers_spelled_in_letters_come_back_word_for_word() {
    let mut n = 0;
    for (family, dialect) in DIALECTS.iter() {
        let (names, told) = told(dialect);
        for tools in [tools(), Arc::default()] {
            // Where the vocabulary has the markers, letters never are one.
            let options = Options { tools, hidden: names.clone(), ..Options::default() };
            for text in texts_of_markers(dialect) {
                n += 1;
                check_verbatim(family, &told, &text, &options);
            }
            // Where it has none, they are text wherever they cannot be markup.
            let options = Options { hidden: Arc::default(), ..options };
            for text in texts_about_markers(dialect).into_iter().filter(|_| !dialect.channels) {
                n += 1;
                check_verbatim(family, dialect, &text, &options);
            }
            if let Some(Pair { open, close }) = &dialect.reasoning {
                for text in [open.clone(), format!("{open}{close}"), format!("{open}\n\n{close}\n")]
                {
                    n += 1;
                    check_verbatim(family, dialect, &text, &options);
                }
                check_verbatim(family, dialect, close, &options);
            }
        }
    }
    println!("{n} texts of {} dialects", DIALECTS.len());
    assert!(DIALECTS.len() >= 24 && n >= 5000);
}

#[test]
fn control_tokens_are_hidden_wherever_they_stand() {
    for (family, dialect) in DIALECTS.iter() {
        let (names, told) = told(dialect);
        for tools in [tools(), Arc::default()] {
            let options = Options { tools, hidden: names.clone(), ..Options::default() };
            for text in texts_of_markers(dialect) {
                let text = control_tokens::told(&text, &names);
                let (reasoning, content, _) = answer(&told, &[&text], options.clone(), false);
                let all = format!("{reasoning}{content}");
                assert!(!all.contains(control_tokens::CONTROL), "{family}: {text}: {all}");
                for name in dialect.markers().iter().filter(|name| name.len() > 3) {
                    assert!(!all.contains(name), "{family}: {text}: {all}");
                }
            }
        }
    }
}

#[test]
fn after_one_call_nothing_counts_where_one_is_enough() {
    let call = "<tool_call>{\"name\": \"ping\", \"arguments\": {}}</tool_call>";
    let options = Options { single: true, ..options() };
    let (_, content, calls) = read("hermes", &[call, call, "more"], options, false);
    assert_eq!((content.as_str(), calls.as_slice()), ("", ["ping {}".to_string()].as_slice()));
}

#[test]
fn a_call_that_is_cut_off_is_no_text() {
    for text in ["a <tool_call>\n{\"na", "a <tool_c", "a <tool_call>"] {
        let (_, content, calls) = read("hermes", &[text], options(), true);
        assert_eq!((content.trim_end(), calls.len()), ("a", 0), "{text}");
    }
}

/// Texts that meant one thing in one piece and another in several, once.
#[test]
fn what_was_found_is_the_same_in_any_cut() {
    for text in [
        "<tool_call>functions.\n</arg_key>\n```json\n",
        "<tool_call>ping\n a \n\n b\n<arg_key>n</arg_key>\n<arg_value>1</arg_value> c \n</tool_call>\n d",
        "<tool_call>ping\n\n</arg_key> \n</tool_call>\nend",
        "<tool_call>{\"name\": \"ping\", \"arguments\": ]<function=",
    ] {
        for (family, cut_off) in DIALECTS.iter().flat_map(|(f, _)| [(f, false), (f, true)]) {
            let whole = read(family, &[text], options(), cut_off);
            for n in 1..text.len() {
                let cut: Vec<String> = text
                    .chars()
                    .collect::<Vec<_>>()
                    .chunks(n)
                    .map(|c| c.iter().collect())
                    .collect();
                let pieces: Vec<&str> = cut.iter().map(String::as_str).collect();
                let found = read(family, &pieces, options(), cut_off);
                assert_eq!(found, whole, "{family}: {text:?} in {n}, cut off: {cut_off}");
            }
        }
    }
}

/// Pieces of all formats in any order.
fn soup() -> impl Strategy<Value = Vec<String>> {
    let mut words: Vec<String> =
        DIALECTS.iter().flat_map(|(_, d)| d.markers().into_iter().map(str::to_string)).collect();
    let more = [
        "ping",
        "write",
        "text",
        "{\"name\": \"ping\", \"arguments\": ",
        "{\"n\": 1}",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "'",
        "(",
        ")",
        "=",
        ",",
        ":",
        "\\",
        "\n",
        " ",
        "é",
        "😀",
        "functions.",
        "ping:0",
        "ping(n=1)",
        "write(",
        "analysis",
        " to=functions.ping ",
        "commentary",
        "final",
        "all",
        "<",
        ">",
        "</",
        "1.5",
        "true",
        "\"text\": ",
        "<parameter=text>",
        "n",
    ];
    words.extend(more.map(str::to_string));
    words.sort_unstable();
    words.dedup();
    prop::collection::vec(prop::sample::select(words), 0..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_text_in_any_cut_gives_the_same(words in soup(), cuts in prop::collection::vec(1usize..9, 1..12),
                                          cut_off: bool, single: bool) {
        let text = words.concat();
        let mut pieces = Vec::new();
        let (mut rest, mut cuts) = (text.as_str(), cuts.into_iter().cycle());
        while !rest.is_empty() {
            let n = cuts.next().unwrap();
            let end = rest.char_indices().nth(n).map_or(rest.len(), |(at, _)| at);
            let (piece, after) = rest.split_at(end);
            pieces.push(piece);
            rest = after;
        }
        for (family, _) in DIALECTS.iter() {
            let options = || Options { single, ..options() };
            let whole = read(family, &[&text], options(), cut_off);
            prop_assert_eq!(&read(family, &pieces, options(), cut_off), &whole, "{}", family);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            prop_assert_eq!(&read(family, &words, options(), cut_off), &whole, "{}", family);
        }
    }

    /// Without tools and without markers of reasoning a text is what it is.
    #[test]
    fn plain_text_is_not_touched(text in "[ -;=?-~\n\u{e9}]{0,60}") {
        let plain = Options::default();
        let (reasoning, content, calls) = read("hermes", &[&text], plain, false);
        prop_assert_eq!((reasoning.as_str(), content.as_str(), calls.len()), ("", text.as_str(), 0));
    }
}

#[test]
fn other_files_stand_before_the_prefix_by_their_names() {
    let gap = text_model::Gap { prefix: "p", suffix: "s", begun: "m" };
    let filled = |controls: &[&str]| {
        let text = text_model::TextModel::sample_with("", controls);
        let others = [(Some("a.c".to_string()), "x".to_string()), (None, "y".to_string())];
        let ids = text.encode_fill_in(&others, &gap).unwrap().unwrap();
        text.tokenizer().decode(&ids, true).unwrap().replace([' '], "").replace("<s>", "")
    };
    let fim = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"];
    let after = "<|fim_prefix|>p<|fim_suffix|>s<|fim_middle|>m";
    assert_eq!(filled(&fim), format!("<|file_sep|>a.c\nx\n<|file_sep|>y\n<|file_sep|>{after}"));
    let plain = "<|fim_prefix|>a.c\nx\ny\np<|fim_suffix|>s<|fim_middle|>m";
    assert_eq!(filled(&fim[..3]), plain);
    let none = text_model::TextModel::sample().encode_fill_in(&[], &gap);
    assert_eq!(none.unwrap(), None);
}
