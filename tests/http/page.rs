//! The page at `/` in a real browser: a chat is held, stopped and answered anew, the line is seen; by keyboard,
//! on a desk and on a phone, light and dark. Skipped where there is no Chromium.
//!
//! With `BRIGADE_PICTURES=FOLDER`, pictures are left there as base64 (`base64 -d desk-light.b64 > desk-light.png`).

use std::path::{Path, PathBuf};

use brigade_tests::browser::{self, Page};
use brigade_tests::process::Server;

/// The texts of messages by who wrote them.
fn texts(page: &mut Page, role: &str) -> Vec<String> {
    let all = format!(
        "[...document.querySelectorAll('#messages li.{role} .text')].map(e => e.innerText)"
    );
    serde_json::from_value(page.value(&all)).unwrap()
}

/// From now on answers begin and never end.
const ENDLESS: &str = "(() => {
    const asked = window.fetch;
    const begun = 'id: held/1.0\\ndata: {\"choices\": [{\"delta\": {\"content\": \"The sea\"}}]}\\n\\n';
    window.fetch = async (url, options) => {
        if (options?.method === 'DELETE') window.cancelled = url;
        if (options?.method !== 'POST') return asked(url, options);
        return new Response(new ReadableStream({ start(stream) {
            stream.enqueue(new TextEncoder().encode(begun));
            options.signal.addEventListener('abort', () => stream.error(new Error('aborted')));
        } }));
    };
})()";

const IDLE: &str = "!document.getElementById('send').hidden";

fn ask(page: &mut Page, text: &str) {
    page.wait(IDLE);
    page.value("document.getElementById('input').focus()");
    page.write(text);
    page.press("Enter");
}

fn keep(page: &mut Page, name: &str) {
    if let Some(folder) = std::env::var_os("BRIGADE_PICTURES") {
        let picture = page.picture();
        std::fs::write(PathBuf::from(folder).join(format!("{name}.b64")), picture).unwrap();
    }
}

/// The server's page, as soon as it takes a question.
fn ready(chromium: &Path, server: &Server) -> Page {
    let mut page = Page::open(chromium, &server.url("/"));
    page.wait("document.getElementById('state')?.textContent === 'ready'");
    page
}

fn a_chat_in_a_browser() {
    let Some(chromium) = browser::find() else {
        println!("skipped: this machine has no Chromium");
        return;
    };
    let server = Server::start(&["--workers", "2"]);
    let page = &mut ready(&chromium, &server);
    page.look(1200, 800, "light");

    ask(page, "In the beginning");
    answered(page, 1);
    let first = texts(page, "assistant");
    assert!(!first[0].trim().is_empty(), "{first:?}");
    assert_eq!(texts(page, "user"), ["In the beginning"]);

    // An answer is made again in its place.
    page.value("document.querySelector('#messages li.assistant .tools button').click()");
    page.wait(IDLE);
    assert_eq!((texts(page, "user").len(), texts(page, "assistant").len()), (1, 1));

    // An endless answer is stopped by the keyboard. Its text so far stays, and the server ends the request.
    page.value(ENDLESS);
    ask(page, "And it came to pass");
    page.wait(
        "document.querySelectorAll('#messages li.assistant')[1]?.innerText.includes('The sea')",
    );
    page.press("Escape");
    page.wait(IDLE);
    assert!(texts(page, "assistant")[1].contains("The sea"));
    assert_eq!(page.value("window.cancelled"), "/v1/streams/held");

    // The chat is still there when the page comes back.
    page.reload();
    page.wait("document.querySelectorAll('#messages li.assistant').length === 2");
    page.wait("document.getElementById('state')?.textContent === 'ready'");
    let said =
        page.value("[...document.querySelectorAll('#messages .error')].map(e => e.innerText)");
    assert_eq!(said, serde_json::json!(["stopped"]), "an answer that is not whole still says so");

    // The line.
    page.value("document.getElementById('show-line').click()");
    page.wait("document.querySelectorAll('#stages li').length === 2");
    let facts = page.value("document.getElementById('facts').innerText");
    assert!(facts.as_str().unwrap().contains("2 there"), "{facts}");
    keep(page, "desk-light");

    // On a phone nothing is wider than the screen, and all that can be pressed is large enough for a finger.
    page.look(390, 844, "dark");
    let width = page.value("document.documentElement.scrollWidth");
    assert!(width.as_u64().unwrap() <= 390, "{width}");
    let small = page.value(
        "[...document.querySelectorAll('header button, #send')].filter(b => b.offsetHeight < 40).length",
    );
    assert_eq!(small, 0);
    keep(page, "phone-dark");
    page.value("document.getElementById('show-line').click()");
    let below = "document.getElementById('ask').getBoundingClientRect().bottom - innerHeight";
    let below = page.value(below);
    assert!(
        below.as_f64().unwrap() <= 0.0,
        "the place to write is {below} pixels below the screen"
    );
    keep(page, "phone-chat-dark");
}

