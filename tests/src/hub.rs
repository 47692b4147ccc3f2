//! A hub on loopback that behaves like the real ones: Hugging Face's interface, Ollama's registry, plain addresses, and a
//! second host that sends the files, with ETags and ranges. It can misbehave in the ways that are seen outside.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

/// Where the second host is: another address of loopback.
pub const SECOND_HOST: &str = "127.0.0.2";

/// The token that this hub accepts.
pub const TOKEN: &str = "hf_the_token_of_the_tests";

/// A file of the hub.
#[derive(Clone, Debug)]
pub struct File {
    /// The hash in the hub's listing.
    pub sha256: String,
    /// The length in the hub's listing.
    pub listed: u64,
    /// The bytes that the second host sends.
    pub bytes: Arc<Vec<u8>>,
    /// The ETag that the second host sends.
    pub etag: String,
}

impl File {
    /// A file whose listing is right.
    pub fn new(bytes: Vec<u8>) -> Self {
        let sha256 = sha256(&bytes);
        Self {
            listed: bytes.len() as u64,
            etag: format!("\"{}\"", &sha256[..12]),
            sha256,
            bytes: Arc::new(bytes),
        }
    }
}

/// How the hub behaves.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Mood {
    /// The hub behaves well.
    #[default]
    Good,
    /// Terms have to be accepted.
    Gated,
    /// The answer for a private repository and for a missing one, which are not told apart.
    Private,
    /// The token is refused.
    BadToken,
    /// The listing knows a file that is not there.
    Gone,
    /// The hub answers with an HTML page instead of the requested file.
    Page,
    /// A page in the place of the file, with the status of one.
    PageForFile,
    /// The first so many answers have status 429, each asking for a pause in seconds.
    Busy(u32, u64),
    /// Each connection pauses after so many bytes of a file, until the hub is in another mood.
    Held(usize),
    /// Each connection breaks after so many bytes of a file.
    Cut(usize),
    /// Connections break after this many bytes, and so many of them; later ones get no answer at all.
    Dead(usize, u32),
    /// The length in the answer's head is larger than the listing's.
    LongerHead,
    /// Bytes without an end, and without a length.
    Endless,
    /// The file is at an address of this network that was not allowed.
    Inside,
    /// The same under a name, which resolves to it.
    InsideByName,
    /// A listing without an end.
    EndlessListing,
    /// Redirects in a circle.
    Circle,
}

/// A request that came.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The host that got the request: `hub` or `second`.
    pub host: &'static str,
    /// The path and query.
    pub target: String,
    /// Fields of its head, names in lower case.
    pub head: BTreeMap<String, String>,
}

#[derive(Default)]
struct State {
    mood: Mood,
    commit: String,
    gguf: BTreeMap<String, File>,
    seen: Vec<Seen>,
    sent: u64,
}

/// A status, fields of a head and a body.
type Bad = (&'static str, Vec<(&'static str, String)>, String);

/// The running hub. It serves until the process ends.
#[derive(Clone)]
pub struct Hub {
    /// The hub's address, without a slash at the end.
    pub url: String,
    second: String,
    state: Arc<Mutex<State>>,
}

