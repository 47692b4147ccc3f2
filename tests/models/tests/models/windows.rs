//! Layers with a window keep only the pages that rows to come see. Their bits are the same in less memory, for every
//! cut and ubatch, among other sequences, from copies and from saved states.

use std::path::{Path, PathBuf};

use brigade_engine::batch::{PageId, SeqOp, SeqPart, SlotId, Want};
use brigade_engine::kernels::KV_PAGE;
use brigade_gguf::Gguf;
use brigade_model_tests::golden::{Golden, mix, same_bits, tokens};
use brigade_model_tests::kinds::unquantised;
use brigade_model_tests::line::{Line, LineConfig, N_SLOTS, SLOT_POSITIONS, into_logits};
use brigade_spec::{ModelSpec, Prefixes};

/// Positions of the longest sequence: many windows of the golden models, and pages.
const LEN: usize = 700;

/// The narrowest window of a decoder that has one.
fn window(spec: &ModelSpec) -> Option<u32> {
    let blocks = spec.layers.iter().flat_map(|layer| &layer.blocks);
    blocks.filter_map(|block| block.kind.window()).min().filter(|_| !spec.is_encoder())
}

/// Golden models with windows: name, file, layers.
fn windowed() -> Vec<(String, PathBuf, usize)> {
    let golden = Golden::repository();
    let models = unquantised(&golden);
    let found = models.filter_map(|(name, entry)| {
        let path = golden.model(entry);
        let spec = brigade_models::describe(&Gguf::open(&path).unwrap()).unwrap();
        // A window as long as a slot keeps all of it anyway.
        let window = window(&spec).filter(|width| (*width as usize) < SLOT_POSITIONS / 2)?;
        println!("{name}: a window of {window}");
        Some((name.to_string(), path, spec.n_layer()))
    });
    let found: Vec<_> = found.collect();
    assert!(found.len() >= 8, "{} golden models have windows", found.len());
    found
}

fn open(path: &Path, cuts: Vec<usize>, windows: bool) -> Line {
    Line::open(path, &LineConfig { cuts, windows, ..LineConfig::default() })
}

fn state_bytes(line: &mut Line) -> u64 {
    line.stages().iter().map(|stage| stage.facts().state_bytes).sum()
}

fn the_bits_are_the_same_for_every_cut_and_ubatch_in_less_memory() {
    let prompt = tokens(LEN, 1);
    for (name, path, n_layer) in windowed() {
        let mut full = open(&path, vec![], false);
        let expected = full.logits(&prompt, 512);
        for (n, n_ubatch) in [(1, 512), (2, 64), (n_layer, 37), (1, 1)] {
            let mut line = open(&path, Line::even_cuts(n_layer, n), true);
            let rows = if n_ubatch == 1 { 200 } else { LEN };
            let got = line.logits(&prompt[..rows], n_ubatch);
            assert!(same_bits(&got, &expected[..rows]), "{name}: {n} stages, ubatch {n_ubatch}");
            assert!(state_bytes(&mut line) < state_bytes(&mut full), "{name}");
        }
    }
}

/// Random sequences that open, go on, are copied at their ends and close, several in a ubatch.
struct Crowd {
    /// Tokens and pages of the sequence in each slot.
    open: Vec<Option<(Vec<u32>, Vec<PageId>)>>,
    /// Number of sequences that have each page.
    users: Vec<usize>,
    state: u64,
}

/// Pages of each sequence.
const PAGES: usize = (LEN + 130).div_ceil(KV_PAGE);

impl Crowd {
    fn new(seed: u64) -> Self {
        let users = vec![0; N_SLOTS * SLOT_POSITIONS / KV_PAGE];
        Self { open: vec![None; N_SLOTS], users, state: seed }
    }