fn texts_of_models_never_become_markup() {
    let Some(chromium) = browser::find() else {
        println!("skipped: this machine has no Chromium");
        return;
    };
    let server = Server::start(&["--workers", "1"]);
    let page = &mut ready(&chromium, &server);
    let html = |page: &mut Page, text: &str| {
        let text = serde_json::Value::from(text);
        let expression = format!(
            "import('/markdown.js').then(({{ markdown }}) => {{
                 const div = document.createElement('div');
                 div.append(...markdown({text}));
                 div.querySelectorAll('.copy').forEach((b) => b.remove());
                 return div.innerHTML;
             }})"
        );
        page.value(&expression).as_str().unwrap().to_string()
    };
    for (text, want) in [
        ("a <b>b</b>", "<p>a &lt;b&gt;b&lt;/b&gt;</p>"),
        ("# T\n**b** *i* `c`", "<h2>T</h2><p><strong>b</strong> <em>i</em> <code>c</code></p>"),
        ("- a\n- b\n  - c", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul>"),
        (
            "```rs\nlet <x>\n```",
            "<pre data-language=\"rs\" tabindex=\"0\"><code>let &lt;x&gt;</code></pre>",
        ),
        ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"),
        (
            "|a|b|\n|-|-|\n|1|2|",
            "<table><thead><tr><th>a</th><th>b</th></tr></thead>\
            <tbody><tr><td>1</td><td>2</td></tr></tbody></table>",
        ),
    ] {
        assert_eq!(html(page, text), want, "{text}");
    }
}

fn texts_of_any_shape_are_shown() {
    let Some(chromium) = browser::find() else {
        println!("skipped: this machine has no Chromium");
        return;
    };
    let server = Server::start(&["--workers", "1"]);
    let page = &mut ready(&chromium, &server);
    for text in [
        "'>'.repeat(8000)",
        "'> - '.repeat(8000) + 'x'",
        "Array.from({ length: 8000 }, (_, i) => ' '.repeat(i) + '- a').join('\\n')",
        "'**a __b *c [d](http://e '.repeat(8000)",
        "'['.repeat(100000)",
        "'`'.repeat(20001)",
        "'a\\n'.repeat(150000)",
        "'a|b\\n' + ' '.repeat(8000) + '|'.repeat(8000) + 'x'",
    ] {
        let depth = page.value(&format!(
            "import('/markdown.js').then(({{ markdown }}) => {{
                 let [level, depth] = [markdown({text}), 0];
                 for (; level.length; depth += 1) level = level.flatMap((node) => [...(node.childNodes ?? [])]);
                 return depth;
             }})"
        ));
        let depth = depth.as_u64().unwrap();
        assert!((1..64).contains(&depth), "{text}: {depth} deep");
    }
}

fn an_answer_goes_on_after_a_reload() {
    let Some(chromium) = browser::find() else {
        println!("skipped: this machine has no Chromium");
        return;
    };
    let server = Server::start(&["--workers", "2", "--ctx", "4096"]);
    let page = &mut ready(&chromium, &server);
    let settings =
        "for (const [id, value] of [['max_tokens', 1200], ['temperature', 0], ['seed', 7]]) {
            document.getElementById(id).value = value;
            document.getElementById(id).dispatchEvent(new Event('change'));
        }";
    page.value(settings);
    ask(page, "And it came to pass");
    let begun = "(JSON.parse(localStorage.getItem('brigade-chat-' + JSON.parse(sessionStorage.getItem('brigade-current')))
            )?.at(-1)?.content?.length ?? 0) > 0";
    page.wait(begun);
    page.reload();
    page.wait("document.querySelectorAll('#messages li.assistant').length === 1");
    let at_reload = texts(page, "assistant")[0].len();
    page.wait(IDLE);
    let after = "JSON.parse(localStorage.getItem('brigade-chat-' + JSON.parse(sessionStorage.getItem('brigade-current'))))";
    let kept = page.value(after);
    let content = kept[1]["content"].as_str().unwrap().to_owned();
    assert_eq!(kept[1]["error"], serde_json::Value::Null, "{kept}");
    let body = serde_json::json!({
        "messages": [{ "role": "user", "content": "And it came to pass" }],
        "max_tokens": 1200, "temperature": 0, "seed": 7, "top_p": 0.95,
    });
    let whole: serde_json::Value =
        serde_json::from_str(&server.post("/v1/chat/completions", &body).body).unwrap();
    assert_eq!(whole["choices"][0]["message"]["content"], content, "nothing is lost or told twice");
    println!("{at_reload} characters were there after the reload, {} in the end", content.len());
}

