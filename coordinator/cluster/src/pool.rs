//! A pool of workers that join a server of several models. They belong to no model, and are lent to lines.
//!
//! The pool dials workers that join, and sends them heartbeats. A line has a [`Seat`]. By it the supervisor hears of
//! lent workers as of workers that join, says what the line lacks, and gives back workers that it does not need. A
//! lent worker belongs to one line, until the line gives it back or ends. A line gets all that it lacks or nothing,
//! so that no two lines wait for each other's workers.

mod disks;
mod lend;
mod nodes;
mod planned;
mod state;
mod task;
#[cfg(test)]
pub(crate) mod tests;
mod worker;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use brigade_line::admin::NodeStatus;
use brigade_line::model::Model;
use brigade_plan::{DraftFacts, least_bytes};
use brigade_proto::address::Address;
use brigade_proto::net::{NetError, Network};
use brigade_proto::task as spawned;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::building::{demands, place};
use crate::config::StageOptions;
use crate::members::conn::Conn;
use crate::members::join::{self, Host};
use crate::members::own_name::{OwnName, bound_id};
use crate::pki::Pki;
pub use planned::{PlannedLine, Standing, free, planned};
use state::State;
pub use state::{Returned, Want};
use task::Task;
pub use worker::SeatId;

/// Workers that join, for all lines of a server.
#[derive(Debug)]
pub struct Pool {
    state: Arc<Mutex<State>>,
    control: Address,
    joined: mpsc::Sender<Address>,
}

/// The model of a line, and what it needs.
#[derive(Clone, Debug)]
pub struct Demand {
    /// The model to serve.
    pub model: Arc<Model>,
    /// Settings of its stages.
    pub options: StageOptions,
    /// Workers that it has at least.
    pub at_least: usize,
    /// Whether streams go on that the server before this one had begun: workers that have its layers are waited for.
    pub goes_on: bool,
}

impl Demand {
    /// Bytes that the model needs at least on one worker; 0 where that cannot be told: it cannot be planned then.
    pub fn least_bytes(&self) -> u64 {
        let Self { model, options, .. } = self;
        let kv = place::engine_kv(options.kv_type);
        let Ok(mut facts) = model.facts(kv) else { return 0 };
        if options.own_drafts
            && let Ok(drafts) = DraftFacts::from_gguf(&model.gguf, kv)
        {
            facts.drafts = drafts;
        }
        least_bytes(&facts, &demands::settings(model, options), 1)
    }
}

/// A line's place at the pool. When it is dropped, all that was lent to it is free.
#[derive(Debug)]
pub struct Seat {
    id: SeatId,
    state: Arc<Mutex<State>>,
    joined: mpsc::Sender<Address>,
    loans: Mutex<Option<mpsc::Receiver<Address>>>,
}

impl Pool {
    /// Opens `control`, where workers join until `stop`; not those whose addresses are in `named`, which belong to lines.
    ///
    /// # Errors
    /// The address cannot or may not be bound.
    pub async fn open(
        control: &Address,
        network: Network,
        pki: Option<Arc<Pki>>,
        named: Vec<Address>,
        stop: CancellationToken,
    ) -> Result<Self, NetError> {
        let coordinator_id = bound_id(&network, OwnName::fresh().id());
        let host = Host { coordinator_id: coordinator_id.clone(), network: network.clone(), pki };
        let (control, joined, joins) = join::listen(control, host, stop.clone()).await?;
        let state = Arc::new(Mutex::new(State::new(named)));
        let task = Task::new(state.clone(), network, coordinator_id);
        spawned::spawn(async move {
            stop.run_until_cancelled(task.run(joins)).await;
        });
        Ok(Self { state, control, joined })
    }

    /// The address at which workers join.
    pub fn control(&self) -> &Address {
        &self.control
    }

    /// A place for a line, with no worker yet.
    pub fn seat(&self, demand: Demand) -> Arc<Seat> {
        let (id, loans) = locked(&self.state).seat(demand);
        self.seated(id, loans)
    }

    /// A place for a line, with all workers that it needs.
    ///
    /// # Errors
    /// The error says what is lacking.
    pub fn reserve(&self, demand: Demand) -> Result<Arc<Seat>, String> {
        let (id, loans) = locked(&self.state).reserve(demand)?;
        Ok(self.seated(id, loans))
    }

