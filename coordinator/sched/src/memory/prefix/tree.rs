//! A compressed radix tree of token sequences, one for each namespace.
//!
//! A node stands for the tokens from the root to it. It has a holder (a kept state or a running sequence), or several
//! children, or it is a root. Any other node is joined with its child or removed. So a tree has fewer than twice as
//! many nodes as there are holders. The numbers of nodes with holders never change.
//!
//! Tokens stand in chains, each of which may pass many nodes. So where thousands of prompts part from one, it is still
//! compared with a few long runs of tokens.

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

/// The number of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChainId(u32);

#[derive(Debug)]
struct Node<H> {
    /// `None`: it is the root of its namespace.
    parent: Option<NodeId>,
    /// The chain whose tokens end at it; `None` for a root.
    chain: Option<ChainId>,
    /// Tokens from the root to its end.
    end: u32,
    /// Children by the first token of each.
    children: BTreeMap<u32, NodeId>,
    holders: Vec<H>,
}

/// A node with its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    pub node: NodeId,
    /// Tokens from the root to it.
    pub end: u32,
}

/// Tokens that follow each other from one node to another that is far behind it, with all nodes on the way. So
/// comparing a prompt with them takes no look at each node.
#[derive(Debug)]
struct Chain {
    /// Tokens from the root to the node at which it begins.
    from: u32,
    tokens: Vec<u32>,
    /// Its nodes, each a child of the one before; the last is at the end of the tokens.
    stops: Vec<Stop>,
}

impl Chain {
    /// Its tokens from a position of the tree on.
    fn behind(&self, at: u32) -> &[u32] {
        &self.tokens[(at - self.from) as usize..]
    }

    /// How many of its nodes end before or at a position.
    fn n_until(&self, at: u32) -> usize {
        self.stops.partition_point(|stop| stop.end <= at)
    }
}

/// How far some tokens lead into a tree.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Walk {
    /// Nodes whose tokens are all among them, the root first.
    pub passed: Vec<Stop>,
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
    chains: Vec<Option<Chain>>,
    free_chains: Vec<u32>,
    roots: BTreeMap<Space, NodeId>,
    /// Counts changes that may affect which state a prompt would begin with.
    pub changes: u64,
}

