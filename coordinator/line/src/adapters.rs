//! The adapters of the model that is served: their files, their names, and which of them a request uses.

use std::collections::HashSet;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use brigade_engine::batch::AdapterUse;
use brigade_proto::limits::MAX_ADAPTERS;
use serde::Deserialize;
use thiserror::Error;

/// Largest factor that an adapter is used with, on either side of 0.
const MAX_SCALE: f32 = 1000.0;

/// An adapter as a command's option names it: `FILE` or `FILE=SCALE`.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterFile {
    /// The adapter's GGUF file.
    pub path: PathBuf,
    /// The scale for requests that name no adapters.
    pub scale: f32,
}

impl FromStr for AdapterFile {
    type Err = AdapterError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (path, scale) = match text.rsplit_once('=') {
            // A file's name may have the sign too.
            Some((path, scale)) if !scale.is_empty() && scale.parse::<f32>().is_ok() => {
                (path, scale.parse().unwrap_or(1.0))
            }
            _ => (text, 1.0),
        };
        check_scale(scale)?;
        Ok(Self { path: PathBuf::from(path), scale })
    }
}

/// Layers that something is for: `FIRST-LAST`, or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpan {
    /// The first layer.
    pub first: usize,
    /// The last layer, included.
    pub last: usize,
}

impl FromStr for LayerSpan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(Self { first, last }),
            _ => Err("a layer, or the first and the last one with a - between, is needed".into()),
        }
    }
}

/// Why an adapter cannot be used.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum AdapterError {
    /// Two have one name.
    #[error(
        "two adapters are called {0:?} (names are those of files, without .gguf): rename one of the files"
    )]
    SameName(String),
    /// More adapters are given than are allowed.
    #[error("{0} adapters: at most {MAX_ADAPTERS}")]
    TooMany(usize),
    /// No adapter has this name.
    #[error("there is no adapter {0:?} here; {1}")]
    NoSuchName(String, String),
    /// No adapter has this number.
    #[error("there is no adapter with id {0} here; {1}")]
    NoSuchId(u32, String),
    /// An adapter is named twice.
    #[error("adapter {0:?} is named twice")]
    Twice(String),
    /// A scale that is not finite or out of range.
    #[error("an adapter's scale is {0}: a number from -{MAX_SCALE} to {MAX_SCALE} is needed")]
    Scale(f32),
}

fn check_scale(scale: f32) -> Result<(), AdapterError> {
    if scale.abs() <= MAX_SCALE { Ok(()) } else { Err(AdapterError::Scale(scale)) }
}

/// An adapter that the server was started with.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// The name of the adapter's file, without `.gguf`.
    pub name: String,
    /// The scale for requests that name no adapters.
    pub scale: f32,
}

/// An adapter that a request asks for.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct AdapterWish {
    /// The adapter's number, as llama.cpp's server counts them.
    pub id: Option<u32>,
    /// The adapter's name, where there is no number.
    pub name: Option<String>,
    /// The scale; `None`: the server's, or 1 where that is 0.
    pub scale: Option<f32>,
}

/// All adapters of a model, in the order in which they were given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Adapters {
    all: Vec<Adapter>,
}

impl Adapters {
    /// Adapters of these files, with names from the files' names.
    ///
    /// # Errors
    /// [`AdapterError::SameName`], [`AdapterError::TooMany`].
    pub fn new(files: &[AdapterFile]) -> Result<Self, AdapterError> {
        if files.len() > MAX_ADAPTERS {
            return Err(AdapterError::TooMany(files.len()));
        }
        let mut names = HashSet::new();
        let adapter = |file: &AdapterFile| {
            let stem = file.path.file_stem().unwrap_or(file.path.as_os_str());
            let name = stem.to_string_lossy().into_owned();
            if names.insert(name.clone()) {
                Ok(Adapter { name, scale: file.scale })
            } else {
                Err(AdapterError::SameName(name))
            }
        };
        Ok(Self { all: files.iter().map(adapter).collect::<Result<_, _>>()? })
    }

