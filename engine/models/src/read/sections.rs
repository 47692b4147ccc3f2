//! Rotation by axes (M-RoPE, arXiv 2409.12191). The rotated pairs are divided into four sections: time, height, width
//! and one more. Each takes its position on an axis of its own.
//!
//! A token of text has its position on the first three axes, and 0 on the fourth, as in llama.cpp. So text is rotated
//! as usual, but for the pairs of the fourth section: these stay as they are.

use brigade_spec::{ModelError, RopeSpec};

use super::hparams::Hparams;

/// Gives the sizes of the sections.
const KEY: &str = "rope.dimension_sections";
/// Remedy for a file whose sections are wrong.
const AGAIN: &str = "Convert the model again with a present llama.cpp, or take another file of it";

/// The pairs that a section has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SectionOrder {
    /// Pairs behind those of the previous section.
    Behind,
    /// Time, height and width take turns, each as long as it has pairs left; the fourth has all others.
    Turns,
}

/// Sizes of the four sections, in pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sections([usize; 4]);

impl Sections {
    /// The file's sections; `None` where the key is missing, or all of them are 0.
    ///
    /// # Errors
    /// The key is not a list of four sizes.
    pub(crate) fn read(hp: &Hparams<'_>) -> Result<Option<Self>, ModelError> {
        let Some(listed) = hp.i32s(KEY)? else { return Ok(None) };
        let sizes: Vec<usize> = listed.iter().filter_map(|&n| usize::try_from(n).ok()).collect();
        match <[usize; 4]>::try_from(sizes) {
            Ok([0, 0, 0, 0]) => Ok(None),
            Ok(sizes) if listed.len() == 4 => Ok(Some(Self(sizes))),
            _ => Err(hp.bad(KEY, &format!("is {listed:?}, must be 4 sizes. {AGAIN}"))),
        }
    }

    /// As [`Self::read`], for a model that must have sections.
    ///
    /// # Errors
    /// As there, or it has none.
    pub(crate) fn need(hp: &Hparams<'_>) -> Result<Self, ModelError> {
        let missing = || hp.bad(KEY, &format!("must be there, with 4 sizes, not all 0. {AGAIN}"));
        Self::read(hp)?.ok_or_else(missing)
    }

    /// Refuses sections that together have more or fewer pairs than are rotated.
    ///
    /// # Errors
    /// Names both numbers.
    pub(crate) fn check(self, hp: &Hparams<'_>, rope: &RopeSpec) -> Result<Self, ModelError> {
        let (total, n_pairs) = (self.0.iter().sum::<usize>(), rope.n_rot / 2);
        if total == n_pairs {
            return Ok(self);
        }
        let problem = format!("{:?} are {total} pairs, but {n_pairs} are rotated. {AGAIN}", self.0);
        Err(hp.bad(KEY, &problem))
    }

    /// Rotary embedding `rope`, as text without pictures uses it.
    pub(crate) fn of_text(self, rope: RopeSpec, order: SectionOrder) -> RopeSpec {
        let total: usize = self.0.iter().sum();
        let still = |pair: &usize| self.is_fourth(order, pair % total);
        RopeSpec { still: (0..rope.n_rot / 2).filter(still).collect(), ..rope }
    }

    /// Refuses sections without pairs for time or height, of a model that may have none at all.
    ///
    /// # Errors
    /// The sections have none.
    pub(crate) fn with_axes(self, hp: &Hparams<'_>) -> Result<Self, ModelError> {
        if self.has_axes() {
            return Ok(self);
        }
        let problem = format!("{:?} have no pairs for time or for height. {AGAIN}", self.0);
        Err(hp.bad(KEY, &problem))
    }

    /// Whether both time and height have pairs.
    pub(crate) fn has_axes(self) -> bool {
        self.0[0] > 0 && self.0[1] > 0
    }

