//! [`Allowance`]: limits the cost of reading an image, in proportion to the received bytes.
//!
//! A few compressed bytes can describe millions of entries, and a few entries terabytes of zeros. So each parser charges what it is
//! about to allocate or to hash, and stops where that is out of proportion to the received bytes. Claimed sizes do not count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that any image may take: an ordinary layer of 230,000 empty files, which weighs less than 1 MiB, is charged 110 MiB.
pub const MEMORY_BASE: u64 = 128 << 20;
/// Memory for each received byte. An entry with content takes 60 bytes or more of a tar or table of contents, and is charged 700 bytes here.
pub const MEMORY_PER_BYTE: u64 = 20;
/// Factor on that memory for writing a layer in another format: besides the index, the writer holds each entry in the form of the
/// table of contents. A layer that can be prepared can be written, unless its paths are thousands of bytes long.
pub const WRITING: u64 = 2;
/// Zeros that are hashed for any image: a second or two.
pub const ZEROS_BASE: u64 = 512 << 20;
/// Zeros that are hashed for each received byte: as many as gzip can make of one.
pub const ZEROS_PER_BYTE: u64 = 1032;

/// Bytes that a share takes from the account at a time, if available: most entries need less.
const STEP: u64 = 64 << 10;

/// Memory of an entry without its names: in the index of its layer, in the merged tree and while the EROFS image is written. By the
/// sizes of all these parts: 330 bytes with a content and attributes of its own, 110 if it shares both.
pub(crate) const ENTRY: u64 = 360;
/// Memory of a directory that is not listed, without its path.
pub(crate) const IMPLIED: u64 = 320;
/// Memory of a chunk: in the index and in the chunk table.
pub(crate) const CHUNK: u64 = 224;
/// Copies of a path that are charged: in the index, and packed for storage.
pub(crate) const PATHS: u64 = 2;
/// Copies of link targets and xattrs that are charged: in the index, in the EROFS image, and packed for storage.
pub(crate) const COPIES: u64 = 3;
/// Memory of an xattr without its name and value.
pub(crate) const XATTR: u64 = 96;

/// The limits of one image. All readers of its parts share the same one.
#[derive(Debug, Clone, Default)]
pub struct Allowance(Arc<Account>);

#[derive(Debug, Default)]
struct Account {
    is_for_writing: bool,
    received: AtomicU64,
    memory: AtomicU64,
    zeros: AtomicU64,
}

/// The cost of an image exceeds the limit for its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Excess {
    /// Over [`MEMORY_BASE`] and [`MEMORY_PER_BYTE`], times this factor.
    #[error(
        "it would take more than {} MiB of memory and {} bytes for each byte that was received",
        (times * MEMORY_BASE) >> 20,
        times * MEMORY_PER_BYTE
    )]
    Memory {
        /// 1, or [`WRITING`].
        times: u64,
    },
    /// Over [`ZEROS_BASE`] and [`ZEROS_PER_BYTE`].
    #[error(
        "it has more than {} MiB of zeros to hash and {ZEROS_PER_BYTE} bytes for each byte that was received",
        ZEROS_BASE >> 20
    )]
    Zeros,
}

impl Allowance {
    /// An allowance for content of exactly these bytes.
    pub fn of(received: usize) -> Self {
        let allowance = Self::default();
        allowance.receive(received as u64);
        allowance
    }

    /// An allowance for a layer that is written in another format. Its zeros are not counted: the writer reads each of them anyway.
    pub fn for_writing() -> Self {
        Self(Arc::new(Account { is_for_writing: true, ..Account::default() }))
    }

    /// An allowance without bound: for content that was checked before it was stored, and for content made by this process.
    pub fn unbounded() -> Self {
        let allowance = Self::default();
        allowance.receive(u64::MAX);
        allowance
    }

    /// Adds received bytes.
    pub fn receive(&self, bytes: u64) {
        add(&self.0.received, bytes, u64::MAX);
    }

    /// Charges zeros that are about to be hashed.
    ///
    /// # Errors
    /// [`Excess::Zeros`], before anything is hashed.
    pub fn take_zeros(&self, bytes: u64) -> Result<(), Excess> {
        let most = if self.0.is_for_writing { u64::MAX } else { self.most(ZEROS_BASE, ZEROS_PER_BYTE) };
        if add(&self.0.zeros, bytes, most) { Ok(()) } else { Err(Excess::Zeros) }
    }

    /// A share, for memory that is charged gradually.
    pub fn share(&self) -> Share {
        Share { allowance: self.clone(), taken: 0, left: 0 }
    }

    /// Factor on the memory for preparing it.
    fn times(&self) -> u64 {
        if self.0.is_for_writing { WRITING } else { 1 }
    }

