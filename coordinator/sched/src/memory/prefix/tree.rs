//! A compressed radix tree of token sequences, one for each namespace.
//!
//! A node stands for the tokens from the root to it. It has a holder (a kept state or a running sequence), or several
//! children, or it is a root. Any other node is joined with its child or removed. So a tree has fewer than twice as
//! many nodes as there are holders. The numbers of nodes with holders never change.

use std::collections::BTreeMap;

use brigade_engine::batch::AdapterUse;

use crate::events::Request;
use crate::memory::namespace::Namespace;

/// Tokens that are compared at once.
const COMPARED_AT_ONCE: usize = 64;

/// The properties that two prompts must share to reuse each other's states: the namespace, and the adapters with the
/// bits of their scales.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Space {
    pub namespace: Namespace,
    adapters: Vec<(u32, u32)>,
}

impl Space {
    pub fn new(namespace: Namespace, adapters: &[AdapterUse]) -> Self {
        let adapters = adapters.iter().map(|used| (used.adapter, used.scale.to_bits())).collect();
        Self { namespace, adapters }
    }

    /// The space of a request's prompt.
    pub fn of(request: &Request) -> Self {
        Self::new(request.namespace(), &request.adapters)
    }

    /// The namespace, and the adapters with the bits of their scales.
    pub(super) fn parts(&self) -> (Namespace, &[(u32, u32)]) {
        let Self { namespace, adapters } = self;
        (*namespace, adapters)
    }
}

/// The number of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(u32);

#[derive(Debug)]
struct Node<H> {
    /// `None`: it is the root of its namespace.
    parent: Option<NodeId>,
    /// Tokens from the parent to this node; empty for a root.
    edge: Vec<u32>,
    /// Tokens from the root to its end.
    end: u32,
    /// Children by the first token of each.
    children: BTreeMap<u32, NodeId>,
    holders: Vec<H>,
}

/// How far some tokens lead into a tree.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Walk {
    /// Nodes whose tokens are all among them, the root first.
    pub passed: Vec<NodeId>,
    /// Tokens that lead to somewhere.
    pub common: u32,
    /// The node in whose edge they leave the tree or end, if not at a node.
    pub within: Option<NodeId>,
}

/// The trees of all namespaces.
#[derive(Debug)]
pub(super) struct Tree<H> {
    nodes: Vec<Option<Node<H>>>,
    free: Vec<u32>,
    roots: BTreeMap<Space, NodeId>,
    /// Counts changes that may affect which state a prompt would begin with.
    pub changes: u64,
}

impl<H> Default for Tree<H> {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), roots: BTreeMap::new(), changes: 0 }
    }
}

impl<H: Copy + PartialEq> Tree<H> {
    /// The number of nodes without the roots.
    pub fn n_nodes(&self) -> usize {
        self.nodes.len() - self.free.len() - self.roots.len()
    }

    /// Tokens from the root to a node's end.
    pub fn end(&self, node: NodeId) -> u32 {
        self.get(node).end
    }

    /// The root of a namespace, if there is anything in it.
    pub fn root(&self, space: &Space) -> Option<NodeId> {
        self.roots.get(space).copied()
    }