fn several_chats_are_kept() {
    let Some(chromium) = browser::find() else {
        println!("skipped: this machine has no Chromium");
        return;
    };
    let server = Server::start(&["--workers", "1", "--ctx", "4096"]);
    let page = &mut ready(&chromium, &server);
    // Data that an earlier version of the page stored, with one chat and a text that is hard to show.
    page.value(
        "localStorage.setItem('brigade-chat', JSON.stringify([
             { role: 'user', content: 'The first' }, { role: 'assistant', content: '>'.repeat(8000) }]))",
    );
    page.value("sessionStorage.clear()");
    page.reload();
    page.wait("document.querySelectorAll('#messages li.assistant').length === 1");
    page.value("document.getElementById('max_tokens').value = 1000");
    page.value("document.getElementById('new').click()");
    assert_eq!(texts(page, "user"), Vec::<String>::new());
    ask(page, "The second");
    // It goes on while another chat is shown, and while that one is answered.
    page.value("document.getElementById('new').click()");
    page.value("document.getElementById('max_tokens').value = 8");
    ask(page, "The third");
    answered(page, 1);
    let titles = |page: &mut Page| -> Vec<String> {
        let all =
            "[...document.querySelectorAll('#kept button:first-child')].map(b => b.textContent)";
        let mut titles: Vec<String> = serde_json::from_value(page.value(all)).unwrap();
        titles.sort();
        titles
    };
    assert_eq!(titles(page), ["The first", "The second", "The third"]);
    let open = |page: &mut Page, title: &str| {
        let find = format!(
            "[...document.querySelectorAll('#kept button')].find(b => b.textContent === '{title}')"
        );
        page.value(&format!("{find}.click()"));
        assert_eq!(texts(page, "user"), [title]);
    };
    open(page, "The second");
    page.wait(IDLE);
    let second = texts(page, "assistant");
    assert!(!second[0].trim().is_empty(), "{second:?}");
    // All of them are there when the page comes back, and one can be thrown away.
    page.reload();
    page.wait("document.querySelectorAll('#messages li.assistant').length === 1");
    assert_eq!(texts(page, "assistant"), second);
    open(page, "The first");
    open(page, "The third");
    page.value("document.querySelector('#kept [aria-label=\"Delete The first\"]').click()");
    assert_eq!(titles(page), ["The second", "The third"]);
    keep(page, "chats");
}

/// Waits for so many answers, the last of them whole.
fn answered(page: &mut Page, n: usize) {
    page.wait(&format!("document.querySelectorAll('#messages li.assistant').length === {n}"));
    page.wait(IDLE);
}

/// Waits until a tab that did not ask for them shows these answers. It may read the last one again from its
/// beginning, and takes no question until then.
fn shows_whole(page: &mut Page, answers: &[String]) {
    let shown =
        "[...document.querySelectorAll('#messages li.assistant .text')].map(e => e.innerText)";
    page.wait(&format!("JSON.stringify({shown}) === {:?}", serde_json::json!(answers).to_string()));
    let kept = "JSON.parse(localStorage.getItem('brigade-chat-' + JSON.parse(sessionStorage.getItem('brigade-current'))))";
    page.wait(&format!("!{kept}.at(-1).under_way"));
    page.wait(IDLE);
}

fn an_answer_that_had_not_begun_is_asked_for_again() {
    let Some(chromium) = browser::find() else {
        println!("skipped: this machine has no Chromium");
        return;
    };
    let server = Server::start(&["--workers", "1"]);
    let page = &mut ready(&chromium, &server);
    // The page is left before the server has said anything.
    page.value("window.fetch = () => new Promise(() => {})");
    ask(page, "In the beginning");
    page.wait("document.querySelectorAll('#messages li.assistant').length === 1");
    page.reload();
    answered(page, 1);
    let answers = texts(page, "assistant");
    assert!(answers.len() == 1 && !answers[0].trim().is_empty(), "{answers:?}");
    assert_eq!(texts(page, "user"), ["In the beginning"]);
    // Another tab shows the chat in its present state, and an interrupted answer is not requested by both tabs.
    page.value("window.fetch = () => new Promise(() => {})");
    ask(page, "And then");
    let first = page.open_tab(&server.url("/"));
    page.wait("document.querySelectorAll('#messages .error').length === 1");
    assert_eq!(texts(page, "user"), ["In the beginning", "And then"]);
    page.show_tab(first);
}

