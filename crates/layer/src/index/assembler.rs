//! [`Assembler`]: takes the entries of a layer one by one and resolves repeated names, hard links and parents.
//!
//! The result equals that of unpacking the entries in their order, without unpacking anything. A tar may repeat names (the last one
//! counts). A TOC may not, and its hard links may precede their targets.

use std::collections::{HashMap, HashSet};

use tarpon_oci::{Digest, limits};

use super::common::Common;
use super::error::InvalidEntry;
use super::path_table::{PathState, PathTable};
use super::{
    Attributes, Chunk, ChunkPlace, Device, Entry, FileContent, InvalidPath, LayerIndex, LayerPath, Node, ObjectId,
    Shared, claims,
};
use crate::allowance::{Allowance, CHUNK, COPIES, ENTRY, IMPLIED, PATHS, Share, XATTR};

/// Entries that may be visited while directories are replaced by other things: more occur only in attacks.
const REPLACE_WORK: usize = 64 << 20;

/// Symbolic links that are followed for one path, as in Linux.
const SYMLINK_HOPS: usize = 40;

/// The meaning of a repeated name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Duplicates {
    /// The last one counts, as in a tar. Hard links must follow their targets.
    LastWins,
    /// An error, as in a TOC. Hard links may come in any order.
    Refuse,
}

pub(crate) struct Assembler {
    duplicates: Duplicates,
    /// In order. `None` where a later entry replaced one.
    entries: Vec<Option<Entry>>,
    paths: PathTable,
    common: Common,
    markers: HashSet<(LayerPath, bool)>,
    /// Targets of hard links and their links, by number ([`Duplicates::LastWins`] only).
    links: HashMap<u32, Vec<u32>>,
    /// Targets that did not exist when they were linked to.
    missing: HashSet<LayerPath>,
    chunks: Vec<Chunk>,
    dropped_xattrs: u64,
    replace_work: usize,
    has_orphan_chunks: bool,
    memory: Share,
    /// See [`Assembler::without_order`].
    has_no_order: bool,
}

impl Assembler {
    /// Charges entries to `allowance` before they are stored.
    pub(crate) fn new(duplicates: Duplicates, allowance: &Allowance) -> Self {
        Self {
            duplicates,
            entries: Vec::new(),
            paths: PathTable::default(),
            common: Common::default(),
            markers: HashSet::new(),
            links: HashMap::new(),
            missing: HashSet::new(),
            chunks: Vec::new(),
            dropped_xattrs: 0,
            replace_work: 0,
            has_orphan_chunks: false,
            memory: allowance.share(),
            has_no_order: false,
        }
    }

    /// The entries are not in the order of a tar. So it is unknown whether a hard link whose target lies below a symbolic link was written
    /// before or after that link: such hard links are errors.
    pub(crate) fn without_order(self) -> Self {
        Self { has_no_order: true, ..self }
    }

    /// Number of the next chunk.
    pub(crate) fn next_chunk(&self) -> Result<u32, InvalidEntry> {
        u32::try_from(self.chunks.len()).map_err(|_| InvalidEntry::TooManyChunks)
    }

    pub(crate) fn push_chunk(&mut self, chunk: Chunk) -> Result<(), InvalidEntry> {
        if self.chunks.len() == limits::CHUNKS {
            return Err(InvalidEntry::TooManyChunks);
        }
        self.memory.take(CHUNK)?;
        self.chunks.push(chunk);
        Ok(())
    }

    pub(crate) fn count_dropped(&mut self, xattrs: u64) {
        self.dropped_xattrs = self.dropped_xattrs.saturating_add(xattrs);
    }

    /// Adds a whiteout of `path`, or (`is_opaque`) an opaque marker in the directory at `path`.
    pub(crate) fn mark(&mut self, path: LayerPath, is_opaque: bool) -> Result<(), InvalidEntry> {
        if path.is_root() && !is_opaque {
            return Err(InvalidPath::Whiteout.into());
        }
        let path = self.follow(path)?;
        if self.markers.insert((path.clone(), is_opaque)) {
            let node = if is_opaque { Node::Opaque } else { Node::Whiteout };
            self.push(Entry { path, node, attributes: Shared::default() })?;
        }
        Ok(())
    }

    /// Adds the next entry: anything but whiteouts and opaque markers.
    pub(crate) fn insert(&mut self, path: LayerPath, node: Node, attributes: Attributes) -> Result<(), InvalidEntry> {
        self.add(path, node, attributes, |_, _, _| {})
    }

