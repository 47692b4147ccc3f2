//! Chooses the files of a repository that make the model of a name.

use std::collections::BTreeMap;

use super::error::HubError;
use super::name::HubName;

/// The quantisation of a name that has none, as in llama.cpp and Ollama.
pub const USUAL_QUANT: &str = "Q4_K_M";

/// Most files of a split model, as file formats have it.
const MAX_SPLIT: usize = 9999;

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// The file's path in the repository.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 as 64 hex digits, where the source tells it.
    pub sha256: Option<String>,
    /// The server's ETag for this state of the file, where nothing else tells states apart.
    pub etag: Option<String>,
}

/// The files of one model, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The name of its quantisation.
    pub quant: String,
    /// One file, or those of a split model.
    pub files: Vec<RemoteFile>,
}

/// The files that `name` means among those of its repository. Projectors of images (`mmproj`) and importance matrices
/// are no models.
///
/// # Errors
/// There is no such quantisation, more than one, or not all files of it.
pub fn choose(name: &HubName, files: &[RemoteFile]) -> Result<Choice, HubError> {
    let models = models(files);
    let found = match &name.quant {
        Some(wanted) => matching(wanted, &models),
        None => match matching(USUAL_QUANT, &models) {
            none if none.is_empty() => models.iter().take(1).collect(),
            found => found,
        },
    };
    let wanted = || name.quant.clone().unwrap_or_else(|| "GGUF file".to_string());
    match found[..] {
        [] => {
            let found = models.iter().map(|model| model.label.clone()).collect();
            Err(HubError::NoQuant { repo: name.repo.clone(), wanted: wanted(), found })
        }
        [model] => model.complete(&name.repo),
        [first, ..] => {
            let paths: Vec<&str> = found.iter().map(|m| m.first_path()).collect();
            let why = format!(
                "its repository has {} models of {}: name one by its file, such as hf:{}:{}; they are {}",
                found.len(),
                first.label,
                name.repo,
                paths.first().unwrap_or(&""),
                paths.join(", ")
            );
            Err(HubError::Name { name: name.to_string(), why })
        }
    }
}

/// A model of a repository, its files by their number.
#[derive(Debug)]
struct Model<'a> {
    label: String,
    count: usize,
    parts: BTreeMap<usize, &'a RemoteFile>,
}

impl Model<'_> {
    fn first_path(&self) -> &str {
        self.parts.values().next().map_or("", |file| file.path.as_str())
    }

    fn complete(&self, repo: &str) -> Result<Choice, HubError> {
        let missing = (1..=self.count).find(|no| !self.parts.contains_key(no));
        if let Some(no) = missing {
            let missing = format!("file {no:05} of {:05}", self.count);
            let (repo, name) = (repo.to_string(), self.label.clone());
            return Err(HubError::Incomplete { repo, name, count: self.count, missing });
        }
        let files = self.parts.values().map(|file| (*file).clone()).collect();
        Ok(Choice { quant: self.label.clone(), files })
    }
}

/// All models among the files, in the order of their paths.
fn models(files: &[RemoteFile]) -> Vec<Model<'_>> {
    let mut found = BTreeMap::<(String, usize), Model<'_>>::new();
    for file in files.iter().filter(|file| is_model(&file.path)) {
        let (stem, no, count) = split_of(&file.path);
        let model = found.entry((stem.to_string(), count)).or_insert_with(|| Model {
            label: label(stem),
            count,
            parts: BTreeMap::new(),
        });
        model.parts.insert(no, file);
    }
    found.into_values().collect()
}

/// Whether a file is a model, or a part of one: no projector of images, and no importance matrix.
pub fn is_model(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    let file = lower.rsplit('/').next().unwrap_or(&lower);
    lower.ends_with(".gguf") && !file.contains("mmproj") && !file.contains("imatrix")
}

/// Whether a file is a model, or the first one of a split model.
pub fn is_first_model(path: &str) -> bool {
    is_model(path) && split_of(path).1 == 1
}

/// The path without its ending and number, which file it is (from 1), and of how many.
pub fn split_of(path: &str) -> (&str, usize, usize) {
    let stem = path.strip_suffix(".gguf").unwrap_or(path);
    let parts = || {
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (stem, no) = rest.rsplit_once('-')?;
        let number = |text: &str| {
            let is_number = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
            text.parse::<usize>().ok().filter(|n| is_number && (1..=MAX_SPLIT).contains(n))
        };
        let (no, count) = (number(no)?, number(count)?);
        (no <= count).then_some((stem, no, count))
    };
    parts().unwrap_or((stem, 1, 1))
}

/// The name of a file's quantisation: the last part of its name that looks like one, else its folder's, else the name
/// itself.
pub fn label(stem: &str) -> String {
    let file = stem.rsplit('/').next().unwrap_or(stem);
    let folder = stem.rsplit('/').nth(1).unwrap_or_default();
    quant_in(file).or_else(|| quant_in(folder)).unwrap_or_else(|| file.to_string())
}

