//! A recording as bytes that another process can read: a header, then an entry for each touch, in the order of recording.

use std::collections::HashMap;
use std::time::Duration;

use tarpon_oci::{Digest, limits};

use crate::model::{LONGEST, Origin, TOUCHES, Touch, micros};
use crate::ranges::Ranges;

/// Receives the bytes of a recording, at most [`JOURNAL_BYTES`]. A part may be replaced later.
pub trait Journal: Send {
    /// Writes these bytes at this offset. They are at most 64, and a page has all of them.
    fn write_at(&mut self, offset: u64, bytes: &[u8]);
}

/// Maximum size of a journal in bytes.
pub const JOURNAL_BYTES: u64 = (1 + TOUCHES as u64) * ENTRY_BYTES as u64;

/// Size of the header and of an entry. None of them is in two pages, so a process that is killed has written each as a whole, or not at all.
const ENTRY_BYTES: usize = 64;
/// The start of the header: the format and its version.
const MAGIC: [u8; 16] = *b"tarpon-touches-1";
/// Position of the start's time in the header, in nanoseconds.
const START_AT: usize = 16;
/// Position of the flag for a recording that has reached a limit.
const TRUNCATED_AT: usize = 24;
/// Bytes of a number in an entry: enough for all sizes ([`limits::BLOB_BYTES`]) and times ([`LONGEST`]).
const NUMBER_BYTES: usize = 6;
/// Positions in an entry. The object is at 0.
const SIZE_AT: usize = 32;
const FIRST_AT: usize = SIZE_AT + NUMBER_BYTES;
const END_AT: usize = FIRST_AT + NUMBER_BYTES;
const TIME_AT: usize = END_AT + NUMBER_BYTES;
const STALL_AT: usize = TIME_AT + NUMBER_BYTES;
const ORIGIN_AT: usize = STALL_AT + NUMBER_BYTES;

type Entry = [u8; ENTRY_BYTES];

/// The bytes are no journal of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the journal of the recording cannot be read")]
pub struct InvalidJournal;

/// The content of a journal.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Journaled {
    /// When the recording began, on the clock of its recorder.
    pub(crate) start: Duration,
    pub(crate) truncated: bool,
    pub(crate) touches: Vec<Touch>,
}

pub(crate) fn begin(journal: &mut dyn Journal, start: Duration) {
    let mut header: Entry = [0; ENTRY_BYTES];
    header[..MAGIC.len()].copy_from_slice(&MAGIC);
    let nanos = u64::try_from(start.as_nanos()).unwrap_or(u64::MAX);
    header[START_AT..TRUNCATED_AT].copy_from_slice(&nanos.to_le_bytes());
    journal.write_at(0, &header);
}

pub(crate) fn truncate(journal: &mut dyn Journal) {
    journal.write_at(TRUNCATED_AT as u64, &[1]);
}

/// Writes the touch with this number, in place of an earlier state of it.
pub(crate) fn put(journal: &mut dyn Journal, number: usize, touch: &Touch) {
    journal.write_at((1 + number as u64) * ENTRY_BYTES as u64, &encoded(touch));
}

/// Reads a journal. An incomplete last entry is not one.
pub(crate) fn read(bytes: &[u8]) -> Result<Journaled, InvalidJournal> {
    let (header, entries) = bytes.split_first_chunk::<ENTRY_BYTES>().ok_or(InvalidJournal)?;
    if header[..MAGIC.len()] != MAGIC || bytes.len() as u64 > JOURNAL_BYTES {
        return Err(InvalidJournal);
    }
    let start = u64::from_le_bytes(array(header, START_AT));
    let entries = entries.as_chunks::<ENTRY_BYTES>().0.iter().take_while(|entry| entry[ORIGIN_AT] != 0);
    let touches = entries.map(|entry| decoded(entry).ok_or(InvalidJournal)).collect::<Result<_, _>>()?;
    Ok(Journaled { start: Duration::from_nanos(start), truncated: header[TRUNCATED_AT] != 0, touches })
}

fn encoded(touch: &Touch) -> Entry {
    let mut entry: Entry = [0; ENTRY_BYTES];
    entry[..SIZE_AT].copy_from_slice(touch.object.as_bytes());
    let numbers = [
        (SIZE_AT, touch.size),
        (FIRST_AT, touch.range.start),
        (END_AT, touch.range.end),
        (TIME_AT, micros(touch.at)),
        (STALL_AT, micros(touch.stall)),
    ];
    for (at, number) in numbers {
        entry[at..at + NUMBER_BYTES].copy_from_slice(&number.to_le_bytes()[..NUMBER_BYTES]);
    }
    entry[ORIGIN_AT] = match touch.from {
        None => 1,
        Some(Origin::Local) => 2,
        Some(Origin::Demand) => 3,
        Some(Origin::Prefetch) => 4,
    };
    entry
}