fn two_tabs_keep_the_same_chat() {
    let Some(chromium) = browser::find() else {
        println!("skipped: this machine has no Chromium");
        return;
    };
    let server = Server::start(&["--workers", "1"]);
    let page = &mut ready(&chromium, &server);
    page.value("document.getElementById('max_tokens').value = 8");
    ask(page, "The first");
    answered(page, 1);
    let first = page.open_tab(&server.url("/"));
    page.wait("document.getElementById('state')?.textContent === 'ready'");
    page.value("document.getElementById('max_tokens').value = 8");
    ask(page, "The second");
    answered(page, 2);
    let answers = texts(page, "assistant");
    let second = page.show_tab(first);
    shows_whole(page, &answers);
    ask(page, "The third");
    answered(page, 3);
    let all = ["The first", "The second", "The third"];
    assert_eq!(texts(page, "user"), all);
    page.show_tab(second);
    answered(page, 3);
    page.reload();
    answered(page, 3);
    assert_eq!(texts(page, "user"), all);
}

fn what_is_kept_may_be_of_any_form_and_size() {
    let Some(chromium) = browser::find() else {
        println!("skipped: this machine has no Chromium");
        return;
    };
    let server = Server::start(&["--workers", "1"]);
    let page = &mut ready(&chromium, &server);
    for kept in
        ["7", "null", "{}", "[null, 7, {}]", "[{\"id\": 7}]", "[{\"id\": \"x\"}]", "no JSON"]
    {
        let kept = serde_json::Value::from(kept);
        page.value(&format!(
            "for (const key of ['brigade-chats', 'brigade-chat', 'brigade-chat-x', 'brigade-settings'])
                 localStorage.setItem(key, {kept});
             for (const key of ['brigade-current', 'brigade-page']) sessionStorage.setItem(key, {kept})"
        ));
        page.reload();
        page.wait("document.getElementById('state')?.textContent === 'ready'");
    }
    page.value("localStorage.clear()");
    page.value("document.getElementById('max_tokens').value = 8");
    for (text, n) in [("The first", 1), ("The second", 1)] {
        page.value("document.getElementById('new').click()");
        ask(page, text);
        page.wait(&format!("document.querySelectorAll('#messages li.assistant').length === {n}"));
        page.wait(IDLE);
    }
    // A chat that no browser has room for does not take that of the others.
    let kept = page.value(
        "import('/chats.js').then((chats) => {
             const before = localStorage.length;
             chats.keep({ id: 'large', messages: [{ role: 'user', content: 'x'.repeat(40e6) }] });
             return [localStorage.length - before, ...chats.list().map(({ id }) => chats.load(id)?.messages.length ?? 0)];
         })",
    );
    assert_eq!(kept, serde_json::json!([0, 2, 2]));
}

fn a_model_is_chosen_among_several() {
    let Some(chromium) = browser::find() else {
        println!("skipped: this machine has no Chromium");
        return;
    };
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let config = folder.join(format!("page-models-{}.toml", std::process::id()));
    let of = |name: &str| format!("[[model]]\nname = \"{name}\"\nworkers = 1\nload = \"demand\"\n");
    let text = format!("version = 1\n{}{}", of("first"), of("second"));
    std::fs::write(&config, text).unwrap();
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    let page = &mut ready(&chromium, &server);
    page.wait("document.getElementById('choose')?.hidden === false");
    let names = "[...document.querySelectorAll('#choose option')].map(e => e.value)";
    assert_eq!(page.value(names), serde_json::json!(["first", "second"]));
    page.value(
        "(() => {
            const choose = document.getElementById('choose');
            choose.value = 'second';
            choose.dispatchEvent(new Event('change'));
            document.getElementById('max_tokens').value = 8;
        })()",
    );
    ask(page, "In the beginning");
    answered(page, 1);
    let drawn = |model: &str| {
        server.metric(&format!("brigade_generated_tokens_total{{model=\"{model}\"}}"))
    };
    assert_eq!((drawn("first"), drawn("second")), (0.0, 8.0));
    // It is still chosen when the page comes back.
    page.reload();
    page.wait("document.getElementById('choose')?.value === 'second'");
    std::fs::remove_file(config).unwrap();
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        a_model_is_chosen_among_several,
        an_answer_goes_on_after_a_reload,
        an_answer_that_had_not_begun_is_asked_for_again,
        two_tabs_keep_the_same_chat,
        what_is_kept_may_be_of_any_form_and_size,
        several_chats_are_kept,
        a_chat_in_a_browser,
        texts_of_models_never_become_markup,
        texts_of_any_shape_are_shown;
];
