//! Conversations of every shape with templates of every kind: no text is lost, and nothing is refused that some
//! arrangement can hold.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::fit::{MAX_TRIED, MAX_TRIED_BYTES, RENDERED};
use super::sketch::bytes_of;
use crate::text_model::{Chat, TextModel};

/// Templates that want something of a conversation, or leave something out.
const STYLES: [(&str, &str); 17] = [
    (
        "parts by filter",
        "{% for m in messages %}<{{ m['role'] }}>{% for c in m['content'] | selectattr('type', 'equalto', 'text') %}\
         {{ c['text'] }}{% endfor %}<end>\n{% endfor %}{% if add_generation_prompt %}<ai>{% endif %}",
    ),
    (
        "parts by loop",
        "{% for m in messages %}{{ m['role'] | capitalize }}: {% for c in m['content'] %}{% if c['type'] == 'text' %}\
         {{ c['text'] }}{% elif c['type'] == 'image' %}<image>{% endif %}{% endfor %}<end>\n{% endfor %}\
         {% if add_generation_prompt %}Assistant:{% endif %}",
    ),
    (
        "parts of users only",
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'user' %}{% for c in m.content %}{{ c.text }}{% endfor %}\
         {% else %}{{ m.content + '' }}{% endif %}<end>{% endfor %}",
    ),
    (
        "parts of systems only",
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'system' %}{{ m.content[0].text }}\
         {% else %}{{ m.content + '' }}{% endif %}<end>{% endfor %}",
    ),
    (
        "parts, and texts are an error",
        "{% for m in messages %}{% if m.content is string %}{{ raise_exception('parts are needed') }}{% endif %}\
         <{{ m.role }}>{% for c in m.content %}{{ c.text }}{% endfor %}<end>{% endfor %}",
    ),
    (
        "parts of the first message only",
        "{% for m in messages %}<{{ m.role }}>{% if loop.first %}{% for c in m.content %}{{ c.text }}{% endfor %}\
         {% else %}{{ m.content if m.content is string else '' }}{% endif %}<end>{% endfor %}",
    ),
    (
        "one system message, first",
        "{%- for m in messages %}{%- if m.role == 'system' %}{%- if not loop.first %}\
         {{- raise_exception('a system message comes first') }}{%- endif %}{%- endif %}\
         {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}\
         {%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}",
    ),
    (
        "no system message, in turns",
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}\
         {% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}\
         {{ raise_exception('roles must alternate') }}{% endif %}\
         {{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\\n' + m['content'] | trim \
         + '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}",
    ),
    (
        "system messages are dropped",
        "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}<{{ m.role }}>{{ m.content }}</>{% endif %}\
         {% endfor %}",
    ),
    (
        "only the first system message is read",
        "{% if messages[0].role in ['system', 'developer'] %}<system>{{ messages[0].content }}</>{% endif %}\
         {% for m in messages %}{% if m.role in ['user', 'assistant'] %}<{{ m.role }}>{{ m.content }}</>{% endif %}\
         {% endfor %}",
    ),
    (
        "a user's question is needed",
        "{% if not messages | selectattr('role', 'equalto', 'user') | list %}{{ raise_exception('no user') }}{% endif %}\
         {% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}",
    ),
    (
        "only the last message is read",
        "{% for m in messages %}{% if m.role == 'user' and loop.last %}[INST] {{ m.content }} [/INST]\
         {% elif not loop.last %}<{{ m.role }}>{{ m.content }}</>{% endif %}{% endfor %}",
    ),
    (
        "no text beside calls",
        "{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}{% for c in m.tool_calls %}\
         {\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}{% endfor %}\
         {% else %}{{ m.content }}{% endif %}</>{% endfor %}",
    ),
    (
        "calls, but no results",
        "{% for m in messages %}{% if m.role != 'tool' %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}\
         <tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}</tool_call>\
         {% endfor %}</>{% endif %}{% endfor %}",
    ),
    (
        "results are read from their calls on",
        "{% for m in messages %}{% if m.role != 'tool' %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}\
         <tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}</tool_call>\
         {% endfor %}{% if m.tool_calls %}{% set ns = namespace(on=true) %}{% for r in messages[loop.index:] %}\
         {% if r.role != 'tool' %}{% set ns.on = false %}{% elif ns.on %}<result>{{ r.content }}</result>{% endif %}{% endfor %}\
         {% endif %}</>{% endif %}{% endfor %}",
    ),
    (
        "names of calls, and no arguments",
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}\
         call {{ c.function.name }}{% endfor %}</>{% endfor %}",
    ),
    (
        "results as JSON, all in capitals",
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'tool' %}{{ {'content': m.content} | tojson }}\
         {% else %}{{ m.content | upper }}{% endif %}</>{% endfor %}",
    ),
];

