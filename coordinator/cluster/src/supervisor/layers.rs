//! An operator's order to move layers to a worker: computes the stages afterwards.

use std::ops::Range;

use brigade_plan::HandCut;

use super::{Line, Supervisor};
use crate::building::ahead::Ordered;
use crate::building::place;
use crate::members::conn::Conn;
use crate::reconcile::MemberId;
use brigade_line::admin::Refused;

impl Supervisor {
    /// The line that an order to move `layers` to `worker` makes, and the worker's name.
    ///
    /// # Errors
    /// The reason why the layers cannot move there, and which move is possible.
    pub(super) fn may_move(
        &mut self,
        worker: &str,
        layers: &Range<usize>,
    ) -> Result<(Ordered, String), Refused> {
        self.refuse_if_cut_by_hand()?;
        let to = self.member_called(worker)?;
        let Line::Up { stages, layers: cut, .. } = &self.line else {
            return Err(Refused("there is no line whose layers could be moved".to_owned()));
        };
        if !self.there_for_layers().contains(&to) && !stages.contains(&to) {
            let why = format!("{worker} gets no layers: it is drained, or not there");
            return Err(Refused(why));
        }
        let line: Vec<(MemberId, Range<usize>)> =
            stages.iter().copied().zip(cut.iter().cloned()).collect();
        let after = moved(&line, to, layers).map_err(Refused)?;
        let who: Vec<MemberId> = after.iter().map(|(id, _)| *id).collect();
        let cut = HandCut::Borders(after[1..].iter().map(|(_, layers)| layers.start).collect());
        let mut options = self.ends.config.stage.clone();
        options.cut = Some(cut.clone());
        let conns: Vec<&Conn> = who.iter().filter_map(|id| self.members.get(id)?.conn()).collect();
        place::plan_over(&self.ends.model, conns.into_iter(), &options)
            .map_err(|error| Refused(error.to_string()))?;
        // Whoever orders it knows that it is well again.
        self.trust(to);
        let name = self.members.get(&to).map(crate::members::member::Member::name);
        Ok((Ordered { who, cut }, name.unwrap_or_default()))
    }
}

/// The stages of `line` after `layers` have gone to `to`, which may be beside the line. Workers without layers are
/// left out.
///
/// # Errors
/// A worker would have layers that do not follow each other, or there are no such layers to move.
fn moved<W: Copy + PartialEq>(
    line: &[(W, Range<usize>)],
    to: W,
    layers: &Range<usize>,
) -> Result<Vec<(W, Range<usize>)>, String> {
    let n_layers = line.last().map_or(0, |(_, last)| last.end);
    if layers.is_empty() || layers.end > n_layers {
        return Err(format!("{layers:?} are not layers of the model: it has 0..{n_layers}"));
    }
    let own = line.iter().find(|(worker, _)| *worker == to).map(|(_, own)| own.clone());
    let wanted = match own {
        None => layers.clone(),
        Some(own) if own.start <= layers.start && layers.end <= own.end => {
            return Err(format!("it has {layers:?} already"));
        }
        Some(own) if layers.start > own.end || layers.end < own.start => {
            return Err(format!(
                "a worker has layers that follow each other: it has {own:?}, which {layers:?} do not touch"
            ));
        }
        Some(own) => own.start.min(layers.start)..own.end.max(layers.end),
    };
    let mut after = vec![(to, wanted.clone())];
    for (worker, had) in line.iter().filter(|(worker, _)| *worker != to) {
        let before = had.start..had.end.min(wanted.start);
        let behind = had.start.max(wanted.end)..had.end;
        if !before.is_empty() && !behind.is_empty() {
            return Err(format!(
                "{wanted:?} lie within {had:?} of one worker: move layers from one of its ends"
            ));
        }
        let left = if before.is_empty() { behind } else { before };
        after.extend((!left.is_empty()).then_some((*worker, left)));
    }
    after.sort_by_key(|(_, layers)| layers.start);
    Ok(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: [(char, Range<usize>); 3] = [('a', 0..4), ('b', 4..8), ('c', 8..12)];

    #[test]
    fn layers_go_to_neighbours_and_to_spares() {
        let after = |to, layers: Range<usize>| moved(&LINE, to, &layers).unwrap();
        assert_eq!(after('a', 4..6), [('a', 0..6), ('b', 6..8), ('c', 8..12)]);
        assert_eq!(after('c', 7..8), [('a', 0..4), ('b', 4..7), ('c', 7..12)]);
        assert_eq!(after('b', 2..9), [('a', 0..2), ('b', 2..9), ('c', 9..12)]);
        // A worker without layers leaves the line.
        assert_eq!(after('a', 4..8), [('a', 0..8), ('c', 8..12)]);
        assert_eq!(after('c', 0..8), [('c', 0..12)]);
        assert_eq!(after('d', 0..2), [('d', 0..2), ('a', 2..4), ('b', 4..8), ('c', 8..12)]);
        assert_eq!(after('d', 3..5), [('a', 0..3), ('d', 3..5), ('b', 5..8), ('c', 8..12)]);
        assert_eq!(after('d', 4..8), [('a', 0..4), ('d', 4..8), ('c', 8..12)]);
    }

    #[test]
    fn what_would_tear_layers_apart_is_refused() {
        for (to, layers, why) in [
            ('a', 5..6, "do not touch"),
            ('c', 2..6, "do not touch"),
            ('d', 5..7, "from one of its ends"),
            ('b', 4..8, "already"),
            ('b', 5..6, "already"),
            ('a', 4..13, "it has 0..12"),
            ('a', 4..4, "not layers"),
        ] {
            let refused = moved(&LINE, to, &layers).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
