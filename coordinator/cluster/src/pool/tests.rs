//! Tests of loans: workers that never say a word, and lines that take and give back at once.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use brigade_line::model::Model;
use brigade_plan::{Balance, Checkpoint};
use brigade_proto::address::{Address, FIRST_STAGE};
use brigade_proto::control::{Capabilities, DiskPart, HealthReply, KvType, WireType};
use tokio::sync::mpsc;

use super::state::{HOLDERS_COME_WITHIN, Returned, State, Want};
use super::worker::SeatId;
use super::{Demand, demands};
use crate::config::StageOptions;
use crate::members::conn::Conn;
use crate::members::departed::REFUSED_FOR;

/// More loans than any of the tests should see: the lines would go on for ever.
const WITHOUT_END: usize = 50;

/// A line of the demo model.
pub(crate) fn demand() -> Demand {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf");
    let options = StageOptions {
        kv_type: KvType::F16,
        wire_type: WireType::F32,
        ctx: Some(512),
        least_ctx: None,
        max_seqs: 1,
        keep: None,
        full_windows: false,
        own_drafts: false,
        max_rows: 64,
        kernels: None,
        balance: Balance::default(),
        checkpoint: Checkpoint::default(),
        others: Arc::default(),
        cut: None,
    };
    let model = Arc::new(Model::open(&file).unwrap());
    Demand { model, options, at_least: 1, goes_on: false }
}

/// What a worker says that such a line may have.
pub(crate) fn capable(disk: Option<DiskPart>) -> Capabilities {
    let Demand { model, options, .. } = demand();
    let needs = demands::requirements(&model, &options);
    Capabilities {
        architectures: vec![needs.architecture],
        quant_types: needs.quant_types,
        wire_types: vec![WireType::F32.into()],
        kv_types: vec![KvType::F16.into()],
        threads: 1,
        memory_limit: 1 << 30,
        memory_free: 1 << 30,
        gb_per_second: 10.0,
        gop_per_second: 100.0,
        disk,
        ..Capabilities::default()
    }
}

/// A worker of the machine `lab` that has joined; its address.
async fn joined(state: &mut State, stage: u8, disk: Option<DiskPart>) -> Address {
    let conn = Conn::mute("lab", stage, capable(disk)).await;
    let (address, now) = (conn.address().clone(), Instant::now());
    conn.pulse().beat(now, &HealthReply::default());
    let id = state.joined(&address, now).unwrap();
    assert!(state.connected(id, conn, now));
    address
}

/// Lines that want one worker each, in the order of their seats.
struct Lines {
    state: State,
    loans: BTreeMap<SeatId, mpsc::Receiver<Address>>,
}

impl Lines {
    /// So many lines, and one worker that has joined.
    async fn with_one_worker(lines: usize) -> (Self, Address) {
        let (demand, mut state) = (demand(), State::new(Vec::new()));
        let loans = (0..lines).map(|_| state.seat(demand.clone())).collect();
        let address = joined(&mut state, FIRST_STAGE, None).await;
        (Self { state, loans }, address)
    }

    fn want(&mut self) {
        let want = Want { without: Vec::new(), at_least: 1, makes_do: false, least_ctx: None };
        for seat in self.loans.keys().copied().collect::<Vec<_>>() {
            self.state.want(seat, Some(want.clone()));
        }
    }

    /// The lines that are lent a worker, in turn, while each gives it back at once in this way.
    fn lent(&mut self, how: Returned) -> Vec<SeatId> {
        let mut lent = Vec::new();
        while lent.len() < WITHOUT_END {
            let next = self
                .loans
                .iter_mut()
                .find_map(|(seat, loans)| loans.try_recv().ok().map(|address| (*seat, address)));
            let Some((seat, address)) = next else { break };
            lent.push(seat);
            self.state.is_back(seat, &address, how);
        }
        lent
    }

    fn seats(&self) -> Vec<SeatId> {
        self.loans.keys().copied().collect()
    }
}

#[tokio::test]
async fn a_worker_that_refuses_several_lines_is_lent_to_each_once() {
    let (mut lines, _) = Lines::with_one_worker(3).await;
    lines.want();
    let seats = lines.seats();
    assert_eq!(lines.lent(Returned::Refused), seats);
    assert!(seats.iter().all(|seat| lines.state.why(*seat).contains("0 of 1 workers")));
    lines.state.look_again(Instant::now());
    assert_eq!(lines.lent(Returned::Refused), [], "it is put off for a while");
    lines.state.look_again(Instant::now() + REFUSED_FOR);
    assert_eq!(lines.lent(Returned::Refused), seats, "and then tried again");
}

