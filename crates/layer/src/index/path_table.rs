//! [`PathTable`]: finds the entries of a layer by their paths while it is assembled.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::{Entry, LayerPath};

/// The state of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathState {
    /// The entry with this number.
    Entry(u32),
    /// A directory that contains entries and has no entry itself.
    Implied,
}

/// The entries in order, by number. `None` where a later entry replaced one.
pub(super) type Entries = [Option<Entry>];

/// The states of all paths. Of an entry only the number is stored: its path is in the entry itself.
#[derive(Default)]
pub(super) struct PathTable {
    numbers: HashTable<u32>,
    implied: HashSet<LayerPath>,
    /// Seeded by chance, so that no layer can choose paths that collide.
    hasher: RandomState,
}

impl PathTable {
    pub(super) fn get(&self, path: &[u8], entries: &Entries) -> Option<PathState> {
        let found = self.numbers.find(self.hasher.hash_one(path), |number| path_of(*number, entries) == Some(path));
        let implied = || self.implied.contains(path).then_some(PathState::Implied);
        found.map(|number| PathState::Entry(*number)).or_else(implied)
    }

    /// Number of paths.
    pub(super) fn len(&self) -> usize {
        self.numbers.len() + self.implied.len()
    }

    /// Adds an entry, whose path no other entry has.
    pub(super) fn add(&mut self, number: u32, entries: &Entries) {
        let Self { numbers, implied, hasher } = self;
        let hash = |number: &u32| path_of(*number, entries).map_or(0, |path| hasher.hash_one(path));
        numbers.insert_unique(hash(&number), number, hash);
        if let Some(path) = path_of(number, entries) {
            implied.remove(path);
        }
    }

    /// Adds a directory without an entry.
    pub(super) fn imply(&mut self, path: LayerPath) {
        self.implied.insert(path);
    }

    /// Removes an entry, before it is gone.
    pub(super) fn remove(&mut self, number: u32, entries: &Entries) {
        let Some(path) = path_of(number, entries) else { return };
        if let Ok(found) = self.numbers.find_entry(self.hasher.hash_one(path), |other| *other == number) {
            found.remove();
        }
    }

    /// Removes the paths for which this holds; returns the numbers of their entries, ascending.
    pub(super) fn remove_where(&mut self, is_gone: impl Fn(&[u8]) -> bool, entries: &Entries) -> Vec<u32> {
        self.implied.retain(|path| !is_gone(path.as_bytes()));
        let gone = |number: &mut u32| path_of(*number, entries).is_some_and(&is_gone);
        let mut numbers: Vec<u32> = self.numbers.extract_if(gone).collect();
        numbers.sort_unstable();
        numbers
    }
}

fn path_of(number: u32, entries: &Entries) -> Option<&[u8]> {
    entries.get(number as usize)?.as_ref().map(|entry| entry.path.as_bytes())
}
