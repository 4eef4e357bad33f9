//! Counters that outlive the server: its successor continues them.

mod keep;
mod kept;
mod ledger;
mod memory;

pub(crate) use kept::{ImageKey, KeptCounters, MountCounts, Transfers};
pub(crate) use ledger::HostAccount;