    fn seated(&self, id: SeatId, loans: mpsc::Receiver<Address>) -> Arc<Seat> {
        let (state, joined) = (self.state.clone(), self.joined.clone());
        Arc::new(Seat { id, state, joined, loans: Mutex::new(Some(loans)) })
    }

    /// The seats that must be given up so that a line gets what it needs. The last ones in the list stay if they can.
    ///
    /// # Errors
    /// Says what is lacking even without all of these seats.
    pub fn in_the_way(&self, demand: &Demand, seats: &[SeatId]) -> Result<Vec<SeatId>, String> {
        locked(&self.state).in_the_way(demand, seats)
    }

    /// The seats that must be given up for a line that has lacked workers for a while. Empty where giving up seats
    /// helps no such line.
    pub fn helps_others(&self, seats: &[SeatId]) -> Vec<SeatId> {
        locked(&self.state).helps_others(seats, Instant::now())
    }

    /// Why a model never fits the caches of the workers that have joined, whatever goes for it; `None`: it may fit, or something
    /// else is lacking.
    pub fn never(&self, demand: &Demand) -> Option<String> {
        locked(&self.state).never(demand, Instant::now())
    }

    /// The same of a line that lacks room in caches.
    pub fn never_of(&self, seat: SeatId) -> Option<String> {
        let state = locked(&self.state);
        if state.lacks_disk(seat) { state.never_of(seat, Instant::now()) } else { None }
    }

    /// Changes whenever a worker can be lent that could not before.
    pub fn changes(&self) -> watch::Receiver<u64> {
        locked(&self.state).changes()
    }

    /// Workers that are there and belong to no line.
    pub fn spares(&self) -> Vec<NodeStatus> {
        locked(&self.state).spares()
    }
}

impl Seat {
    /// The number of this seat.
    pub fn id(&self) -> SeatId {
        self.id
    }

    /// The addresses of workers that are lent to the line; `None`: they were taken before.
    pub(crate) fn loans(&self) -> Option<mpsc::Receiver<Address>> {
        self.loans.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// All workers of the pool that are connected, those of other lines too.
    pub(crate) fn conns(&self) -> watch::Receiver<Arc<[Conn]>> {
        locked(&self.state).conns()
    }

    /// Tells the pool what the line lacks now; `None`: nothing.
    pub(crate) fn want(&self, want: Option<Want>) {
        locked(&self.state).want(self.id, want);
    }

    /// Why the line is not lent what it wants, in words; empty where it wants nothing.
    pub(crate) fn why(&self) -> String {
        locked(&self.state).why(self.id)
    }

    /// Whether it is not lent what it wants for want of room in caches alone.
    pub(crate) fn lacks_disk(&self) -> bool {
        locked(&self.state).lacks_disk(self.id)
    }

    /// A worker will not take its stage, as it says. `of_disk`: for want of room in its cache.
    pub(crate) fn declined(&self, address: &Address, why: &str, of_disk: bool) {
        locked(&self.state).declines(self.id, address, why, of_disk);
    }

    /// The line does not need a worker any more. Where it holds it still, by `conn`, that ends first.
    pub(crate) fn give_back(
        self: &Arc<Self>,
        address: &Address,
        how: Returned,
        conn: Option<Conn>,
    ) {
        locked(&self.state).begins_to_return(self.id, address);
        let Some(conn) = conn else {
            return locked(&self.state).is_back(self.id, address, how);
        };
        let (seat, address) = (self.clone(), address.clone());
        spawned::spawn(async move {
            // A worker without an epoch, or in another coordinator's, refuses.
            let epoch = conn.pulse().last().map_or(0, |beat| beat.reply().epoch);
            if epoch > 0 {
                conn.unload(epoch).await;
            }
            locked(&seat.state).is_back(seat.id, &address, how);
        });
    }

    /// The pool's workers that belong to no line.
    pub(crate) fn spares(&self) -> Vec<NodeStatus> {
        locked(&self.state).spares()
    }

    /// A worker at this address is to be one of the pool; whether there is room to look for it.
    pub(crate) fn add(&self, address: Address) -> bool {
        self.joined.try_send(address).is_ok()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        locked(&self.state).leave(self.id);
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // Each change is whole before anything that could panic.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
