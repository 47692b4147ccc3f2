//! A real browser without a window, driven through its debugging pipe (Chrome DevTools Protocol).
//!
//! Messages are JSON, each ended by a zero byte, on two named pipes that the browser has as descriptors 3 and 4.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Names under which distributions have Chromium.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// How long a page may take for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// The browser, if this machine has one.
pub fn find() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let mut places =
        std::env::split_paths(&folders).flat_map(|folder| NAMES.map(|n| folder.join(n)));
    places.find(|path| path.is_file())
}

/// A page in a browser of its own; both end with it.
pub struct Page {
    child: Child,
    folder: PathBuf,
    to: File,
    from: BufReader<File>,
    session: Option<Value>,
    next: u64,
}

impl Page {
    /// Starts `browser` and opens `url`.
    ///
    /// # Panics
    /// If the browser does not start or does not answer.
    pub fn open(browser: &Path, url: &str) -> Self {
        static OPENED: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), OPENED.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("brigade-page-{process}-{number}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let (to, from) = (folder.join("to"), folder.join("from"));
        assert!(Command::new("mkfifo").args([&to, &from]).status().unwrap().success());
        let line = format!(
            "exec {} --headless=new --no-sandbox --disable-gpu --no-first-run --remote-debugging-pipe \
             --user-data-dir={} about:blank 3<{} 4>{}",
            browser.display(),
            folder.join("profile").display(),
            to.display(),
            from.display()
        );
        let mut command = Command::new("sh");
        command
            .args(["-c", &line])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let to = OpenOptions::new().write(true).open(to).unwrap();
        let from = BufReader::new(File::open(from).unwrap());
        let mut page = Self { child, folder, to, from, session: None, next: 0 };
        page.open_tab(url);
        page
    }

    /// Opens `url` in another tab of the same browser, where all that follows happens; returns the tab that was shown
    /// before, for [`Self::show_tab`].
    ///
    /// # Panics
    /// If the browser does not answer.
    pub fn open_tab(&mut self, url: &str) -> Option<Value> {
        let before = self.session.take();
        let target = self.call("Target.createTarget", json!({ "url": url }))["targetId"].clone();
        let attach = json!({ "targetId": target, "flatten": true });
        self.session = Some(self.call("Target.attachToTarget", attach)["sessionId"].clone());
        self.call("Runtime.enable", json!({}));
        before
    }

    /// Switches to this tab; returns the one before.
    pub fn show_tab(&mut self, tab: Option<Value>) -> Option<Value> {
        std::mem::replace(&mut self.session, tab)
    }

    /// Calls a method of the protocol.
    ///
    /// # Panics
    /// If it fails.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.try_call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Calls a method of the protocol; its answer, or the error that it is.
    ///
    /// # Errors
    /// The browser's own error.
    ///
    /// # Panics
    /// If the browser has gone.
    pub fn try_call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.clone();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut bytes = Vec::new();
            let n = self.from.read_until(0, &mut bytes).unwrap();
            assert!(n > 0, "the browser has gone at {method}");
            bytes.pop();
            let answer: Value = serde_json::from_slice(&bytes).unwrap();
            if answer["id"] == self.next {
                return match answer.get("error") {
                    Some(error) => Err(error.clone()),
                    None => Ok(answer["result"].clone()),
                };
            }
        }
    }

    /// The value of an expression in the page.
    ///
    /// # Panics
    /// If it throws.
    pub fn value(&mut self, expression: &str) -> Value {
        let params =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", params);
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    ///
    /// # Panics
    /// If it does not get so.
    pub fn wait(&mut self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.value(&format!("Boolean({expression})")) != true {
            assert!(Instant::now() < deadline, "{expression} did not come true");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Loads it again, and waits until it is there.
    ///
    /// # Panics
    /// If it does not come.
    pub fn reload(&mut self) {
        self.value("window.before = true");
        self.call("Page.reload", json!({}));
        let deadline = Instant::now() + PATIENCE;
        let is_new =
            json!({ "expression": "!window.before && document.readyState === 'complete'" });
        // Between the two pages there is none that could answer.
        while !self
            .try_call("Runtime.evaluate", is_new.clone())
            .is_ok_and(|answer| answer["result"]["value"] == true)
        {
            assert!(Instant::now() < deadline, "the page did not come again");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Types a text where the cursor is.
    pub fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Presses a key by its name.
    pub fn press(&mut self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "Tab" => 9,
            _ => 0,
        };
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let mut params = json!({
                "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code,
            });
            if kind == "keyDown" && !text.is_empty() {
                params["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", params);
        }
    }

    /// Shows it in a window of this size, light or dark.
    pub fn look(&mut self, width: u32, height: u32, scheme: &str) {
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600,
        });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.call("Emulation.setEmulatedMedia", json!({ "features": [feature] }));
    }

    /// A picture of it as PNG in base64.
    pub fn picture(&mut self) -> String {
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        shot["data"].as_str().unwrap().to_string()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
