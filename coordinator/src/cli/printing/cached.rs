//! Prints kept prompt states: the owners, sizes and ages, and how often they were reused.

use anyhow::Result;
use brigade_line::cached::{CachedOwner, CachedState};
use brigade_plan::format_bytes;

use crate::cli::printing::output;

/// Prints the largest kept states, by owner.
pub fn show(owners: &[CachedOwner]) -> Result<()> {
    if owners.is_empty() {
        return output::line(format_args!("nothing is kept of prompts"));
    }
    let head = ["owner", "tokens", "bytes", "last use", "hits", "where"];
    let rows: Vec<Vec<String>> = owners.iter().flat_map(rows).collect();
    output::table(&head, &rows)?;
    for owner in owners {
        output::line(format_args!("{}", in_all(owner)))?;
    }
    Ok(())
}

fn rows(owner: &CachedOwner) -> impl Iterator<Item = Vec<String>> {
    owner.largest.iter().map(|state| {
        let CachedState { tokens, bytes, idle_seconds, hits, recorded } = *state;
        let tiers = if recorded { "memory, records" } else { "memory" };
        vec![
            owner.owner.clone(),
            tokens.to_string(),
            format_bytes(bytes),
            format!("{idle_seconds} s ago"),
            hits.to_string(),
            tiers.to_owned(),
        ]
    })
}

/// The totals of an owner.
fn in_all(owner: &CachedOwner) -> String {
    let CachedOwner { owner, states, bytes, hits, largest } = owner;
    let shown = if largest.len() < *states as usize {
        format!(", the largest {} are shown", largest.len())
    } else {
        String::new()
    };
    format!("{owner}: {states} states, {} together, {hits} hits{shown}", format_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owners_states_are_summed_up() {
        let state =
            CachedState { tokens: 300, bytes: 2048, idle_seconds: 4, hits: 1, recorded: true };
        let owner = CachedOwner {
            owner: "ann".to_owned(),
            states: 2,
            bytes: 3072,
            hits: 5,
            largest: vec![state],
        };
        let told = in_all(&owner);
        assert_eq!(told, "ann: 2 states, 3.00 KiB together, 5 hits, the largest 1 are shown");
        let rows: Vec<_> = rows(&owner).collect();
        assert_eq!(rows, [["ann", "300", "2.00 KiB", "4 s ago", "1", "memory, records"]]);
    }
}
