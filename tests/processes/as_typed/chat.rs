//! `brigade chat`, used by a person and by a pipe: with a server, and over a line of its own.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use brigade_tests::process::{Server, get, run};
use brigade_tests::talker::Talker;
use serde_json::{Value, json};

/// Tokens of a short answer.
const SHORT: &str = "max_tokens=8";

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("brigade-chat-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// The counts of an answer: tokens of the prompt, and those of them that were reused.
fn counts(remarks: &str) -> Vec<(u32, u32)> {
    let after = |line: &str, word: &str| -> u32 {
        let digits = line.split(word).nth(1).unwrap().trim_start();
        digits.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    let figures = remarks.lines().filter(|line| line.contains("; prompt "));
    figures.map(|line| (after(line, "; prompt "), after(line, "reused "))).collect()
}

fn running(server: &Server) -> usize {
    let slots: Value = serde_json::from_str(&get(&server.url("/slots")).unwrap().body).unwrap();
    slots.as_array().unwrap().iter().filter(|slot| slot["is_processing"] == true).count()
}

fn a_pipe_chats_with_a_server_line_by_line() {
    let server = Server::start(&["--workers", "2"]);
    let url = server.url("/v1");
    let args = ["--url", &url, "--set", "temperature=0", "--set", SHORT, "--system", "Speak."];
    let mut talk = Talker::piped(&args);
    let saved = folder("pipe").join("chat.json");
    talk.types("In the\\\nbeginning\n/nonsense\nAnd then?\n/regen\n");
    talk.types(&format!("/save {}\n", saved.display()));
    assert!(talk.ends().success());

    let file: Value = serde_json::from_slice(&std::fs::read(&saved).unwrap()).unwrap();
    let messages = file["messages"].as_array().unwrap();
    let content = |i: usize| messages[i]["content"].as_str().unwrap();
    assert_eq!((messages.len(), content(0), content(1)), (5, "Speak.", "In the\nbeginning"));
    assert_eq!(content(3), "And then?");
    // The answers are those that any client gets, and nothing else is on standard output.
    let answer = |n: usize| {
        server.chat(&json!({ "messages": messages[..n], "temperature": 0, "max_tokens": 8 }))
    };
    assert_eq!((content(2), content(4)), (answer(2).as_str(), answer(4).as_str()));
    let line =
        |text: &str| if text.ends_with('\n') { text.to_string() } else { format!("{text}\n") };
    let expected = [content(2), content(4), content(4)].map(line).concat();
    assert_eq!(talk.out(), expected);

    let remarks = talk.remarks();
    assert!(remarks.contains("/nonsense is not a command"), "{remarks}");
    assert!(remarks.contains("tokens/s") && !remarks.contains('\x1b'), "{remarks}");
    let counts = counts(&remarks);
    assert!(counts.len() == 3 && counts[0].1 == 0, "{remarks}");
    assert!(counts[1].1 > 0 && counts[2].1 > 0, "the second turn begins where the first ended");
    std::fs::remove_dir_all(saved.parent().unwrap()).unwrap();
}

fn ctrl_c_ends_an_answer_and_the_chat_goes_on() {
    let server = Server::start(&["--workers", "1"]);
    let url = server.url("");
    let mut talk =
        Talker::piped(&["--url", &url, "--set", "max_tokens=900", "--set", "ignore_eos=true"]);
    talk.types("In the beginning\n");
    talk.wait_out("an answer's begin", |out| out.len() > 8);
    talk.interrupt();
    talk.wait_remarks("the end of the answer", |remarks| remarks.contains("stopped"));
    let deadline = Instant::now() + Duration::from_secs(10);
    while running(&server) > 0 {
        assert!(Instant::now() < deadline, "the server computes on");
        std::thread::sleep(Duration::from_millis(20));
    }
    let before = talk.out().len();
    talk.types("/set max_tokens 4\nGo on\n");
    talk.wait_remarks("another answer", |remarks| remarks.contains("4 tokens"));
    assert!(talk.out().len() > before);
    // While nothing is answered, it ends the program, as it ends any other that reads a pipe.
    talk.interrupt();
    assert_eq!(talk.waits_for_the_end().code(), Some(130));
}

fn somebody_chats_at_a_terminal_over_a_line_of_their_own() {
    let data = folder("terminal");
    let mut talk = Talker::at_a_terminal(&["chat", "--workers", "1", "--temp", "0"], &data);
    talk.wait_out("the greeting", |out| out.contains("/help"));
    talk.line("/set max_tokens 6\r");
    talk.line("In the beginning\r");
    talk.wait_out("an answer", |out| counts(out).len() == 1);
    // The up key brings back what was typed.
    talk.line("\x1b[A\r");
    talk.wait_out("the same again", |out| counts(out).len() == 2);
    assert!(counts(&talk.out())[1].1 > 0, "{}", talk.out());
    // Several lines in one message.
    talk.line("\"\"\"And God\rsaid\"\"\"\r");
    talk.wait_out("a third answer", |out| counts(out).len() == 3);
    // Ctrl-C throws away what stands there, and ends an answer.
    talk.line("never mind\x03");
    talk.wait_out("what ends the chat", |out| out.contains("Ctrl-D or /exit"));
    talk.line("/set max_tokens 900\r");
    talk.line("/set ignore_eos true\r");
    let before = talk.out().len();
    talk.line("And it came to pass\r");
    talk.wait_out("some words", |out| out.len() > before + 400);
    talk.types("\x03");
    talk.wait_out("the end of the answer", |out| out.contains("stopped"));
    talk.line("/clear\r");
    talk.line("/set max_tokens 3\r");
    talk.line("Amen\r");
    talk.wait_out("a short answer", |out| counts(out).len() == 4);
    talk.line("\x04");
    assert!(talk.waits_for_the_end().success(), "{}", talk.out());

    let history = std::fs::read_to_string(data.join("chat-history")).unwrap();
    assert!(history.contains("In the beginning") && history.contains("Amen"), "{history}");
    assert!(history.contains("And God\\nsaid"), "{history}");
    std::fs::remove_dir_all(data).unwrap();
}

fn what_is_typed_during_an_answer_is_said_after_it() {
    let data = folder("early");
    let args = ["chat", "--workers", "1", "--set", "max_tokens=250", "--set", "ignore_eos=true"];
    let mut talk = Talker::at_a_terminal(&args, &data);
    talk.wait_out("the greeting", |out| out.contains("/help"));
    talk.line("In the beginning\r");
    let before = talk.out().len();
    talk.wait_out("some words", |out| out.len() > before + 100);
    // A whole message, and one whose end comes later.
    talk.types("Typed early\nAnd ha");
    talk.wait_out("the answer", |out| counts(out).len() == 1);
    talk.types("lf of it\n");
    talk.wait_out("the answer to the early one", |out| counts(out).len() == 2);
    talk.wait_out("the answer to the last one", |out| counts(out).len() == 3);
    talk.line("\x04");
    assert!(talk.waits_for_the_end().success(), "{}", talk.out());
    let history = std::fs::read_to_string(data.join("chat-history")).unwrap();
    assert!(history.contains("Typed early\nAnd half of it\n"), "{history}");
    std::fs::remove_dir_all(data).unwrap();
}

fn run_without_a_prompt_chats_too() {
    let data = folder("run");
    let args = ["run", "--chat", "--workers", "1", "-n", "5", "--temp", "0"];
    let mut talk = Talker::at_a_terminal(&args, &data);
    talk.wait_out("the greeting", |out| out.contains("/help"));
    talk.line("Who is he?\r");
    talk.wait_out("an answer", |out| out.contains("5 tokens"));
    talk.line("/exit\r");
    assert!(talk.waits_for_the_end().success());
    std::fs::remove_dir_all(data).unwrap();
}

fn what_the_server_refuses_is_told_and_does_not_stay() {
    let server = Server::start(&["--workers", "1", "--ctx", "64"]);
    let url = server.url("");
    let mut talk = Talker::piped(&["--url", &url, "--set", SHORT]);
    talk.types(&format!("{}\nGo\n/set temperature hot\nGo\n", "word ".repeat(200)));
    assert!(talk.ends().success());
    let remarks = talk.remarks();
    assert_eq!(remarks.matches("error: ").count(), 2, "{remarks}");
    assert!(remarks.contains("send it again") && remarks.contains("temperature"), "{remarks}");
    assert_eq!(counts(&remarks).len(), 1, "{remarks}");

    let nobody = run(&["chat", "--url", "http://127.0.0.1:9"]);
    let said = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(!nobody.status.success() && said.contains("cannot reach http://127.0.0.1:9"), "{said}");
    let other = run(&["chat", "--url", &url, "--model-name", "x"]);
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(!other.status.success() && said.contains("--model-name x: the server has"), "{said}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        a_pipe_chats_with_a_server_line_by_line,
        ctrl_c_ends_an_answer_and_the_chat_goes_on,
        somebody_chats_at_a_terminal_over_a_line_of_their_own,
        what_is_typed_during_an_answer_is_said_after_it,
        run_without_a_prompt_chats_too,
        what_the_server_refuses_is_told_and_does_not_stay;
];