impl<H> Default for Tree<H> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            chains: Vec::new(),
            free_chains: Vec::new(),
            roots: BTreeMap::new(),
            changes: 0,
        }
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
        let (mut parts, mut at) = (Vec::new(), node);
        while let Some((_, chain)) = self.chain_of(at) {
            parts.push(&chain.tokens[..(self.end(at) - chain.from) as usize]);
            at = self.begin_of(chain);
        }
        parts.reverse();
        parts.concat()
    }

    /// How far tokens lead into the tree of their namespace.
    pub fn walk(&self, space: &Space, tokens: &[u32]) -> Walk {
        let Some(&root) = self.roots.get(space) else { return Walk::default() };
        let mut at = Stop { node: root, end: 0 };
        let mut passed = vec![at];
        let child = |at: Stop| {
            let next = tokens.get(at.end as usize)?;
            self.get(at.node).children.get(next)
        };
        while let Some((_, chain)) = child(at).and_then(|child| self.chain_of(*child)) {
            let same = common_len(chain.behind(at.end), &tokens[at.end as usize..]) as u32;
            let common = at.end + same;
            let (first, next) = (chain.n_until(at.end), chain.n_until(common));
            passed.extend(&chain.stops[first..next]);
            at = passed.last().copied().unwrap_or(at);
            if at.end < common {
                return Walk { passed, common, within: Some(chain.stops[next].node) };
            }
        }
        Walk { passed, common: at.end, within: None }
    }

    /// Adds a holder of some tokens; the node that stands for them.
    pub fn insert(&mut self, space: &Space, tokens: &[u32], holder: H) -> NodeId {
        self.changes += 1;
        if !self.roots.contains_key(space) {
            let root = self.add(Node {
                parent: None,
                chain: None,
                end: 0,
                children: BTreeMap::new(),
                holders: Vec::new(),
            });
            self.roots.insert(space.clone(), root);
        }
        let Walk { passed, common, within } = self.walk(space, tokens);
        let last = passed.last().expect("the namespace has a root").node;
        let at = match within {
            Some(child) => self.split(child, common),
            None => last,
        };
        let rest = &tokens[common as usize..];
        let node = if rest.is_empty() { at } else { self.append(at, rest) };
        self.get_mut(node).holders.push(holder);
        node
    }

    /// A new node behind another one.
    fn append(&mut self, at: NodeId, rest: &[u32]) -> NodeId {
        let end = self.end(at) + rest.len() as u32;
        let is_last = |chain: &Chain| chain.stops.last().is_some_and(|stop| stop.node == at);
        let longer = self.chain_of(at).filter(|(_, chain)| is_last(chain));
        let id = match longer.map(|(id, _)| id) {
            Some(id) => id,
            None => {
                let (from, tokens, stops) = (self.end(at), Vec::new(), Vec::new());
                self.add_chain(Chain { from, tokens, stops })
            }
        };
        let (children, holders) = (BTreeMap::new(), Vec::new());
        let node = self.add(Node { parent: Some(at), chain: Some(id), end, children, holders });
        let chain = self.chain_mut(id);
        chain.tokens.extend_from_slice(rest);
        chain.stops.push(Stop { node, end });
        self.get_mut(at).children.insert(rest[0], node);
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
        let Node { parent, chain, children, holders, end } = self.get(node);
        if !holders.is_empty() || children.len() > 1 {
            return;
        }
        let (child, end) = (children.values().next().copied(), *end);
        match (parent.zip(*chain), child) {
            (None, Some(_)) => {}
            (None, None) => {
                self.roots.retain(|_, root| *root != node);
                self.drop_node(node);
            }
            (Some((parent, id)), None) => {
                let first = self.first_of(parent, id);
                self.drop_node(node);
                self.cut(id);
                self.get_mut(parent).children.remove(&first);
                self.prune(parent);
            }
            (Some((parent, id)), Some(child)) => {
                let first = self.first_of(parent, id);
                self.drop_node(node);
                let at = self.chain(id).n_until(end) - 1;
                self.chain_mut(id).stops.remove(at);
                self.join(id, child);
                self.get_mut(child).parent = Some(parent);
                self.get_mut(parent).children.insert(first, child);
            }
        }
    }

    /// Takes the last node, which is gone, off a chain.
    fn cut(&mut self, id: ChainId) {
        let chain = self.chain_mut(id);
        chain.stops.pop();
        match chain.stops.last() {
            Some(last) => chain.tokens.truncate((last.end - chain.from) as usize),
            None => drop(self.drop_chain(id)),
        }
    }

    /// Makes one chain of two, where a node between them is gone and `child` was its only child.
    fn join(&mut self, id: ChainId, child: NodeId) {
        let behind = self.get(child).chain.filter(|other| *other != id);
        let Some(behind) = behind.and_then(|other| self.drop_chain(other)) else { return };
        behind.stops.iter().for_each(|stop| self.get_mut(stop.node).chain = Some(id));
        let chain = self.chain_mut(id);
        chain.tokens.extend(behind.tokens);
        chain.stops.extend(behind.stops);
    }

    /// Puts a node at `end` into the edge of `child`.
    fn split(&mut self, child: NodeId, end: u32) -> NodeId {
        let Node { parent, chain, .. } = self.get(child);
        let (parent, id) = parent.zip(*chain).expect("a root has no edge");
        let (first, next) = (self.first_of(parent, id), self.chain(id).behind(end)[0]);
        let (chain, children, holders) = (Some(id), [(next, child)].into(), Vec::new());
        let node = self.add(Node { parent: Some(parent), chain, end, children, holders });
        let chain = self.chain_mut(id);
        chain.stops.insert(chain.n_until(end), Stop { node, end });
        self.get_mut(parent).children.insert(first, node);
        self.get_mut(child).parent = Some(node);
        node
    }

    /// The first token on a chain behind one of its nodes, or behind the node at which it begins.
    fn first_of(&self, parent: NodeId, id: ChainId) -> u32 {
        self.chain(id).behind(self.end(parent))[0]
    }

    /// The chain that ends at a node or leads on from it; `None` for a root.
    fn chain_of(&self, node: NodeId) -> Option<(ChainId, &Chain)> {
        self.get(node).chain.map(|id| (id, self.chain(id)))
    }

    /// The node behind which a chain begins.
    fn begin_of(&self, chain: &Chain) -> NodeId {
        let parent = chain.stops.first().and_then(|stop| self.parent(stop.node));
        parent.expect("a chain has nodes, and a root has none")
    }

    fn add_chain(&mut self, chain: Chain) -> ChainId {
        if let Some(id) = self.free_chains.pop() {
            self.chains[id as usize] = Some(chain);
            return ChainId(id);
        }
        self.chains.push(Some(chain));
        ChainId(self.chains.len() as u32 - 1)
    }

    fn drop_chain(&mut self, id: ChainId) -> Option<Chain> {
        self.free_chains.push(id.0);
        self.chains[id.0 as usize].take()
    }

    fn chain(&self, id: ChainId) -> &Chain {
        self.chains[id.0 as usize].as_ref().expect("chains with nodes stay")
    }

    fn chain_mut(&mut self, id: ChainId) -> &mut Chain {
        self.chains[id.0 as usize].as_mut().expect("chains with nodes stay")
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
        let end = walk.within.or(walk.passed.last().map(|stop| stop.node));
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
        assert!(walk.passed.iter().all(|stop| tree.end(stop.node) == stop.end));
        let passed = walk.passed.iter().flat_map(|stop| tree.holders(stop.node).to_vec());
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
            assert!(tree.chains.iter().all(Option::is_none), "seed {seed}");
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
        let walk = || {
            let begun = Instant::now();
            let walk = tree.walk(&space(0), &beginning);
            (begun.elapsed(), walk.common, walk.passed.len())
        };
        let (first, common, passed) = walk();
        let mut others: Vec<_> = (0..99).map(|_| walk().0).collect();
        others.sort_unstable();
        println!(
            "{common} tokens past {passed} of {} nodes: {first:?}, the median of 99 more {:?}",
            tree.n_nodes(),
            others[49]
        );
        assert!(common > 90_000 && tree.n_nodes() > 9_000 && passed > 4_000);
    }
}
