//! Documents: their lengths and links, the completeness of the manual, and that command lines do what the text says.
//! A fenced block of `sh` is run, line by line, against real processes; words behind `sh` name the machines that it
//! runs on. A block of `sh not-run` is not. A block whose second word is a file's name, such as `toml three.toml`, is
//! that file, on the machines that are named behind it.
//!
//! Each page has a folder, and each machine of it one within: its home, its data, its files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use brigade_tests::documents::{Block, HERE, anchors, documents, links, parted, plain, root};
use brigade_tests::process::{Running, brigade, get, post_with};
use brigade_tests::up_share::free_address;

/// Longest documents at the root: lines, words.
const LONGEST: [(&str, usize, usize); 2] =
    [("README.md", 150, 1500), ("ARCHITECTURE.md", 250, 3500)];
/// The pages for newcomers: every command line of these is run.
const ALL_RUN: [&str; 3] = ["README.md", "docs/quickstart.md", "docs/cluster.md"];
/// Histories, whose commands are those of their time.
const OF_THEIR_TIME: [&str; 2] = ["CHANGELOG.md", "tests/benches/history/"];
/// The page that explains the program's messages.
const MESSAGES: &str = "docs/troubleshooting.md";
/// How each page of the manual begins, behind its heading.
const PROMISE: &str = "After this page you ";
/// Beginnings of lines that are not run, with the reasons.
const LEFT_OUT: [(&str, &str); 3] = [
    ("install ", "it writes to the system's folders"),
    ("cargo build ", "the binary that is run here was built so"),
    ("cargo test ", "this test is run so"),
];
/// Model that stands for `model.gguf`: small, random, of a known architecture.
const MODEL: [&str; 5] = ["synth", "--arch", "llama", "--size", "tiny"];
/// Machines that have no `model.gguf`: they are sent their layers.
const WITHOUT_MODEL: [&str; 2] = ["lab", "attic"];
/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Fails with the whole list when there is one.
fn none(rule: &str, violations: &[String]) {
    assert!(violations.is_empty(), "{rule}:\n  {}", violations.join("\n  "));
}

fn what_is_read_first_is_short() {
    let mut long = Vec::new();
    for (name, most_lines, most_words) in LONGEST {
        let text = fs::read_to_string(root().join(name)).unwrap();
        let (lines, words) = (text.lines().count(), text.split_whitespace().count());
        if lines > most_lines || words > most_words {
            long.push(format!(
                "{name}: {lines} lines, {words} words; at most {most_lines}, {most_words}"
            ));
        }
    }
    none("move something of these to a page of docs", &long);
}

fn links_lead_to_what_is_there() {
    let documents = documents();
    let mut broken = Vec::new();
    for (name, text) in &documents {
        let folder = Path::new(name).parent().unwrap();
        for (at, line) in parted(text).1 {
            for link in links(line).filter(|link| !link.contains("://")) {
                let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
                let target = if file.is_empty() { name.into() } else { plain(&folder.join(file)) };
                if !root().join(&target).exists() {
                    broken.push(format!("{name}:{at}: {link}: there is no {}", target.display()));
                } else if !anchor.is_empty() {
                    let there = documents.get(&*target.to_string_lossy());
                    if !there.is_some_and(|text| anchors(text).contains(anchor)) {
                        broken.push(format!("{name}:{at}: {link}: no such heading"));
                    }
                }
            }
        }
    }
    none("links to nothing", &broken);
}

fn every_page_is_in_the_manual_and_says_what_it_is_good_for() {
    let documents = documents();
    let summary = &documents["docs/SUMMARY.md"];
    let listed: BTreeSet<&str> = summary.lines().flat_map(links).collect();
    let mut wrong = Vec::new();
    for (name, text) in &documents {
        let Some(page) = name.strip_prefix("docs/").filter(|page| *page != "SUMMARY.md") else {
            continue;
        };
        if !listed.contains(page) {
            wrong.push(format!("{name}: docs/SUMMARY.md does not list it"));
        }
        let mut paragraphs = text.split("\n\n");
        if !paragraphs.next().is_some_and(|first| first.starts_with("# ")) {
            wrong.push(format!("{name}: it does not begin with a heading"));
        }
        if !paragraphs.next().is_some_and(|second| second.starts_with(PROMISE)) {
            wrong.push(format!("{name}: no `{PROMISE}...` behind its heading"));
        }
    }
    none("pages of the manual", &wrong);
}