    /// As [`Assembler::insert`]; the chunks of a file were pushed last. `serves` decides whether the chunks of an earlier content of the same
    /// name and size replace the file's own.
    pub(crate) fn insert_sharing_if(
        &mut self,
        path: LayerPath,
        node: Node,
        attributes: Attributes,
        serves: impl Fn(&[Chunk], &[Chunk]) -> bool,
    ) -> Result<(), InvalidEntry> {
        self.add(path, node, attributes, |common, content, chunks| common.share(content, chunks, serves))
    }

    fn add(
        &mut self,
        path: LayerPath,
        mut node: Node,
        attributes: Attributes,
        share: impl FnOnce(&mut Common, &mut Shared<FileContent>, &mut Vec<Chunk>),
    ) -> Result<(), InvalidEntry> {
        let path = self.follow(path)?;
        if let Node::HardLink(target) = &mut node {
            **target = self.follow(std::mem::take(target))?;
        }
        check(&path, &node)?;
        let attributes = attributes_of(&node, attributes);
        self.memory.take(xattr_cost(&attributes))?;
        self.make_parents(&path)?;
        let is_directory = node == Node::Directory;
        match self.state(path.as_bytes()) {
            None => {}
            Some(PathState::Implied) if is_directory => {}
            Some(PathState::Entry(_)) if self.duplicates == Duplicates::Refuse => return Err(InvalidEntry::Duplicate),
            Some(PathState::Implied) if self.duplicates == Duplicates::Refuse => return Err(below(&node)),
            Some(PathState::Implied) => self.drop_below(&path)?,
            Some(PathState::Entry(old)) => match &mut self.entries[old as usize] {
                Some(before) if is_directory && before.node == Node::Directory => {
                    // Not kept in `common`: this costs nothing, however often a directory is listed.
                    before.attributes = attributes.into();
                    return Ok(());
                }
                before => {
                    if before.as_ref().is_some_and(|before| before.node == Node::Directory) {
                        self.drop_below(&path)?;
                    }
                    self.release(old)?;
                }
            },
        }
        let number = u32::try_from(self.entries.len()).map_err(|_| InvalidEntry::TooManyEntries)?;
        match &mut node {
            Node::HardLink(target) if self.duplicates == Duplicates::LastWins => self.link(number, &path, target)?,
            Node::File(content) => share(&mut self.common, content, &mut self.chunks),
            _ => {}
        }
        let attributes = self.common.attributes(attributes);
        self.push(Entry { path, node, attributes })?;
        self.paths.add(number, &self.entries);
        Ok(())
    }

    fn state(&self, path: &[u8]) -> Option<PathState> {
        self.paths.get(path, &self.entries)
    }

    fn push(&mut self, entry: Entry) -> Result<(), InvalidEntry> {
        if self.entries.len() >= limits::ENTRIES {
            return Err(InvalidEntry::TooManyEntries);
        }
        self.memory.take(cost(&entry))?;
        self.entries.push(Some(entry));
        Ok(())
    }

    /// Resolves the symbolic links of this layer on the way to `path`, inside of the root, as unpacking into a folder does: after a
    /// link `lib -> usr/lib`, the entry `lib/a` is `usr/lib/a`. Not for a TOC, whose entries have no order.
    fn follow(&self, mut path: LayerPath) -> Result<LayerPath, InvalidEntry> {
        if self.duplicates == Duplicates::Refuse {
            return Ok(path);
        }
        for _ in 0..SYMLINK_HOPS {
            match self.link_above(&path) {
                None => return Ok(path),
                Some((link, target)) => path = super::path::through_link(&path, link, target)?,
            }
        }
        Err(InvalidEntry::BelowSymlink)
    }

    /// The symbolic link on the way to `path`, with its target. All its parents are directories.
    fn link_above(&self, path: &LayerPath) -> Option<(&LayerPath, &[u8])> {
        let mut rest = path.as_bytes();
        while !rest.is_empty() {
            rest = super::path::split_last(rest).0;
            match self.state(rest) {
                None => {}
                Some(PathState::Implied) => return None,
                Some(PathState::Entry(number)) => {
                    let entry = self.entries[number as usize].as_ref()?;
                    let Node::Symlink(target) = &entry.node else { return None };
                    return Some((&entry.path, target));
                }
            }
        }
        None
    }

    /// Ensures that all parents of `path` are directories, and adds missing ones as implied.
    fn make_parents(&mut self, path: &LayerPath) -> Result<(), InvalidEntry> {
        let mut rest = path.as_bytes();
        while !rest.is_empty() {
            rest = super::path::split_last(rest).0;
            match self.state(rest) {
                Some(PathState::Implied) => return Ok(()),
                Some(PathState::Entry(number)) => match &self.entries[number as usize] {
                    Some(Entry { node: Node::Directory, .. }) => return Ok(()),
                    Some(entry) => return Err(below(&entry.node)),
                    None => return Err(InvalidEntry::BelowNonDirectory),
                },
                None => {
                    self.memory.take(IMPLIED + rest.len() as u64)?;
                    let path = LayerPath::checked(rest.to_vec())?;
                    self.paths.imply(path);
                }
            }
        }
        Ok(())
    }