    pub fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.get(node).parent
    }

    /// Ways that go on behind a node.
    pub fn n_children(&self, node: NodeId) -> usize {
        self.get(node).children.len()
    }

    /// The way that goes on behind a node, where there is one only.
    pub fn only_child(&self, node: NodeId) -> Option<NodeId> {
        let children = &self.get(node).children;
        children.values().next().copied().filter(|_| children.len() == 1)
    }

    pub fn holders(&self, node: NodeId) -> &[H] {
        &self.get(node).holders
    }

    /// The node and those before it up to the root.
    pub fn up(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(Some(node), |node| self.parent(*node))
    }

    /// The node and all behind it, except `but` and the nodes behind that.
    pub fn behind(&self, node: NodeId, but: Option<NodeId>) -> impl Iterator<Item = NodeId> {
        let mut left = vec![node];
        std::iter::from_fn(move || {
            let node = left.pop()?;
            let children = self.get(node).children.values().copied();
            left.extend(children.filter(|child| Some(*child) != but));
            Some(node)
        })
    }

    /// The namespace of a node.
    pub fn space_of(&self, node: NodeId) -> Option<Space> {
        let root = self.up(node).last()?;
        self.roots.iter().find(|(_, of)| **of == root).map(|(space, _)| space.clone())
    }

    /// The tokens from the root to a node's end.
    pub fn tokens(&self, node: NodeId) -> Vec<u32> {
        let mut edges: Vec<&[u32]> = self.up(node).map(|node| &self.get(node).edge[..]).collect();
        edges.reverse();
        edges.concat()
    }

    /// How far tokens lead into the tree of their namespace.
    pub fn walk(&self, space: &Space, tokens: &[u32]) -> Walk {
        let Some(&root) = self.roots.get(space) else { return Walk::default() };
        let (mut passed, mut at) = (vec![root], root);
        let mut common = 0;
        while let Some(child) = tokens.get(common).and_then(|t| self.get(at).children.get(t)) {
            let edge = &self.get(*child).edge;
            let n = common_len(edge, &tokens[common..]);
            common += n;
            if n < edge.len() {
                return Walk { passed, common: common as u32, within: Some(*child) };
            }
            at = *child;
            passed.push(at);
        }
        Walk { passed, common: common as u32, within: None }
    }

    /// Adds a holder of some tokens; the node that stands for them.
    pub fn insert(&mut self, space: &Space, tokens: &[u32], holder: H) -> NodeId {
        self.changes += 1;
        if !self.roots.contains_key(space) {
            let root = self.add(Node {
                parent: None,
                edge: Vec::new(),
                end: 0,
                children: BTreeMap::new(),
                holders: Vec::new(),
            });
            self.roots.insert(space.clone(), root);
        }
        let Walk { passed, common, within } = self.walk(space, tokens);
        let last = *passed.last().expect("the namespace has a root");
        let at = match within {
            Some(child) => self.split(child, common),
            None => last,
        };
        let rest = &tokens[common as usize..];
        let node = match rest.first() {
            None => at,
            Some(&first) => {
                let (edge, end) = (rest.to_vec(), tokens.len() as u32);
                let (children, holders) = (BTreeMap::new(), Vec::new());
                let node = self.add(Node { parent: Some(at), edge, end, children, holders });
                self.get_mut(at).children.insert(first, node);
                node
            }
        };
        self.get_mut(node).holders.push(holder);
        node
    }

    /// Removes a holder, and the nodes that have none any more.
    ///
    /// # Panics
    /// If the node has no such holder.
    pub fn remove(&mut self, node: NodeId, holder: H) {
        self.changes += 1;
        let holders = &mut self.get_mut(node).holders;
        let at = holders.iter().position(|other| *other == holder);
        holders.swap_remove(at.expect("a holder was taken away twice"));
        self.prune(node);
    }

    /// Removes a node that is of no use, and those before it that then are.
    fn prune(&mut self, node: NodeId) {
        let Node { parent, children, holders, edge, .. } = self.get(node);
        if !holders.is_empty() || children.len() > 1 {
            return;
        }
        let (child, first) = (children.values().next().copied(), edge.first().copied());
        match (*parent, child) {
            (None, Some(_)) => {}
            (None, None) => {
                self.roots.retain(|_, root| *root != node);
                self.drop_node(node);
            }
            (Some(parent), None) => {
                self.drop_node(node);
                if let Some(first) = first {
                    self.get_mut(parent).children.remove(&first);
                }
                self.prune(parent);
            }
            (Some(parent), Some(child)) => {
                let mut edge = std::mem::take(&mut self.get_mut(node).edge);
                self.drop_node(node);
                let behind = self.get_mut(child);
                edge.append(&mut behind.edge);
                (behind.edge, behind.parent) = (edge, Some(parent));
                if let Some(first) = first {
                    self.get_mut(parent).children.insert(first, child);
                }
            }
        }
    }

    /// Puts a node at `end` into the edge of `child`.
    fn split(&mut self, child: NodeId, end: u32) -> NodeId {
        let Node { parent, edge, end: last, .. } = self.get(child);
        let parent = parent.expect("a root has no edge");
        let n = edge.len() - (last - end) as usize;
        let (edge, rest) = (edge[..n].to_vec(), edge[n..].to_vec());
        let (first, next) = (edge[0], rest[0]);
        let children = [(next, child)].into();
        let middle =
            self.add(Node { parent: Some(parent), edge, end, children, holders: Vec::new() });
        self.get_mut(parent).children.insert(first, middle);
        let behind = self.get_mut(child);
        (behind.edge, behind.parent) = (rest, Some(middle));
        middle
    }

    fn add(&mut self, node: Node<H>) -> NodeId {
        if let Some(id) = self.free.pop() {
            self.nodes[id as usize] = Some(node);
            return NodeId(id);
        }
        self.nodes.push(Some(node));
        NodeId(self.nodes.len() as u32 - 1)
    }

    fn drop_node(&mut self, node: NodeId) {
        self.nodes[node.0 as usize] = None;
        self.free.push(node.0);
    }

    fn get(&self, node: NodeId) -> &Node<H> {
        self.nodes[node.0 as usize].as_ref().expect("nodes with holders stay")
    }

    fn get_mut(&mut self, node: NodeId) -> &mut Node<H> {
        self.nodes[node.0 as usize].as_mut().expect("nodes with holders stay")
    }
}

