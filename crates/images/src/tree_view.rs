//! The tree of a prepared image, read without mounting it.

use tarpon_store::MappedFile;
use tarpon_tree::Kind;
use tarpon_tree::erofs::{Image, Inode, Nid};

use crate::error::{Cause, Error, ErrorKind, Result, ResultExt};
use crate::image::Prepared;
use crate::images::Images;

/// Maximum number of symbolic links followed in a path, as in Linux.
const LINKS: u32 = 40;

/// The merged tree of an image.
pub struct TreeView {
    image: Image<MappedFile>,
}

/// One name in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The name, without its directory; any bytes. Empty for the root.
    pub name: Vec<u8>,
    /// Its type and attributes.
    pub inode: Inode,
    /// The target of a symbolic link.
    pub target: Option<Vec<u8>>,
}

impl Images {
    /// The tree of a prepared image. Nothing is fetched.
    pub fn open_tree(&self, prepared: &Prepared) -> Result<TreeView> {
        let step = "open the image's tree";
        let part = self.for_image(&prepared.text, &prepared.access)?;
        let loaded = part.store().load_image(prepared.manifest()).context(ErrorKind::Store, step)?;
        let loaded = loaded.ok_or_else(|| Error::new(ErrorKind::Store, step, "its record in the store is damaged"))?;
        let image = Image::open(loaded.tree).context(ErrorKind::Store, step)?;
        Ok(TreeView { image })
    }
}

impl TreeView {
    /// The item at `path`. Links on the way are followed, the last one is not.
    pub fn find(&self, path: &[u8]) -> Result<Item> {
        let nid = self.walk(path)?;
        let name = path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty()).unwrap_or_default();
        self.item(name, nid)
    }

    /// The items in the directory at `path`, in order of names. For anything else, that item alone, as `ls` does.
    pub fn list(&self, path: &[u8]) -> Result<Vec<Item>> {
        let nid = self.walk(path)?;
        if self.inode(nid)?.kind != Kind::Directory {
            return Ok(vec![self.find(path)?]);
        }
        let mut items = Vec::new();
        for entry in self.image.read_dir(nid, 0).map_err(damaged)? {
            let entry = entry.map_err(damaged)?;
            if entry.name != b"." && entry.name != b".." {
                items.push(self.item(entry.name, entry.nid)?);
            }
        }
        items.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(items)
    }

    fn item(&self, name: &[u8], nid: Nid) -> Result<Item> {
        let inode = self.inode(nid)?;
        let target = match inode.kind {
            Kind::Symlink => Some(self.image.read_link(nid).map_err(damaged)?.to_vec()),
            _ => None,
        };
        Ok(Item { name: name.to_vec(), inode, target })
    }

    fn inode(&self, nid: Nid) -> Result<Inode> {
        self.image.inode(nid).map_err(damaged)
    }

    fn walk(&self, path: &[u8]) -> Result<Nid> {
        let not_found = |cause: &str| {
            Error::new(ErrorKind::NotFound, "look the path up", format!("/{}: {cause}", trimmed(path).escape_ascii()))
        };
        // Names still to be looked up, the next one last.
        let mut todo: Vec<Vec<u8>> = components(path);
        let mut way = vec![self.image.root()];
        let mut links = 0;
        while let Some(name) = todo.pop() {
            let here = way.last().copied().unwrap_or(self.image.root());
            if name == b".." {
                way.truncate(way.len().saturating_sub(1).max(1));
                continue;
            }
            if self.inode(here)?.kind != Kind::Directory {
                return Err(not_found("not a directory"));
            }
            let found = self.image.lookup(here, &name).map_err(damaged)?;
            let (nid, kind) = found.ok_or_else(|| not_found("no such file or directory"))?;
            if kind != Kind::Symlink || todo.is_empty() {
                way.push(nid);
                continue;
            }
            links += 1;
            if links > LINKS {
                return Err(not_found("too many symbolic links"));
            }
            let target = self.image.read_link(nid).map_err(damaged)?;
            if target.starts_with(b"/") {
                way.truncate(1);
            }
            todo.extend(components(target));
        }
        Ok(way.last().copied().unwrap_or(self.image.root()))
    }
}

/// The names of a path, the last one first.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.rev().map(<[u8]>::to_vec).collect()
}

fn trimmed(path: &[u8]) -> &[u8] {
    path.strip_prefix(b"/").unwrap_or(path)
}

fn damaged(error: impl Into<Cause>) -> Error {
    Error::new(ErrorKind::Store, "read the image's tree", error)
}
