//! Records of prefixes in the worker's state: saves states of the stage as records, and loads them.

use std::collections::HashSet;
use std::sync::Arc;

use brigade_engine::batch::CopyName;
use brigade_proto::copies::{
    FetchRequest, PrefixSave, PrefixesReply, PrefixesRequest, prefixes_request::Ask,
};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::tls::Who;

use super::{Worker, blocking, check_speaker};
use crate::copies::parts::bad;
use crate::copies::source::Source;
use crate::executor::changes::Unchanged;
use crate::prefixes::load::RecordSource;
use crate::prefixes::save::{Saving, copied};
use crate::prefixes::store::{Store, Used};
use crate::prefixes::wire::{At, Keys, owners};
use crate::records::record::{Whose, key};

/// Records on this worker.
#[derive(Debug)]
pub struct Prefixes {
    store: Arc<Store>,
    /// The lock under which one state at a time is saved.
    saving: tokio::sync::Mutex<()>,
}

impl Prefixes {
    /// The records of a store.
    pub fn new(store: Store) -> Self {
        Self { store: Arc::new(store), saving: tokio::sync::Mutex::default() }
    }
}

impl Worker {
    /// The same with records, or without.
    pub fn with_prefixes(self, prefixes: Option<Prefixes>) -> Self {
        Self { prefixes, ..self }
    }

    /// Bytes that records take; `None`: the worker keeps no records.
    pub fn prefixes_used(&self) -> Option<Used> {
        self.prefixes.as_ref().map(|prefixes| prefixes.store.used())
    }

    /// Gives back room for records that other stages of the node need. Blocks.
    pub(super) fn give_back_room(&self) {
        self.prefixes.iter().for_each(|prefixes| prefixes.store.give_back());
    }

    fn records(&self) -> Result<&Prefixes, Failure> {
        let why = "this worker keeps no records: give it --prefix-ram or --prefix-disk";
        self.prefixes.as_ref().ok_or_else(|| Failure::refusal(FailureKind::WrongPhase, why))
    }

    /// Answers the coordinator about records.
    ///
    /// # Errors
    /// Forbidden for an id that is not the caller's; the session's refusals; BadMessage, naming the field;
    /// the work that was asked for failed.
    pub async fn prefixes(
        &self,
        request: PrefixesRequest,
        who: &Who,
    ) -> Result<PrefixesReply, Failure> {
        let PrefixesRequest { epoch, coordinator_id, ask } = request;
        check_speaker(who, &coordinator_id)?;
        let records = self.records()?;
        let store = records.store.clone();
        match ask.ok_or_else(|| bad("prefixes.ask is missing"))? {
            Ask::Facts(_) => {
                let door = self.door(&coordinator_id, epoch, 0)?;
                let facts = copied(&door.jobs, None, None).await?.about;
                let prints = facts.prints.iter().flat_map(|print| *print.as_bytes());
                let prints = prints.collect::<Vec<u8>>().into();
                let kind = facts.kind.to_vec().into();
                Ok(PrefixesReply { prints, kind, ..PrefixesReply::default() })
            }
            Ask::Save(save) => {
                let saved_bytes = self.save(records, &coordinator_id, epoch, &save).await?;
                Ok(PrefixesReply { saved_bytes, ..PrefixesReply::default() })
            }
            Ask::Find(keys) => {
                self.check(&coordinator_id, epoch)?;
                let keys = Keys::of(&keys)?;
                let found = blocking(move || Ok(keys.find(&store))).await?;
                Ok(PrefixesReply { found, ..PrefixesReply::default() })
            }
            Ask::Forget(keys) => {
                self.check(&coordinator_id, epoch)?;
                let keys = Keys::of(&keys)?;
                blocking(move || {
                    store.forget(&keys.chain);
                    Ok(PrefixesReply::default())
                })
                .await
            }
            Ask::Owners(named) => {
                // Workers beside the line and those of the server's other models keep records, too, so this is no matter of
                // the session. Nobody else knows the name of the coordinator's realm.
                let (realm, named) = owners(&named)?;
                let named: HashSet<_> = named.into_iter().collect();
                let gone = blocking(move || Ok(store.keep_owners(realm, &named))).await?;
                if gone > 0 {
                    tracing::info!(gone, "records of keys that are gone are dropped");
                }
                Ok(PrefixesReply::default())
            }
        }
    }

    async fn save(
        &self,
        records: &Prefixes,
        coordinator_id: &str,
        epoch: u64,
        save: &PrefixSave,
    ) -> Result<u64, Failure> {
        let PrefixSave { slot, len, unchanged_since, .. } = *save;
        let unchanged = unchanged_since.map(|ubatch| Unchanged { epoch, ubatch });
        let at = save.at.as_ref().ok_or_else(|| bad("save.at is missing"))?;
        let whose = key(&save.realm).zip(key(&save.owner));
        let (realm, owner) =
            whose.ok_or_else(|| bad("save.realm or save.owner has no 16 bytes"))?;
        let (at, whose) = (At::of(at)?, Whose { realm, owner });
        self.door(coordinator_id, epoch, slot)?;
        let _alone = records.saving.lock().await;
        // Waiting may have taken a while.
        let door = self.door(coordinator_id, epoch, slot)?;
        let saving = Saving { store: records.store.clone(), at, whose, slot, len, unchanged };
        saving.run(&door.jobs).await
    }

    /// The records of some layers of a prompt that another worker of the line asks for.
    ///
    /// # Errors
    /// As those of [`Self::copies_for`].
    pub async fn records_for(
        &self,
        request: &FetchRequest,
        who: &Who,
    ) -> Result<Box<dyn Source>, Failure> {
        self.check_on_line(request, who)?;
        let at = request.prefix.as_ref().ok_or_else(|| bad("fetch.prefix is missing"))?;
        let FetchRequest { len, layer_begin, layer_end, .. } = *request;
        self.records_of(At::of(at)?, len, layer_begin..layer_end).await
    }

    /// Records of some layers that are here.
    ///
    /// # Errors
    /// The first record of a layer is missing.
    pub(super) async fn records_of(
        &self,
        at: At,
        len: u32,
        layers: std::ops::Range<u32>,
    ) -> Result<Box<dyn Source>, Failure> {
        let store = self.records()?.store.clone();
        let open = move || RecordSource::open(store, at, len, layers);
        Ok(Box::new(blocking(open).await?))
    }
}

/// The name of a sequence that is put back; from records it needs none.
///
/// # Errors
/// BadMessage.
pub(super) fn name_of(name: &[u8], from_records: bool) -> Result<Option<CopyName>, Failure> {
    match name {
        [] if from_records => Ok(None),
        name => crate::copies::parts::name_of(name).map(Some),
    }
}
