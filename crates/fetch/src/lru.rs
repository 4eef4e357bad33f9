//! A small least-recently-used map, bounded by weight.
//!
//! For state that must stay bounded whatever images request. Not concurrent: callers hold a lock for the few hundred nanoseconds of
//! an operation.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Values by key. The least recently used leave first once their weights exceed the capacity.
pub(crate) struct Lru<K, V> {
    entries: HashMap<K, Entry<V>>,
    by_age: BTreeMap<u64, K>,
    clock: u64,
    weight: u64,
    capacity: u64,
}

struct Entry<V> {
    value: V,
    age: u64,
    weight: u64,
}

impl<K: Hash + Eq + Clone, V> Lru<K, V> {
    /// An empty map that holds values of at most `capacity` in all.
    pub(crate) fn new(capacity: u64) -> Self {
        Self { entries: HashMap::new(), by_age: BTreeMap::new(), clock: 0, weight: 0, capacity }
    }

    /// The value. Marks it as used now.
    pub(crate) fn get<Q>(&mut self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let entry = self.entries.get_mut(key)?;
        let owned = self.by_age.remove(&entry.age)?;
        self.clock += 1;
        entry.age = self.clock;
        self.by_age.insert(self.clock, owned);
        Some(&entry.value)
    }

    /// Inserts the value. The previous value of this key and values that no longer fit leave. A value heavier than the whole
    /// capacity is not kept.
    pub(crate) fn insert(&mut self, key: K, value: V, weight: u64) {
        self.remove(&key);
        if weight > self.capacity {
            return;
        }
        while self.weight + weight > self.capacity {
            let Some((_, oldest)) = self.by_age.pop_first() else { break };
            if let Some(gone) = self.entries.remove(&oldest) {
                self.weight -= gone.weight;
            }
        }
        self.clock += 1;
        self.weight += weight;
        self.by_age.insert(self.clock, key.clone());
        self.entries.insert(key, Entry { value, age: self.clock, weight });
    }

    /// Removes and returns the value.
    pub(crate) fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let entry = self.entries.remove(key)?;
        self.by_age.remove(&entry.age);
        self.weight -= entry.weight;
        Some(entry.value)
    }

    /// Keeps only the values for which `keep` returns `true`.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&K, &V) -> bool) {
        let gone: Vec<K> = self.entries.iter().filter(|(k, e)| !keep(k, &e.value)).map(|(k, _)| k.clone()).collect();
        for key in gone {
            self.remove(&key);
        }
    }

    /// Sum of the weights.
    pub(crate) fn weight(&self) -> u64 {
        self.weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_leaves_first() {
        let mut lru = Lru::new(3);
        for key in 1..=3 {
            lru.insert(key, key * 10, 1);
        }
        assert_eq!(lru.get(&1), Some(&10));
        lru.insert(4, 40, 1);
        assert_eq!(lru.get(&2), None);
        assert_eq!(lru.weight(), 3);
        assert_eq!(lru.get(&1), Some(&10));
    }

    #[test]
    fn an_entry_above_the_limit_is_not_kept_and_evicts_nothing() {
        let mut lru = Lru::new(10);
        lru.insert("small", (), 4);
        lru.insert("huge", (), 11);
        assert!(lru.get("small").is_some());
        assert!(lru.get("huge").is_none());
    }

    #[test]
    fn replacing_and_retaining_keep_the_weight_right() {
        let mut lru = Lru::new(10);
        lru.insert(1, 'a', 4);
        lru.insert(1, 'b', 2);
        lru.insert(2, 'c', 3);
        assert_eq!(lru.weight(), 5);
        lru.retain(|key, _| *key == 1);
        assert_eq!(lru.weight(), 2);
        assert_eq!(lru.get(&1), Some(&'b'));
        assert_eq!(lru.get(&2), None);
    }
}
