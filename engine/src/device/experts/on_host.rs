//! The host beside a device: experts that lie in its memory are computed there, and all else goes on with the device.
//!
//! One copy crosses each way: rows with their routing, and the experts' outputs. The host waits for the first only.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::copies::Copies;
use super::places::Places;
use super::visits::Visits;
use crate::device::accelerator::There;
use crate::device::{Device, ExpertMatrices, Rows, Scratch, give_up};
use crate::kernels::{Compute, DeviceError, KernelError, PackedMatrix};
use crate::ops::{Copy, Fetch, Inbox, Part, Routing, View};
use crate::quant::GgmlType;

/// The host's part in computing experts beside a device.
pub(crate) struct Beside {
    host: Device,
    scratch: Scratch,
    /// For what it made, where the device reads it.
    inbox: Mutex<Box<dyn Inbox>>,
    /// Pairs of a row and an expert so far: here, and with the host.
    pub(super) n_pairs: [AtomicU64; 2],
    /// Bytes of experts that visited here so far.
    pub(super) sent_bytes: AtomicU64,
    /// Rule by which experts visit the device, and their places there.
    pub(super) visits: Visits,
    pub(super) places: Places,
    /// Copies of some that stay here, and pairs that were computed with these.
    copies: Mutex<Copies>,
    pub(super) n_hits: AtomicU64,
    /// Microseconds that the host waited for rows, and that it computed.
    waited_us: AtomicU64,
    computed_us: AtomicU64,
}

/// Counts of a stage's experts on a device, since it was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertCounts {
    /// Rows that they computed with the device, each row for each of its experts.
    pub device_rows: u64,
    /// Rows among these of experts in the host's memory that had a copy on the device.
    pub copy_rows: u64,
    /// Rows that they computed with the host beside it.
    pub host_rows: u64,
    /// Bytes of weights that were sent from the host to the device.
    pub sent_bytes: u64,
    /// Microseconds that the host waited for the device's rows before its experts could begin.
    pub host_waited_us: u64,
    /// Microseconds that the host computed its experts. The device waits for that, but for what it has to do meanwhile.
    pub host_computed_us: u64,
}

/// Rows on their way to where their experts lie.
pub struct Sent {
    /// The rows, and behind them experts and weights where these are chosen by a device.
    values: Box<dyn Fetch>,
    cols: usize,
    /// Routing of the rows: filled where the host chose.
    routing: Routing,
}

/// Rows where their experts lie, and what computes there.
pub struct Away<'a> {
    /// Device that computes them, the host.
    pub device: &'a Device,
    /// Memory for new rows.
    pub scratch: &'a Scratch,
    /// Rows that experts read.
    pub x: Rows,
    /// Routing of the rows to experts.
    pub routing: Routing,
    /// Whether the pass is a rehearsal, in which nothing is computed.
    pub is_rehearsal: bool,
}

impl Beside {
    pub(crate) fn new(compute: Arc<Compute>, there: &There) -> Self {
        let scratch = Scratch::new(None);
        Self {
            host: Device::of(compute),
            scratch,
            inbox: Mutex::new(there.inbox()),
            n_pairs: Default::default(),
            sent_bytes: AtomicU64::default(),
            visits: Visits::default(),
            places: Places::default(),
            copies: Mutex::default(),
            n_hits: AtomicU64::default(),
            waited_us: AtomicU64::default(),
            computed_us: AtomicU64::default(),
        }
    }

    pub(super) fn copies(&self) -> MutexGuard<'_, Copies> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `read` take rows of the host, which lie with the device meanwhile.
    ///
    /// # Panics
    /// If there is no room for them. The stage ends with this as its reason.
    pub(super) fn lend(&self, rows: &Rows, read: &mut dyn FnMut(View<'_, f32>)) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let mut read = |part: Part<'_>| read(View::Device(part));
        or_give_up(inbox.put(bytemuck::cast_slice(rows.host()), &mut read));
    }
}

impl Device {
    /// Whether matrices may lie elsewhere than what this device computes with ([`Device::pack_beside`]).
    pub fn has_beside(&self) -> bool {
        self.beside.is_some()
    }

    /// [`Device::pack`] for experts that shall not take this device's memory. Where it has no other it is the same.
    ///
    /// # Errors The errors of [`PackedMatrix::pack`].
    pub fn pack_beside(
        &self,
        ty: GgmlType,
        rows: usize,
        cols: usize,
        bytes: &[u8],
    ) -> Result<PackedMatrix, KernelError> {
        PackedMatrix::pack(&self.compute, ty, rows, cols, bytes)
    }