/// The program's sources in one, with texts that go on in the next line put together.
fn sources() -> String {
    let (mut text, crates) = (String::new(), ["coordinator", "worker", "proto", "engine"]);
    let mut folders: Vec<PathBuf> = crates.iter().map(|name| root().join(name)).collect();
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let code = fs::read_to_string(&path).unwrap();
                let mut pieces = code.split("\\\n");
                text.push_str(pieces.next().unwrap_or_default());
                pieces.for_each(|piece| text.push_str(piece.trim_start()));
            }
        }
    }
    text
}

fn messages_that_are_explained_are_the_programs() {
    let (page, sources) = (fs::read_to_string(root().join(MESSAGES)).unwrap(), sources());
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let messages: Vec<&str> = cells.flat_map(|cell| cell.split('`').step_by(2)).collect();
    assert!(messages.len() > 10, "{messages:?}");
    let parts = messages.iter().flat_map(|message| message.split("...")).map(str::trim);
    let unknown = parts.filter(|part| !sources.contains(part)).map(str::to_owned);
    none(&format!("{MESSAGES}: nothing says this"), &unknown.collect::<Vec<_>>());
}

/// With this, every command line is run by a test below, or its block says that it is not.
fn command_lines_stand_in_blocks_that_are_run_or_say_that_they_are_not() {
    let mut wrong = Vec::new();
    for (name, text) in documents() {
        if OF_THEIR_TIME.iter().any(|old| name.starts_with(old)) {
            continue;
        }
        let (blocks, prose) = parted(&text);
        let is_command = |line: &str| {
            ["brigade ", "cargo ", "curl "].iter().any(|program| line.starts_with(program))
        };
        let indented = prose.iter().filter_map(|(at, line)| Some((at, line.strip_prefix("    ")?)));
        for (at, line) in indented.filter(|(_, line)| is_command(line)) {
            wrong.push(format!("{name}:{at}: put it into a block of `sh`: {line}"));
        }
        for block in &blocks {
            let commands = block.commands();
            if !block.is_shell() && commands.iter().any(|line| is_command(line)) {
                wrong.push(format!("{name}:{}: call this block `sh`", block.first));
            }
            if block.is_shell() && !block.is_run() && ALL_RUN.contains(&name.as_str()) {
                wrong.push(format!("{name}:{}: every block here must be run", block.first));
            }
        }
    }
    none("command lines", &wrong);
}

fn the_readme_does_what_it_says() {
    run_page("README.md");
}

fn the_quickstart_does_what_it_says() {
    run_page("docs/quickstart.md");
}

fn the_cluster_does_what_it_says() {
    run_page("docs/cluster.md");
}

fn other_pages_do_what_they_say() {
    let documents = documents();
    let others = documents.keys().filter(|name| !ALL_RUN.contains(&name.as_str()));
    for name in others.filter(|name| !OF_THEIR_TIME.iter().any(|old| name.starts_with(old))) {
        run_page(name);
    }
}

/// Runs a page's blocks from top to bottom.
fn run_page(name: &str) {
    let text = fs::read_to_string(root().join(name)).unwrap();
    let (blocks, _) = parted(&text);
    if !blocks.iter().any(Block::is_run) {
        return;
    }
    let mut page = Page::new(name);
    for block in &blocks {
        if let Some(file) = block.info.get(1).filter(|file| file.contains('.')) {
            // Words behind its name are the machines that have it.
            let named: Vec<&str> = block.info.iter().skip(2).map(String::as_str).collect();
            let machines = if named.is_empty() { vec![HERE] } else { named };
            for machine in machines {
                let text = page.with_own_addresses(&block.lines.join("\n"));
                fs::write(page.folder(machine).join(file), text).unwrap();
            }
        }
        for line in block.is_run().then(|| block.commands()).into_iter().flatten() {
            for machine in block.machines() {
                page.run(&format!("{name}:{}", block.first), machine, &line);
            }
        }
    }
}