    /// All adapters; an adapter's position is its number.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Adapter> {
        self.all.iter()
    }

    /// The adapters of a request that names none: those with a scale other than 0.
    pub fn by_default(&self) -> Arc<[AdapterUse]> {
        uses((0..).zip(self.all.iter().map(|adapter| adapter.scale)))
    }

    /// The adapters of a request that names some: these and no others, in one order.
    ///
    /// # Errors
    /// An adapter does not exist or is named twice, or a scale is out of range.
    pub fn resolve(&self, wanted: &[AdapterWish]) -> Result<Arc<[AdapterUse]>, AdapterError> {
        let mut chosen: Vec<(u32, f32)> = Vec::new();
        for one in wanted {
            let id = self.find(one)?;
            let adapter = &self.all[id as usize];
            if chosen.iter().any(|(other, _)| *other == id) {
                return Err(AdapterError::Twice(adapter.name.clone()));
            }
            let by_default = if adapter.scale == 0.0 { 1.0 } else { adapter.scale };
            let scale = one.scale.unwrap_or(by_default);
            check_scale(scale)?;
            chosen.push((id, scale));
        }
        // One order, so that equal wishes are one and the same.
        chosen.sort_by_key(|(id, _)| *id);
        Ok(uses(chosen))
    }

    /// The number of the one that is wanted.
    fn find(&self, wanted: &AdapterWish) -> Result<u32, AdapterError> {
        let named = |name: &String| self.all.iter().position(|adapter| adapter.name == *name);
        match (wanted.id, &wanted.name) {
            (Some(id), _) if (id as usize) < self.all.len() => Ok(id),
            (Some(id), _) => Err(AdapterError::NoSuchId(id, self.those())),
            (None, Some(name)) => named(name)
                .map(|at| at as u32)
                .ok_or_else(|| AdapterError::NoSuchName(name.clone(), self.those())),
            (None, None) => Err(AdapterError::NoSuchName(String::new(), self.those())),
        }
    }

    /// The known names, for error messages.
    fn those(&self) -> String {
        let names: Vec<_> = self.all.iter().map(|adapter| format!("{:?}", adapter.name)).collect();
        if names.is_empty() {
            "there is none: start the server with --lora FILE".to_owned()
        } else {
            format!("there are {}", names.join(", "))
        }
    }

    /// Names and default scales, as a part of the name of everything that answers depend on.
    pub fn identity(&self) -> String {
        let one = |adapter: &Adapter| format!(" {}*{}", adapter.name, adapter.scale);
        self.all.iter().map(one).collect()
    }
}

/// Leaves out adapters with a scale of 0, which do nothing.
fn uses(chosen: impl IntoIterator<Item = (u32, f32)>) -> Arc<[AdapterUse]> {
    let used = chosen.into_iter().filter(|(_, scale)| *scale != 0.0);
    used.map(|(adapter, scale)| AdapterUse { adapter, scale }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapters() -> Adapters {
        let files = ["a/one.gguf", "two.gguf=0.5", "three=0"].map(|text| text.parse().unwrap());
        Adapters::new(&files).unwrap()
    }

    fn wanted(json: &str) -> Result<Vec<(u32, f32)>, String> {
        let wanted: Vec<AdapterWish> = serde_json::from_str(json).map_err(|e| e.to_string())?;
        let uses = adapters().resolve(&wanted).map_err(|e| e.to_string())?;
        Ok(uses.iter().map(|used| (used.adapter, used.scale)).collect())
    }

    #[test]
    fn files_have_names_and_scales() {
        let names: Vec<_> = adapters().iter().map(|a| (a.name.clone(), a.scale)).collect();
        assert_eq!(names, [("one".into(), 1.0), ("two".into(), 0.5), ("three".into(), 0.0)]);
        let file: AdapterFile = "rank=8/x=y.gguf".parse().unwrap();
        assert_eq!((file.path, file.scale), (PathBuf::from("rank=8/x=y.gguf"), 1.0));
        for bad in ["x=nan", "x=inf", "x=-1001"] {
            assert!(matches!(bad.parse::<AdapterFile>(), Err(AdapterError::Scale(_))), "{bad}");
        }
        let twice = ["a/x.gguf", "b/x.gguf=2"].map(|text| text.parse().unwrap());
        assert_eq!(Adapters::new(&twice), Err(AdapterError::SameName("x".into())));
        let many = vec![twice[0].clone(); MAX_ADAPTERS + 1];
        assert_eq!(Adapters::new(&many), Err(AdapterError::TooMany(MAX_ADAPTERS + 1)));
    }

    #[test]
    fn requests_get_what_they_ask_for_and_no_other() {
        let by_default: Vec<_> =
            adapters().by_default().iter().map(|used| (used.adapter, used.scale)).collect();
        assert_eq!(by_default, [(0, 1.0), (1, 0.5)]);
        assert_eq!(wanted("[]"), Ok(vec![]));
        assert_eq!(wanted(r#"[{"name": "two"}]"#), Ok(vec![(1, 0.5)]));
        assert_eq!(wanted(r#"[{"name": "three"}]"#), Ok(vec![(2, 1.0)]));
        let both = r#"[{"id": 2, "scale": 0.25}, {"name": "one", "scale": -2}]"#;
        assert_eq!(wanted(both), Ok(vec![(0, -2.0), (2, 0.25)]));
        assert_eq!(wanted(r#"[{"id": 0, "scale": 0}]"#), Ok(vec![]));
        for (json, word) in [
            (r#"[{"id": 3}]"#, "\"one\", \"two\", \"three\""),
            (r#"[{"name": "four"}]"#, "no adapter \"four\""),
            (r#"[{"id": 0}, {"name": "one"}]"#, "named twice"),
            (r#"[{"id": 0, "scale": 1e9}]"#, "scale is 1000000000"),
            (r#"[{"id": 0, "sclae": 1}]"#, "sclae"),
            ("[{}]", "no adapter"),
        ] {
            let refused = wanted(json).unwrap_err();
            assert!(refused.contains(word), "{json}: {refused}");
        }
        let none =
            Adapters::default().resolve(&[AdapterWish { id: Some(0), name: None, scale: None }]);
        assert!(none.unwrap_err().to_string().contains("--lora FILE"));
    }
}
