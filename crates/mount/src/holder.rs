//! [`ConnectionHolder`]: keeps FUSE connections beyond the death of this process; [`Inheritance`]: what it held for the next one.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fuser::InitFlags;
use parking_lot::Mutex;

use crate::{device, fusectl};

/// Prefix of the name of a connection: `fuse.NUMBER.CAPABILITIES`.
const CONNECTION: &str = "fuse";
/// Prefix of the name of a connection's record of open files: `opens.NUMBER`.
const OPENS: &str = "opens";

/// Keeps duplicates of descriptors beyond the death of this process, for its successor.
pub trait ConnectionHolder: Send + Sync {
    /// Whether it keeps anything.
    fn keeps(&self) -> bool;

    /// Keeps a descriptor, in place of an earlier one of this name. Does not block.
    fn keep(&self, name: &str, descriptor: BorrowedFd<'_>);

    /// Stops keeping a descriptor.
    fn release(&self, name: &str);
}

/// Keeps nothing: every connection ends with this process.
pub(crate) struct NoHolder;

impl ConnectionHolder for NoHolder {
    fn keeps(&self) -> bool {
        false
    }

    fn keep(&self, _: &str, _: BorrowedFd<'_>) {}

    fn release(&self, _: &str) {}
}

/// The descriptors of one connection that the holder has, until this is dropped.
pub(crate) struct HeldConnection {
    holder: Arc<dyn ConnectionHolder>,
    names: [String; 2],
}

impl HeldConnection {
    /// Has the connection with this number held, and the record of its open files if it has one. `offered`: the features
    /// that the kernel offered when it was initialised.
    pub(crate) fn new(
        holder: Arc<dyn ConnectionHolder>,
        number: u32,
        offered: InitFlags,
        device: BorrowedFd<'_>,
        opens: Option<BorrowedFd<'_>>,
    ) -> Self {
        let (connection, record) = names(number, offered);
        // The record first, because a successor serves no connection without its record.
        if let Some(opens) = opens {
            holder.keep(&record, opens);
        }
        holder.keep(&connection, device);
        Self { holder, names: [connection, record] }
    }
}

/// The names of a connection and of the record of its open files.
fn names(number: u32, offered: InitFlags) -> (String, String) {
    (format!("{CONNECTION}.{number}.{:x}", offered.bits()), format!("{OPENS}.{number}"))
}

impl Drop for HeldConnection {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| self.holder.release(name));
    }
}

/// A connection of a dead server. Dropping it ends the connection, unless it is adopted.
pub(crate) struct InheritedConnection {
    pub(crate) number: u32,
    pub(crate) device: OwnedFd,
    pub(crate) offered: InitFlags,
    /// The record of its open files, if it has one.
    pub(crate) opens: Option<OwnedFd>,
    /// What the holder has of it: as long as it does, readers wait.
    pub(crate) held: HeldConnection,
    pub(crate) end: EndOnDrop,
}

/// Ends a connection when it is dropped. Closing its devices is not enough: a thread of the dead server may have one, and wait for an answer
/// that would not come.
pub(crate) struct EndOnDrop(Option<(u32, OwnedFd)>);

impl EndOnDrop {
    fn of(number: u32, device: &OwnedFd) -> Self {
        Self(device.try_clone().ok().map(|device| (number, device)))
    }

    /// Lets the connection live.
    pub(crate) fn cancel(mut self) {
        self.0 = None;
    }
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        // The number of one that has ended may be another one's by now.
        if let Some((number, device)) = self.0.take()
            && !device::has_ended(device.as_fd())
            && let Err(error) = fusectl::abort(number)
        {
            tracing::debug!(number, %error, "a FUSE connection of the earlier server ends with its last device");
        }
    }
}

/// The connections of a dead server that are not adopted yet. Meanwhile their readers wait.
#[derive(Default)]
pub struct Inheritance {
    connections: Mutex<BTreeMap<u32, InheritedConnection>>,
}

impl Inheritance {
    /// Takes the connections out of `descriptors`, which `holder` has; leaves the others.
    pub fn take(descriptors: &mut Vec<(String, OwnedFd)>, holder: &Arc<dyn ConnectionHolder>) -> Self {
        let (mut connections, mut opens) = (BTreeMap::new(), BTreeMap::new());
        let mut others = Vec::new();
        for (name, descriptor) in descriptors.drain(..) {
            let mut parts = name.split('.');
            let kind = parts.next();
            let (number, rest) = (parts.next().and_then(|number| number.parse::<u32>().ok()), parts.next());
            let offered = rest.and_then(|bits| u64::from_str_radix(bits, 16).ok()).map(InitFlags::from_bits_retain);
            match (kind, number, offered) {
                (Some(CONNECTION), Some(number), Some(offered)) => {
                    let held = HeldConnection { holder: holder.clone(), names: names(number, offered).into() };
                    let end = EndOnDrop::of(number, &descriptor);
                    let connection =
                        InheritedConnection { number, device: descriptor, offered, opens: None, held, end };
                    connections.insert(number, connection);
                }
                (Some(OPENS), Some(number), None) => {
                    opens.insert(number, descriptor);
                }
                _ => others.push((name, descriptor)),
            }
        }
        for (number, connection) in &mut connections {
            connection.opens = opens.remove(number);
        }
        *descriptors = others;
        Self { connections: Mutex::new(connections) }
    }

