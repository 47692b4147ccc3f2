//! Namespaces of kept prompts. A prompt may reuse only states of its own namespace, so that the time of an answer
//! tells nothing about others.

/// Names a namespace of prompts: an owner's, or that of owners who share one, each narrowed by a client's salt. It is
/// a hash, so that no choice of a salt leads into another namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(u128);

impl Namespace {
    /// The namespace of an owner alone.
    pub fn of_owner(owner: u64) -> Self {
        Self::hashed("owner", &[&owner.to_le_bytes()])
    }

    /// The one that the owners of these names share.
    pub fn of_group(names: &[String]) -> Self {
        let mut names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        names.sort_unstable();
        names.dedup();
        Self::hashed("group", &names)
    }

    /// The part of it that has a salt.
    pub fn salted(self, salt: &str) -> Self {
        Self::hashed("salt", &[&self.0.to_le_bytes(), salt.as_bytes()])
    }

    /// A number that stands for it.
    pub(crate) fn number(self) -> u128 {
        self.0
    }

    fn hashed(kind: &str, parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in [kind.as_bytes()].iter().chain(parts) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        let mut first = [0; 16];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(u128::from_le_bytes(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_groups_and_salts_are_told_apart() {
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let group = Namespace::of_group(&names(&["ann", "bob"]));
        let all = [
            Namespace::of_owner(0),
            Namespace::of_owner(1),
            Namespace::of_owner(0).salted("a"),
            Namespace::of_owner(1).salted("a"),
            Namespace::of_owner(0).salted("b"),
            Namespace::of_owner(0).salted(""),
            Namespace::of_group(&names(&["annb", "ob"])),
            group,
            group.salted("a"),
        ];
        let mut told_apart = all.to_vec();
        told_apart.sort_unstable();
        told_apart.dedup();
        assert_eq!(told_apart.len(), all.len());
        assert_eq!(Namespace::of_group(&names(&["bob", "ann", "bob"])), group, "in any order");
    }
}
