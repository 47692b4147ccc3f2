//! Names that are near to one that nobody knows.

/// A name this many letters away is not what was meant, however long it is.
const FARTHEST: usize = 3;

/// Of `names` the one that is nearest to `typed`, if one is near.
pub fn near<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let typed = typed.to_lowercase().replace('_', "-");
    let bound = (typed.chars().count() / 3).clamp(1, FARTHEST);
    let with_distance = names.into_iter().map(|name| (distance(&typed, name), name));
    with_distance.filter(|(far, _)| *far <= bound).min_by_key(|(far, _)| *far).map(|(_, name)| name)
}

/// Letters to write anew, add or leave out between two words.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let changed = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_in_haste_is_near_to_what_is_meant() {
        let names = ["max-seqs", "max-queue", "listen", "ctx", "kv-type"];
        assert_eq!(near("max_seqs", names), Some("max-seqs"));
        assert_eq!(near("lisen", names), Some("listen"));
        assert_eq!(near("Listen", names), Some("listen"));
        assert_eq!(near("kvtype", names), Some("kv-type"));
        assert_eq!(near("cxt", ["ctx"]), None, "two letters of three are another word");
        assert_eq!(near("nonsense", names), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
