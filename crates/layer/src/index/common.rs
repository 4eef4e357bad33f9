//! [`Common`]: the attributes and contents that several entries of a layer have, each in memory once.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};

use super::{Attributes, Chunk, ChunkPlace, FileContent, ObjectId, Shared};

/// Those of the entries so far.
#[derive(Default)]
pub(super) struct Common {
    attributes: HashSet<Shared<Attributes>>,
    /// Those of the last entry: most entries have the same as the one before.
    last: Shared<Attributes>,
    contents: HashSet<ByObject>,
}

impl Common {
    pub(super) fn attributes(&mut self, attributes: Attributes) -> Shared<Attributes> {
        if *self.last != attributes {
            self.last = self.attributes.get(&attributes).cloned().unwrap_or_else(|| attributes.into());
            self.attributes.insert(self.last.clone());
        }
        self.last.clone()
    }

    #[cfg(test)]
    pub(super) fn attributes_count(&self) -> usize {
        self.attributes.len()
    }

    /// Replaces a content by the last one of the same name, if that has the same size and `serves` accepts its chunks. Then its own chunks are
    /// dropped, which are the last in `chunks`. A content without data in the layer, empty or all holes, stays as it is.
    pub(super) fn share(
        &mut self,
        content: &mut Shared<FileContent>,
        chunks: &mut Vec<Chunk>,
        serves: impl Fn(&[Chunk], &[Chunk]) -> bool,
    ) {
        let own = run(content, chunks);
        if own.iter().all(|chunk| chunk.place == ChunkPlace::Zeros) {
            return;
        }
        if let Some(ByObject(known)) = self.contents.get(&content.object) {
            let is_last = content.first_chunk as usize + own.len() == chunks.len();
            if known.size == content.size && is_last && serves(run(known, chunks), own) {
                chunks.truncate(chunks.len() - own.len());
                *content = known.clone();
                return;
            }
        }
        self.contents.replace(ByObject(content.clone()));
    }
}

fn run<'a>(content: &FileContent, chunks: &'a [Chunk]) -> &'a [Chunk] {
    chunks.get(content.first_chunk as usize..).and_then(|rest| rest.get(..content.chunk_count as usize)).unwrap_or(&[])
}

/// A content that is found by its name.
struct ByObject(Shared<FileContent>);

impl Borrow<ObjectId> for ByObject {
    fn borrow(&self) -> &ObjectId {
        &self.0.object
    }
}

impl Hash for ByObject {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.object.hash(state);
    }
}

impl PartialEq for ByObject {
    fn eq(&self, other: &Self) -> bool {
        self.0.object == other.0.object
    }
}

impl Eq for ByObject {}
