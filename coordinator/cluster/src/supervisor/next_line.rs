//! The supervisor's part about a change that is on its way: while the line runs, the next one loads.

use brigade_proto::control::Feature;
use brigade_proto::task;
use std::ops::Range;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Line, Supervisor};
use crate::building::ahead::{self, Ahead};
use crate::members::conn::Conn;
use crate::members::facts;
use crate::members::placed_stage::Identity;
use crate::reconcile::MemberId;
use brigade_line::admin::{Asked, Refused};

/// How long a worker that is about to leave is kept waiting while others load: it goes 30 s after it was asked to
/// ([`brigade_worker::run::DRAIN_WITHIN`]), and its states have to move before.
pub(super) const LEAVER_WAITS: Duration = Duration::from_secs(20);

/// A change for which the next line loads.
#[derive(Debug)]
pub(super) struct NextLine {
    /// The change, in words.
    pub what: String,
    asked: Option<Asked>,
    /// Epoch of spares that load.
    pub spare_epoch: u64,
    /// The workers that it may be built over, with the numbers of their connections.
    over: Vec<(MemberId, u64)>,
    /// The worker that was drained for it, by an order.
    pub drains: Option<MemberId>,
}

impl NextLine {
    /// Whether it may be built over this worker.
    pub(super) fn counts_on(&self, id: MemberId) -> bool {
        self.over.iter().any(|(member, _)| *member == id)
    }
}

impl Supervisor {
    /// Begins a change of the line that is up. Weights that the next line needs are loaded first, for at most
    /// `within`.
    pub(super) fn change(&mut self, what: String, asked: Option<Asked>, within: Option<Duration>) {
        self.give_up_coming(&what);
        let Line::Up { stages, layers, n_ctx, .. } = &self.line else { return };
        tracing::info!(
            what,
            "a change of the line begins: what it needs is loaded while the line runs"
        );
        let running: Vec<(MemberId, Range<usize>)> =
            stages.iter().copied().zip(layers.iter().cloned()).collect();
        let mut options = self.ends.config.stage.clone();
        options.least_ctx = Some(*n_ctx);
        let who = match &self.ordered {
            Some(ordered) => {
                options.cut = Some(ordered.cut.clone());
                ordered.who.clone()
            }
            None => self.usable(),
        };
        let conn = |id: &MemberId| Some((*id, self.members.get(id)?.conn()?.clone()));
        let conns: Vec<(MemberId, Conn)> = who.iter().filter_map(conn).collect();
        let serial = |id: &MemberId| Some((*id, self.members.get(id)?.serial()));
        let over = who.iter().filter_map(serial).collect();
        let spare_epoch = self.ends.own_name.next_epoch();
        let identity =
            Identity { epoch: spare_epoch, coordinator_id: self.ends.coordinator_id.clone() };
        let (model, running_epoch) = (self.ends.model.clone(), self.epoch);
        let holders = self.all_conns();
        let order =
            ahead::Order { conns, model, options, running, running_epoch, holders, identity };
        let mut forgetting = std::mem::take(&mut self.forgetting);
        self.loading_ahead.spawn(async move {
            let loading = async {
                // A worker that forgets later would forget this line.
                while forgetting.join_next().await.is_some() {}
                ahead::load(order).await.map_err(|error| error.to_string())
            };
            let Some(within) = within else { return loading.await };
            let late = |_| Err(format!("its layers were not loaded within {} s", within.as_secs()));
            timeout(within, loading).await.unwrap_or_else(late)
        });
        self.next_line = Some(NextLine { what, asked, spare_epoch, over, drains: None });
    }

    /// Checks that the next line can still be built: workers may have gone while it was loaded.
    fn suffice_still(&mut self) -> Result<(), String> {
        let is_there = |(id, serial): &(MemberId, u64)| {
            let member = self.members.get(id);
            member.is_some_and(|member| member.conn().is_some() && member.serial() == *serial)
        };
        if self.next_line.iter().flat_map(|coming| &coming.over).all(is_there) {
            return Ok(());
        }
        self.suffice(&self.usable())
    }

    /// The next line has loaded, as far as it could: the line changes, if the workers that are left suffice.
    pub(super) async fn loaded_ahead(&mut self, loaded: Result<Ahead, String>) {
        if let Err(why) = self.suffice_still() {
            return self
                .give_up_coming(&format!("the other workers do not suffice any more: {why}"));
        }
        let Some(NextLine { what, asked, spare_epoch, .. }) = self.next_line.take() else { return };
        let mut read_bytes = 0;
        let placement = match loaded {
            Ok(Ahead { line, read_bytes: read, placement }) => {
                self.ordered = Some(line);
                read_bytes = read;
                Some(placement)
            }
            Err(why) => {
                tracing::warn!(why, "the next line is loaded while streams wait");
                None
            }
        };
        self.take_down(what, asked, read_bytes, spare_epoch, placement).await;
    }

    /// Cancels the loading of the next line, because of `why`.
    pub(super) fn give_up_coming(&mut self, why: &str) {
        let Some(coming) = self.next_line.take() else { return };
        let loading = std::mem::replace(&mut self.loading_ahead, JoinSet::new());
        self.ordered = None;
        tracing::info!(what = coming.what, why, "a change of the line is given up");
        self.free_spares(coming.spare_epoch);
        self.forget_ahead(loading);
        // Its order is refused, so that it may have layers as before.
        if let Some(member) = coming.drains.and_then(|id| self.members.get_mut(&id)) {
            member.undrain();
        }
        if let Some(asked) = coming.asked {
            let text = format!("it is given up: {why}; ask again if it is still wanted");
            // The client may have gone.
            let _ = asked.reply.send(Err(Refused(text)));
        }
    }

    /// Ends `loading`; then workers of the line that runs let go of what they loaded for the next one.
    fn forget_ahead(&mut self, mut loading: JoinSet<Result<Ahead, String>>) {
        let stages: &[MemberId] = match &self.line {
            Line::Up { stages, .. } => stages,
            Line::Building { .. } | Line::Down { .. } => &[],
        };
        let conns = stages.iter().filter_map(|id| self.members.get(id)?.conn());
        let conns = conns.filter(|conn| facts::knows(conn.capabilities(), Feature::LoadAhead));
        let (conns, epoch): (Vec<Conn>, u64) = (conns.cloned().collect(), self.epoch);
        self.forgetting.spawn(async move {
            // No call of it comes to a worker behind this one.
            loading.shutdown().await;
            let mut all = JoinSet::new();
            for conn in conns {
                all.spawn(async move { conn.forget_ahead(epoch).await });
            }
            while all.join_next().await.is_some() {}
        });
    }

    /// Spares that loaded in an epoch for a line that they are not on let go of it.
    pub(super) fn free_spares(&self, spare_epoch: u64) {
        let stages: &[MemberId] = match &self.line {
            Line::Up { stages, .. } | Line::Building { who: stages } => stages,
            Line::Down { .. } => &[],
        };
        for (id, member) in &self.members {
            let Some(conn) = member.conn().filter(|_| !stages.contains(id)).cloned() else {
                continue;
            };
            // One that is in another epoch, or in none, refuses.
            task::spawn(async move { conn.unload(spare_epoch).await });
        }
    }
}