    /// Resolves a hard link to the entry that currently has its target's name.
    fn link(&mut self, number: u32, path: &LayerPath, target: &mut LayerPath) -> Result<(), InvalidEntry> {
        let found = match self.state(target.as_bytes()) {
            None => {
                self.memory.take(target.as_bytes().len() as u64)?;
                self.missing.insert(target.clone());
                return Ok(());
            }
            Some(PathState::Implied) => return Err(InvalidEntry::LinkToDirectory),
            Some(PathState::Entry(found)) => found,
        };
        let entry = self.entries[found as usize].as_ref();
        let found = match entry.map(|entry| &entry.node) {
            Some(Node::Directory) => return Err(InvalidEntry::LinkToDirectory),
            Some(Node::HardLink(end)) => match self.state(end.as_bytes()) {
                Some(PathState::Entry(end)) => end,
                _ => {
                    // The chain ends in a lower layer.
                    *target = (**end).clone();
                    return if target == path { Err(InvalidEntry::LinkToItself) } else { Ok(()) };
                }
            },
            _ => found,
        };
        if let Some(entry) = &self.entries[found as usize] {
            target.clone_from(&entry.path);
        }
        self.links.entry(found).or_default().push(number);
        Ok(())
    }

    /// Removes the entry `number`. If it has hard links, the first of them takes its place: removing one name of a file leaves the
    /// file to the others.
    fn release(&mut self, number: u32) -> Result<(), InvalidEntry> {
        self.paths.remove(number, &self.entries);
        let Some(old) = self.entries[number as usize].take() else { return Ok(()) };
        let links = self.links.remove(&number).unwrap_or_default();
        let mut links = links.into_iter().filter(|link| self.entries[*link as usize].is_some());
        let Some(heir) = links.next() else {
            self.has_orphan_chunks |= matches!(old.node, Node::File(_));
            return Ok(());
        };
        let rest: Vec<u32> = links.collect();
        let mut path = LayerPath::root();
        if let Some(entry) = &mut self.entries[heir as usize] {
            path.clone_from(&entry.path);
            (entry.node, entry.attributes) = (old.node, old.attributes);
        }
        self.memory.take(rest.len() as u64 * COPIES * path.as_bytes().len() as u64)?;
        for link in &rest {
            if let Some(entry) = &mut self.entries[*link as usize] {
                entry.node = Node::HardLink(path.clone().into());
            }
        }
        self.links.insert(heir, rest);
        Ok(())
    }

    /// Removes everything below a directory that is replaced by something else.
    fn drop_below(&mut self, path: &LayerPath) -> Result<(), InvalidEntry> {
        self.replace_work += self.paths.len();
        if self.replace_work > REPLACE_WORK.max(2 * self.paths.len()) {
            return Err(InvalidEntry::TooManyReplacements);
        }
        let below = self.paths.remove_where(|known| is_below(known, path.as_bytes()), &self.entries);
        below.into_iter().try_for_each(|number| self.release(number))
    }

    /// Returns the whole layer.
    pub(crate) fn finish(mut self) -> Result<LayerIndex, (LayerPath, InvalidEntry)> {
        match self.duplicates {
            Duplicates::LastWins => {
                if let Some(path) = self.missing.iter().find(|path| self.state(path.as_bytes()).is_some()) {
                    return Err((path.clone(), InvalidEntry::LinkBeforeTarget));
                }
            }
            Duplicates::Refuse => {
                if let Some((path, _)) = self.markers.iter().find(|(path, _)| self.link_above(path).is_some()) {
                    return Err((path.clone(), InvalidEntry::BelowSymlink));
                }
                self.resolve_links()?;
            }
        }
        drop((self.paths, self.common, self.markers, self.links, self.missing));
        #[expect(clippy::filter_map_identity, reason = "it reuses the memory, which `flatten` does not")]
        let mut entries: Vec<Entry> = self.entries.into_iter().filter_map(|entry| entry).collect();
        if self.has_orphan_chunks {
            self.chunks = keep_owned(&mut entries, &self.chunks);
        }
        // The walk over a tar has hashed its files. The digests of an index are only claims.
        if self.duplicates == Duplicates::Refuse {
            if let Some((path, size)) = largest_zeros(&entries, &self.chunks) {
                let taken = self.memory.allowance().take_zeros(size);
                taken.map_err(|excess| (path.clone(), excess.into()))?;
            }
            claims::check(&entries, &self.chunks)?;
        }
        self.memory.keep();
        Ok(LayerIndex { entries, chunks: self.chunks, checkpoints: Vec::new(), dropped_xattrs: self.dropped_xattrs })
    }