    /// Takes the connection with this number.
    pub(crate) fn connection(&self, number: u32) -> Option<InheritedConnection> {
        self.connections.lock().remove(&number)
    }

    /// Whether the connection with this number is here.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.connections.lock().contains_key(&number)
    }

    /// Ends the connections that were not adopted: their readers get an error.
    pub(crate) fn close(&self) {
        let left = std::mem::take(&mut *self.connections.lock());
        for number in left.keys() {
            tracing::info!(number, "a FUSE connection of the earlier server belongs to no mount any more");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[derive(Default)]
    struct Names(Mutex<Vec<(String, OwnedFd)>>);

    impl ConnectionHolder for Names {
        fn keeps(&self) -> bool {
            true
        }

        fn keep(&self, name: &str, descriptor: BorrowedFd<'_>) {
            self.0.lock().push((name.to_owned(), descriptor.try_clone_to_owned().unwrap()));
        }

        fn release(&self, name: &str) {
            self.0.lock().retain(|(held, _)| held != name);
        }
    }

    fn descriptor() -> OwnedFd {
        tempfile::tempfile().unwrap().into()
    }

    #[test]
    fn a_successor_gets_the_connections_and_their_records_of_open_files() {
        let holder = Arc::new(Names::default());
        let (one, other, opens) = (descriptor(), descriptor(), descriptor());
        let offered = InitFlags::FUSE_PASSTHROUGH | InitFlags::FUSE_ALLOW_IDMAP;
        let first = HeldConnection::new(holder.clone(), 41, offered, one.as_fd(), Some(opens.as_fd()));
        let second = HeldConnection::new(holder.clone(), 42, InitFlags::empty(), other.as_fd(), None);
        holder.keep("state.mounts", opens.as_fd());
        let mut descriptors = std::mem::take(&mut *holder.0.lock());
        let shared: Arc<dyn ConnectionHolder> = holder.clone();
        let inheritance = Inheritance::take(&mut descriptors, &shared);
        assert_eq!(descriptors[0].0, "state.mounts");
        let (found, without) = (inheritance.connection(41).unwrap(), inheritance.connection(42).unwrap());
        assert_eq!((found.number, found.offered, found.opens.is_some()), (41, offered, true));
        assert!(without.opens.is_none() && inheritance.connection(41).is_none());
        drop((first, second));
    }

    #[test]
    fn a_connection_that_has_ended_is_released() {
        let holder = Arc::new(Names::default());
        let (device, opens) = (descriptor(), descriptor());
        let held = HeldConnection::new(holder.clone(), 7, InitFlags::empty(), device.as_fd(), Some(opens.as_fd()));
        assert_eq!(holder.0.lock().len(), 2);
        drop(held);
        assert!(holder.0.lock().is_empty());
    }

    #[test]
    fn a_connection_that_is_not_adopted_is_released() {
        let holder = Arc::new(Names::default());
        let (device, shared): (_, Arc<dyn ConnectionHolder>) = (descriptor(), holder.clone());
        let _of_the_dead_server = std::mem::ManuallyDrop::new(HeldConnection::new(
            shared.clone(),
            7,
            InitFlags::empty(),
            device.as_fd(),
            None,
        ));
        let duplicate = |(name, held): &(String, OwnedFd)| (name.clone(), held.try_clone().unwrap());
        let inherit = || {
            let mut descriptors = holder.0.lock().iter().map(duplicate).collect();
            Inheritance::take(&mut descriptors, &shared)
        };
        // It fails half-way: for a panic, too, readers must not wait for ever.
        drop(inherit().connection(7));
        assert!(holder.0.lock().is_empty());
        holder.keep("fuse.7.0", device.as_fd());
        inherit().close();
        assert!(holder.0.lock().is_empty());
    }

    #[test]
    fn names_that_are_no_connection_are_left_alone() {
        let names = ["fuse", "fuse.x.1", "fuse.1", "fuse.1.zz", "opens.1.2", "state"];
        let mut descriptors: Vec<_> = names.map(|name| (name.to_owned(), descriptor())).into();
        let holder: Arc<dyn ConnectionHolder> = Arc::new(NoHolder);
        let inheritance = Inheritance::take(&mut descriptors, &holder);
        assert_eq!(descriptors.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), names);
        assert!(!inheritance.has(1));
    }
}
