//! Locks where threads meet whose interleavings are tested: in the tests of this crate a scheduler can drive them.

#[cfg(not(test))]
pub(crate) use parking_lot::Mutex;
#[cfg(test)]
pub(crate) use tarpon_testkit::interleaving::Mutex;
