//! [`Table`]: the descriptors that a holder keeps.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::message::{MAX_HELD, Name};

/// Named descriptors. Reserved at the start, so that nothing is allocated later; the memory is used from the first entry on.
pub(super) struct Table(Vec<(Name, OwnedFd)>);

impl Table {
    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(MAX_HELD))
    }

    /// Adds or replaces. Closes the descriptor if the table is full.
    pub(super) fn put(&mut self, name: Name, descriptor: OwnedFd) {
        if let Some((_, replaced)) = self.0.iter_mut().find(|(other, _)| *other == name) {
            *replaced = descriptor;
        } else if self.0.len() < MAX_HELD {
            self.0.push((name, descriptor));
        }
    }

    pub(super) fn remove(&mut self, name: Name) {
        if let Some(at) = self.0.iter().position(|(other, _)| *other == name) {
            self.0.swap_remove(at);
        }
    }

    pub(super) fn get(&self, at: usize) -> Option<(Name, BorrowedFd<'_>)> {
        self.0.get(at).map(|(name, descriptor)| (*name, descriptor.as_fd()))
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (Name, BorrowedFd<'_>)> {
        self.0.iter().map(|(name, descriptor)| (*name, descriptor.as_fd()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Closes all descriptors.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