    /// Resolves every hard link to the end of its chain. Each link is followed once.
    fn resolve_links(&mut self) -> Result<(), (LayerPath, InvalidEntry)> {
        for (number, end) in self.ends_of_links()? {
            if let Some(entry) = &mut self.entries[number as usize] {
                if entry.path == end {
                    return Err((end, InvalidEntry::LinkToItself));
                }
                entry.node = Node::HardLink(end.into());
            }
        }
        Ok(())
    }

    /// The ends of all hard links, by the links' numbers. Charged before they are stored: a long name can be the end of each link.
    fn ends_of_links(&mut self) -> Result<HashMap<u32, LayerPath>, (LayerPath, InvalidEntry)> {
        let mut ends: HashMap<u32, LayerPath> = HashMap::new();
        for start in 0..self.entries.len() {
            let Some(Entry { node: Node::HardLink(_), .. }) = &self.entries[start] else { continue };
            let Ok(start) = u32::try_from(start) else { break };
            let (chain, end) = self.chain(start, &ends)?;
            for number in chain {
                let taken = self.memory.take(COPIES * end.as_bytes().len() as u64);
                taken.map_err(|excess| (end.clone(), excess.into()))?;
                ends.insert(number, end.clone());
            }
        }
        Ok(ends)
    }

    /// The hard links from `start` on that are not in `ends`, and the end of them all.
    fn chain(
        &self,
        start: u32,
        ends: &HashMap<u32, LayerPath>,
    ) -> Result<(Vec<u32>, LayerPath), (LayerPath, InvalidEntry)> {
        let mut chain = Vec::new();
        let mut on_chain = HashSet::new();
        let mut number = start;
        loop {
            if let Some(end) = ends.get(&number) {
                return Ok((chain, end.clone()));
            }
            // The table has no numbers of entries that were replaced.
            let Some(entry) = &self.entries[number as usize] else { return Ok((Vec::new(), LayerPath::root())) };
            let wrong = |problem| Err((entry.path.clone(), problem));
            let target = match &entry.node {
                Node::HardLink(target) => target,
                Node::Directory => return wrong(InvalidEntry::LinkToDirectory),
                _ => return Ok((chain, entry.path.clone())),
            };
            chain.push(number);
            if !on_chain.insert(number) {
                return wrong(InvalidEntry::LinkCycle);
            }
            match self.state(target.as_bytes()) {
                Some(PathState::Entry(next)) => number = next,
                Some(PathState::Implied) => return wrong(InvalidEntry::LinkToDirectory),
                // Only a target that the layer does not have can be below a symbolic link: the parents of its entries are directories.
                None if self.has_no_order && self.link_above(target).is_some() => {
                    return wrong(InvalidEntry::BelowSymlink);
                }
                None => return Ok((chain, (**target).clone())),
            }
        }
    }
}

/// Memory of an entry without its xattrs, in all its forms until the image is prepared.
fn cost(entry: &Entry) -> u64 {
    let link = match &entry.node {
        Node::Symlink(target) => target.len(),
        Node::HardLink(target) => target.as_bytes().len(),
        _ => 0,
    };
    ENTRY + PATHS * entry.path.as_bytes().len() as u64 + COPIES * link as u64
}

fn xattr_cost(attributes: &Attributes) -> u64 {
    let bytes = |xattr: &super::Xattr| XATTR + COPIES * (xattr.name.len() + xattr.value.len()) as u64;
    attributes.xattrs.iter().map(bytes).sum()
}

/// The largest file that is all zeros, and its size: the bytes that [`claims::check`] hashes.
fn largest_zeros<'a>(entries: &'a [Entry], chunks: &[Chunk]) -> Option<(&'a LayerPath, u64)> {
    let zeros = entries.iter().filter_map(|entry| {
        let Node::File(content) = &entry.node else { return None };
        let first = content.first_chunk as usize;
        let own = chunks.get(first..first + content.chunk_count as usize)?;
        let is_zeros = !own.is_empty() && own.iter().all(|chunk| chunk.place == ChunkPlace::Zeros);
        is_zeros.then_some((&entry.path, content.size))
    });
    zeros.max_by_key(|(_, size)| *size)
}

