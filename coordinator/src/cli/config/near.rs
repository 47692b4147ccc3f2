//! Finds the known names that are similar to an unknown one.

/// The largest distance of a suggested name, in letters, however long the name is.
const FARTHEST: usize = 3;

/// The one of `names` that is nearest to `typed`, if one is near.
pub fn near<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let typed = typed.to_lowercase().replace('_', "-");
    let bound = (typed.chars().count() / 3).clamp(1, FARTHEST);
    let with_distance = names.into_iter().map(|name| (distance(&typed, name), name));
    with_distance.filter(|(far, _)| *far <= bound).min_by_key(|(far, _)| *far).map(|(_, name)| name)
}

/// Letters to write anew, add, leave out or exchange with the next one between two words.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    // Row i, column j: between the first i letters of one word and the first j of the other.
    let mut rows = vec![vec![0; other.len() + 1]; one.len() + 1];
    for i in 0..=one.len() {
        for j in 0..=other.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let written = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
                written.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1)
            };
            let is_exchanged =
                i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1];
            if is_exchanged {
                rows[i][j] = rows[i][j].min(rows[i - 2][j - 2] + 1);
            }
        }
    }
    rows[one.len()][other.len()]
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
        assert_eq!(near("cxt", names), Some("ctx"));
        assert_eq!(near("cat", names), None, "two letters of three are another word");
        assert_eq!(near("nonsense", names), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