    fn below(&mut self, n: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.state) % n as u64) as usize
    }

    /// `shared`, and as many fresh pages as a sequence needs besides.
    fn take(&mut self, mut shared: Vec<PageId>) -> Vec<PageId> {
        let first = self.below(self.users.len());
        let free = (first..self.users.len()).chain(0..first).filter(|&page| self.users[page] == 0);
        let fresh: Vec<_> = free.take(PAGES - shared.len()).map(|b| PageId(b as u32)).collect();
        shared.extend(fresh);
        shared.iter().for_each(|page| self.users[page.0 as usize] += 1);
        shared
    }

    fn close(&mut self, slot: usize) -> SeqOp {
        let (_, pages) = self.open[slot].take().unwrap();
        pages.iter().for_each(|page| self.users[page.0 as usize] -= 1);
        SeqOp::Close { slot: SlotId(slot as u32) }
    }

    /// A new sequence, or a copy of another that shares its full pages.
    fn begin(&mut self, dst: usize) -> SeqOp {
        let src = self.below(2 * N_SLOTS);
        let (slot, request, sampler) = (SlotId(dst as u32), "r".into(), None);
        match self.open.get(src).cloned().flatten().filter(|(tokens, _)| !tokens.is_empty()) {
            Some((tokens, pages)) => {
                let blocks = self.take(pages[..tokens.len() / KV_PAGE].to_vec());
                let (src, len) = (SlotId(src as u32), tokens.len() as u32);
                self.open[dst] = Some((tokens, blocks.clone()));
                SeqOp::Copy { src, dst: slot, len, blocks, sampler, request }
            }
            None => {
                let blocks = self.take(Vec::new());
                self.open[dst] = Some((Vec::new(), blocks.clone()));
                SeqOp::Open { slot, blocks, sampler, request }
            }
        }
    }

    /// The ops and parts of the next ubatch.
    fn step(&mut self) -> (Vec<SeqOp>, Vec<SeqPart>) {
        let mut ops = Vec::new();
        for slot in 0..N_SLOTS {
            let chance = self.below(20);
            match &self.open[slot] {
                None if chance < 8 => ops.push(self.begin(slot)),
                Some((tokens, _)) if tokens.len() > LEN || chance == 0 => {
                    ops.push(self.close(slot))
                }
                _ => {}
            }
        }
        let mut parts = Vec::new();
        for slot in 0..N_SLOTS {
            let (n, goes_on) = ([1, 1, 5, 64, 130][self.below(5)], self.below(3) > 0);
            let seed = self.state;
            if let Some((had, _)) = self.open[slot].as_mut().filter(|_| goes_on) {
                let (pos, tokens) = (had.len() as u32, tokens(n, seed));
                had.extend(&tokens);
                let slot = SlotId(slot as u32);
                parts.push(SeqPart {
                    slot,
                    pos,
                    tokens,
                    want: Want::Logits,
                    mu: None,
                    ahead: None,
                });
            }
        }
        (ops, parts)
    }
}

fn sequences_among_others_and_copies_have_the_bits_of_full_windows() {
    for (i, (name, path, n_layer)) in windowed().into_iter().enumerate() {
        let cuts = Line::even_cuts(n_layer, 2);
        let [mut full, mut kept] = [false, true].map(|windows| open(&path, cuts.clone(), windows));
        let mut crowd = Crowd::new(i as u64);
        let mut n_rows = 0;
        for step in 0..60 {
            let (ops, parts) = crowd.step();
            if parts.is_empty() {
                for line in [&mut full, &mut kept] {
                    line.run(ops.clone(), Vec::new());
                }
                continue;
            }
            let [expected, got] = [&mut full, &mut kept].map(|line| {
                let rows = line.run(ops.clone(), parts.clone());
                rows.into_iter().map(into_logits).collect::<Vec<_>>()
            });
            assert!(same_bits(&got, &expected), "{name}, step {step}");
            n_rows += got.len();
        }
        println!("{name}: {n_rows} rows equal");
        assert!(n_rows > 1000, "{name}: {n_rows} rows");
    }
}

fn saved_states_go_on_at_other_cuts_and_are_refused_by_lines_that_keep_all() {
    let all = tokens(LEN, 2);
    let (prompt, later) = all.split_at(LEN - 40);
    for (name, path, n_layer) in windowed() {
        let spec = brigade_models::describe(&Gguf::open(&path).unwrap()).unwrap();
        assert_eq!(spec.prefixes(true), Prefixes::Whole, "{name}");
        let expected = open(&path, vec![], false).logits(&all, 512);
        let mut from = open(&path, Line::even_cuts(n_layer, 2), true);
        let part = |pos: usize, tokens: &[u32]| {
            let (pos, tokens) = (pos as u32, tokens.to_vec());
            vec![SeqPart {
                slot: SlotId(1),
                pos,
                tokens,
                want: Want::Logits,
                mu: None,
                ahead: None,
            }]
        };
        from.run(vec![Line::open_slot(1, None)], part(0, prompt));
        let parts: Vec<Vec<u8>> =
            from.stages().iter().map(|stage| stage.snapshot(SlotId(1)).unwrap()).collect();
        let whole = brigade_engine::state::merge_snapshots(&parts).unwrap();
        for windows in [true, false] {
            let mut to = open(&path, vec![], windows);
            to.run(vec![Line::open_slot(1, None)], part(0, &prompt[..9]));
            let restored = to.stages()[0].restore(SlotId(1), &whole);
            if !windows {
                let refused = restored.unwrap_err().to_string();
                assert!(refused.contains("windows"), "{name}: {refused}");
                continue;
            }
            restored.unwrap();
            let got: Vec<_> = to.run(vec![], part(prompt.len(), later)).into_iter().collect();
            let got: Vec<Vec<f32>> = got.into_iter().map(into_logits).collect();
            assert!(same_bits(&got, &expected[prompt.len()..]), "{name}");
        }
        let bytes = whole.len() as u64;
        let full = {
            let mut line = open(&path, vec![], false);
            line.run(vec![Line::open_slot(1, None)], part(0, prompt));
            line.stages()[0].snapshot(SlotId(1)).unwrap().len() as u64
        };
        assert!(bytes < full, "{name}: {bytes} of {full}");
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        the_bits_are_the_same_for_every_cut_and_ubatch_in_less_memory,
        sequences_among_others_and_copies_have_the_bits_of_full_windows,
        saved_states_go_on_at_other_cuts_and_are_refused_by_lines_that_keep_all;
];