    fn most_memory(&self) -> u64 {
        self.most(self.times() * MEMORY_BASE, self.times() * MEMORY_PER_BYTE)
    }

    fn most(&self, base: u64, per_byte: u64) -> u64 {
        base.saturating_add(self.0.received.load(Ordering::Relaxed).saturating_mul(per_byte))
    }
}

/// Adds, unless the sum exceeds `most`.
fn add(counter: &AtomicU64, bytes: u64, most: u64) -> bool {
    let sum = |before: u64| Some(before.saturating_add(bytes)).filter(|sum| *sum <= most);
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).is_ok()
}

/// Memory of one part of an image. It is released on drop.
#[derive(Debug)]
pub struct Share {
    allowance: Allowance,
    /// Bytes taken from the account.
    taken: u64,
    /// Bytes of that which are not needed yet.
    left: u64,
}

impl Share {
    /// Takes this much more.
    ///
    /// # Errors
    /// [`Excess::Memory`], before anything is allocated.
    pub fn take(&mut self, bytes: u64) -> Result<(), Excess> {
        if self.left < bytes {
            let missing = bytes - self.left;
            let most = self.allowance.most_memory();
            let step = [missing.max(STEP), missing].into_iter().find(|step| add(&self.allowance.0.memory, *step, most));
            let step = step.ok_or(Excess::Memory { times: self.allowance.times() })?;
            self.taken += step;
            self.left += step;
        }
        self.left -= bytes;
        Ok(())
    }

    /// Takes more until the total is `bytes`.
    ///
    /// # Errors
    /// As [`Share::take`].
    pub fn grow_to(&mut self, bytes: u64) -> Result<(), Excess> {
        self.take(bytes.saturating_sub(self.taken - self.left))
    }

    /// Keeps the memory charged as long as the image is being prepared.
    pub fn keep(mut self) {
        self.taken = self.left;
    }

    /// The allowance that the memory is charged to.
    pub fn allowance(&self) -> &Allowance {
        &self.allowance
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.allowance.0.memory.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXCESS: Excess = Excess::Memory { times: 1 };

    #[test]
    fn memory_is_bounded_by_what_was_received_and_free_again_when_it_is_dropped() {
        let allowance = Allowance::of(1000);
        let mut share = allowance.share();
        share.take(MEMORY_BASE).unwrap();
        let mut other = allowance.share();
        assert_eq!(other.take(1000 * MEMORY_PER_BYTE + 1), Err(EXCESS));
        other.take(1000 * MEMORY_PER_BYTE).unwrap();
        assert_eq!(share.take(1), Err(EXCESS));
        allowance.receive(1);
        share.take(1).unwrap();
        drop(other);
        share.take(1000).unwrap();
        share.keep();
        assert_eq!(allowance.share().take(MEMORY_BASE), Err(EXCESS), "what is kept stays taken");
    }

    #[test]
    fn a_share_that_grows_takes_the_difference_only() {
        let allowance = Allowance::default();
        let mut share = allowance.share();
        for bytes in [5, 3, MEMORY_BASE] {
            share.grow_to(bytes).unwrap();
        }
        assert_eq!(share.grow_to(MEMORY_BASE + 1), Err(EXCESS));
        assert_eq!(share.take(u64::MAX), Err(EXCESS), "nothing wraps");
    }

    #[test]
    fn writing_takes_more_memory_and_any_number_of_zeros() {
        let allowance = Allowance::for_writing();
        allowance.receive(10);
        let mut share = allowance.share();
        share.take(WRITING * (MEMORY_BASE + 10 * MEMORY_PER_BYTE)).unwrap();
        let excess = share.take(1).unwrap_err();
        let words = "it would take more than 256 MiB of memory and 40 bytes for each byte that was received";
        assert_eq!(excess.to_string(), words);
        allowance.take_zeros(u64::MAX).unwrap();
    }

    #[test]
    fn zeros_are_bounded_by_what_was_received() {
        let allowance = Allowance::of(10);
        allowance.take_zeros(ZEROS_BASE).unwrap();
        allowance.take_zeros(10 * ZEROS_PER_BYTE).unwrap();
        assert_eq!(allowance.take_zeros(1), Err(Excess::Zeros));
        assert_eq!(allowance.take_zeros(u64::MAX), Err(Excess::Zeros));
    }

    #[test]
    fn a_share_that_grows_in_steps_takes_each_byte_once() {
        let allowance = Allowance::default();
        let mut share = allowance.share();
        for step in 0..=MEMORY_BASE / (STEP - 1) {
            share.grow_to(step * (STEP - 1)).unwrap();
        }
        share.grow_to(MEMORY_BASE).unwrap();
        assert_eq!(share.take(1), Err(EXCESS));
    }
}