fn decoded(entry: &Entry) -> Option<Touch> {
    let number = |at: usize| {
        let mut bytes = [0; 8];
        bytes[..NUMBER_BYTES].copy_from_slice(&array::<NUMBER_BYTES>(entry, at));
        u64::from_le_bytes(bytes)
    };
    let from = match entry[ORIGIN_AT] {
        1 => None,
        2 => Some(Origin::Local),
        3 => Some(Origin::Demand),
        4 => Some(Origin::Prefetch),
        _ => return None,
    };
    let touch = Touch {
        object: Digest::from_bytes(array(entry, 0)),
        size: number(SIZE_AT),
        range: number(FIRST_AT)..number(END_AT),
        at: Duration::from_micros(number(TIME_AT)),
        layer: None,
        path: None,
        from,
        stall: Duration::from_micros(number(STALL_AT)),
    };
    let is_range = touch.range.start < touch.range.end && touch.range.end <= touch.size;
    (is_range && touch.size <= limits::BLOB_BYTES && touch.at <= LONGEST).then_some(touch)
}

fn array<const N: usize>(entry: &Entry, at: usize) -> [u8; N] {
    std::array::from_fn(|index| entry[at + index])
}

impl Journaled {
    /// The touched ranges of each object, with its size.
    pub(crate) fn objects(&self) -> Result<HashMap<Digest, (u64, Ranges)>, InvalidJournal> {
        let mut objects = HashMap::new();
        for touch in &self.touches {
            let (size, ranges) = objects.entry(touch.object).or_insert_with(|| (touch.size, Ranges::default()));
            if *size != touch.size || ranges.add(touch.range.clone()) != [touch.range.clone()] {
                return Err(InvalidJournal);
            }
        }
        Ok(objects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A journal in memory.
    impl Journal for Vec<u8> {
        fn write_at(&mut self, offset: u64, bytes: &[u8]) {
            let start = usize::try_from(offset).unwrap();
            self.resize(self.len().max(start + bytes.len()), 0);
            self[start..start + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn touch() -> Touch {
        Touch {
            object: Digest::of(b"object"),
            size: limits::BLOB_BYTES,
            range: 1..limits::BLOB_BYTES,
            at: LONGEST,
            layer: None,
            path: None,
            from: Some(Origin::Prefetch),
            stall: LONGEST,
        }
    }

    fn journal() -> Vec<u8> {
        let mut journal = Vec::new();
        begin(&mut journal, Duration::from_nanos(7));
        for (number, from) in [None, Some(Origin::Local), Some(Origin::Demand)].into_iter().enumerate() {
            put(&mut journal, number, &Touch { from, ..touch() });
        }
        put(&mut journal, 2, &touch());
        journal
    }

    #[test]
    fn the_largest_numbers_and_all_origins_are_read_as_they_were_written() {
        let mut journal = journal();
        let touches = vec![Touch { from: None, ..touch() }, Touch { from: Some(Origin::Local), ..touch() }, touch()];
        let expected = Journaled { start: Duration::from_nanos(7), truncated: false, touches };
        assert_eq!(read(&journal), Ok(expected));
        truncate(&mut journal);
        assert!(read(&journal).unwrap().truncated);
    }

    #[test]
    fn an_incomplete_last_entry_is_the_end() {
        let journal = journal();
        for end in 3 * ENTRY_BYTES..4 * ENTRY_BYTES {
            assert_eq!(read(&journal[..end]).unwrap().touches.len(), 2);
        }
        let mut hole = journal;
        hole.extend([0; 2 * ENTRY_BYTES]);
        assert_eq!(read(&hole).unwrap().touches.len(), 3);
    }

    #[test]
    fn other_bytes_are_no_journal() {
        let journal = journal();
        let changed = |at: usize, byte: u8| {
            let mut changed = journal.clone();
            changed[at] = byte;
            read(&changed)
        };
        assert_eq!(read(&[]), Err(InvalidJournal));
        assert_eq!(read(&journal[..ENTRY_BYTES - 1]), Err(InvalidJournal));
        assert_eq!(changed(MAGIC.len() - 1, b'2'), Err(InvalidJournal), "another version");
        assert_eq!(changed(ENTRY_BYTES + ORIGIN_AT, 5), Err(InvalidJournal), "an unknown origin");
        assert_eq!(changed(ENTRY_BYTES + END_AT, 0xff), Err(InvalidJournal), "a range beyond the object");
        assert_eq!(changed(ENTRY_BYTES + STALL_AT - 1, 0xff), Err(InvalidJournal), "a time after a day");
        let twice = read(&journal).unwrap();
        assert!(twice.objects().is_err(), "a range that was touched twice");
    }
}