/// The error for an entry below this one.
fn below(node: &Node) -> InvalidEntry {
    if matches!(node, Node::Symlink(_)) { InvalidEntry::BelowSymlink } else { InvalidEntry::BelowNonDirectory }
}

/// Checks an entry by itself.
fn check(path: &LayerPath, node: &Node) -> Result<(), InvalidEntry> {
    if path.is_root() && *node != Node::Directory {
        return Err(InvalidEntry::RootNotDirectory);
    }
    match node {
        Node::CharDevice(Device { major: 0, minor: 0 }) => Err(InvalidEntry::WhiteoutDevice),
        Node::HardLink(target) if **target == *path => Err(InvalidEntry::LinkToItself),
        Node::HardLink(target) if target.is_root() => Err(InvalidEntry::LinkToDirectory),
        Node::Symlink(target) => {
            let is_valid = !target.is_empty() && target.len() <= limits::SYMLINK_BYTES && !target.contains(&0);
            if is_valid { Ok(()) } else { Err(InvalidEntry::SymlinkTarget) }
        }
        _ => Ok(()),
    }
}

/// The attributes that an entry of this kind has, of those that the layer states.
fn attributes_of(node: &Node, attributes: Attributes) -> Attributes {
    match node {
        Node::HardLink(_) => Attributes::default(),
        // Linux has no other mode for symbolic links.
        Node::Symlink(_) => Attributes { mode: 0o777, ..attributes },
        _ => attributes,
    }
}

fn is_below(path: &[u8], directory: &[u8]) -> bool {
    let rest = path.strip_prefix(directory);
    rest.is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// Removes the chunks of files that were replaced. Each content that is not empty has a first chunk of its own.
fn keep_owned(entries: &mut [Entry], chunks: &[Chunk]) -> Vec<Chunk> {
    let mut kept = Vec::new();
    let mut moved: HashMap<(ObjectId, u32), Shared<FileContent>> = HashMap::new();
    for entry in entries {
        if let Node::File(content) = &mut entry.node {
            let mut place = |old: &FileContent| {
                let first = old.first_chunk as usize;
                // No more chunks than before, whose numbers all fit.
                let first_chunk = u32::try_from(kept.len()).unwrap_or(u32::MAX);
                kept.extend_from_slice(&chunks[first..first + old.chunk_count as usize]);
                FileContent { first_chunk, ..*old }.into()
            };
            let old = (content.object, content.first_chunk);
            *content = moved.entry(old).or_insert_with(|| place(content)).clone();
        }
    }
    kept
}

/// The chunk digest of zeros, which is never checked.
pub(crate) const NO_DIGEST: Digest = Digest::from_bytes([0; 32]);

#[cfg(test)]
mod tests {
    use super::super::Timestamp;
    use super::*;

    #[test]
    fn the_ends_of_a_chain_of_hard_links_are_charged_before_they_are_stored() {
        const LINKS: u64 = 100;
        let path = |name: String| LayerPath::from_normal(name.as_bytes()).unwrap();
        let long = path(["long"; 250].join("/"));
        let layer_of = |allowance: &Allowance| {
            let mut layer = Assembler::new(Duplicates::Refuse, allowance);
            for number in 0..LINKS {
                let target = if number == 0 { long.clone() } else { path(format!("{}", number - 1)) };
                layer.insert(path(number.to_string()), Node::HardLink(target.into()), Attributes::default()).unwrap();
            }
            layer
        };
        let ends = layer_of(&Allowance::default()).ends_of_links().unwrap();
        assert_eq!((ends.len() as u64, ends.values().all(|end| *end == long)), (LINKS, true));
        let allowance = Allowance::default();
        let mut layer = layer_of(&allowance);
        let mut rest = allowance.share();
        while rest.take(1 << 10).is_ok() {}
        let (end, problem) = layer.ends_of_links().unwrap_err();
        assert!(end == long && matches!(problem, InvalidEntry::Excess(_)), "{problem:?}");
    }

    #[test]
    fn of_a_directory_that_is_listed_again_and_again_the_last_attributes_are_kept() {
        let mut layer = Assembler::new(Duplicates::LastWins, &Allowance::default());
        for seconds in 1..=100 {
            let path = LayerPath::from_normal(b"d").unwrap();
            let mtime = Timestamp { seconds, nanoseconds: 0 };
            layer.insert(path, Node::Directory, Attributes { mtime, ..Attributes::default() }).unwrap();
        }
        assert_eq!(layer.common.attributes_count(), 1);
        let index = layer.finish().unwrap();
        assert_eq!(index.entries.iter().map(|entry| entry.attributes.mtime.seconds).collect::<Vec<_>>(), [100]);
    }
}
