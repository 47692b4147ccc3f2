//! How the stages of a machine share its time: by what each has computed, and not by the number of their ubatches. A stage with
//! long prompts takes one long turn, and another one with short steps takes many before the next.
//!
//! The times stand in a file in memory that all stages inherit. Each stage writes its own row.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use brigade_proto::address::MAX_STAGES_AT_ADDRESS;
use rustix::time::{ClockId, clock_gettime};

/// A stage that has computed still counts for so long: its next ubatch is on its way.
const COMES_AGAIN_WITHIN: Duration = Duration::from_millis(5);

/// A stage that comes back has at most so much less than the others: it makes up for their long turns, while it waited.
const MOST_CREDIT: Duration = Duration::from_millis(500);

/// A stage that has not computed for so long was away, and has waited for nobody ...
const AWAY_AFTER: Duration = Duration::from_millis(500);

/// ... so it has at most so much less: for so long the others wait for it, and then in turn. A stage that replays the streams of
/// a lost one holds up its neighbours for no longer.
const CREDIT_OF_NEWCOMERS: Duration = Duration::from_millis(40);

/// Words of a row, and bytes of a word.
const ROW: usize = 3;
const WORD: usize = 8;

/// Bytes of the file.
pub const BYTES: u64 = (MAX_STAGES_AT_ADDRESS as usize * ROW * WORD) as u64;

/// A stage's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Row {
    /// How long it has computed.
    used: Duration,
    /// When it last ended a turn; zero: never.
    ended: Duration,
    /// Whether it waits for a turn or has one.
    is_in: bool,
}

impl Row {
    fn counts(&self, now: Duration) -> bool {
        let is_back_soon =
            !self.ended.is_zero() && now.saturating_sub(self.ended) < COMES_AGAIN_WITHIN;
        self.is_in || is_back_soon
    }

    /// What a stage has used that comes back to these others.
    fn back(&self, others: &[Self], now: Duration) -> Duration {
        let least = least(others, now).unwrap_or_default();
        let was_away = self.ended.is_zero() || now.saturating_sub(self.ended) >= AWAY_AFTER;
        let most = if was_away { CREDIT_OF_NEWCOMERS } else { MOST_CREDIT };
        self.used.max(least.saturating_sub(most))
    }

    /// Whether it is this stage's turn: no other one that counts has computed less.
    fn may_go(&self, others: &[Self], now: Duration) -> bool {
        least(others, now).is_none_or(|least| self.used <= least)
    }
}

/// The least time that one of these has used which counts.
fn least(others: &[Row], now: Duration) -> Option<Duration> {
    others.iter().filter(|row| row.counts(now)).map(|row| row.used).min()
}

/// The times of all stages, as one of them sees and changes them.
#[derive(Debug)]
pub struct FairTime {
    file: File,
    /// Number of the own row.
    own: usize,
}

impl FairTime {
    /// Times in this file, of stage `number`, from 1 on.
    pub fn new(file: File, number: usize) -> Self {
        Self { file, own: number - 1 }
    }

    /// The stage waits for its turn from now on.
    ///
    /// # Errors
    /// The system's.
    pub fn comes(&self) -> io::Result<()> {
        let (now, rows) = (now(), self.rows()?);
        let others = self.others(&rows);
        let own = rows[self.own];
        self.write(Row { used: own.back(&others, now), is_in: true, ..own })
    }

    /// Whether it is the stage's turn, as far as time goes.
    ///
    /// # Errors
    /// The system's.
    pub fn may_go(&self) -> io::Result<bool> {
        let rows = self.rows()?;
        Ok(rows[self.own].may_go(&self.others(&rows), now()))
    }

    /// Whether another stage waits for a turn, or has one.
    ///
    /// # Errors
    /// The system's.
    pub fn is_wanted(&self) -> io::Result<bool> {
        Ok(self.others(&self.rows()?).iter().any(|row| row.is_in))
    }

    /// The stage has computed for this time, and waits no more.
    ///
    /// # Errors
    /// The system's.
    pub fn goes(&self, took: Duration) -> io::Result<()> {
        let own = self.rows()?[self.own];
        self.write(Row { used: own.used + took, ended: now(), is_in: false })
    }

    /// The process of a stage has ended: nobody waits for it.
    ///
    /// # Errors
    /// The system's.
    pub fn forget(file: &File, number: usize) -> io::Result<()> {
        Self::new(file.try_clone()?, number).write(Row::default())
    }

    fn others(&self, rows: &[Row]) -> Vec<Row> {
        rows.iter().enumerate().filter(|(at, _)| *at != self.own).map(|(_, row)| *row).collect()
    }

    fn rows(&self) -> io::Result<Vec<Row>> {
        let mut bytes = [0; BYTES as usize];
        self.file.read_exact_at(&mut bytes, 0)?;
        let words: Vec<u64> = bytes.chunks_exact(WORD).map(word).collect();
        let row = |words: &[u64]| Row {
            used: Duration::from_micros(words[0]),
            ended: Duration::from_micros(words[1]),
            is_in: words[2] != 0,
        };
        Ok(words.chunks_exact(ROW).map(row).collect())
    }

