//! A machine of its own for tests of models by name: folders, a hub, and `brigade` with an environment that knows only these.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use brigade_model_tests::golden::Golden;

use crate::hub::{File, Hub, SECOND_HOST, TOKEN};
use crate::process::brigade;

/// Where the model of the tests is in the repository.
pub const PATH: &str = "Q8_0/model-Q8_0.gguf";

/// A name of it.
pub const NAME: &str = "hf:user/repo:Q8_0";

/// A machine with folders and environment of its own.
pub struct Machine {
    /// The folder with all of its folders.
    pub dir: PathBuf,
    /// The hub that it uses.
    pub hub: Hub,
}

/// The bytes of a small model.
pub fn model() -> Vec<u8> {
    std::fs::read(Golden::repository().folder.join("llama.gguf")).unwrap()
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// A machine with a hub that has the small model.
    pub fn new() -> Self {
        Self::with(&[(PATH, File::new(model()))])
    }

    /// A machine whose hub has these files.
    pub fn with(files: &[(&str, File)]) -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let dir =
            std::env::temp_dir().join(format!("brigade-names-{}-{number}", std::process::id()));
        // Remains of a killed test with the same process id.
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Self { dir, hub: Hub::start(files) }
    }

    /// The own folder of models.
    pub fn models(&self) -> PathBuf {
        self.dir.join("data/models")
    }

    /// `brigade ARGS` on this machine.
    pub fn command(&self, args: &[&str]) -> Command {
        self.wrapped(Command::new(brigade()), args)
    }

    /// The same behind another program.
    pub fn wrapped(&self, mut command: Command, args: &[&str]) -> Command {
        command.args(args).stdin(Stdio::null());
        for name in [
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "ALL_PROXY",
            "http_proxy",
            "https_proxy",
            "all_proxy",
            "BRIGADE_MODEL",
            "BRIGADE_MODELS_DIR",
            "BRIGADE_DOWNLOAD_DIR",
            "BRIGADE_OFFLINE",
        ] {
            command.env_remove(name);
        }
        for (name, folder) in [
            ("HOME", "home"),
            ("XDG_CACHE_HOME", "cache"),
            ("BRIGADE_DATA_DIR", "data"),
            ("HF_HOME", "hf"),
            ("LLAMA_CACHE", "llama"),
            ("OLLAMA_MODELS", "ollama"),
        ] {
            command.env(name, self.dir.join(folder));
        }
        command
            .env("HF_ENDPOINT", &self.hub.url)
            .env("HF_TOKEN", TOKEN)
            .env("BRIGADE_PRIVATE_HOSTS", SECOND_HOST);
        command
    }

    /// Runs it to its end.
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// The standard output of a command, which must succeed.
    pub fn out(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The error of a command, which must fail.
    pub fn error(&self, args: &[&str]) -> String {
        said(&self.run(args), args)
    }

    /// The ids that a model gives: the same for the same weights.
    pub fn ids(&self, model: &str) -> String {
        self.out(&[
            "run",
            "-m",
            model,
            "--tokens",
            "1,266,278",
            "-n",
            "8",
            "--temp",
            "0",
            "--ids",
            "--workers",
            "1",
        ])
    }

    /// All files below a folder of it, with what leads to them.
    pub fn files(&self, of: &str) -> Vec<String> {
        let mut found = Vec::new();
        walk(&self.dir.join(of), &self.dir.join(of), &mut found);
        found.sort();
        found
    }
}

/// The error of a command.
pub fn said(output: &Output, args: &[&str]) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
    said
}

fn walk(root: &Path, folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        if !path.is_dir() {
            found.push(name);
        } else if name != ".locks" {
            walk(root, &path, found);
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The folder is temporary: the system removes what is left.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
