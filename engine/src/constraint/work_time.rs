//! Compute time of a thread. The time that an owner is charged must not depend on other work on the machine.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A point in the work of the thread that made it.
#[derive(Clone, Copy, Debug)]
pub struct WorkTime(Duration);

impl WorkTime {
    /// The current thread's compute time.
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Self(Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0)))
    }

    /// Compute time since then, asked on the same thread.
    pub fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_no_work() {
        let began = WorkTime::now();
        std::thread::sleep(Duration::from_millis(30));
        assert!(began.elapsed() < Duration::from_millis(30), "{:?}", began.elapsed());
        while began.elapsed() < Duration::from_millis(2) {
            std::hint::black_box((0..1000u64).sum::<u64>());
        }
    }
}
