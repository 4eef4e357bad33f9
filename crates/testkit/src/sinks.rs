//! Sinks for file contents that a test does not check.

use std::convert::Infallible;

use tarpon_layer::plain::ObjectSink;
use tarpon_oci::Verified;

/// Discards all contents.
#[derive(Debug, Clone, Copy, Default)]
pub struct Forgetful;

impl ObjectSink for Forgetful {
    type Error = Infallible;

    fn begin(&mut self, _: u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn write(&mut self, _: &[u8]) -> Result<(), Infallible> {
        Ok(())
    }

    fn hole(&mut self, _: u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn finish(&mut self, _: Verified<()>) -> Result<(), Infallible> {
        Ok(())
    }
}
