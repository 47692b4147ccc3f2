//! Streams as their clients see them: the times of events, and the pauses between them.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::json;

/// How long events may take on a machine that runs other tests, prompts computed before them.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A prompt of `n` tokens, another one for each `seed`.
pub fn prompt(seed: u64, n: u64) -> Vec<u64> {
    (0..n).map(|i| 3 + (i * i + seed * 31 + i * seed) % 200).collect()
}

/// Streams that are read while their line is lost or changes: when each of them had an event.
pub struct Streams {
    heard: mpsc::Receiver<(usize, Instant)>,
    /// Events of each so far.
    events: Vec<Vec<Instant>>,
}

impl Streams {
    /// Starts `n` streams at `url`, each behind `context` tokens and `max_tokens` long.
    pub fn start(url: &str, n: usize, context: u64, max_tokens: usize) -> Self {
        let (tell, heard) = mpsc::channel();
        for i in 0..n {
            let body = json!({
                "prompt": prompt(i as u64, context), "max_tokens": max_tokens, "seed": i, "stream": true,
                "ignore_eos": true,
            });
            let (tell, address) = (tell.clone(), url.trim_start_matches("http://").to_owned());
            std::thread::spawn(move || {
                let mut link = TcpStream::connect(&address).unwrap();
                let body = body.to_string();
                let head = format!(
                    "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: \
                     application/json\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                link.write_all(head.as_bytes())
                    .and_then(|()| link.write_all(body.as_bytes()))
                    .unwrap();
                for line in BufReader::new(link).lines().map_while(Result::ok) {
                    assert!(!line.contains("\"error\""), "stream {i}: {line}");
                    if line.starts_with("data: ") && tell.send((i, Instant::now())).is_err() {
                        return;
                    }
                }
            });
        }
        Self { heard, events: vec![Vec::new(); n] }
    }

    /// Waits until every stream has had `n` events since `since`.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait(&mut self, since: Instant, n: usize) {
        let deadline = Instant::now() + PATIENCE;
        let has = |events: &Vec<Instant>| events.iter().filter(|at| **at > since).count() >= n;
        while !self.events.iter().all(has) {
            let left = deadline.saturating_duration_since(Instant::now());
            let (i, at) = self.heard.recv_timeout(left).expect("a stream waits for ever");
            self.events[i].push(at);
        }
    }

    /// The longest time from `lost` to the end of a stream's pause. Tokens that were on their way come after the loss
    /// too: the pause is a stream's longest time without one.
    pub fn pause(&self, lost: Instant) -> Duration {
        let of = |events: &Vec<Instant>| {
            let gaps = events.windows(2).filter(|pair| pair[1] > lost);
            gaps.max_by_key(|pair| pair[1] - pair[0]).map_or(Duration::ZERO, |pair| pair[1] - lost)
        };
        self.events.iter().map(of).max().unwrap()
    }
    /// The longest time of any stream between two events, the second of which came after `since`.
    pub fn longest_gap(&self, since: Instant) -> Duration {
        let pairs = self.events.iter().flat_map(|events| events.windows(2));
        let gaps = pairs.filter(|pair| pair[1] > since).map(|pair| pair[1] - pair[0]);
        gaps.max().unwrap_or_default()
    }
}