/// All templates that the tests have: name and source.
fn templates() -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> =
        STYLES.iter().map(|(name, source)| (name.to_string(), source.to_string())).collect();
    for folder in ["dialects", "templates"] {
        let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../tests/data");
        for entry in std::fs::read_dir(data.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "jinja") {
                let source = std::fs::read_to_string(&path).unwrap();
                all.push((path.file_stem().unwrap().to_string_lossy().into_owned(), source));
            }
        }
    }
    all
}

fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

fn call(id: &str, name: &str, word: &str) -> Value {
    let arguments = json!({ "word": word, "list": [1, "two\nlines"] });
    json!({ "id": id, "type": "function",
            "function": { "name": name, "arguments": arguments.to_string() } })
}

/// Conversations of all shapes, with the words that a prompt has to have.
fn conversations() -> Vec<(&'static str, Vec<Value>)> {
    let (s1, s2) = (message("system", "Sysone rules."), message("system", "Systwo rules."));
    let (u1, u2) = (message("user", "Userone asks."), message("user", "Usertwo asks."));
    let a1 = message("assistant", "Answerone.");
    let developer = message("developer", "Devword.");
    let calls = |content: &str, calls: Vec<Value>| json!({ "role": "assistant", "content": content, "tool_calls": calls });
    let result =
        |id: &str, text: &str| json!({ "role": "tool", "tool_call_id": id, "content": text });
    let (c1, c2) = (call("callid001", "lookup", "Argone"), call("callid002", "fetch", "Argtwo"));
    let (r1, r2) = (result("callid001", "Resultone 4\u{b0}"), result("callid002", "Resulttwo"));
    let mut more = of_words(&u1, &u2);
    more.extend(of_results(&u1, &a1, &u2, &c1, &calls, &r1, &r2));
    let mut all = vec![
        ("one user", vec![u1.clone()]),
        ("one system", vec![s1.clone(), u1.clone()]),
        ("two systems", vec![s1.clone(), s2.clone(), u1.clone()]),
        ("system and developer", vec![s1.clone(), developer.clone(), u1.clone()]),
        ("developer alone", vec![developer, u1.clone()]),
        ("a system in the middle", vec![u1.clone(), a1.clone(), s1.clone(), u2.clone()]),
        ("systems all over", vec![s1.clone(), u1.clone(), a1.clone(), s2.clone(), u2.clone()]),
        ("a system at the end", vec![u1.clone(), s1.clone()]),
        ("nothing but a system", vec![s1.clone()]),
        ("two users", vec![u1.clone(), u2.clone()]),
        ("system and two users", vec![s1.clone(), u1.clone(), u2.clone()]),
        (
            "two answers",
            vec![u1.clone(), a1.clone(), message("assistant", "Answertwo."), u2.clone()],
        ),
        ("an answer first", vec![a1.clone(), u1.clone()]),
        ("system and an answer first", vec![s1.clone(), a1.clone(), u1.clone()]),
        ("a call", vec![u1.clone(), calls("", vec![c1.clone()]), r1.clone()]),
        (
            "a call and more",
            vec![
                s1.clone(),
                u1.clone(),
                calls("", vec![c1.clone()]),
                r1.clone(),
                a1.clone(),
                u2.clone(),
            ],
        ),
        (
            "text beside a call",
            vec![u1.clone(), calls("Textbeside.", vec![c1.clone()]), r1.clone(), u2.clone()],
        ),
        (
            "two calls",
            vec![u1.clone(), calls("", vec![c1.clone(), c2.clone()]), r1.clone(), r2.clone()],
        ),
        (
            "text beside two calls",
            vec![s1, u1.clone(), calls("Textbeside.", vec![c1, c2]), r2, r1, a1, s2, u2],
        ),
    ];
    all.extend(more);
    all
}

