//! Writes one sequence's state on a stage as bytes, and reads it back.

use super::Stage;
use crate::batch::{AdapterUse, SlotId};
use crate::error::{BatchError, SnapshotError};
use crate::state::{Sequence, SnapshotReader, SnapshotWriter};

impl Stage {
    /// Identity of this stage's snapshots: a snapshot of another model or cache type is refused. Models are told apart
    /// by the hash of their metadata and tensor directory, those of one shape by the fingerprints of their layers.
    pub(super) fn identity(&self) -> String {
        let (spec, kv_type) = (&self.spec, self.config.kv_type);
        let hash = self.model_hash.to_hex();
        let kept = if self.config.windows { " of windows" } else { "" };
        let vectors = self.config.control_vectors.as_ref();
        let vectors = vectors.map_or(String::new(), |v| format!(", control vectors {}", v.id));
        format!("{} of {} layers, {hash}, KV {kv_type:?}{kept}{vectors}", spec.arch, spec.n_layer())
    }

    /// Identity of a sequence's snapshots: one that was computed with other adapters is refused.
    fn identity_of(&self, sequence: &Sequence) -> String {
        let mut identity = self.identity();
        for (i, used) in sequence.adapters.iter().enumerate() {
            let before = if i == 0 { ", adapters" } else { "" };
            let AdapterUse { adapter, scale } = used;
            identity.push_str(&format!("{before} {adapter}*{scale}"));
        }
        identity
    }

    /// The state that `slot` has on this stage, layer by layer, in a versioned and checksummed form.
    ///
    /// # Errors
    /// The slot holds no sequence, or the device failed.
    pub fn snapshot(&self, slot: SlotId) -> Result<Vec<u8>, SnapshotError> {
        let sequence = self.sequences.get(slot).ok_or(BatchError::NotOpen(slot))?;
        let history = self.sequences.history(slot);
        let identity = self.identity_of(sequence);
        let mut writer = SnapshotWriter::new(&identity, sequence.len, history, &self.prints);
        for block in &self.blocks {
            if let Some(state) = block.state.read(sequence) {
                writer.section(block.layer, block.number, &state);
            }
        }
        let bytes = writer.finish();
        // What was read of a device that failed is anything.
        self.device.finish().map_err(BatchError::from)?;
        Ok(bytes)
    }

    /// Gives an open sequence the state of a snapshot; what it held before is lost. The snapshot
    /// may come from a stage with another cut as long as it has this stage's layers.
    ///
    /// # Errors
    /// Bytes that are damaged or foreign, a slot that is not open, or too few pages; then nothing
    /// has changed. Or the device failed.
    pub fn restore(&mut self, slot: SlotId, bytes: &[u8]) -> Result<(), SnapshotError> {
        let sequence = self.sequences.get(slot).ok_or(BatchError::NotOpen(slot))?.clone();
        let snapshot = SnapshotReader::new(bytes, &self.identity_of(&sequence))?;
        sequence.check_room(slot, snapshot.len)?;
        if self.head.is_some() && snapshot.history.len() != snapshot.len as usize {
            let why = "it has no tokens, which the last stage needs: merge its snapshot in";
            return Err(SnapshotError::Foreign(why.to_owned()));
        }
        self.prints.iter().try_for_each(|print| snapshot.check_layer(print))?;
        let restored = crate::state::Sequence { len: snapshot.len, ..sequence };
        let mut sections = Vec::new();
        for block in self.blocks.iter().filter(|b| b.state.n_bytes_of(&restored) > 0) {
            let section = snapshot.section(block.layer, block.number)?;
            let wanted = block.state.n_bytes_of(&restored);
            if section.len() != wanted {
                return Err(SnapshotError::Damaged(format!(
                    "layer {} holds {} bytes, wanted {wanted}",
                    block.layer,
                    section.len()
                )));
            }
            sections.push(section);
        }
        let stateful = self.blocks.iter_mut().filter(|b| b.state.n_bytes_of(&restored) > 0);
        for (block, section) in stateful.zip(sections) {
            block.state.write(slot, &restored, section);
        }
        self.device.finish().map_err(BatchError::from)?;
        self.sequences.set_restored(slot, snapshot.len, snapshot.history);
        self.own_drafts.iter_mut().for_each(|drafts| drafts.replaced(slot, snapshot.len));
        Ok(())
    }
}
