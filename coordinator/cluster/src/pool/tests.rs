//! Tests of loans: workers that never say a word, and lines that take and give back at once.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use brigade_line::model::Model;
use brigade_plan::{Balance, Checkpoint};
use brigade_proto::address::{Address, FIRST_STAGE};
use brigade_proto::control::{Capabilities, HealthReply, KvType, WireType};
use tokio::sync::mpsc;

use super::state::{Returned, State, Want};
use super::worker::SeatId;
use super::{Demand, demands};
use crate::config::StageOptions;
use crate::members::conn::Conn;
use crate::members::departed::REFUSED_FOR;

/// More loans than any of the tests should see: the lines would go on for ever.
const WITHOUT_END: usize = 50;

fn demand() -> Demand {
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

/// Lines that want one worker each, in the order of their seats.
struct Lines {
    state: State,
    loans: BTreeMap<SeatId, mpsc::Receiver<Address>>,
}

impl Lines {
    /// So many lines, and one worker that has joined.
    async fn with_one_worker(lines: usize) -> (Self, Address) {
        let (demand, mut state) = (demand(), State::new(Vec::new()));
        let needs = demands::requirements(&demand.model, &demand.options);
        let capabilities = Capabilities {
            architectures: vec![needs.architecture],
            quant_types: needs.quant_types,
            wire_types: vec![WireType::F32.into()],
            kv_types: vec![KvType::F16.into()],
            threads: 1,
            memory_limit: 1 << 30,
            memory_free: 1 << 30,
            gb_per_second: 10.0,
            gop_per_second: 100.0,
            ..Capabilities::default()
        };
        let conn = Conn::mute("lab", FIRST_STAGE, capabilities).await;
        let address = conn.address().clone();
        let now = Instant::now();
        conn.pulse().beat(now, &HealthReply::default());
        let loans = (0..lines).map(|_| state.seat(demand.clone())).collect();
        let id = state.joined(&address, now).unwrap();
        assert!(state.connected(id, conn, now));
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
