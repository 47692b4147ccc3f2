//! Golden scripts of the scheduler. A file in `tests/golden/sched/*.txt` is a transcript: events above the `---`, and
//! the actions that must follow below it. `BRIGADE_UPDATE_GOLDEN=1` rewrites the part below.
//!
//! A line is the workers that compute together. A sequence is kept when its request has ended and later ones may begin with it.
//!
//! | what is written | what the scheduler is told |
//! |---|---|
//! | `line EPOCH stages=2 slots=2 pages=8 page=4 rows=8 kept=1 whole=1` | a line comes up; pages of 4 positions; with `whole`, only whole sequences can begin others; with `texts`, it is an encoder's |
//! | | with `fixed=1`: sequences cannot get more pages than they begin with |
//! | `down REASON`, `planned REASON` | the line is lost; it was taken down as planned |
//! | `part` | the line will soon be taken down as planned |
//! | `restorable ID LEN ...` | the next line can put back the state of request ID at position LEN |
//! | `restored ID`, `spoilt ID` | the state of request ID was put back; it could not be |
//! | `submit ID prompt=5 max=3 stop=9 from=2` | prompt of tokens `from` (else 1), and those after it; without `max`: logits |
//! | | with `sure=2`: so many tokens have pages from the beginning (else all of `max`) |
//! | | with `hidden=0`: all rows of the last norm, the first for 1, the last for 2 |
//! | | with `companion=3`: has a companion with a prompt of tokens from 101 |
//! | | with `owner=1 weight=4`: whose it is; with `within=9`: seconds to its deadline |
//! | | with `adapter=1`: what its rows pass through |
//! | `open N` | a kept sequence of tokens 1 to N is opened, to be filled from elsewhere |
//! | `ready KEPT`, `drop KEPT` | that kept sequence is filled; it will not be |
//! | `find ID`, `pin ID` | prints the kept sequence of request ID, which has ended; holds on to it |
//! | `write ID`, `written KEPT` | the kept sequence of request ID is written to records from now on; it is not any more |
//! | `linger ID` | the kept sequence of request ID is likely to be continued soon |
//! | `clear` | nothing is kept any more |
//! | `cancel ID` | the client of request ID has gone |
//! | `return UBATCH TOKEN...` | with a sampled token for each wanted row, `L` for a logits row, `NaN` for none, `late` or `late:US` for a draw that is put off after masks of so many microseconds |
//! | `stale UBATCH` | results of the epoch before |
//! | `tick SECONDS` | time passes |

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::sync::Arc;

use brigade_engine::batch::{
    AdapterUse, Companion, RowOutput, RowValue, SampledToken, SamplerSetup, SamplingParams, SeqOp,
    SlotId, UBatch, Want,
};
use brigade_line::failure::Failure;
use brigade_sched::{
    Action, Event, HiddenRows, KeptId, KeptInfo, LineSpec, Request, RequestId, Results,
    SchedConfig, Scheduler, Share, Spoilt, StageTime, Work,
};
use brigade_spec::Prefixes;

/// A draw that is put off; with `:US`, how long its masks took.
const LATE: &str = "late";

/// A wanted row that gives logits.
const LOGITS: &str = "L";

/// A wanted row that gives no token.
const NO_TOKEN: &str = "NaN";

/// Scripts run with a queue this short.
const MAX_WAITING: usize = 2;

/// Scripts wait this long for another line, in seconds.
const REPAIR_WITHIN_S: u64 = 100;

struct Script {
    scheduler: Scheduler,
    now: u64,
    epoch: u64,
    n_stages: usize,
    /// Slot and position of each row that a ubatch in flight will return.
    wanted: BTreeMap<u64, VecDeque<(SlotId, u32)>>,
    /// Positions of the rows whose draws were put off.
    put_off: BTreeMap<SlotId, u32>,
}

impl Script {
    fn new() -> Self {
        let config = SchedConfig {
            max_waiting: MAX_WAITING,
            repair_within_us: REPAIR_WITHIN_S * 1_000_000,
            ..SchedConfig::default()
        };
        let scheduler = Scheduler::new(config);
        let (wanted, put_off) = Default::default();
        Self { scheduler, now: 0, epoch: 0, n_stages: 0, wanted, put_off }
    }