    /// Sends rows and their routing to where the experts `w` lie; `None` where that is here. The device computes the
    /// ops that it is told from now on meanwhile.
    ///
    /// # Panics
    /// If there is no memory for the copy. The stage ends with this as its reason.
    pub fn send(&self, w: &ExpertMatrices, x: &Rows, routing: &Routing) -> Option<Sent> {
        let there = self.there.as_ref()?;
        if let Some(beside) = self.beside.as_ref().filter(|_| !there.state().is_rehearsing) {
            let place = usize::from(w.is_beside());
            beside.n_pairs[place].fetch_add(routing.n_pairs() as u64, Ordering::Relaxed);
        }
        if !w.is_beside() || x.is_empty() {
            return None;
        }
        let mut sent = Routing::new(x.n_rows(), routing.n_expert(), routing.n_used());
        let mut parts = vec![at(x)];
        match routing.there() {
            Some(routes) => parts.push(routes.chosen()),
            None => sent = sent.with_lists(routing.lists().clone()),
        }
        let values = there.bring("rows for the host's experts", &parts);
        there.begin();
        Some(Sent { values, cols: x.cols(), routing: sent })
    }

    /// Counts of the experts so far; zeros on the CPU.
    pub fn expert_counts(&self) -> ExpertCounts {
        let Some(beside) = &self.beside else { return ExpertCounts::default() };
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let [device_rows, host_rows] = beside.n_pairs.each_ref().map(read);
        ExpertCounts {
            device_rows,
            copy_rows: read(&beside.n_hits),
            host_rows,
            sent_bytes: read(&beside.sent_bytes),
            host_waited_us: read(&beside.waited_us),
            host_computed_us: read(&beside.computed_us),
        }
    }

    /// Makes this device begin with all that it was told.
    pub fn begin(&self) {
        self.there.iter().for_each(|there| there.begin());
    }

    /// The rows that were sent, where their experts lie: waits for them, with all that this device was told before on its way.
    ///
    /// # Panics
    /// If the device failed. The stage ends with this as its reason.
    pub fn away(&self, sent: Sent) -> Away<'_> {
        const THERE: &str = "rows are sent to what lies beside";
        let (there, beside) =
            (self.there.as_ref().expect(THERE), self.beside.as_ref().expect(THERE));
        let Sent { values, cols, mut routing } = sent;
        let n_rows = routing.n_rows();
        there.begin();
        let (rows, chosen) = counted(&beside.waited_us, || values.bytes())
            .split_at(n_rows * cols * size_of::<f32>());
        or_give_up(there.check());
        let mut x = beside.scratch.take(n_rows, cols);
        x.write(bytemuck::cast_slice(rows));
        if !chosen.is_empty() {
            let (ids, weights) = chosen.split_at(chosen.len() / 2);
            routing.keep_here(bytemuck::cast_slice(ids), bytemuck::cast_slice(weights));
        }
        let is_rehearsal = there.state().is_rehearsing;
        Away { device: &beside.host, scratch: &beside.scratch, x, routing, is_rehearsal }
    }

    /// What the host computes for its experts, whose time is counted.
    pub fn on_host<T>(&self, compute: impl FnOnce() -> T) -> T {
        match &self.beside {
            Some(beside) => counted(&beside.computed_us, compute),
            None => compute(),
        }
    }

    /// Rows that were computed beside this device, as rows of its own.
    ///
    /// # Panics
    /// If it has no memory for them. The stage ends with this as its reason.
    pub fn bring(&self, scratch: &Scratch, rows: &Rows) -> Rows {
        let mut here = scratch.take(rows.n_rows(), rows.cols());
        self.lent(rows, &mut |from| self.run(Copy { from, to: here.view_mut() }));
        here
    }
}

/// Adds the microseconds that `work` takes to `us`.
fn counted<T>(us: &AtomicU64, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = work();
    us.fetch_add(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
    done
}

/// Place of rows in a device's memory.
///
/// # Panics
/// If they lie with the host.
fn at(rows: &Rows) -> Part<'_> {
    match rows.view() {
        View::Device(part) => part,
        View::Host(_) | View::Lasting(..) => panic!("rows of a stage on a device lie with it"),
    }
}

fn or_give_up(result: Result<(), DeviceError>) {
    if let Err(error) = result {
        give_up("what the host's experts made", &error);
    }
}