/// Short texts, equal ones, and thoughts.
fn of_words(u1: &Value, u2: &Value) -> Vec<(&'static str, Vec<Value>)> {
    let [u1, u2] = [u1, u2].map(Value::clone);
    vec![
        (
            "short words",
            vec![message("user", "a"), message("assistant", "is"), message("user", "m")],
        ),
        (
            "one word twice",
            vec![message("user", "hi"), message("assistant", "hi"), message("user", "hi")],
        ),
        (
            "thoughts",
            vec![
                u1.clone(),
                json!({ "role": "assistant", "content": "Answerone.", "reasoning_content": "hm" }),
                u2.clone(),
            ],
        ),
    ]
}

/// Results of tools that do not stand behind their calls: those of users, of the assistant, and of tools.
fn of_results(
    u1: &Value,
    a1: &Value,
    u2: &Value,
    c1: &Value,
    calls: &dyn Fn(&str, Vec<Value>) -> Value,
    r1: &Value,
    r2: &Value,
) -> Vec<(&'static str, Vec<Value>)> {
    let [u1, a1, u2, c1, r1, r2] = [u1, a1, u2, c1, r1, r2].map(Value::clone);
    vec![
        ("a result alone", vec![u1.clone(), r1.clone(), u2.clone()]),
        ("a result first", vec![r1.clone(), u1.clone()]),
        ("a result behind an answer", vec![u1.clone(), a1.clone(), r1.clone(), u2.clone()]),
        (
            "a result before its call",
            vec![u1.clone(), r1.clone(), calls("", vec![c1.clone()]), u2.clone()],
        ),
        (
            "a result of a call that is no longer there",
            vec![u1.clone(), calls("", vec![c1.clone()]), r1.clone(), r2.clone(), u2.clone()],
        ),
        (
            "a question before the result",
            vec![u1.clone(), calls("", vec![c1.clone()]), u2.clone(), r1.clone()],
        ),
    ]
}

/// Every word that a conversation says.
fn words(messages: &[Value]) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut add = |text: &str| words.extend(text.split_whitespace().map(str::to_string));
    for message in messages {
        add(message["content"].as_str().unwrap());
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            add(call["function"]["name"].as_str().unwrap());
            let arguments = call["function"]["arguments"].as_str().unwrap();
            let arguments: Value = serde_json::from_str(arguments).unwrap();
            add(arguments["word"].as_str().unwrap());
        }
    }
    words
}

fn tools() -> Vec<Value> {
    let function = json!({ "name": "lookup", "description": "Tooldescription.", "parameters": {
        "type": "object", "properties": { "word": { "type": "string" } } } });
    vec![json!({ "type": "function", "function": function })]
}

fn prompt(model: &TextModel, messages: &[Value], tools: Vec<Value>) -> Result<String, String> {
    let extra = json!({ "documents": [], "controls": {} });
    let extra: Map<String, Value> = extra.as_object().unwrap().clone();
    let chat = Chat { messages: messages.to_vec(), tools, extra, ..Chat::default() };
    let prompt = model.encode_chat(&chat).map_err(|error| error.to_string())?;
    let text = model.tokenizer().decode(&prompt.tokens, true).unwrap();
    Ok(text.strip_prefix("<s> ").unwrap_or(&text).to_string())
}

