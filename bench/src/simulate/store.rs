//! [`BitStore`]: the store of a simulated host. It remembers which chunks were kept, not their bytes, which all hosts share.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use tarpon_blob::{ObjectStore, ObjectWriter, Opened, PartialObject, StoreError};
use tarpon_oci::{Digest, Verified};

use super::image::{SimulatedImage, SimulatedObject};

/// The store of one host.
#[derive(Clone)]
pub(super) struct BitStore {
    image: Arc<SimulatedImage>,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    /// Complete objects, a bit each.
    complete: Vec<u64>,
    /// Kept chunks of objects that are not complete, a bit each.
    parts: HashMap<usize, Vec<u64>>,
}

fn has(bits: &[u64], number: usize) -> bool {
    bits.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
}

fn set(bits: &mut Vec<u64>, number: usize) {
    if bits.len() <= number / 64 {
        bits.resize(number / 64 + 1, 0);
    }
    bits[number / 64] |= 1 << (number % 64);
}

impl BitStore {
    pub(super) fn new(image: Arc<SimulatedImage>) -> Self {
        Self { image, kept: Arc::default() }
    }

    fn is_complete(&self, number: usize) -> bool {
        has(&self.kept.lock().complete, number)
    }

    fn complete(&self, number: usize) {
        let mut kept = self.kept.lock();
        set(&mut kept.complete, number);
        kept.parts.remove(&number);
    }

    fn number(&self, object: &Digest) -> Result<usize, StoreError> {
        self.image.numbers.get(object).copied().ok_or(StoreError::Corrupt(*object))
    }
}

impl ObjectStore for BitStore {
    fn open(&self, object: &Digest) -> Result<Option<File>, StoreError> {
        let Ok(number) = self.number(object) else { return Ok(None) };
        let Some(object) = self.image.objects.get(number).filter(|_| self.is_complete(number)) else { return Ok(None) };
        let failed = |error| StoreError::Io { doing: "opening a simulated object".to_owned(), error };
        object.open().map(Some).map_err(failed)
    }

    fn open_checked(&self, object: &Digest) -> Result<Opened<File>, StoreError> {
        Ok(self.open(object)?.map_or(Opened::Absent, Opened::Sound))
    }

    fn contains(&self, object: &Digest) -> bool {
        self.number(object).is_ok_and(|number| self.is_complete(number))
    }

    fn has_room(&self, _: u64) -> bool {
        true
    }

    fn partial(&self, object: &Digest, _: &Digest, _: u64) -> Result<Arc<dyn PartialObject>, StoreError> {
        Ok(Arc::new(Part { store: self.clone(), number: self.number(object)? }))
    }

    fn writer(&self, _: u64) -> Result<Box<dyn ObjectWriter>, StoreError> {
        Ok(Box::new(Whole { store: self.clone() }))
    }
}

/// An object that is kept in parts.
struct Part {
    store: BitStore,
    number: usize,
}

impl Part {
    fn object(&self) -> Result<&SimulatedObject, StoreError> {
        self.store.image.objects.get(self.number).ok_or(StoreError::Full)
    }
}

impl PartialObject for Part {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), StoreError> {
        let end = offset + buffer.len() as u64;
        for chunk in &self.object()?.chunks {
            let chunk_end = chunk.at + chunk.bytes.len() as u64;
            let (from, to) = (chunk.at.max(offset), chunk_end.min(end));
            if from < to {
                let place = |at: u64, base: u64| usize::try_from(at - base).unwrap_or(usize::MAX);
                buffer[place(from, offset)..place(to, offset)]
                    .copy_from_slice(&chunk.bytes[place(from, chunk.at)..place(to, chunk.at)]);
            }
        }
        Ok(())
    }

    fn may_hold(&self, offset: u64, length: u64) -> bool {
        let Ok(object) = self.object() else { return false };
        let kept = self.store.kept.lock();
        let Some(bits) = kept.parts.get(&self.number) else { return false };
        let touches = |at: u64, bytes: usize| at < offset.saturating_add(length) && offset < at + bytes as u64;
        let mut chunks = object.chunks.iter().enumerate();
        chunks.any(|(number, chunk)| touches(chunk.at, chunk.bytes.len()) && has(bits, number))
    }

    fn write_at(&self, _: &Verified<bytes::Bytes>, offset: u64) -> Result<(), StoreError> {
        let number = self.object()?.chunks.partition_point(|chunk| chunk.at < offset);
        set(self.store.kept.lock().parts.entry(self.number).or_default(), number);
        Ok(())
    }

    fn spool_at(&self, _: &[u8], _: u64) -> Result<(), StoreError> {
        // For chunks too large for memory, which no recorded start has.
        Err(StoreError::Full)
    }

    fn persist(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn publish(&self) -> Result<(), StoreError> {
        self.store.complete(self.number);
        Ok(())
    }
}

/// An object that is kept whole.
struct Whole {
    store: BitStore,
}

impl Write for Whole {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ObjectWriter for Whole {
    fn publish(self: Box<Self>, proof: Verified<()>) -> Result<(), StoreError> {
        let number = self.store.number(proof.digest())?;
        self.store.complete(number);
        Ok(())
    }
}