    fn is_fourth(self, order: SectionOrder, pair: usize) -> bool {
        match order {
            SectionOrder::Behind => pair >= self.0[..3].iter().sum(),
            SectionOrder::Turns => pair >= 3 * self.0[pair % 3],
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::describe;
    use brigade_gguf::{Gguf, GgufWriter};
    use brigade_quant::GgmlType;

    /// A header of `arch` with two heads of 128 and these sections; without the key where there are none.
    fn header(arch: &str, sections: Option<&[i32]>) -> Gguf {
        let mut writer = GgufWriter::new();
        writer.set("general.architecture", arch).unwrap();
        let sizes = [
            ("block_count", 1_u32),
            ("context_length", 1024),
            ("embedding_length", 256),
            ("feed_forward_length", 512),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 2),
        ];
        for (key, value) in sizes {
            writer.set(&format!("{arch}.{key}"), &value).unwrap();
        }
        writer.set(&format!("{arch}.attention.layer_norm_rms_epsilon"), &1e-6_f32).unwrap();
        if let Some(sections) = sections {
            writer.set(&format!("{arch}.rope.dimension_sections"), sections).unwrap();
        }
        writer.tensor("token_embd.weight", GgmlType::F32, &[256, 16]).unwrap();
        let mut stream = writer.start(Vec::new()).unwrap();
        stream.write(&[0; 4 * 256 * 16]).unwrap();
        Gguf::from_bytes(stream.finish().unwrap().into(), "test.gguf").unwrap()
    }

    fn still(arch: &str, sections: [i32; 4]) -> Vec<usize> {
        describe(&header(arch, Some(&sections))).unwrap().rope.unwrap().still
    }

    #[test]
    fn pairs_of_the_fourth_section_stay_where_they_are() {
        // As Qwen2-VL, PaddleOCR-VL, Qwen3-VL and HunyuanOCR have them.
        assert!(still("qwen2vl", [16, 24, 24, 0]).is_empty());
        assert!(still("paddleocr", [16, 24, 24, 0]).is_empty());
        assert_eq!(still("qwen3vl", [24, 20, 20, 0]), [61, 62]);
        let last: Vec<usize> = (48..64).collect();
        assert_eq!(still("hunyuan_vl", [16, 16, 16, 16]), last);
        assert!(still("hunyuan_vl", [0; 4]).is_empty());
        assert_eq!(still("glm4", [16, 24, 23, 1]), [63]);
    }

    #[test]
    fn sections_that_cannot_be_are_refused_with_what_to_do() {
        let no_key: Option<&[i32]> = None;
        let refused = [
            ("qwen2vl", no_key, "must be there"),
            ("qwen3vl", no_key, "must be there"),
            ("paddleocr", Some(&[0, 0, 0, 0]), "must be there"),
            ("qwen2vl", Some(&[16, 24, 24]), "4 sizes"),
            ("qwen2vl", Some(&[16, 24, 24, 0, 0]), "4 sizes"),
            ("qwen2vl", Some(&[-16, 40, 40, 0]), "4 sizes"),
            ("qwen2vl", Some(&[16, -24, 24, 24, 24]), "4 sizes"),
            ("qwen2vl", Some(&[8, 12, 12, 0]), "32 pairs, but 64"),
            ("qwen3vl", Some(&[24, 20, 22, 0]), "66 pairs, but 64"),
            ("paddleocr", Some(&[16, 24, 0, 0]), "40 pairs, but 64"),
            ("hunyuan_vl", Some(&[16, 16, 16, 15]), "63 pairs, but 64"),
            ("hunyuan_vl", Some(&[0, 16, 32, 16]), "time or for height"),
        ];
        for (arch, sections, problem) in refused {
            let message = describe(&header(arch, sections)).unwrap_err().to_string();
            for word in ["rope.dimension_sections", problem, "Convert the model again"] {
                assert!(message.contains(word), "{arch} {sections:?}: {message}");
            }
        }
    }
}