/// SHA-256 as hubs write it.
pub fn sha256(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Hub {
    /// Starts it with the repository `user/repo` of these files.
    pub fn start(files: &[(&str, File)]) -> Self {
        let (hub, second) = (bind("127.0.0.1"), bind(SECOND_HOST));
        let address = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
        let state = State { commit: "1".repeat(40), ..State::default() };
        let this = Self {
            url: address(&hub),
            second: address(&second),
            state: Arc::new(Mutex::new(state)),
        };
        for (path, file) in files {
            this.put(path, file.clone());
        }
        for (host, listener) in [("hub", hub), ("second", second)] {
            let this = this.clone();
            thread::spawn(move || this.listen(host, &listener));
        }
        this
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Puts a file there.
    pub fn put(&self, path: &str, file: File) {
        self.state().gguf.insert(path.to_string(), file);
    }

    /// The repository has a new commit.
    pub fn commit(&self, commit: &str) {
        self.state().commit = commit.to_string();
    }

    /// Behaves so from now on.
    pub fn mood(&self, mood: Mood) {
        self.state().mood = mood;
    }

    /// Requests since the last call.
    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state().seen)
    }

    /// Bytes of files that were sent since the last call.
    pub fn sent(&self) -> u64 {
        std::mem::take(&mut self.state().sent)
    }

    fn listen(&self, host: &'static str, listener: &TcpListener) {
        for stream in listener.incoming().flatten() {
            let this = self.clone();
            // A client that cannot be written to has gone.
            thread::spawn(move || drop(this.serve(host, stream)));
        }
    }

    fn serve(&self, host: &'static str, stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let (mut line, mut head) = (String::new(), BTreeMap::new());
        reader.read_line(&mut line)?;
        let target = line.split(' ').nth(1).unwrap_or_default().to_string();
        loop {
            let mut field = String::new();
            reader.read_line(&mut field)?;
            let Some((name, value)) = field.trim_end().split_once(':') else { break };
            head.insert(name.to_ascii_lowercase(), value.trim().to_string());
        }
        let seen = Seen { host, target, head };
        self.state().seen.push(seen.clone());
        match host {
            "hub" => self.hub(&seen, stream),
            _ => self.second(&seen, stream),
        }
    }

    fn hub(&self, seen: &Seen, mut out: TcpStream) -> std::io::Result<()> {
        let path = seen.target.split('?').next().unwrap_or_default();
        let is_api = path.starts_with("/api/");
        if let Some((status, fields, body)) = self.bad(path, is_api) {
            let fields: Vec<(&str, &str)> = fields.iter().map(|(a, b)| (*a, b.as_str())).collect();
            return reply(&mut out, status, &fields, body.as_bytes());
        }
        if is_api && self.state().mood == Mood::EndlessListing {
            return endless(&[b' '; 1 << 16], &mut out);
        }
        if path == "/api/models/user/repo/revision/main" {
            let (json, listing) = ([("Content-Type", "application/json")], self.listing());
            return reply(&mut out, "200 OK", &json, listing.to_string().as_bytes());
        }
        match (is_api, path.contains("/manifests/")) {
            (true, _) => {
                error(&mut out, "401 Unauthorized", "RepoNotFound", "Repository not found")
            }
            (false, true) => self.manifest(&mut out),
            (false, false) => self.redirect(path, &mut out),
        }
    }

    /// The answer of the hub in a bad mood: a status, fields and a body.
    fn bad(&self, path: &str, is_api: bool) -> Option<Bad> {
        let mut state = self.state();
        let to = |address: &str| {
            Some(("302 Found", vec![("Location", address.to_string())], String::new()))
        };
        let no = |status, code: &str, message: &str| {
            let said = ("X-Error-Message", message.to_string());
            let code = (!code.is_empty()).then(|| ("X-Error-Code", code.to_string()));
            Some((
                status,
                [said].into_iter().chain(code).collect(),
                json!({ "error": message }).to_string(),
            ))
        };
        match state.mood {
            Mood::Private => {
                no("401 Unauthorized", "RepoNotFound", "Invalid username or password.")
            }
            Mood::BadToken => {
                no("401 Unauthorized", "", "Invalid credentials in Authorization header")
            }
            Mood::Page => {
                let page = vec![("Content-Type", "text/html".to_string())];
                Some(("200 OK", page, "<html>log in</html>".to_string()))
            }
            Mood::Busy(n, seconds) if n > 0 => {
                state.mood = Mood::Busy(n - 1, seconds);
                let after = vec![("Retry-After", seconds.to_string())];
                Some(("429 Too Many Requests", after, "slow down".to_string()))
            }
            Mood::Gated if !is_api => no("403 Forbidden", "GatedRepo", "Access is restricted"),
            Mood::InsideByName if !is_api => to("http://localhost:9/metadata"),
            Mood::Inside if !is_api => to("http://127.0.0.3:9/metadata"),
            Mood::Circle if !is_api => to(path),
            _ => None,
        }
    }

    fn listing(&self) -> Value {
        let state = self.state();
        let files = state.gguf.iter().map(|(path, file)| {
            let lfs = json!({ "sha256": file.sha256, "size": file.listed, "pointerSize": 134 });
            json!({ "rfilename": path, "size": file.listed, "blobId": "0", "lfs": lfs })
        });
        let readme = json!({ "rfilename": "README.md", "size": 3, "blobId": "1" });
        let all: Vec<Value> = files.chain([readme]).collect();
        json!({ "id": "user/repo", "sha": state.commit, "siblings": all, "cardData": { "license": "apache-2.0" } })
    }

    fn manifest(&self, out: &mut TcpStream) -> std::io::Result<()> {
        let state = self.state();
        let layers: Vec<Value> = state.gguf.values().take(1).map(|file| {
            let digest = format!("sha256:{}", file.sha256);
            json!({ "mediaType": "application/vnd.ollama.image.model", "digest": digest, "size": file.listed })
        }).collect();
        drop(state);
        reply(
            out,
            "200 OK",
            &[],
            json!({ "schemaVersion": 2, "layers": layers }).to_string().as_bytes(),
        )
    }

    /// A file by `/resolve/COMMIT/PATH`, by its digest, or by `/files/PATH`: it is at the second host, under a signed address.
    fn redirect(&self, path: &str, out: &mut TcpStream) -> std::io::Result<()> {
        let state = self.state();
        let in_repo = path.strip_prefix(&format!("/user/repo/resolve/{}/", state.commit));
        let of_repo = in_repo.is_some();
        let name = in_repo.or_else(|| path.strip_prefix("/files/")).map(str::to_string);
        let by_digest = path.rsplit_once("/blobs/sha256:").map(|(_, hash)| hash);
        let found = state.gguf.iter().find(|(path, file)| {
            name.as_ref() == Some(*path) || by_digest == Some(file.sha256.as_str())
        });
        let Some((path, file)) = found.filter(|_| state.mood != Mood::Gone) else {
            drop(state);
            return error(out, "404 Not Found", "EntryNotFound", "Entry not found");
        };
        let location = format!("{}/blob/{path}?X-Amz-Signature=a-signature", self.second);
        let (etag, size) = (format!("\"{}\"", file.sha256), file.listed.to_string());
        drop(state);
        let linked = [("X-Linked-Etag", etag.as_str()), ("X-Linked-Size", size.as_str())];
        let linked = linked.into_iter().filter(|_| of_repo);
        let fields: Vec<(&str, &str)> =
            [("Location", location.as_str())].into_iter().chain(linked).collect();
        reply(out, "302 Found", &fields, b"")
    }

    /// The host of the files, as object stores are: ranges, ETags, and no idea of tokens.
    fn second(&self, seen: &Seen, mut out: TcpStream) -> std::io::Result<()> {
        let path = seen.target.split('?').next().unwrap_or_default();
        let (mood, file) = {
            let mut state = self.state();
            let file = path.strip_prefix("/blob/").and_then(|path| state.gguf.get(path)).cloned();
            let mood = state.mood.clone();
            if let Mood::Dead(at, n) = mood {
                state.mood = Mood::Dead(at, n.saturating_sub(1));
            }
            (mood, file)
        };
        let Some(file) = file.filter(|_| seen.target.contains("a-signature")) else {
            return reply(&mut out, "403 Forbidden", &[], b"<Error>AccessDenied</Error>");
        };
        match mood {
            Mood::PageForFile => {
                return reply(
                    &mut out,
                    "200 OK",
                    &[("Content-Type", "text/html")],
                    b"<html></html>",
                );
            }
            Mood::Dead(_, 0) => return Ok(()),
            Mood::Endless => return endless(&file.bytes, &mut out),
            _ => {}
        }
        let is_same = seen.head.get("if-range").is_none_or(|etag| *etag == file.etag);
        let range = seen
            .head
            .get("range")
            .filter(|_| is_same)
            .and_then(|range| parsed(range, file.bytes.len()));
        let length = file.bytes.len() as u64;
        let (status, from, until) = match range {
            Some((from, until)) => ("206 Partial Content", from, until),
            None => ("200 OK", 0, file.bytes.len()),
        };
        let longer = if mood == Mood::LongerHead { 1000 } else { 0 };
        let mut text = format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\nAccept-Ranges: bytes\r\nETag: {}\r\nContent-Length: {}\r\n",
            file.etag,
            until - from + longer
        );
        if range.is_some() {
            text += &format!(
                "Content-Range: bytes {from}-{}/{}\r\n",
                until - 1,
                length + longer as u64
            );
        }
        out.write_all(format!("{text}\r\n").as_bytes())?;
        let most = match mood {
            Mood::Cut(n) | Mood::Dead(n, _) => n,
            _ => usize::MAX,
        };
        if let Mood::Held(n) = mood {
            let first = from.saturating_add(n).min(until);
            out.write_all(&file.bytes[from..first])?;
            while matches!(self.state().mood, Mood::Held(_)) {
                thread::sleep(std::time::Duration::from_millis(20));
            }
            out.write_all(&file.bytes[first..until])?;
            self.state().sent += (until - from) as u64;
            return Ok(());
        }
        let part = &file.bytes[from..until.min(from.saturating_add(most))];
        self.state().sent += part.len() as u64;
        out.write_all(part)
    }
}

