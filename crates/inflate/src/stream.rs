//! The interface of zlib, made safe.

use std::ffi::c_int;
use std::fmt;

use libz_rs_sys::{
    Z_BLOCK, Z_BUF_ERROR, Z_OK, Z_STREAM_END, inflate, inflateEnd, inflateInit2_, inflateReset, z_stream, zlibVersion,
};

/// A window of 32 KiB, and no header (`inflateInit2` in zlib.h).
const RAW: c_int = -15;
/// `z_stream.data_type` after a call with `Z_BLOCK` (zlib.h, "inflate"): the number of unused bits of the last byte, and two flags.
const UNUSED_BITS: c_int = 63;
const IN_LAST_BLOCK: c_int = 64;
const AT_BOUNDARY: c_int = 128;

/// A stream that was initialised by `inflateInit2_`. It is boxed because zlib permits implementations that remember where it is.
pub(super) struct Stream(Box<z_stream>);

pub(super) struct Step {
    pub(super) taken: usize,
    pub(super) given: usize,
    pub(super) code: Code,
    pub(super) is_at_boundary: bool,
    pub(super) is_after_last: bool,
    pub(super) unused_bits: u8,
}

pub(super) enum Code {
    Ok,
    /// Neither was input consumed nor output written.
    NoProgress,
    End,
    Malformed,
}

// SAFETY: the stream is the only owner of the memory behind its pointers, and zlib-rs keeps nothing that belongs to a thread. The pointers
// to input and output are only read within `inflate`, which sets them before.
#[allow(unsafe_code, reason = "the stream consists of pointers")]
unsafe impl Send for Stream {}

impl Stream {
    pub(super) fn new() -> Self {
        let mut stream = Box::new(z_stream::default());
        let size = c_int::try_from(size_of::<z_stream>()).unwrap_or(c_int::MAX);
        // SAFETY: the stream is valid and exclusive. Its default has the allocator of Rust. The version is the library's own.
        #[allow(unsafe_code, reason = "the interface of C")]
        let code = unsafe { inflateInit2_(&raw mut *stream, RAW, zlibVersion(), size) };
        assert_eq!(code, Z_OK, "no memory for a decoder");
        Self(stream)
    }

    pub(super) fn reset(&mut self) {
        // SAFETY: the stream was initialised, and is exclusive.
        #[allow(unsafe_code, reason = "the interface of C")]
        let code = unsafe { inflateReset(&raw mut *self.0) };
        assert_eq!(code, Z_OK, "an initialised stream can be reset");
    }

    /// One call of `inflate`, which stops at block boundaries.
    pub(super) fn inflate(&mut self, input: &[u8], output: &mut [u8]) -> Step {
        let stream = &mut *self.0;
        // More than 4 GiB take several calls.
        stream.avail_in = u32::try_from(input.len()).unwrap_or(u32::MAX);
        stream.avail_out = u32::try_from(output.len()).unwrap_or(u32::MAX);
        let (ready, room) = (stream.avail_in, stream.avail_out);
        (stream.next_in, stream.next_out) = (input.as_ptr(), output.as_mut_ptr());
        // SAFETY: the stream was initialised and is exclusive. `next_in` and `next_out` point to as many bytes as `avail_in` and
        // `avail_out` state, which stay borrowed during the call.
        #[allow(unsafe_code, reason = "the interface of C")]
        let code = unsafe { inflate(&raw mut *stream, Z_BLOCK) };
        let (left, free, state) = (stream.avail_in, stream.avail_out, stream.data_type);
        Step {
            taken: (ready - left) as usize,
            given: (room - free) as usize,
            code: match code {
                Z_OK => Code::Ok,
                Z_BUF_ERROR => Code::NoProgress,
                Z_STREAM_END => Code::End,
                _ => Code::Malformed,
            },
            is_at_boundary: state & AT_BOUNDARY != 0,
            is_after_last: state & IN_LAST_BLOCK != 0,
            unused_bits: u8::try_from(state & UNUSED_BITS).unwrap_or_default(),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream was initialised, and is not used any more.
        #[allow(unsafe_code, reason = "the interface of C")]
        let _code = unsafe { inflateEnd(&raw mut *self.0) };
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}
