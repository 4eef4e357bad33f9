//! [`Prioritised`]: a tar read in another order, so that the files that a container needs first come first.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::iter;
use std::ops::Range;

use super::error::{Unrepresentable, WriteError};
use crate::allowance::{Allowance, Share};
use crate::index::{LayerName, LayerPath};
use crate::tar::{BLOCK, TarKind, TarReader, printable};
use crate::toc;

/// An entry that may be moved.
struct Entry {
    /// Its bytes in the tar: from the end of the entry before it to the end of its padding.
    span: Range<u64>,
    is_directory: bool,
    /// Target of a hard link.
    link: Option<LayerPath>,
    /// Whether it must not move: its name occurs again, so that the order decides which of them counts, or its padding is missing.
    stays: bool,
    is_moved: bool,
}

/// Memory of an entry without its names, in a map that doubles when it is full.
const ENTRY: u64 = 2 * size_of::<(LayerPath, Entry)>() as u64;

/// The entries of a tar, those at some paths first. Yields no trailer.
pub(super) struct Prioritised<R> {
    tar: R,
    /// The ranges to read, in this order.
    spans: Vec<Range<u64>>,
    /// Number of the current span, in which the tar is positioned.
    current: usize,
    front: u64,
    left_out: Vec<LayerPath>,
}

impl<R: Read + Seek> Prioritised<R> {
    /// Walks the whole tar, from its beginning, to find the entries.
    pub(super) fn new(mut tar: R, paths: &[LayerPath], allowance: &Allowance) -> Result<Self, WriteError> {
        tar.rewind().map_err(WriteError::Read)?;
        let mut memory = allowance.share();
        let (mut entries, end) = walk(&mut tar, &mut memory)?;
        // The last file of an archive without trailer may lack its padding. Then nothing can follow it.
        let end = end.min(tar.seek(SeekFrom::End(0)).map_err(WriteError::Read)?);
        entries.values_mut().for_each(|entry| entry.stays |= entry.span.end > end);
        let mut spans = Vec::new();
        let mut left_out = Vec::new();
        for path in paths {
            let mut chain = Vec::new();
            if collect(&entries, path, LINK_DEPTH, &mut chain).is_none() {
                left_out.push(path.clone());
                continue;
            }
            for path in chain {
                if let Some(entry) = entries.get_mut(&path).filter(|entry| !entry.is_moved) {
                    entry.is_moved = true;
                    spans.push(entry.span.clone());
                }
            }
        }
        let front = spans.len() as u64;
        let mut moved = spans.clone();
        moved.sort_unstable_by_key(|span| span.start);
        let mut place = 0;
        for span in moved.into_iter().chain(iter::once(end..end)) {
            if place < span.start {
                spans.push(place..span.start);
            }
            place = span.end;
        }
        let mut prioritised = Self { tar, spans, current: 0, front, left_out };
        prioritised.seek().map_err(WriteError::Read)?;
        Ok(prioritised)
    }

    /// Number of the entries that were moved to the front.
    pub(super) fn front(&self) -> u64 {
        self.front
    }

    /// The paths whose entries were not moved.
    pub(super) fn take_left_out(&mut self) -> Vec<LayerPath> {
        std::mem::take(&mut self.left_out)
    }

    fn seek(&mut self) -> io::Result<()> {
        if let Some(span) = self.spans.get(self.current) {
            self.tar.seek(SeekFrom::Start(span.start))?;
        }
        Ok(())
    }
}

impl<R: Read + Seek> Read for Prioritised<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(span) = self.spans.get_mut(self.current) else { return Ok(0) };
            let left = usize::try_from(span.end - span.start).unwrap_or(usize::MAX);
            if left == 0 {
                self.current += 1;
                self.seek()?;
                continue;
            }
            let room = out.len().min(left);
            let count = self.tar.read(&mut out[..room])?;
            span.start += count as u64;
            // The tar was longer during the walk.
            return if count == 0 && room > 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(count) };
        }
    }
}

/// All entries that may be moved, by path, and the end of the last entry.
fn walk<R: Read>(tar: R, memory: &mut Share) -> Result<(HashMap<LayerPath, Entry>, u64), WriteError> {
    let mut tar = TarReader::new(tar);
    let mut entries: HashMap<LayerPath, Entry> = HashMap::new();
    let mut end = 0;
    while let Some(entry) = tar.next_entry()? {
        if entry.is_sparse {
            let name = printable(&entry.name);
            return Err(WriteError::Unrepresentable { name, problem: Unrepresentable::Sparse });
        }
        let start = end;
        end = tar.position() + entry.size.next_multiple_of(BLOCK as u64);
        let Ok(LayerName::Entry(path)) = LayerName::parse(&entry.name) else { continue };
        if toc::is_toc_file(&path) {
            continue;
        }
        if let Some(before) = entries.get_mut(&path) {
            before.stays = true;
            continue;
        }
        let link = match entry.kind {
            TarKind::HardLink => LayerPath::from_tar_name(&entry.link).ok(),
            _ => None,
        };
        let link_bytes = link.as_ref().map_or(0, |link| link.as_bytes().len());
        memory.take(ENTRY + (path.as_bytes().len() + link_bytes) as u64)?;
        let is_directory = entry.kind == TarKind::Directory;
        let entry = Entry { span: start..end, is_directory, link, stays: false, is_moved: false };
        entries.insert(path, entry);
    }
    Ok((entries, end))
}

/// Hard links to hard links that are followed.
const LINK_DEPTH: usize = 16;

/// Appends the paths that must come before `path`, and `path`. `None` if it must not move.
fn collect(
    entries: &HashMap<LayerPath, Entry>,
    path: &LayerPath,
    depth: usize,
    chain: &mut Vec<LayerPath>,
) -> Option<()> {
    let entry = entries.get(path).filter(|entry| !entry.stays)?;
    if let Some(target) = entry.link.as_ref().filter(|target| entries.contains_key(*target)) {
        collect(entries, target, depth.checked_sub(1)?, chain)?;
    }
    let slashes = path.as_bytes().iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(place, _)| place);
    for place in iter::once(0).chain(slashes) {
        let above = LayerPath::from_normal(&path.as_bytes()[..place])?;
        match entries.get(&above) {
            Some(entry) if entry.stays || !entry.is_directory => return None,
            Some(_) => chain.push(above),
            None => {}
        }
    }
    chain.push(path.clone());
    Some(())
}