#[test]
fn no_text_is_lost_and_nothing_refused() {
    let (mut n, mut wrong) = (0, Vec::new());
    let templates = templates();
    for (name, source) in &templates {
        let model = TextModel::sample_with(source, &[]);
        for (shape, messages) in conversations() {
            for tools in [Vec::new(), tools()] {
                n += 1;
                let has_tools = !tools.is_empty();
                let place = format!("{name}, {shape}, tools: {has_tools}");
                match prompt(&model, &messages, tools) {
                    Err(error) => wrong.push(format!("{place}: {error}")),
                    Ok(prompt) => {
                        let lower = prompt.to_lowercase();
                        let mut words = words(&messages);
                        words.extend(has_tools.then(|| "Tooldescription.".to_string()));
                        words.retain(|word| !lower.contains(&word.to_lowercase()));
                        if !words.is_empty() {
                            wrong.push(format!("{place}: {words:?} not in {prompt:?}"));
                        }
                    }
                }
            }
        }
    }
    println!("{n} conversations with {} templates, {} wrong", templates.len(), wrong.len());
    assert!(wrong.is_empty(), "{} wrong of {n}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(templates.len() >= 48 && n >= 2000);
}

/// A conversation whose texts are long, with its words at both ends of each.
fn long(mut messages: Vec<Value>, n_bytes: usize) -> Vec<Value> {
    for message in &mut messages {
        let text = message["content"].as_str().unwrap();
        if !text.is_empty() {
            message["content"] = json!(format!("{text} {} {text}", "filler ".repeat(n_bytes / 7)));
        }
    }
    messages
}

/// Bytes of a conversation.
fn size(messages: &[Value]) -> usize {
    messages.iter().map(bytes_of).sum()
}

/// How often conversations of at least `least` bytes were rendered, and the bytes of all.
fn rendered(least: usize) -> (usize, usize) {
    let all = RENDERED.take();
    (all.iter().filter(|bytes| **bytes >= least).count(), all.iter().sum())
}

/// Renderings of a conversation as it is: as the template reads it and with marks, each in two forms.
const AS_IT_IS: usize = 4;

#[test]
fn long_conversations_are_fitted_as_short_ones_are_in_few_renderings() {
    let (mut n, mut wrong, mut most) = (0, Vec::new(), 0);
    for (name, source) in &templates() {
        let model = TextModel::sample_with(source, &[]);
        for (shape, messages) in conversations() {
            n += 1;
            let short = prompt(&model, &messages, Vec::new()).unwrap();
            let n_texts = messages.iter().filter(|message| message["content"] != "").count();
            let n_bytes = MAX_TRIED_BYTES / n_texts;
            let messages = long(messages, n_bytes);
            assert!(size(&messages) > MAX_TRIED_BYTES);
            RENDERED.take();
            match prompt(&model, &messages, Vec::new()) {
                Err(error) => wrong.push(format!("{name}, {shape}: {error}")),
                Ok(text) => {
                    let words = words(&messages).into_iter();
                    let lost: Vec<String> = words
                        .filter(|word| !text.to_lowercase().contains(&word.to_lowercase()))
                        .collect();
                    let roles = |text: &str| text.matches("ssistant").count();
                    if !lost.is_empty() || roles(&text) != roles(&short) {
                        wrong.push(format!("{name}, {shape}: {lost:?} in {text:?}"));
                    }
                }
            }
            most = most.max(rendered(size(&messages) / 2).0);
        }
    }
    println!("{n} long conversations, {} wrong, at most {most} renderings", wrong.len());
    assert!(wrong.is_empty(), "{} wrong of {n}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(n >= 1000 && most <= AS_IT_IS * (1 + MAX_TRIED));
}

/// Templates that nothing fits: each for another reason.
const UNFIT: [(&str, &str); 5] = [
    ("refuses", "{{ raise_exception('never') }}"),
    ("writes nothing", "{{ bos_token }}"),
    ("cuts", "{% for m in messages %}{{ m.role }}{{ m.content[:100] }}{% endfor %}"),
    (
        "refuses what is long",
        "{% for m in messages %}{% if m.content | length > 9000 %}{{ raise_exception('long') }}{% endif %}\
         {{ m.role }}{{ m.content }}{% endfor %}",
    ),
    (
        "reads one of two forms and cuts",
        "{% for m in messages %}{{ m.role }}{% if m.content is string %}{{ m.content[:9000] }}{% else %}\
         {{ m.content[0].text[:9000] }}{% endif %}{% endfor %}",
    ),
];

#[test]
fn a_refusal_takes_a_few_renderings_at_most() {
    let turns = |n: usize, bytes: usize| -> Vec<Value> {
        let text = "word ".repeat(bytes / n / 5);
        let all = (0..n).map(|i| message(["user", "assistant"][i % 2], &format!("{i} {text}")));
        std::iter::once(message("system", "Be kind.")).chain(all).collect()
    };
    let mut calls = turns(101, 1 << 20);
    calls.insert(
        2,
        json!({ "role": "assistant", "content": "Look.", "tool_calls": [
        call("callid001", "lookup", &"a".repeat(9000)), call("callid002", "fetch", "b")] }),
    );
    let result =
        |id: &str| json!({ "role": "tool", "tool_call_id": id, "content": "r ".repeat(5000) });
    calls.splice(3..3, [result("callid001"), result("callid002")]);
    let mut worst = (0, 0.0);
    for (name, source) in UNFIT {
        let model = TextModel::sample_with(source, &[]);
        for messages in [turns(1, 1 << 20), turns(33, 1 << 20), turns(8001, 1 << 20), calls.clone()]
        {
            // The template's behaviour is probed once.
            model.dialect();
            RENDERED.take();
            if prompt(&model, &messages, Vec::new()).is_ok() {
                assert!(name.starts_with("refuses what") || name.starts_with("reads"), "{name}");
                continue;
            }
            let (times, bytes) = rendered(size(&messages) / 2);
            let times_its_size = bytes as f64 / size(&messages) as f64;
            worst = (times.max(worst.0), times_its_size.max(worst.1));
        }
    }
    let (times, bytes) = worst;
    println!("refusals | at most {times} renderings, {bytes:.2} times the conversation's bytes");
    assert!(times <= AS_IT_IS * (1 + MAX_TRIED), "{times}");
    assert!(bytes <= (AS_IT_IS * (1 + MAX_TRIED)) as f64 + 0.5, "{bytes}");
}

fn of(source: &str, messages: &[Value]) -> Result<String, String> {
    prompt(&TextModel::sample_with(source, &[]), messages, Vec::new())
}

#[test]
fn what_no_arrangement_holds_is_an_error_that_quotes_the_text() {
    let dropped =
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";
    let error = of(
        dropped,
        &[message("user", "x"), message("assistant", "Lost words."), message("user", "y")],
    );
    let error = error.unwrap_err();
    assert!(error.contains("leaves out the text") && error.contains("Lost words."), "{error}");
    let nothing = "{{ bos_token }}";
    let error = of(nothing, &[message("user", "x")]).unwrap_err();
    assert!(error.contains("message 0") && error.contains("\"x\""), "{error}");
    let cut = "{% for m in messages %}{{ m.content[:10] }}{% endfor %}";
    assert!(of(cut, &[message("user", "one two three four")]).is_err(), "a part is lost");
    let refused = "{{ raise_exception('never') }}";
    assert!(of(refused, &[message("user", "x")]).unwrap_err().contains("never"));
}

#[test]
fn who_looks_at_a_prompt_sees_what_is_left_out() {
    let model = TextModel::sample_with("{{ '%s-%d' % (messages[0].role, 1) }}", &[]);
    let messages = vec![message("user", "x")];
    let chat = |is_shown| Chat { messages: messages.clone(), is_shown, ..Chat::default() };
    let prompt = model.encode_chat(&chat(true)).unwrap();
    let text = model.tokenizer().decode(&prompt.tokens, true).unwrap();
    assert!(text.ends_with("user-1"), "{text}");
    assert!(model.encode_chat(&chat(false)).is_err(), "an answer is not made of it");
}

#[test]
fn what_a_template_takes_is_given_to_it_as_it_is() {
    let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let messages = [
        message("system", "a"),
        message("user", "b"),
        message("user", "c"),
        message("system", "d"),
    ];
    assert_eq!(of(source, &messages).unwrap(), "<system>a<user>b<user>c<system>d");
    // Here the forms of contents are the same for the model, and a text is the plainer one.
    let both = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}[{% for c in m.content %}\
                {{ c.text }}{% endfor %}]{% endif %}{% endfor %}";
    assert_eq!(of(both, &[message("user", "b")]).unwrap(), "b");
}

#[test]
fn a_system_message_goes_where_the_template_takes_it() {
    let style = |name: &str| STYLES.iter().find(|(style, _)| *style == name).unwrap().1;
    let messages = [message("system", "Alpha."), message("system", "Beta."), message("user", "hi")];
    assert_eq!(
        of(style("one system message, first"), &messages).unwrap(),
        "<|im_start|>system\nAlpha.\n\nBeta.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(
        of(style("no system message, in turns"), &messages).unwrap(),
        "<start_of_turn>user\nAlpha.\n\nBeta.\n\nhi<end_of_turn>\n<start_of_turn>model\n"
    );
}

#[test]
fn ids_that_stand_for_names_have_them() {
    let source = include_str!("../../../../tests/data/dialects/kimi.jinja");
    let call = json!({ "role": "assistant", "content": "", "tool_calls": [
        { "id": "toolu_1", "function": { "name": "look", "arguments": "{}" } },
        { "id": "functions.ping:7", "function": { "name": "ping", "arguments": "{}" } }] });
    let prompt = of(source, &[message("user", "x"), call]).unwrap();
    assert!(prompt.contains("<|tool_call_begin|>functions.look:0<"), "{prompt}");
    assert!(prompt.contains("<|tool_call_begin|>functions.ping:7<"), "{prompt}");
}
