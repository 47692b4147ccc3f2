//! Memory of this machine for models that are loaded on demand. A line that is being ended has its part until it has
//! ended.

use std::sync::Arc;

use tokio::sync::watch;

/// Memory of this machine that lines have, those included that are ending.
#[derive(Debug)]
pub struct Memory {
    budget: u64,
    taken: watch::Sender<u64>,
}

/// A part of it, given back when it is dropped.
#[derive(Debug)]
pub struct Taken {
    memory: Arc<Memory>,
    bytes: u64,
}

impl Memory {
    /// A budget of this many bytes.
    pub fn new(budget: u64) -> Arc<Self> {
        Arc::new(Self { budget, taken: watch::Sender::default() })
    }

    /// How many there are.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Takes some, when lines that are ending have given back enough.
    pub async fn take(self: &Arc<Self>, bytes: u64) -> Taken {
        let mut changes = self.taken.subscribe();
        loop {
            changes.mark_unchanged();
            let is_taken = self.taken.send_if_modified(|taken| {
                let fits = taken.saturating_add(bytes) <= self.budget;
                *taken += if fits { bytes } else { 0 };
                fits
            });
            if is_taken {
                return Taken { memory: self.clone(), bytes };
            }
            // The sender lives as long as this.
            let _ = changes.changed().await;
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.memory.taken.send_modify(|taken| *taken -= self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_ending_has_its_memory_until_it_has_ended() {
        let memory = Memory::new(10);
        let first = memory.take(7).await;
        let second = memory.take(3).await;
        let waits = tokio::spawn({
            let memory = memory.clone();
            async move { memory.take(4).await }
        });
        tokio::task::yield_now().await;
        drop(second);
        tokio::task::yield_now().await;
        assert!(!waits.is_finished(), "three are free");
        drop(first);
        drop(waits.await.unwrap());
        assert_eq!((*memory.taken.borrow(), memory.budget()), (0, 10));
    }
}