fn quant_in(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split(['-', '.']).collect();
    let at = parts.iter().rposition(|part| is_quant(part))?;
    let is_dynamic = at > 0 && parts[at - 1].eq_ignore_ascii_case("UD");
    let quant = parts[at].to_ascii_uppercase();
    Some(if is_dynamic { format!("UD-{quant}") } else { quant })
}

fn is_quant(part: &str) -> bool {
    let part = part.to_ascii_uppercase();
    let digit_after = |start: &str| {
        let rest = part.strip_prefix(start);
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    ["Q", "IQ", "TQ", "MXFP", "NVFP"].iter().any(|start| digit_after(start))
        || ["F16", "F32", "BF16", "FP16", "FP32"].contains(&part.as_str())
}

/// The models that match `wanted` by path, by file name or by quantisation. `Q4_K_XL` means `UD-Q4_K_XL` where that
/// is the only one.
fn matching<'m, 'a>(wanted: &str, models: &'m [Model<'a>]) -> Vec<&'m Model<'a>> {
    let is = |text: &str| text.eq_ignore_ascii_case(wanted);
    let of_file = |model: &&Model<'_>| {
        model
            .parts
            .values()
            .any(|f| is(&f.path) || is(f.path.rsplit('/').next().unwrap_or(&f.path)))
    };
    let of_label = |model: &&Model<'_>| is(&model.label);
    let of_kin = |model: &&Model<'_>| model.label.strip_prefix("UD-").is_some_and(is);
    let by_file: Vec<_> = models.iter().filter(of_file).collect();
    let by_label: Vec<_> = models.iter().filter(of_label).collect();
    match (by_file.is_empty(), by_label.is_empty()) {
        (false, _) => by_file,
        (_, false) => by_label,
        _ => models.iter().filter(of_kin).collect(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn chosen(quant: Option<&str>, paths: &[&str]) -> Result<(String, Vec<String>), HubError> {
        let file = |path: &&str| RemoteFile {
            path: (*path).to_string(),
            size: 1,
            sha256: None,
            etag: None,
        };
        let files: Vec<_> = paths.iter().map(file).collect();
        let name = HubName { repo: "u/r".to_string(), quant: quant.map(str::to_string) };
        let choice = choose(&name, &files)?;
        Ok((choice.quant, choice.files.into_iter().map(|file| file.path).collect()))
    }

    const REPO: [&str; 9] = [
        "README.md",
        "UD-Q2_K_XL/big-UD-Q2_K_XL-00001-of-00002.gguf",
        "UD-Q2_K_XL/big-UD-Q2_K_XL-00002-of-00002.gguf",
        "big-Q4_K_M.gguf",
        "big-q8_0.gguf",
        "big.BF16.gguf",
        "imatrix_u.gguf",
        "mmproj-F16.gguf",
        "IQ1_S/big-00001-of-00001.gguf",
    ];

    #[test]
    fn a_quantisation_is_found_by_name_folder_and_file() {
        for (wanted, quant, first) in [
            (None, "Q4_K_M", "big-Q4_K_M.gguf"),
            (Some("q4_k_m"), "Q4_K_M", "big-Q4_K_M.gguf"),
            (Some("Q8_0"), "Q8_0", "big-q8_0.gguf"),
            (Some("bf16"), "BF16", "big.BF16.gguf"),
            (Some("IQ1_S"), "IQ1_S", "IQ1_S/big-00001-of-00001.gguf"),
            (Some("big-q8_0.gguf"), "Q8_0", "big-q8_0.gguf"),
            (Some("UD-Q2_K_XL"), "UD-Q2_K_XL", REPO[1]),
            (Some("Q2_K_XL"), "UD-Q2_K_XL", REPO[1]),
        ] {
            let (label, files) = chosen(wanted, &REPO).unwrap();
            assert_eq!((label.as_str(), files[0].as_str()), (quant, first), "{wanted:?}");
        }
        assert_eq!(chosen(Some("Q2_K_XL"), &REPO).unwrap().1.len(), 2);
    }

    #[test]
    fn without_the_usual_one_it_is_the_first() {
        assert_eq!(chosen(None, &["b-Q8_0.gguf", "a-Q6_K.gguf"]).unwrap().0, "Q6_K");
        assert_eq!(chosen(None, &["model.gguf"]).unwrap().0, "model");
    }

    #[test]
    fn what_there_is_is_said() {
        let error = chosen(Some("F16"), &REPO).unwrap_err().to_string();
        assert!(error.contains("u/r has no F16: it has "), "{error}");
        assert!(error.contains("Q4_K_M") && !error.contains("mmproj"), "{error}");
        let error = chosen(None, &["mmproj-F16.gguf", "x.safetensors"]).unwrap_err().to_string();
        assert!(error.contains("no GGUF files at all"), "{error}");
        let error = chosen(None, &["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"]).unwrap_err().to_string();
        assert!(error.contains("2 models of Q4_K_M") && error.contains("b-Q4_K_M.gguf"), "{error}");
        let error = chosen(None, &["a-00001-of-00003.gguf", "a-00003-of-00003.gguf"]).unwrap_err();
        assert!(error.to_string().contains("file 00002 of 00003"), "{error}");
    }
}
