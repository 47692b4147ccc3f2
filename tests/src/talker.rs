//! A user of `brigade chat`, over pipes or at a pseudo-terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};

use crate::process::{SPEED, brigade, signal};

/// How long anything may take on a machine busy with other tests.
const PATIENCE: Duration = Duration::from_secs(120);

/// The bytes that a process has written so far.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Said {
    /// Reads on until the source ends.
    fn follow(&self, mut source: impl Read + Send + 'static) -> JoinHandle<()> {
        let said = self.0.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // A terminal whose last process has ended gives an error.
            while let Ok(n @ 1..) = source.read(&mut buffer) {
                said.lock().unwrap().extend_from_slice(&buffer[..n]);
            }
        })
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

/// A chat under way.
pub struct Talker {
    child: Child,
    input: Option<Box<dyn Write>>,
    /// Standard output; at a terminal everything.
    out: Said,
    /// Standard error.
    remarks: Said,
    /// The threads that read the pipes.
    readers: Vec<JoinHandle<()>>,
    /// Lines typed at the terminal.
    lines: usize,
}

/// The line editor writes this when it begins a line. From here on it gets every key.
const LINE_BEGINS: &str = "\x1b[?2004h";

/// What the program writes when a line is complete. From here on the terminal is an ordinary one, which handles
/// Ctrl-D itself.
const LINE_ENDS: &str = "\x1b[?2004l";

impl Talker {
    /// Starts a chat over pipes.
    pub fn piped(args: &[&str]) -> Self {
        let mut command = Command::new(brigade());
        command.arg("chat").args(args).env(SPEED.0, SPEED.1);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (out, remarks) = (Said::default(), Said::default());
        let readers = vec![
            out.follow(child.stdout.take().unwrap()),
            remarks.follow(child.stderr.take().unwrap()),
        ];
        let input = child.stdin.take().map(|input| Box::new(input) as Box<dyn Write>);
        Self { child, input, out, remarks, readers, lines: 0 }
    }

    /// Runs `brigade ARGS` at a terminal, with its data in a folder.
    pub fn at_a_terminal(args: &[&str], data: &std::path::Path) -> Self {
        let size = Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        let terminal = openpty(&size, None).unwrap();
        let end = || Stdio::from(terminal.slave.try_clone().unwrap());
        // `setsid --ctty` makes it the process's own terminal, so that Ctrl-C is a signal.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).arg(brigade()).args(args);
        command.env("TERM", "xterm").env("BRIGADE_DATA_DIR", data).env_remove("NO_COLOR");
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let master = File::from(terminal.master);
        let out = Said::default();
        out.follow(master.try_clone().unwrap());
        let (input, remarks) = (Some(Box::new(master) as Box<dyn Write>), out.clone());
        Self { child, input, out, remarks, readers: Vec::new(), lines: 0 }
    }

    /// Types text, without waiting for the editor.
    pub fn types(&mut self, text: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        input.flush().unwrap();
    }

    /// Types into the next line of the editor, when it is there. Lines typed in another way are not counted: a test
    /// that does so must first wait for their effect.
    pub fn line(&mut self, keys: &str) {
        self.lines += 1;
        let n = self.lines;
        self.wait_out("the next line", |out| {
            let begun = out.matches(LINE_BEGINS).count();
            begun >= n && begun > out.matches(LINE_ENDS).count()
        });
        self.types(keys);
    }

    /// The text on standard output so far.
    pub fn out(&self) -> String {
        self.out.text()
    }

    /// The text on standard error so far.
    pub fn remarks(&self) -> String {
        self.remarks.text()
    }

    /// Waits until standard output is as wanted.
    pub fn wait_out(&self, what: &str, is: impl Fn(&str) -> bool) {
        self.wait(what, &self.out, is);
    }

    /// Waits until standard error is as wanted.
    pub fn wait_remarks(&self, what: &str, is: impl Fn(&str) -> bool) {
        self.wait(what, &self.remarks, is);
    }

    fn wait(&self, what: &str, said: &Said, is: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is(&said.text()) {
            let so_far = || format!("{}\n---\n{}", self.out(), self.remarks());
            assert!(Instant::now() < deadline, "{what} did not come:\n{}", so_far());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends SIGINT to the process itself.
    pub fn interrupt(&self) {
        signal("INT", self.child.id());
    }

    /// Says nothing more, and waits for the end.
    pub fn ends(&mut self) -> ExitStatus {
        self.input = None;
        self.waits_for_the_end()
    }

    /// Waits for the end.
    pub fn waits_for_the_end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                // Its last output may not have been read yet.
                self.readers.drain(..).for_each(|reader| reader.join().unwrap());
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end:\n{}", self.out());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
