//! [`LayerTar`]: the tar of a layer, generated as it is read.

use std::fs::File;
use std::io::{self, Read};

use tarpon_layer::tar::{TRAILER_BYTES, headers, padding};

use super::upper::{Entry, Tally, UpperError, Walk};

/// The tar of an upper directory. Only the headers of one entry are in memory.
pub(super) struct LayerTar {
    walk: Walk,
    /// Headers or padding, and the number of bytes already read.
    around: Vec<u8>,
    taken: usize,
    payload: Option<Payload>,
    entries: u64,
    has_ended: bool,
    failure: Option<UpperError>,
}

/// The file being read.
struct Payload {
    name: Vec<u8>,
    file: File,
    size: u64,
    left: u64,
}

impl LayerTar {
    pub(super) fn new(walk: Walk) -> Self {
        Self { walk, around: Vec::new(), taken: 0, payload: None, entries: 0, has_ended: false, failure: None }
    }

    /// The error of the upper directory, if it made reading fail.
    pub(super) fn failure(&mut self) -> Option<UpperError> {
        self.failure.take()
    }

    /// Entries so far.
    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    pub(super) fn tally(&self) -> Tally {
        self.walk.tally()
    }

    fn put(&mut self, bytes: Vec<u8>) {
        (self.around, self.taken) = (bytes, 0);
    }

    /// The next entry's headers, or the end of the archive.
    fn advance(&mut self) -> Result<(), UpperError> {
        let Some(Entry { name, kind, link, attributes, size, content }) = self.walk.next()? else {
            self.has_ended = true;
            self.put(vec![0; TRAILER_BYTES]);
            return Ok(());
        };
        self.entries += 1;
        self.put(headers(&name, kind, &link, &attributes, size));
        self.payload = content.filter(|_| size > 0).map(|file| Payload { name, file, size, left: size });
        Ok(())
    }

    fn read_some(&mut self, out: &mut [u8]) -> Result<usize, UpperError> {
        loop {
            if self.taken < self.around.len() {
                let count = out.len().min(self.around.len() - self.taken);
                out[..count].copy_from_slice(&self.around[self.taken..self.taken + count]);
                self.taken += count;
                return Ok(count);
            }
            match &mut self.payload {
                Some(payload) if payload.left > 0 => return payload.read(out),
                Some(payload) => {
                    let padding = padding(payload.size);
                    self.payload = None;
                    self.put(vec![0; padding]);
                }
                None if self.has_ended => return Ok(0),
                None => self.advance()?,
            }
        }
    }
}

impl Payload {
    /// Reads as much as the file's header states: bytes appended since are not read.
    fn read(&mut self, out: &mut [u8]) -> Result<usize, UpperError> {
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(out.len());
        loop {
            match self.file.read(&mut out[..wanted]) {
                Ok(0) => return Err(UpperError::changed(&self.name)),
                Ok(count) => {
                    self.left -= count as u64;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(UpperError::unreadable(&self.name, &error)),
            }
        }
    }
}

impl Read for LayerTar {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        self.read_some(out).map_err(|failure| {
            let error = io::Error::other(failure.to_string());
            self.failure = Some(failure);
            error
        })
    }
}

#[cfg(test)]
mod tests;