    fn run(&mut self, line: &str) -> String {
        self.now += 1_000;
        let mut text = String::new();
        let number = |word: &str| word.parse::<u64>().unwrap();
        let actions = match line.split_once(' ') {
            Some(("open", n)) => {
                let tokens = (1..=number(n) as u32).collect();
                let (kept, actions) = self.scheduler.open_kept(self.now, tokens, [].into());
                let _ = writeln!(text, "{}", show_kept(kept));
                actions
            }
            Some(("find", id)) => {
                return show_kept(self.scheduler.kept_of(RequestId(number(id)))) + "\n";
            }
            Some(("pin", id)) => {
                let kept = self.scheduler.kept_of(RequestId(number(id))).unwrap();
                return format!("pinned: {}\n", self.scheduler.pin_kept(kept.id));
            }
            Some(("write", id)) => {
                let kept = self.scheduler.kept_of(RequestId(number(id))).unwrap();
                return format!("is written: {}\n", self.scheduler.begin_writing(kept.id));
            }
            _ => {
                let event = self.event(line);
                self.scheduler.step(self.now, event)
            }
        };
        for action in actions {
            let _ = writeln!(text, "{}", self.show(action));
        }
        for Spoilt { tokens, .. } in self.scheduler.take_spoilt() {
            let _ = writeln!(text, "spoilt, with all that begins so: {tokens:?}");
        }
        text
    }

    fn event(&mut self, line: &str) -> Event {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split(' ').collect();
        let number = |word: &str| word.parse::<u64>().unwrap_or_else(|_| panic!("{line}: {word}"));
        let find = |key: &str| {
            let pairs = words.iter().filter_map(|w| w.split_once('='));
            pairs.filter(|(k, _)| *k == key).map(|(_, v)| number(v) as u32).next()
        };
        let field = |key: &str| find(key).unwrap_or_else(|| panic!("{line}: no {key}"));
        match verb {
            "line" => {
                self.epoch = number(words[0]);
                self.n_stages = field("stages") as usize;
                self.wanted.clear();
                Event::LineUp { epoch: self.epoch, line: line_spec(self.n_stages, field, find) }
            }
            "part" => Event::Part,
            "down" => Event::LineDown { reason: rest.to_owned(), planned: false },
            "planned" => Event::LineDown { reason: rest.to_owned(), planned: true },
            "restorable" => {
                let found = |pair: &[&str]| (RequestId(number(pair[0])), number(pair[1]) as u32);
                Event::Restorable(words.chunks(2).map(found).collect())
            }
            "restored" | "spoilt" => {
                let request = RequestId(number(words[0]));
                Event::Restored { request, is_there: verb == "restored" }
            }
            "submit" => Event::Submit(Request {
                id: RequestId(number(words[0])),
                label: words[0].into(),
                prompt: (find("from").unwrap_or(1)..).take(field("prompt") as usize).collect(),
                work: find("max").map_or(rows(find("hidden")), |max_tokens| Work::Generate {
                    max_tokens,
                    sure: find("sure").unwrap_or(max_tokens),
                    sampler: sampler(find("companion").is_some()),
                    stop_tokens: find("stop").into_iter().collect(),
                }),
                adapters: find("adapter")
                    .into_iter()
                    .map(|adapter| AdapterUse { adapter, scale: 1.0 })
                    .collect(),
                share: Share {
                    owner: find("owner").unwrap_or(0).into(),
                    weight: find("weight").unwrap_or(1),
                    leaves_room: find("owner").is_some(),
                },
                namespace: None,
                deadline: find("within").map(|seconds| self.now + u64::from(seconds) * 1_000_000),
                copied: true,
                companion: find("companion").map(|n| (101..).take(n as usize).collect()),
                drafts: None,
                borders: [].into(),
            }),
            "ready" => Event::KeptReady(KeptId(number(words[0]))),
            "written" => Event::KeptWritten(KeptId(number(words[0]))),
            "drop" => Event::DropKept(KeptId(number(words[0]))),
            "clear" => Event::ClearKept,
            "linger" => Event::Linger(RequestId(number(words[0]))),
            "cancel" => Event::Cancel(RequestId(number(words[0]))),
            "return" => self.results(self.epoch, number(words[0]), &words[1..]),
            "stale" => self.results(self.epoch - 1, number(words[0]), &[]),
            "tick" => {
                self.now += number(words[0]) * 1_000_000;
                Event::Tick
            }
            _ => panic!("unknown event: {line}"),
        }
    }

