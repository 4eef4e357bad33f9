//! Places of chunks, as differences to the place before.

use std::collections::HashMap;

use super::column::Column;
use super::columns::ChunkColumns;
use super::error::InvalidPacked;
use crate::index::{ChunkPlace, Codec};

/// The codec number of zeros.
const ZEROS: u8 = 0;

/// A part of a layer that contains chunks: codec (none: zeros), offset, length.
type Stretch = (Option<Codec>, u64, u64);

fn parts(place: &ChunkPlace) -> (Stretch, u64) {
    match *place {
        ChunkPlace::Zeros => ((None, 0, 0), 0),
        ChunkPlace::Blob { codec, offset, length, skip } => ((Some(codec), offset, length), skip),
    }
}

/// The columns of [`ChunkColumns`] that describe places.
#[derive(Default)]
pub(super) struct PlaceColumns {
    pub(super) place: Column,
    pub(super) skip: Column,
    pub(super) places: Column,
}

/// Writes places.
#[derive(Default)]
pub(super) struct PlaceWriter {
    numbers: HashMap<Stretch, i32>,
    /// End of the last new place.
    end: u64,
    number: i32,
    skip: u64,
}

impl PlaceWriter {
    pub(super) fn push(&mut self, place: &ChunkPlace, size: u64, columns: &mut PlaceColumns) {
        let (stretch, skip) = parts(place);
        let next = i32::try_from(self.numbers.len()).unwrap_or(i32::MAX);
        let number = *self.numbers.entry(stretch).or_insert(next);
        if number == next {
            let (codec, offset, length) = stretch;
            columns.places.push((
                codec.map_or(ZEROS, Codec::number),
                offset.wrapping_sub(self.end).cast_signed(),
                length,
            ));
            self.end = offset.wrapping_add(length);
        }
        let before = if number == self.number { self.skip } else { 0 };
        columns.place.push(number.wrapping_sub(self.number));
        columns.skip.push(skip.wrapping_sub(before).cast_signed());
        (self.number, self.skip) = (number, skip.wrapping_add(size));
    }
}

/// Reads places.
pub(super) struct PlaceReader<'a> {
    stretches: Vec<Stretch>,
    steps: std::slice::Iter<'a, i32>,
    skips: std::slice::Iter<'a, i64>,
    number: i32,
    skip: u64,
}

impl<'a> PlaceReader<'a> {
    pub(super) fn new(columns: &'a ChunkColumns) -> Result<Self, InvalidPacked> {
        let mut end = 0_u64;
        let stretches = columns.places.iter().map(|(codec, step, length)| {
            let codec = match *codec {
                ZEROS => None,
                number => Some(Codec::from_number(number).ok_or(InvalidPacked::Column("codecs"))?),
            };
            let offset = end.wrapping_add(step.cast_unsigned());
            end = offset.wrapping_add(*length);
            Ok::<Stretch, InvalidPacked>((codec, offset, *length))
        });
        Ok(Self {
            stretches: stretches.collect::<Result<_, _>>()?,
            steps: columns.place.iter(),
            skips: columns.skip.iter(),
            number: 0,
            skip: 0,
        })
    }

    /// Reads the place of the next chunk, which has `size` bytes. Not checked.
    pub(super) fn next(&mut self, size: u64) -> Result<ChunkPlace, InvalidPacked> {
        let missing = InvalidPacked::Column("places");
        let number = self.number.wrapping_add(*self.steps.next().ok_or(missing)?);
        let before = if number == self.number { self.skip } else { 0 };
        let skip = before.wrapping_add(self.skips.next().ok_or(missing)?.cast_unsigned());
        (self.number, self.skip) = (number, skip.wrapping_add(size));
        let found = usize::try_from(number).ok().and_then(|number| self.stretches.get(number));
        let (codec, offset, length) = *found.ok_or(missing)?;
        Ok(codec.map_or(ChunkPlace::Zeros, |codec| ChunkPlace::Blob { codec, offset, length, skip }))
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.steps.len() == 0 && self.skips.len() == 0
    }
}
