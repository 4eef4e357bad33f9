//! [`DescriptorTable`]: the descriptors of a holder, in a table of fixed size.

use std::os::fd::OwnedFd;

use crate::message::Name;

/// Maximum number of descriptors. Each mount in mode `fuse` takes two, all native mounts take one; an entry of the table
/// takes 212 bytes, of which the kernel provides what is used.
pub(crate) const MAX_HELD: usize = 8192;

/// A table of descriptors by name.
pub(crate) struct DescriptorTable(Vec<(Name, OwnedFd)>);

impl DescriptorTable {
    /// An empty table, which never allocates again.
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(MAX_HELD))
    }

    /// Holds a descriptor, in place of an earlier one of this name. One for which there is no room is closed.
    pub(crate) fn keep(&mut self, name: Name, descriptor: OwnedFd) {
        match self.0.iter().position(|(held, _)| *held == name) {
            Some(position) => self.0[position].1 = descriptor,
            None if self.0.len() < MAX_HELD => self.0.push((name, descriptor)),
            None => tracing::error!("no room to hold {}: it ends with its server", name.as_str()),
        }
    }

    /// Closes the descriptor of this name.
    pub(crate) fn release(&mut self, name: &Name) {
        if let Some(position) = self.0.iter().position(|(held, _)| held == name) {
            self.0.swap_remove(position);
        }
    }

    /// Closes all.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Name, OwnedFd)> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> OwnedFd {
        std::io::pipe().unwrap().0.into()
    }

    #[test]
    fn a_name_has_one_descriptor_and_a_full_table_takes_no_more() {
        let mut held = DescriptorTable::new();
        let name = |number: usize| Name::new(&format!("fuse.{number}")).unwrap();
        held.keep(name(0), descriptor());
        held.keep(name(0), descriptor());
        assert_eq!(held.iter().count(), 1);
        held.release(&name(1));
        held.release(&name(0));
        assert_eq!(held.iter().count(), 0);
        let (one, capacity) = (descriptor(), held.0.capacity());
        held.0.extend((0..MAX_HELD).map(|number| (name(number), one.try_clone().unwrap())).take(500));
        held.keep(name(9000), descriptor());
        assert_eq!((held.0.capacity(), held.iter().count()), (capacity, 501));
    }
}