/// How many first tokens are the same.
fn common_len(a: &[u32], b: &[u32]) -> usize {
    let chunks = a.chunks_exact(COMPARED_AT_ONCE).zip(b.chunks_exact(COMPARED_AT_ONCE));
    let same = COMPARED_AT_ONCE * chunks.take_while(|(a, b)| a == b).count();
    same + a[same..].iter().zip(&b[same..]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::sim::Rng;

    /// Random histories; each has random insertions and removals. One in so many is long.
    const HISTORIES: u64 = 100_000;
    const LONG_ONE_IN: u64 = 50;

    type Held = (Space, Vec<u32>, u32);

    fn space(owner: u64) -> Space {
        Space::new(Namespace::of_owner(owner), &[])
    }

    /// Tokens of few kinds: many begin alike.
    fn tokens(rng: &mut Rng, most: u64) -> Vec<u32> {
        (0..rng.between(1, most)).map(|_| rng.between(0, 2) as u32).collect()
    }

    /// Compares the tree's answers about tokens with those of a list of all holders.
    fn check(tree: &Tree<u32>, all: &[(Held, NodeId)], space: &Space, tokens: &[u32]) {
        let own = || all.iter().filter(|((of, ..), _)| of == space);
        let walk = tree.walk(space, tokens);
        let common = own().map(|((_, held, _), _)| common_len(held, tokens)).max().unwrap_or(0);
        assert_eq!(walk.common as usize, common);
        let end = walk.within.or(walk.passed.last().copied());
        // All that share so much, and nothing else, is behind the place where the walk ends.
        let mut behind: Vec<u32> = end
            .into_iter()
            .flat_map(|node| tree.behind(node, None))
            .flat_map(|node| tree.holders(node).to_vec())
            .collect();
        let shares = |held: &[u32]| held.starts_with(&tokens[..common]);
        let sharing = own().filter(|((_, held, _), _)| shares(held));
        let mut expected: Vec<u32> = sharing.map(|((_, _, holder), _)| *holder).collect();
        behind.sort_unstable();
        expected.sort_unstable();
        assert_eq!(behind, expected);
        let on_path = |held: &[u32]| tokens.starts_with(held);
        let passed = walk.passed.iter().flat_map(|node| tree.holders(*node).to_vec());
        let mut passed: Vec<u32> = passed.collect();
        let mut whole: Vec<u32> = own()
            .filter(|((_, held, _), _)| on_path(held))
            .map(|((_, _, holder), _)| *holder)
            .collect();
        passed.sort_unstable();
        whole.sort_unstable();
        assert_eq!(passed, whole);
    }

    #[test]
    fn a_tree_knows_what_a_list_knows_over_random_histories() {
        let mut looked_up = 0;
        for seed in 0..HISTORIES {
            let mut rng = Rng::new(seed);
            let mut tree = Tree::default();
            let mut all: Vec<(Held, NodeId)> = Vec::new();
            let most = [6, 30, 200][rng.between(0, 2) as usize];
            let steps = if seed % LONG_ONE_IN == 0 { 60 } else { 10 };
            for holder in 0..rng.between(1, steps) as u32 {
                if rng.one_in(3) && !all.is_empty() {
                    let at = rng.between(0, all.len() as u64 - 1) as usize;
                    let ((.., holder), node) = all.swap_remove(at);
                    tree.remove(node, holder);
                } else {
                    let space = space(rng.between(0, 1));
                    let tokens = tokens(&mut rng, most);
                    let node = tree.insert(&space, &tokens, holder);
                    all.push(((space, tokens, holder), node));
                }
                for ((_, tokens, holder), node) in &all {
                    assert_eq!(&tree.tokens(*node), tokens, "seed {seed}");
                    assert_eq!(tree.end(*node) as usize, tokens.len());
                    assert!(tree.holders(*node).contains(holder));
                }
                assert!(tree.n_nodes() <= 2 * all.len(), "seed {seed}: nothing is left over");
                let (space, tokens) = (space(rng.between(0, 2)), tokens(&mut rng, most));
                check(&tree, &all, &space, &tokens);
                looked_up += 1;
            }
            for ((.., holder), node) in all {
                tree.remove(node, holder);
            }
            assert_eq!((tree.n_nodes(), tree.roots.len()), (0, 0), "seed {seed}");
        }
        println!("{looked_up} look-ups in {HISTORIES} histories");
    }

    #[test]
    #[should_panic(expected = "taken away twice")]
    fn a_double_removal_is_a_bug() {
        let mut tree = Tree::default();
        let node = tree.insert(&space(0), &[1, 2], 1);
        tree.insert(&space(0), &[1, 2], 2);
        tree.remove(node, 1);
        tree.remove(node, 1);
    }

    #[test]
    fn scales_and_owners_are_told_apart() {
        let used = |scale| [AdapterUse { adapter: 0, scale }];
        let mut tree = Tree::default();
        tree.insert(&Space::new(Namespace::of_owner(7), &used(0.5)), &[1, 2, 3], 1);
        let common = |space: Space| tree.walk(&space, &[1, 2, 3]).common;
        assert_eq!(common(Space::new(Namespace::of_owner(7), &used(0.5))), 3);
        assert_eq!(common(Space::new(Namespace::of_owner(8), &used(0.5))), 0);
        assert_eq!(common(Space::new(Namespace::of_owner(7), &used(0.25))), 0);
        assert_eq!(common(Space::new(Namespace::of_owner(7), &[])), 0);
    }

    /// Prints what a look-up takes; a figure, not a promise.
    #[test]
    fn a_look_up_in_a_large_tree() {
        let mut rng = Rng::new(1);
        let beginning: Vec<u32> = (0..100_000).map(|_| rng.between(0, 30_000) as u32).collect();
        let mut tree = Tree::default();
        for holder in 0..5_000_u32 {
            let n = rng.between(1, 100_000) as usize;
            let own = (0..50).map(|_| rng.between(0, 30_000) as u32);
            let tokens: Vec<u32> = beginning[..n].iter().copied().chain(own).collect();
            tree.insert(&space(0), &tokens, holder);
        }
        let begun = Instant::now();
        let common = tree.walk(&space(0), &beginning).common;
        println!("{common} tokens through {} nodes: {:?}", tree.n_nodes(), begun.elapsed());
        assert!(common > 90_000 && tree.n_nodes() > 9_000);
    }
}