fn bind(host: &str) -> TcpListener {
    TcpListener::bind((host, 0)).unwrap()
}

/// `bytes=FROM-[LAST]`, within a file of this length.
fn parsed(range: &str, length: usize) -> Option<(usize, usize)> {
    let (from, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let from: usize = from.parse().ok()?;
    let until = last.parse::<usize>().map_or(length, |last| last.saturating_add(1).min(length));
    (from < until).then_some((from, until))
}

fn reply(
    out: &mut TcpStream,
    status: &str,
    fields: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<()> {
    let fields: String =
        fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    out.write_all(
        format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\n{fields}Content-Length: {length}\r\n\r\n"
        )
        .as_bytes(),
    )?;
    out.write_all(body)
}

fn error(out: &mut TcpStream, status: &str, code: &str, message: &str) -> std::io::Result<()> {
    let body = json!({ "error": message }).to_string();
    let mut fields = vec![("X-Error-Message", message), ("Content-Type", "application/json")];
    if !code.is_empty() {
        fields.push(("X-Error-Code", code));
    }
    reply(out, status, &fields, body.as_bytes())
}

/// The file, and then more bytes for as long as the client reads.
fn endless(bytes: &[u8], out: &mut TcpStream) -> std::io::Result<()> {
    out.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    loop {
        out.write_all(format!("{:x}\r\n", bytes.len()).as_bytes())?;
        out.write_all(bytes)?;
        out.write_all(b"\r\n")?;
    }
}
