//! [`HeldMemory`]: bytes in a memory file, which are replaced as a whole.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use rustix::fs::MemfdFlags;

/// Maximum number of bytes: several times what the counters of the most images take. A file is up to three times as large.
const MOST_BYTES: u64 = 16 << 20;
/// Bytes before the first place: the position and the length of the current bytes. They are in one page, so a process that is killed has
/// written both or none.
const HEADER_BYTES: u64 = 2 * NUMBER_BYTES as u64;
const NUMBER_BYTES: usize = size_of::<u64>();

/// A memory file that holds the last bytes that were written to it, also if the process is killed while it writes.
pub(super) struct HeldMemory {
    file: File,
    /// The place of the current bytes.
    current: Range<u64>,
}

impl HeldMemory {
    pub(super) fn new() -> io::Result<Self> {
        let file = File::from(rustix::fs::memfd_create("tarpon-counters", MemfdFlags::CLOEXEC)?);
        Ok(Self { file, current: HEADER_BYTES..HEADER_BYTES })
    }

    /// The file of an earlier process, with its bytes.
    pub(super) fn open(file: File) -> io::Result<(Self, Vec<u8>)> {
        let number = |at: u64| {
            let mut number = [0; NUMBER_BYTES];
            file.read_exact_at(&mut number, at).map(|()| u64::from_le_bytes(number))
        };
        let (start, length) = (number(0)?, number(NUMBER_BYTES as u64)?);
        let end = start.checked_add(length).filter(|_| start >= HEADER_BYTES && length <= MOST_BYTES);
        let end = end.ok_or(io::ErrorKind::InvalidData)?;
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        file.read_exact_at(&mut bytes, start)?;
        Ok((Self { file, current: start..end }, bytes))
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Replaces the bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let length = bytes.len() as u64;
        if length > MOST_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let is_room_before = HEADER_BYTES + length <= self.current.start;
        let start = if is_room_before { HEADER_BYTES } else { self.current.end };
        self.file.write_all_at(bytes, start)?;
        let header = [start.to_le_bytes(), length.to_le_bytes()].concat();
        self.file.write_all_at(&header, 0)?;
        self.current = start..start + length;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(memory: &HeldMemory) -> io::Result<Vec<u8>> {
        HeldMemory::open(memory.file.try_clone()?).map(|(_, bytes)| bytes)
    }

    #[test]
    fn the_last_bytes_are_there_whatever_their_length_is() {
        let mut memory = HeldMemory::new().unwrap();
        for length in [0, 10, 11, 500, 3, 4096, 4097, 1, 9000, 9001, 9002, 9003] {
            let bytes = vec![u8::try_from(length % 251).unwrap(); length];
            memory.write(&bytes).unwrap();
            assert_eq!(opened(&memory).unwrap(), bytes);
        }
        assert!(memory.file.metadata().unwrap().len() < 3 * 9003 + HEADER_BYTES);
    }

    #[test]
    fn a_write_that_is_not_completed_leaves_the_bytes_before() {
        let mut memory = HeldMemory::new().unwrap();
        for before in [b"one".as_slice(), b"three"] {
            memory.write(before).unwrap();
            // What is written is anywhere but in the place of the current bytes.
            let free = [HEADER_BYTES..memory.current.start, memory.current.end..memory.current.end + 100];
            for place in free {
                memory
                    .file
                    .write_all_at(&vec![0xff; usize::try_from(place.end - place.start).unwrap()], place.start)
                    .unwrap();
            }
            assert_eq!(opened(&memory).unwrap(), before);
        }
    }

    #[test]
    fn a_successor_goes_on_where_its_predecessor_was() {
        let mut memory = HeldMemory::new().unwrap();
        memory.write(b"first").unwrap();
        let (mut next, bytes) = HeldMemory::open(memory.file.try_clone().unwrap()).unwrap();
        assert_eq!(bytes, b"first");
        next.write(b"second").unwrap();
        assert_eq!(opened(&next).unwrap(), b"second");
    }

    #[test]
    fn a_file_that_points_outside_of_itself_is_refused() {
        let mut memory = HeldMemory::new().unwrap();
        assert!(opened(&memory).is_err(), "nothing was written");
        memory.write(b"bytes").unwrap();
        for (start, length) in [(0, 5), (16, 6), (u64::MAX, 5), (16, u64::MAX), (17, 5)] {
            memory.file.write_all_at(&[start.to_le_bytes(), length.to_le_bytes()].concat(), 0).unwrap();
            assert!(opened(&memory).is_err(), "{start} {length}");
        }
        assert!(memory.write(&vec![0; 1 + usize::try_from(MOST_BYTES).unwrap()]).is_err());
    }
}
