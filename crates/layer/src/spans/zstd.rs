//! Zstd (RFC 8878), decoded front to back with detection of frame boundaries.

use std::io::{self, BufRead};

use tarpon_oci::limits;
use zstd::zstd_safe::{self, DCtx, DParameter, InBuffer, OutBuffer};

use super::counted::Counted;
use super::recorder::Recorder;

/// The decoder.
pub(super) struct Zstd<R> {
    reader: Counted<R>,
    context: DCtx<'static>,
    decoded: u64,
    /// Whether it is between two frames, or before the first.
    is_between: bool,
}

impl<R: BufRead> Zstd<R> {
    pub(super) fn new(reader: R) -> io::Result<Self> {
        let mut context = DCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
        context.set_parameter(DParameter::WindowLogMax(limits::ZSTD_LAYER_WINDOW_LOG)).map_err(failed)?;
        Ok(Self { reader: Counted::new(reader), context, decoded: 0, is_between: true })
    }

    /// Bytes of the blob that were consumed.
    pub(super) fn position(&self) -> u64 {
        self.reader.position()
    }

    /// Memory of the window, as far as something was decoded into it.
    pub(super) fn held(&self) -> u64 {
        self.decoded.min(self.context.sizeof() as u64)
    }

    pub(super) fn read(&mut self, out: &mut [u8], recorder: &mut Recorder) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            let position = self.reader.position();
            let input = self.reader.fill_buf()?;
            if input.is_empty() && self.is_between {
                return Ok(0);
            }
            let (mut from, mut into) = (InBuffer::around(input), OutBuffer::around(&mut *out));
            let is_over = input.is_empty();
            if self.is_between {
                recorder.free(self.decoded, position);
            }
            let wanted = self.context.decompress_stream(&mut into, &mut from).map_err(failed)?;
            let (taken, given) = (from.pos(), into.pos());
            self.reader.consume(taken);
            self.decoded += given as u64;
            self.is_between = wanted == 0;
            if given > 0 {
                return Ok(given);
            }
            if is_over && !self.is_between {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

fn failed(code: zstd_safe::ErrorCode) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, zstd_safe::get_error_name(code))
}
