//! Greedy merging of pairs, which SPM and BPE share. It keeps a linked list of symbols over one text, and a
//! heap of neighbouring pairs that may merge. It takes O(n log n) in the number of symbols.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Stands for "no neighbour" in links and for "not a known symbol" in ids.
pub(super) const NONE: u32 = u32::MAX;

/// A stretch of the text that is one symbol so far. Length 0: merged into its left neighbour.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    pub start: u32,
    pub len: u32,
    pub id: u32,
    prev: u32,
    next: u32,
}

/// Says which neighbours merge, and how urgently.
pub(super) trait MergeRule {
    /// Smaller merges first; equal keys merge from the left.
    type Key: Ord + Copy;
    /// Key and id of the merged symbol, or `None` if the two never merge.
    fn pair(&self, left: &Symbol, right: &Symbol) -> Option<(Self::Key, u32)>;
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate<K> {
    key: K,
    left: u32,
    right: u32,
    /// Length of both together: a different one at pop time means that a side has changed.
    len: u32,
    id: u32,
}

/// Buffers that are reused from piece to piece.
pub(super) struct Merger<K> {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<Candidate<K>>>,
}

impl<K: Ord + Copy> Merger<K> {
    /// Empty buffers, which are reused from word to word.
    pub fn new() -> Self {
        Self { symbols: Vec::new(), heap: BinaryHeap::new() }
    }

    /// Starts a new piece.
    pub fn clear(&mut self) {
        self.symbols.clear();
        self.heap.clear();
    }

    /// Appends an initial symbol.
    pub fn push(&mut self, start: usize, len: usize, id: u32) {
        let index = self.symbols.len() as u32;
        if let Some(last) = self.symbols.last_mut() {
            last.next = index;
        }
        let prev = index.checked_sub(1).unwrap_or(NONE);
        self.symbols.push(Symbol { start: start as u32, len: len as u32, id, prev, next: NONE });
    }

    /// Merges until no pair is left, and gives the remaining symbols in order.
    pub fn run<R: MergeRule<Key = K>>(&mut self, rule: &R) -> impl Iterator<Item = &Symbol> {
        for right in 1..self.symbols.len() as u32 {
            self.offer(rule, right - 1, right);
        }
        while let Some(Reverse(c)) = self.heap.pop() {
            let (left, right) = (self.symbols[c.left as usize], self.symbols[c.right as usize]);
            if left.len == 0 || right.len == 0 || left.len + right.len != c.len {
                continue;
            }
            let merged = &mut self.symbols[c.left as usize];
            merged.len = c.len;
            merged.id = c.id;
            merged.next = right.next;
            self.symbols[c.right as usize].len = 0;
            if right.next != NONE {
                self.symbols[right.next as usize].prev = c.left;
            }
            self.offer(rule, left.prev, c.left);
            self.offer(rule, c.left, right.next);
        }
        self.symbols.iter().filter(|s| s.len > 0)
    }

    fn offer<R: MergeRule<Key = K>>(&mut self, rule: &R, left: u32, right: u32) {
        if left == NONE || right == NONE {
            return;
        }
        let (l, r) = (&self.symbols[left as usize], &self.symbols[right as usize]);
        if let Some((key, id)) = rule.pair(l, r) {
            self.heap.push(Reverse(Candidate { key, left, right, len: l.len + r.len, id }));
        }
    }
}
