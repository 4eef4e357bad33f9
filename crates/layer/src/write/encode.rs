//! Encodes one gzip member or zstd frame from bytes in memory.

use std::io;

use flate2::{Compress, Crc, FlushCompress, Status};
use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

/// Header of a gzip member: no name, no time, system unknown. The bytes do not depend on the time or the machine.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
/// Levels above this one have windows over 8 MiB, which not every reader supports. Only tables of contents are this large.
const LAST_LEVEL_OF_SMALL_WINDOWS: i32 = 19;
/// The window for them, as a power of two.
const ZSTD_WINDOW_LOG: u32 = 23;

/// Compresses pieces one by one. Keeps its tables from one to the next.
pub struct Encoder(Codec);

enum Codec {
    Gzip(Box<Compress>),
    Zstd(Box<Compressor<'static>>),
}

impl Encoder {
    /// gzip at level 0 to 9.
    #[must_use]
    pub fn gzip(level: u32) -> Self {
        Self(Codec::Gzip(Box::new(Compress::new(flate2::Compression::new(level), false))))
    }

    /// zstd at level 1 to 22.
    ///
    /// # Errors
    /// When zstd cannot be set up.
    pub fn zstd(level: i32) -> io::Result<Self> {
        let mut encoder = Compressor::new(level)?;
        if level > LAST_LEVEL_OF_SMALL_WINDOWS {
            encoder.set_parameter(CParameter::WindowLog(ZSTD_WINDOW_LOG))?;
        }
        Ok(Self(Codec::Zstd(Box::new(encoder))))
    }

    /// Encodes `bytes` as one member or frame.
    pub(super) fn encode(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        match &mut self.0 {
            Codec::Gzip(deflate) => gzip(deflate, bytes),
            Codec::Zstd(encoder) => encoder.compress(bytes),
        }
    }
}

fn gzip(deflate: &mut Compress, bytes: &[u8]) -> io::Result<Vec<u8>> {
    /// Initial room, enough for most members. It grows where it does not suffice.
    const FIRST_ROOM: usize = 256;
    deflate.reset();
    let mut member = Vec::with_capacity(FIRST_ROOM + bytes.len() / 2);
    member.extend_from_slice(&GZIP_HEADER);
    loop {
        let taken = usize::try_from(deflate.total_in()).unwrap_or(bytes.len());
        match deflate.compress_vec(&bytes[taken..], &mut member, FlushCompress::Finish)? {
            Status::StreamEnd => break,
            Status::Ok | Status::BufError => member.reserve(FIRST_ROOM + bytes.len() / 4),
        }
    }
    let mut crc = Crc::new();
    crc.update(bytes);
    member.extend_from_slice(&crc.sum().to_le_bytes());
    member.extend_from_slice(&crc.amount().to_le_bytes());
    Ok(member)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn samples() -> Vec<Vec<u8>> {
        let noise = (0..100_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        vec![Vec::new(), b"text".to_vec(), vec![0; 1 << 20], noise]
    }

    #[test]
    fn members_decode_and_do_not_depend_on_what_came_before() {
        let mut encoder = Encoder::gzip(6);
        for bytes in samples() {
            let member = encoder.encode(&bytes).unwrap();
            assert_eq!(member, Encoder::gzip(6).encode(&bytes).unwrap());
            let mut decoded = Vec::new();
            flate2::read::GzDecoder::new(&member[..]).read_to_end(&mut decoded).unwrap();
            assert!(decoded == bytes);
        }
    }

    #[test]
    fn frames_decode_and_do_not_depend_on_what_came_before() {
        let mut encoder = Encoder::zstd(3).unwrap();
        for bytes in samples() {
            let frame = encoder.encode(&bytes).unwrap();
            assert_eq!(frame, Encoder::zstd(3).unwrap().encode(&bytes).unwrap());
            assert!(zstd::decode_all(&frame[..]).unwrap() == bytes);
        }
    }
}
