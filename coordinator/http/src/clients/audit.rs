//! The audit log: one JSON object a line for each request, with its key and its token counts.
//!
//! Prompts are in it only where the operator asked for them; secrets never are. Entries go to a thread of their own,
//! so that a slow disk delays no request. Entries that the thread cannot keep up with are lost, and the log says how
//! many. The file is rotated by size: `FILE` is the newest, `FILE.1` the one before, up to [`KEPT_FILES`].

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use serde::Serialize;

/// Size at which the file is rotated unless the operator says otherwise.
pub const DEFAULT_AUDIT_BYTES: u64 = 100 << 20;

/// Rotated files that are kept beside the newest.
pub const KEPT_FILES: usize = 9;

/// Bytes of a request's body that an entry holds at most.
pub const MAX_CONTENT_BYTES: usize = 1 << 20;

/// Entries that wait for the disk.
const QUEUE: usize = 4096;

/// Bytes of entries that wait for the disk.
const QUEUE_BYTES: usize = 64 << 20;

/// How long the end of the server waits for the disk.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

/// Where the log is and what is in it.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    /// The file that is written now; older ones have a number behind its name.
    pub path: PathBuf,
    /// Size at which it is rotated.
    pub max_bytes: u64,
    /// Whether the requests' bodies are in it, prompts and all.
    pub content: bool,
}

/// The line of one answered request.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Entry<'a> {
    /// RFC 3339, when the answer ended.
    pub time: String,
    /// The request's id, as in every log.
    pub id: &'a str,
    /// Name of the key; `null` where none was needed or none was valid.
    pub key: Option<&'a str>,
    pub method: &'a str,
    pub endpoint: &'a str,
    pub model: &'a str,
    pub status: u16,
    /// How it ended: `answered`, `failed`, its client left, its key ended, or `refused`.
    pub outcome: &'a str,
    pub sequences: u32,
    pub prompt_tokens: u64,
    pub reused_tokens: u64,
    pub generated_tokens: u64,
    pub ms: u64,
    /// The request's body, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
}

enum Message {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

/// The log; clones share it.
#[derive(Clone, Debug)]
pub struct Audit {
    lines: SyncSender<Message>,
    waiting_bytes: Arc<AtomicUsize>,
    lost: Arc<AtomicUsize>,
    content: bool,
}

impl Audit {
    /// Opens the file, to be appended to.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn open(options: AuditOptions) -> io::Result<Self> {
        let (lines, receiver) = sync_channel(QUEUE);
        let content = options.content;
        let waiting_bytes: Arc<AtomicUsize> = Arc::default();
        let writer = Writer::open(options)?;
        let waiting = waiting_bytes.clone();
        std::thread::Builder::new()
            .name("audit".to_string())
            .spawn(move || writer.run(&receiver, &waiting))?;
        Ok(Self { lines, waiting_bytes, lost: Arc::default(), content })
    }

    /// Whether entries have the requests' bodies.
    pub(crate) fn has_content(&self) -> bool {
        self.content
    }

    /// Hands in an entry; never waits.
    pub(crate) fn record(&self, entry: &Entry<'_>) {
        let Ok(mut line) = serde_json::to_vec(entry) else { return self.lose() };
        line.push(b'\n');
        let n = line.len();
        if self.waiting_bytes.fetch_add(n, Ordering::AcqRel) + n > QUEUE_BYTES
            || self.lines.try_send(Message::Line(line)).is_err()
        {
            self.waiting_bytes.fetch_sub(n, Ordering::AcqRel);
            self.lose();
        }
    }

    fn lose(&self) {
        let lost = self.lost.fetch_add(1, Ordering::AcqRel) + 1;
        // Each power of two: a disk that hangs must not fill the other log.
        if lost.is_power_of_two() {
            tracing::error!(lost, "entries of the audit log are lost: the disk does not keep up");
        }
    }

    /// Waits until all entries so far are in the file, for [`FLUSH_WITHIN`] at most.
    pub fn flush(&self) {
        let (done, flushed) = sync_channel(1);
        let sent = self.lines.try_send(Message::Flush(done)).is_ok();
        if !sent || flushed.recv_timeout(FLUSH_WITHIN).is_err() {
            tracing::error!(
                "the last entries of the audit log may be lost: the disk does not keep up"
            );
        }
    }
}

/// The thread's end of the queue, with the open file.
struct Writer {
    options: AuditOptions,
    file: File,
    bytes: u64,
    /// Whether the last write failed: told once.
    failed: bool,
}

impl Writer {
    fn open(options: AuditOptions) -> io::Result<Self> {
        let file = append_to(&options.path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { options, file, bytes, failed: false })
    }

    fn run(mut self, lines: &Receiver<Message>, waiting_bytes: &AtomicUsize) {
        while let Ok(message) = lines.recv() {
            match message {
                Message::Line(line) => {
                    waiting_bytes.fetch_sub(line.len(), Ordering::AcqRel);
                    self.write(&line);
                }
                // All lines that were queued before this one are written.
                Message::Flush(done) => drop(done.send(())),
            }
        }
    }

    fn write(&mut self, line: &[u8]) {
        let full = self.bytes > 0 && self.bytes + line.len() as u64 > self.options.max_bytes;
        let written = if full { self.rotate() } else { Ok(()) };
        match written.and_then(|()| self.file.write_all(line)) {
            Ok(()) => {
                self.bytes += line.len() as u64;
                self.failed = false;
            }
            Err(error) if !self.failed => {
                self.failed = true;
                let path = self.options.path.display();
                tracing::error!(%path, %error, "the audit log cannot be written: entries are lost");
            }
            Err(_) => {}
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        for n in (1..=KEPT_FILES).rev() {
            let from = if n == 1 {
                self.options.path.clone()
            } else {
                numbered(&self.options.path, n - 1)
            };
            match fs::rename(from, numbered(&self.options.path, n)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.file = append_to(&self.options.path)?;
        self.bytes = 0;
        Ok(())
    }
}

fn numbered(path: &Path, n: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{n}"));
    name.into()
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_objects_and_old_files_are_rotated_away() {
        let folder = std::env::temp_dir().join(format!("brigade-audit-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("audit.jsonl");
        let options = AuditOptions { path: path.clone(), max_bytes: 1000, content: false };
        let audit = Audit::open(options).unwrap();
        for i in 0..100 {
            let id = i.to_string();
            audit.record(&Entry { id: &id, key: Some("me"), ..Entry::default() });
        }
        audit.flush();
        let names: Vec<PathBuf> = (1..=KEPT_FILES).map(|n| numbered(&path, n)).collect();
        let mut ids = Vec::new();
        for name in names.iter().rev().chain([&path]) {
            let text = fs::read_to_string(name).unwrap();
            assert!(text.len() <= 1000, "{}: {}", name.display(), text.len());
            for line in text.lines() {
                let entry: serde_json::Value = serde_json::from_str(line).unwrap();
                assert_eq!(entry["key"], "me");
                ids.push(entry["id"].as_str().unwrap().parse::<u32>().unwrap());
            }
        }
        assert!(ids.is_sorted() && ids.last() == Some(&99) && ids.len() > 20, "{ids:?}");
        assert!(!numbered(&path, KEPT_FILES + 1).exists());
        fs::remove_dir_all(folder).unwrap();
    }
}
