//! The data folder: data to keep, such as keys. (The cache folder holds data that can be made again.)

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

/// Where the data folder is.
#[derive(Clone, Debug, Default, Args)]
pub struct DataDirArgs {
    /// Folder for lasting data, such as API keys [default: $XDG_DATA_HOME/brigade, or ~/.local/share/brigade]
    #[arg(long, value_name = "DIR", env = "BRIGADE_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
}

impl DataDirArgs {
    /// The folder, which need not exist; `None` where neither the command nor the system names one.
    pub fn find(&self) -> Option<PathBuf> {
        let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let home = || set("HOME").map(|home| home.join(".local/share"));
        let default = || set("XDG_DATA_HOME").or_else(home).map(|base| base.join("brigade"));
        self.data_dir.clone().or_else(default)
    }

    /// An option to add to another command, so that it uses the same folder.
    pub fn hint(&self) -> String {
        let said = self.data_dir.as_ref();
        said.map_or(String::new(), |folder| format!(" --data-dir {}", folder.display()))
    }

    /// The folder's path.
    ///
    /// # Errors
    /// No option and no variable names a folder.
    pub fn path(&self) -> Result<PathBuf> {
        self.find().context(
            "--data-dir has no default, because neither XDG_DATA_HOME nor HOME is set: give one",
        )
    }
}
