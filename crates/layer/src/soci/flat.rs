//! The subset of FlatBuffers that a ztoc needs, read in place.
//!
//! Every offset leads to existing bytes or to an error. Offsets may point anywhere, and many at one place, so a small buffer could
//! describe a huge tree. Writers of ztocs never share anything but layouts of tables. Therefore read bytes count against the length
//! of the buffer, and a buffer that yields more than its length is refused.

use std::cell::Cell;

use super::ZtocError;

/// A buffer, and how much may still be read of it.
pub(super) struct Flat<'a> {
    bytes: &'a [u8],
    left: Cell<usize>,
}

/// A table in it.
#[derive(Clone, Copy)]
pub(super) struct Table<'a, 'f> {
    flat: &'f Flat<'a>,
    at: usize,
    /// The offset of each of its fields, in two bytes, from the table's beginning. 0 for missing fields.
    fields: &'a [u8],
}

/// A vector of offsets.
#[derive(Clone, Copy)]
pub(super) struct Offsets<'a, 'f> {
    flat: &'f Flat<'a>,
    /// Offset of the first one.
    at: usize,
    count: usize,
}

const OUTSIDE: ZtocError = ZtocError::Malformed("an offset leads out of it");

impl<'a> Flat<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, left: Cell::new(bytes.len()) }
    }

    pub(super) fn root(&self) -> Result<Table<'a, '_>, ZtocError> {
        self.table(self.follow(0)?)
    }

    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], ZtocError> {
        self.bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(OUTSIDE)
    }

    /// Follows the offset at `at`.
    fn follow(&self, at: usize) -> Result<usize, ZtocError> {
        let step = u32::from_le_bytes(self.array(at)?);
        usize::try_from(step).ok().and_then(|step| at.checked_add(step)).ok_or(OUTSIDE)
    }

    fn table(&self, at: usize) -> Result<Table<'a, '_>, ZtocError> {
        let back = i64::from(i32::from_le_bytes(self.array(at)?));
        let layout =
            i64::try_from(at).ok().and_then(|at| usize::try_from(at.checked_sub(back)?).ok()).ok_or(OUTSIDE)?;
        let length = usize::from(u16::from_le_bytes(self.array(layout)?));
        let fields = self.bytes.get(layout..).and_then(|rest| rest.get(4..length)).ok_or(OUTSIDE)?;
        Ok(Table { flat: self, at, fields })
    }

    /// The bytes of a vector or string of `size`-byte elements at `at`, where its length is.
    fn vector(&self, at: usize, size: usize) -> Result<(usize, &'a [u8]), ZtocError> {
        let count = usize::try_from(u32::from_le_bytes(self.array(at)?)).map_err(|_| OUTSIDE)?;
        let length = count.checked_mul(size).ok_or(OUTSIDE)?;
        let bytes = self.bytes.get(at + 4..).and_then(|rest| rest.get(..length)).ok_or(OUTSIDE)?;
        let left = self.left.get().checked_sub(length + 4);
        self.left.set(left.ok_or(ZtocError::Malformed("its parts overlap"))?);
        Ok((at + 4, bytes))
    }
}

impl<'a, 'f> Table<'a, 'f> {
    /// The position of the field, if the table has it.
    fn field(&self, number: usize) -> Option<usize> {
        let place = self.fields.as_chunks::<2>().0.get(number).copied().map(u16::from_le_bytes)?;
        (place != 0).then(|| self.at + usize::from(place))
    }

    fn number<const N: usize>(&self, number: usize) -> Result<[u8; N], ZtocError> {
        self.field(number).map_or(Ok([0; N]), |at| self.flat.array(at))
    }

    /// A `byte`, or `default`.
    pub(super) fn byte(&self, number: usize, default: u8) -> Result<u8, ZtocError> {
        self.field(number).map_or(Ok(default), |at| Ok(u8::from_le_bytes(self.flat.array(at)?)))
    }

    /// An `int`, or 0.
    pub(super) fn int(&self, number: usize) -> Result<i32, ZtocError> {
        Ok(i32::from_le_bytes(self.number(number)?))
    }

    /// A `uint`, or 0.
    pub(super) fn uint(&self, number: usize) -> Result<u32, ZtocError> {
        Ok(u32::from_le_bytes(self.number(number)?))
    }

    /// A `long`, or 0.
    pub(super) fn long(&self, number: usize) -> Result<i64, ZtocError> {
        Ok(i64::from_le_bytes(self.number(number)?))
    }

    /// A string, which need not be UTF-8, or a vector of bytes. Empty if it is missing.
    pub(super) fn bytes(&self, number: usize) -> Result<&'a [u8], ZtocError> {
        let Some(at) = self.field(number) else { return Ok(&[]) };
        Ok(self.flat.vector(self.flat.follow(at)?, 1)?.1)
    }

    /// A required table.
    pub(super) fn table(&self, number: usize) -> Result<Table<'a, 'f>, ZtocError> {
        let at = self.field(number).ok_or(ZtocError::Malformed("a part is missing"))?;
        self.flat.table(self.flat.follow(at)?)
    }

    /// A vector of tables or strings. Empty if it is missing.
    pub(super) fn offsets(&self, number: usize) -> Result<Offsets<'a, 'f>, ZtocError> {
        let Some(at) = self.field(number) else { return Ok(Offsets { flat: self.flat, at: 0, count: 0 }) };
        let (at, bytes) = self.flat.vector(self.flat.follow(at)?, 4)?;
        Ok(Offsets { flat: self.flat, at, count: bytes.len() / 4 })
    }
}

impl<'a, 'f> Offsets<'a, 'f> {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn tables(self) -> impl Iterator<Item = Result<Table<'a, 'f>, ZtocError>> {
        self.places().map(move |place| self.flat.table(place?))
    }

    pub(super) fn strings(self) -> impl Iterator<Item = Result<&'a [u8], ZtocError>> {
        self.places().map(move |place| Ok(self.flat.vector(place?, 1)?.1))
    }

    fn places(self) -> impl Iterator<Item = Result<usize, ZtocError>> {
        (0..self.count).map(move |number| self.flat.follow(self.at + 4 * number))
    }
}
