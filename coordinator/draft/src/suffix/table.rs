//! A map that takes no more memory than its entries: a sorted list of boxes.

/// A map for entries that change rarely and are looked up often.
#[derive(Debug)]
pub struct Table<K, V>(Vec<(K, Box<V>)>);

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord + Copy, V> Table<K, V> {
    /// Bytes of an entry, beside what its value holds elsewhere.
    pub const ENTRY: usize = size_of::<(K, Box<V>)>() + size_of::<V>();

    pub fn get(&self, key: K) -> Option<&V> {
        self.at(key).ok().map(|at| &*self.0[at].1)
    }

    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.at(key).ok().map(|at| &mut *self.0[at].1)
    }

    /// Adds an entry in the place of one that may be there.
    pub fn insert(&mut self, key: K, value: V) {
        match self.at(key) {
            Ok(at) => *self.0[at].1 = value,
            Err(at) => {
                self.0.reserve_exact(1);
                self.0.insert(at, (key, Box::new(value)));
            }
        }
    }

    pub fn remove(&mut self, key: K) -> Option<V> {
        let at = self.at(key).ok()?;
        let (_, value) = self.0.remove(at);
        self.0.shrink_to_fit();
        Some(*value)
    }

    /// All entries, by their keys' order.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.0.iter().map(|(key, value)| (*key, &**value))
    }

    /// Bytes of all entries.
    #[cfg(test)]
    pub fn nbytes(&self) -> usize {
        self.0.capacity() * size_of::<(K, Box<V>)>() + self.0.len() * size_of::<V>()
    }

    fn at(&self, key: K) -> Result<usize, usize> {
        self.0.binary_search_by_key(&key, |(key, _)| *key)
    }
}
