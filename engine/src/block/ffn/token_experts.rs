//! A table that says which experts each token uses (hash layers; arXiv 2106.04426).

use crate::quant::GgmlType;
use crate::spec::{ModelError, TOKEN_EXPERTS};
use crate::weights::WeightLoader;

/// The experts of each token, in the order in which they are added.
pub(super) struct TokenExperts {
    n_used: usize,
    /// `[n_vocab, n_used]`: the experts of a token stand together.
    ids: Vec<u32>,
}

impl TokenExperts {
    /// Loads `<stem>.ffn_gate_tid2eid`: `n_used` of `n_expert` experts for each of `n_vocab` tokens. A file lists the sizes of
    /// a tensor from the innermost one on.
    pub(super) fn load(
        stem: &str,
        n_vocab: usize,
        n_used: usize,
        n_expert: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let name = format!("{stem}.{TOKEN_EXPERTS}");
        let (ty, bytes) = loader.raw(&name, &[n_used, n_vocab])?;
        if ty != GgmlType::I32 {
            return Err(ModelError::Bad(format!("{name} is of type {ty}, must be I32")));
        }
        let ids: Vec<u32> =
            bytes.as_chunks().0.iter().map(|id: &[u8; 4]| u32::from_le_bytes(*id)).collect();
        match ids.iter().position(|&id| id as usize >= n_expert) {
            Some(at) => Err(ModelError::Bad(format!(
                "{name} gives token {} expert {}, there are {n_expert}",
                at / n_used,
                // The file has signed numbers: a negative one is told as it stands there.
                ids[at].cast_signed()
            ))),
            None => Ok(Self { n_used, ids }),
        }
    }

    /// Experts of a token, whose id must be in the vocabulary.
    pub(super) fn of(&self, token: u32) -> &[u32] {
        &self.ids[token as usize * self.n_used..][..self.n_used]
    }

    /// Bytes of the table.
    pub(super) fn nbytes(&self) -> usize {
        size_of_val(&self.ids[..])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::Device;
    use crate::gguf::{Gguf, GgufWriter};
    use crate::kernels::select;

    /// A table of two experts for each of three tokens.
    fn load(ty: GgmlType, ids: [i32; 6]) -> Result<TokenExperts, String> {
        let mut writer = GgufWriter::new();
        writer.tensor("blk.0.ffn_gate_tid2eid.weight", ty, &[2, 3]).unwrap();
        let mut stream = writer.start(Vec::new()).unwrap();
        stream.write(bytemuck::cast_slice(&ids)).unwrap();
        let model = Gguf::from_bytes(Arc::from(stream.finish().unwrap()), "test").unwrap();
        let device = Device::cpu(select(Some("reference")).unwrap(), 1, None).unwrap();
        let mut progress = |_| ();
        let mut loader = WeightLoader::new(&model, &model, &device, &mut progress);
        TokenExperts::load("blk.0", 3, 2, 8, &mut loader).map_err(|error| error.to_string())
    }

    #[test]
    fn tokens_have_the_experts_of_their_row() {
        let table = load(GgmlType::I32, [5, 0, 7, 7, 1, 2]).unwrap();
        assert_eq!([0, 1, 2].map(|token| table.of(token)), [[5, 0], [7, 7], [1, 2]]);
    }

    #[test]
    fn a_table_of_experts_that_are_not_there_or_of_another_type_is_refused() {
        for (ty, ids, says) in [
            (GgmlType::I32, [5, 0, 7, 8, 1, 2], "token 1 expert 8, there are 8"),
            (GgmlType::I32, [5, 0, 7, 0, 1, -1], "token 2 expert -1"),
            (GgmlType::F32, [5, 0, 7, 0, 1, 2], "type F32, must be I32"),
        ] {
            let error = load(ty, ids).err().unwrap();
            assert!(error.contains(says), "{error}");
        }
    }
}