/// Whether this machine has curl.
fn has_curl() -> bool {
    Command::new("curl").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Asks what a line of curl asks, by this test's own client: an address, a body, at most one header that counts.
fn without_curl(place: &str, line: &str) {
    // Words in single quotes stand whole at odd places.
    let quoted = line.split('\'').enumerate();
    let words: Vec<&str> = quoted
        .flat_map(
            |(at, text)| {
                if at % 2 == 1 { vec![text] } else { text.split_whitespace().collect() }
            },
        )
        .collect();
    let behind = |option| words.iter().position(|w| *w == option).and_then(|at| words.get(at + 1));
    let url = words.iter().find(|word| word.starts_with("http")).expect("an address");
    if url.starts_with("https") {
        println!("{place}: SKIPPED, since there is no curl here: {line}");
        return;
    }
    let (header, value) =
        behind("-H").and_then(|h| h.split_once(": ")).unwrap_or(("accept", "*/*"));
    let reply = match behind("-d") {
        Some(body) => post_with(url, body, header, value),
        None => get(url),
    };
    let reply = reply.unwrap_or_else(|e| panic!("{place}: {line}: {e}"));
    assert_eq!(reply.status, 200, "{place}: {line}: {}", reply.body);
}

/// A page that is being run.
struct Page {
    /// Holds a folder for each machine.
    dir: PathBuf,
    /// Texts of the page, with their replacements.
    table: Vec<(&'static str, String)>,
    /// Servers and workers by machine and command. One that is started again takes the place of the one before.
    running: BTreeMap<(String, &'static str), Running>,
}

impl Page {
    fn new(name: &str) -> Self {
        let of = format!("brigade-documents-{}-{}", std::process::id(), name.replace('/', "-"));
        let dir = std::env::temp_dir().join(of);
        // Remains of a test that was killed.
        let _ = fs::remove_dir_all(&dir);
        let https = free_address();
        let port = https.rsplit(':').next().unwrap_or_default();
        let table = vec![
            ("cargo run --release -- ", "brigade ".to_owned()),
            ("10.0.0.1:7000", free_address()),
            ("10.0.0.1:7070", free_address()),
            ("10.0.0.2:7070", free_address()),
            ("10.0.0.3:7070", free_address()),
            ("127.0.0.1:8080", free_address()),
            ("0.0.0.0:8443", format!("0.0.0.0:{port}")),
            ("localhost:8443", format!("localhost:{port}")),
        ];
        Self { dir, table, running: BTreeMap::new() }
    }

    /// A machine's folder, with the files that the page assumes.
    fn folder(&self, machine: &str) -> PathBuf {
        let folder = self.dir.join(machine);
        if !folder.exists() {
            fs::create_dir_all(&folder).unwrap();
            if !WITHOUT_MODEL.contains(&machine) {
                let model = folder.join("model.gguf");
                let made = Command::new(brigade()).args(MODEL).arg("--out").arg(model).output();
                assert!(made.unwrap().status.success(), "the model cannot be made");
            }
            let pair = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
            fs::write(folder.join("server.crt"), pair.cert.pem()).unwrap();
            fs::write(folder.join("server.key"), pair.signing_key.serialize_pem()).unwrap();
        }
        folder
    }

    /// A shell's command on a machine.
    fn shell(&self, machine: &str, line: &str) -> Command {
        let folder = self.folder(machine);
        let binaries = brigade().parent().unwrap().to_path_buf();
        let before = std::env::var_os("PATH").unwrap_or_default();
        let path = [binaries].into_iter().chain(std::env::split_paths(&before));
        let mut command = Command::new("sh");
        command.args(["-c", line]).env("PATH", std::env::join_paths(path).unwrap());
        command.env_remove("BRIGADE_DATA_DIR").env_remove("XDG_CACHE_HOME").env("HOME", &folder);
        command.current_dir(folder).stdin(Stdio::null());
        command
    }

    /// Runs one command line.
    fn run(&mut self, place: &str, machine: &str, line: &str) {
        if let Some((_, why)) = LEFT_OUT.iter().find(|(begin, _)| line.starts_with(begin)) {
            println!("{place}: left out, since {why}: {line}");
            return;
        }
        let line = self.put_in(machine, line);
        println!("{place}: {machine}$ {line}");
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["brigade", "serve", ..] => {
                self.start(machine, "serve", "brigade serve listening on ", &line)
            }
            ["brigade", "worker", ..] => {
                self.start(machine, "worker", "brigade worker ready on ", &line)
            }
            ["curl", ..] | ["brigade", "cluster" | "chat", ..] => {
                self.wait_up(place);
                if words[0] == "curl" && !has_curl() {
                    without_curl(place, &line)
                } else {
                    self.finish(place, machine, &line)
                }
            }
            ["brigade" | "echo", ..] => self.finish(place, machine, &line),
            _ => panic!("{place}: neither run nor left out by name: {line}"),
        }
    }

    /// A text of the page with what takes the place of what stands there.
    fn with_own_addresses(&self, text: &str) -> String {
        self.table.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    /// The line as it is run.
    fn put_in(&self, machine: &str, line: &str) -> String {
        let mut line = self.with_own_addresses(line);
        // Properties that differ between real machines are set here by options.
        let at = ["desk", "lab", "attic"].iter().position(|name| *name == machine);
        if let (true, Some(at)) = (line.starts_with("brigade worker --"), at) {
            let listen = &self.table[2 + at].1;
            line.push_str(&format!(" --listen {listen} --name {machine} --threads 1"));
        }
        // No cluster is made for workers of the same machine, unless a data folder is named.
        let is_cluster = line.contains("--control") || line.contains("--config");
        if line.starts_with("brigade serve") && is_cluster {
            line.push_str(" --data-dir ~/.local/share/brigade");
        }
        line.replacen("curl ", "curl -sS --fail-with-body --max-time 60 ", 1)
    }

    /// Starts what runs on, and waits until it says that it is ready.
    fn start(&mut self, machine: &str, command: &'static str, ready: &'static str, line: &str) {
        let key = (machine.to_owned(), command);
        if let Some(old) = self.running.remove(&key) {
            old.stop(PATIENCE);
        }
        let started = Running::spawn(
            self.shell(machine, &format!("unset XDG_DATA_HOME; exec {line}")),
            ready,
        );
        self.running.insert(key, started);
    }

    /// Runs what ends, and must end well.
    fn finish(&mut self, place: &str, machine: &str, line: &str) {
        let output = self.shell(machine, &format!("unset XDG_DATA_HOME; {line}")).output().unwrap();
        let Output { status, stdout, stderr } = &output;
        let (said, errors) = (String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr));
        assert!(status.success(), "{place}: {line}\n{said}\n{errors}");
        let last = said.split_whitespace().last().unwrap_or_default();
        let shown = [("token create", "brg1_3f62..."), ("key create", "bgd-5c1f...")];
        for (_, example) in shown.iter().filter(|(command, _)| line.contains(command)) {
            // The first one is that of the page.
            if !self.table.iter().any(|(from, _)| from == example) {
                self.table.push((example, last.to_owned()));
            }
        }
    }

    /// Waits until every server of the page has a line.
    fn wait_up(&self, place: &str) {
        let begin = Instant::now();
        let servers = self.running.iter().filter(|((_, command), _)| *command == "serve");
        for ((machine, _), server) in servers {
            let health = format!("{}/health", server.admin());
            while !get(&health).is_ok_and(|reply| reply.status == 200) {
                assert!(begin.elapsed() < PATIENCE, "{place}: {machine}'s line does not come up");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.running.clear();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        the_cluster_does_what_it_says,
        other_pages_do_what_they_say,
        the_quickstart_does_what_it_says,
        the_readme_does_what_it_says,
        command_lines_stand_in_blocks_that_are_run_or_say_that_they_are_not,
        every_page_is_in_the_manual_and_says_what_it_is_good_for,
        links_lead_to_what_is_there,
        messages_that_are_explained_are_the_programs,
        what_is_read_first_is_short;
];