    fn results(&mut self, epoch: u64, ubatch: u64, values: &[&str]) -> Event {
        let wanted = self.wanted.remove(&ubatch).unwrap_or_default();
        let row = |(value, (slot, pos)): (&&str, (SlotId, u32))| {
            let took = value.strip_prefix(LATE).and_then(|rest| rest.strip_prefix(':'));
            let mask_us = took.map_or(0, |us| us.parse().unwrap());
            let value = match value.parse() {
                Err(_) if *value == NO_TOKEN => RowValue::Failed("logits are NaN".into()),
                Err(_) if value.starts_with(LATE) => RowValue::NotYet,
                Ok(id) => RowValue::Sampled(SampledToken { id, ..SampledToken::default() }),
                Err(_) if *value == LOGITS => RowValue::Logits(vec![0.0]),
                Err(_) => panic!("{value} is no row's value"),
            };
            RowOutput { slot, pos, value, mask_us }
        };
        let rows: Vec<RowOutput> = values.iter().zip(wanted).map(row).collect();
        let late = rows.iter().filter(|row| row.value == RowValue::NotYet);
        self.put_off.extend(late.map(|row| (row.slot, row.pos)));
        let time = StageTime { compute_us: 500, queued_us: 0, ..StageTime::default() };
        Event::Results(Results { epoch, ubatch, rows, done: Some(vec![time; self.n_stages]) })
    }

    fn show(&mut self, action: Action) -> String {
        match action {
            Action::Send(ubatch) => {
                let draws = ubatch.ops.iter().filter_map(|op| match op {
                    SeqOp::Draw { slot } => self.put_off.get(slot).map(|pos| (*slot, *pos)),
                    _ => None,
                });
                let draws: Vec<_> = draws.collect();
                let wanted = ubatch.parts.iter().flat_map(|part| {
                    let end = part.pos + part.tokens.len() as u32;
                    let positions = match part.want {
                        Want::Nothing | Want::Companion => end..end,
                        Want::Sample => end - 1..end,
                        Want::HiddenFirst => part.pos..part.pos + 1,
                        Want::HiddenLast => end - 1..end,
                        Want::Logits | Want::Hidden | Want::Verify => part.pos..end,
                    };
                    positions.map(|pos| (part.slot, pos))
                });
                let wanted = draws.into_iter().chain(wanted).collect();
                self.wanted.insert(ubatch.id, wanted);
                show_ubatch(&ubatch)
            }
            Action::Reused { request, tokens } => {
                format!("request {} begins with {tokens} kept tokens", request.0)
            }
            Action::Expected { request, right, wrong } => {
                format!("request {} expected {right} right, {wrong} wrong", request.0)
            }
            Action::Replayed { request, tokens } => {
                format!("request {} goes on: {tokens} tokens again", request.0)
            }
            Action::Restore { request, slot, tokens, .. } => {
                format!("request {} restore {} in {}", request.0, tokens.len(), slot.0)
            }
            Action::Token { request, index, token } => {
                format!("request {} token {index}: {}", request.0, token.id)
            }
            Action::Logits { request, pos, .. } => format!("request {} logits {pos}", request.0),
            Action::Finished { request, reason, generated } => {
                format!("request {} finished after {generated}: {reason:?}", request.0)
            }
            Action::Failed { request, error } => {
                format!("request {} failed: {}", request.0, Failure::from(error.clone()))
            }
            Action::Rejected { request, why } => format!("request {} rejected: {why}", request.0),
            Action::Parted => "the line has parted".to_owned(),
            Action::LineFault(fault) => format!("line fault: {fault}"),
        }
    }
}

fn show_kept(kept: Option<KeptInfo>) -> String {
    kept.map_or("nothing is kept".to_owned(), |kept| {
        format!("kept {} in slot {}: {:?}", kept.id.0, kept.slot.0, kept.tokens)
    })
}

