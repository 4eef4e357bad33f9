//! [`Common`]: the attributes and contents that several entries of a layer have, each in memory once.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};

use super::{Attributes, Chunk, FileContent, ObjectId, Shared};

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

    /// Replaces a content by an equal one, if there is one already, and drops its own chunks, which are the last in `chunks`.
    /// `is_proven`: every content was hashed. Then equal names are enough; otherwise the chunks must be equal, too.
    pub(super) fn share(&mut self, content: &mut Shared<FileContent>, chunks: &mut Vec<Chunk>, is_proven: bool) {
        let Some(ByObject(known)) = self.contents.get(&content.object) else {
            self.contents.insert(ByObject(content.clone()));
            return;
        };
        let (own, others) = (run(content, chunks), run(known, chunks));
        let is_last = own.is_empty() || content.first_chunk as usize + own.len() == chunks.len();
        if known.size == content.size && own.is_empty() == others.is_empty() && is_last && (is_proven || own == others)
        {
            chunks.truncate(chunks.len() - own.len());
            *content = known.clone();
        }
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