#[tokio::test]
async fn a_line_that_begins_later_has_not_been_refused() {
    let (mut lines, _) = Lines::with_one_worker(2).await;
    lines.want();
    assert_eq!(lines.lent(Returned::Refused).len(), 2);
    let (later, loans) = lines.state.seat(demand());
    lines.loans.insert(later, loans);
    lines.want();
    assert_eq!(lines.lent(Returned::Refused), [later]);
}

/// A cache of a folder with this limit.
fn cache(limit: u64, reads_files: bool) -> DiskPart {
    DiskPart { limit, folder: 7, reads_files, ..DiskPart::default() }
}

/// A model of the same size with other weights.
fn another() -> Demand {
    let Demand { model, .. } = demand();
    let mut model = Arc::into_inner(model).unwrap();
    model.header_hash = blake3::hash(b"another");
    Demand { model: Arc::new(model), ..demand() }
}

/// When workers of the server before have come.
fn later() -> Instant {
    Instant::now() + HOLDERS_COME_WITHIN
}

#[tokio::test]
async fn a_model_that_never_fits_a_cache_is_refused_and_nothing_goes_for_it() {
    let (mut state, needed) = (State::new(Vec::new()), demand().model.stored().all());
    joined(&mut state, 1, Some(cache(needed - 1, false))).await;
    let why = state.never(&demand(), later()).unwrap();
    assert!(
        why.contains("lack room in the cache of lab") && why.contains("--cache-limit"),
        "{why}"
    );
    assert_eq!(state.never(&demand(), Instant::now()), None, "others may come yet");
    assert!(state.in_the_way(&demand(), &[]).is_err());
    joined(&mut state, 2, Some(DiskPart { folder: 8, ..cache(needed, false) })).await;
    assert_eq!(state.never(&demand(), later()), None, "it fits the other worker");
    assert_eq!(state.reserve(demand()).map(|_| ()), Ok(()));
}

#[tokio::test]
async fn who_has_no_room_makes_an_idle_model_go_where_they_share_a_folder() {
    let (mut state, needed) = (State::new(Vec::new()), demand().model.stored().all());
    for stage in [1, 2, 3] {
        joined(&mut state, stage, Some(cache(needed + needed / 2, false))).await;
    }
    let (seat, _loans) = state.reserve(demand()).unwrap();
    assert_eq!(state.in_the_way(&demand(), &[seat]), Ok(vec![]), "the same weights are there");
    assert_eq!(state.in_the_way(&another(), &[seat]), Ok(vec![seat]));
    let why = state.in_the_way(&another(), &[]).unwrap_err();
    assert!(why.contains("of which other models leave"), "{why}");
    assert_eq!(state.never(&another(), later()), None, "it fits when others go");
    state.leave(seat);
    assert_eq!(state.in_the_way(&another(), &[]), Ok(vec![]));
}

#[tokio::test]
async fn workers_without_a_limit_or_with_the_models_file_are_lent_as_ever() {
    for disk in [None, Some(cache(1, true)), Some(DiskPart { folder: 0, ..cache(1, false) })] {
        let mut state = State::new(Vec::new());
        joined(&mut state, 1, disk).await;
        assert_eq!(state.never(&demand(), later()), None);
        assert_eq!(state.reserve(demand()).map(|_| ()), Ok(()));
    }
}

#[tokio::test]
async fn a_worker_that_refuses_for_its_cache_needs_it_from_then_on() {
    let mut state = State::new(Vec::new());
    let address = joined(&mut state, 1, Some(cache(1, true))).await;
    let (seat, _loans) = state.reserve(demand()).unwrap();
    state.declines(seat, &address, "lab refuses: no room", true);
    state.is_back(seat, &address, Returned::Spare);
    let want = Want { without: Vec::new(), at_least: 1, makes_do: false, least_ctx: None };
    state.want(seat, Some(want));
    assert!(state.why(seat).contains("0 of 1 workers") && !state.lacks_disk(seat));
    state.look_again(later());
    assert!(state.lacks_disk(seat), "{}", state.why(seat));
    assert!(state.why(seat).contains("lab refuses: no room"), "in its own words");
    let never = state.never_of(seat, later()).unwrap();
    assert!(never.contains("--cache-limit") && never.contains("lab refuses"), "{never}");
    assert!(state.never(&demand(), later()).is_some(), "other lines of the model too");
    assert_eq!(state.never(&another(), later()), None, "it may have other models' files");
}