fn line_spec(
    n_stages: usize,
    field: impl Fn(&str) -> u32,
    find: impl Fn(&str) -> Option<u32>,
) -> LineSpec {
    let (n_blocks, block_positions) = (field("pages"), field("page"));
    LineSpec {
        n_stages,
        n_blocks,
        n_slots: field("slots"),
        n_kept: find("kept").unwrap_or(0),
        prefixes: match (find("texts"), find("whole")) {
            (Some(_), _) => Prefixes::None,
            (_, Some(_)) => Prefixes::Whole,
            (None, None) => Prefixes::All,
        },
        block_positions,
        max_positions: n_blocks * block_positions,
        max_rows: field("rows"),
        companions: true,
        ahead: false,
        grows: find("fixed").is_none(),
        own_drafts: 0,
    }
}

fn rows(hidden: Option<u32>) -> Work {
    match hidden {
        None => Work::Logits,
        Some(0) => Work::Hidden(HiddenRows::All),
        Some(1) => Work::Hidden(HiddenRows::First),
        Some(_) => Work::Hidden(HiddenRows::Last),
    }
}

fn sampler(has_companion: bool) -> Arc<SamplerSetup> {
    Arc::new(SamplerSetup {
        params: SamplingParams::greedy(),
        seed: 0,
        top_logprobs: None,
        companion: has_companion.then_some(Companion { scale: 2.0 }),
        ..SamplerSetup::default()
    })
}

fn show_ubatch(ubatch: &UBatch) -> String {
    let op = |op: &SeqOp| match op {
        SeqOp::Open { slot, blocks, .. } => {
            let pages: Vec<_> = blocks.iter().map(|b| b.0.to_string()).collect();
            format!("open {} [{}]", slot.0, pages.join(" "))
        }
        SeqOp::Copy { src, dst, len, blocks, .. } => {
            let pages: Vec<_> = blocks.iter().map(|b| b.0.to_string()).collect();
            format!("copy {len} of {} to {} [{}]", src.0, dst.0, pages.join(" "))
        }
        SeqOp::Grow { slot, blocks } => {
            let pages: Vec<_> = blocks.iter().map(|b| b.0.to_string()).collect();
            format!("grow {} [{}]", slot.0, pages.join(" "))
        }
        SeqOp::Close { slot } => format!("close {}", slot.0),
        SeqOp::Draw { slot } => format!("draw {}", slot.0),
        SeqOp::Adapt { slot, adapters } => {
            let all: Vec<_> = adapters.iter().map(|used| used.adapter.to_string()).collect();
            format!("{} uses {}", slot.0, all.join(" "))
        }
        SeqOp::Name { slot, .. } => format!("name {}", slot.0),
        SeqOp::Checkpoint { slot, len, parting: true, .. } => format!("{} leaves at {len}", slot.0),
        other => format!("{other:?}"),
    };
    let part = |part: &brigade_engine::batch::SeqPart| {
        let (slot, pos, tokens, want) = (part.slot.0, part.pos, &part.tokens, part.want);
        format!("slot {slot} at {pos} {tokens:?} {want:?}")
    };
    let items: Vec<_> = ubatch.ops.iter().map(op).chain(ubatch.parts.iter().map(part)).collect();
    format!("ubatch {}: {}", ubatch.id, items.join(", "))
}

/// Runs a script and returns it with the actions that really came.
fn replay(text: &str) -> String {
    let mut script = Script::new();
    let mut out = String::new();
    for block in text.trim_end().split("\n\n") {
        let (events, _) = block.split_once("\n---").unwrap_or((block, ""));
        let _ = write!(out, "{events}\n---\n");
        for line in events.lines().filter(|line| !line.starts_with('#')) {
            out += &script.run(line);
        }
        out += "\n";
    }
    out.truncate(out.trim_end().len());
    out + "\n"
}

fn scripts_play_as_written() {
    let folder = brigade_model_tests::places::of_tests("golden/sched");
    let mut paths: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 3, "scripts are missing from {}", folder.display());
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        let played = replay(&text);
        if std::env::var_os("BRIGADE_UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, played).unwrap();
        } else {
            assert_eq!(played, text, "{} plays differently", path.display());
        }
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes: scripts_play_as_written;
];