    fn write(&self, row: Row) -> io::Result<()> {
        let words =
            [row.used.as_micros() as u64, row.ended.as_micros() as u64, u64::from(row.is_in)];
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        self.file.write_all_at(&bytes, (self.own * ROW * WORD) as u64)
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Time since the machine's start, the same for all its processes.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stage whose ubatches take so long, each so long after the one before.
    struct Stage {
        row: Row,
        takes: Duration,
        pause: Duration,
        comes: Duration,
        turns: usize,
        longest: Duration,
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn stage(takes: u64, pause: u64, comes: u64) -> Stage {
        let (takes, pause, comes) = (ms(takes), ms(pause), ms(comes));
        Stage { row: Row::default(), takes, pause, comes, turns: 0, longest: Duration::ZERO }
    }

    /// Lets stages take turns for so many seconds: what each has used.
    fn run(stages: &mut [Stage], seconds: u64) -> Vec<Duration> {
        let mut now = ms(1);
        while now < Duration::from_secs(seconds) {
            let rows: Vec<Row> = stages.iter().map(|stage| stage.row).collect();
            let others = |me: usize| {
                let others = rows.iter().enumerate().filter(|(at, _)| *at != me);
                others.map(|(_, row)| *row).collect::<Vec<_>>()
            };
            for (me, stage) in stages.iter_mut().enumerate() {
                if stage.comes <= now && !stage.row.is_in {
                    stage.row.used = stage.row.back(&others(me), now);
                    stage.row.is_in = true;
                }
            }
            let rows: Vec<Row> = stages.iter().map(|stage| stage.row).collect();
            let others = |me: usize| {
                let others = rows.iter().enumerate().filter(|(at, _)| *at != me);
                others.map(|(_, row)| *row).collect::<Vec<_>>()
            };
            let may = |(me, stage): &(usize, &mut Stage)| {
                stage.row.is_in && stage.row.may_go(&others(*me), now)
            };
            let next = stages.iter_mut().enumerate().filter(may).min_by_key(|(_, s)| s.comes);
            match next {
                None => now += ms(1),
                Some((_, stage)) => {
                    stage.longest = stage.longest.max(now - stage.comes);
                    now += stage.takes;
                    stage.row =
                        Row { used: stage.row.used + stage.takes, ended: now, is_in: false };
                    stage.comes = now + stage.pause;
                    stage.turns += 1;
                }
            }
        }
        stages.iter().map(|stage| stage.row.used).collect()
    }

    #[test]
    fn long_ubatches_take_no_more_time_than_short_ones() {
        let mut stages = [stage(240, 1, 1), stage(40, 1, 1)];
        let used = run(&mut stages, 60);
        let share = used[0].as_secs_f64() / (used[0] + used[1]).as_secs_f64();
        assert!((0.47..0.53).contains(&share), "{share}: {used:?}");
        assert!(
            stages[1].turns > 5 * stages[0].turns,
            "{} and {}",
            stages[0].turns,
            stages[1].turns
        );
        // None waits for longer than the other one's turn, and what it may take before the next.
        assert!(
            stages.iter().all(|stage| stage.longest <= ms(250)),
            "{:?}",
            stages.map(|s| s.longest)
        );
    }

    #[test]
    fn equal_stages_take_every_second_turn() {
        let mut stages = [stage(40, 1, 1), stage(40, 1, 1)];
        run(&mut stages, 10);
        assert!(stages[0].turns.abs_diff(stages[1].turns) <= 1);
        assert!(stages.iter().all(|stage| stage.longest <= ms(45)));
    }

    #[test]
    fn a_stage_that_was_idle_has_no_great_credit_and_one_alone_never_waits() {
        let mut stages = [stage(40, 1, 1), stage(40, 1, 20_000)];
        run(&mut stages, 21);
        assert!(stages[0].longest <= ms(85), "{:?}", stages[0].longest);
        let mut alone = [stage(40, 0, 1), stage(1, 0, 100_000)];
        assert!(run(&mut alone, 10)[0] > ms(9_950));
    }

    #[test]
    fn a_stage_that_replays_streams_holds_up_its_neighbour_for_a_moment_only() {
        // The neighbour's steps take 3 ms; a new stage has 2 s of replays, in ubatches of 20 ms, after 10 s.
        let mut stages = [stage(3, 1, 1), stage(20, 0, 10_000)];
        run(&mut stages, 12);
        assert!(stages[1].turns > 40, "{}", stages[1].turns);
        assert!(stages[0].longest <= ms(65), "{:?}", stages[0].longest);
    }

    #[test]
    fn each_stage_writes_its_own_row() {
        let file = rustix::fs::memfd_create("time", rustix::fs::MemfdFlags::empty()).unwrap();
        rustix::fs::ftruncate(&file, BYTES).unwrap();
        let file = File::from(file);
        let of = |number| FairTime::new(file.try_clone().unwrap(), number);
        let (one, last) = (of(1), of(MAX_STAGES_AT_ADDRESS.into()));
        one.comes().unwrap();
        assert!(one.may_go().unwrap(), "it is alone");
        one.goes(ms(30)).unwrap();
        last.comes().unwrap();
        one.comes().unwrap();
        assert!(!one.may_go().unwrap() && last.may_go().unwrap());
        FairTime::forget(&file, MAX_STAGES_AT_ADDRESS.into()).unwrap();
        assert!(one.may_go().unwrap(), "nobody waits for a stage that is gone");
    }
}
