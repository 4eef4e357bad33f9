//! An image as text, in the format of [`crate::Tree::dump`], so that the two can be compared.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::error::ImageError;
use super::format::Nid;
use super::image::Image;
use crate::{Kind, Line};

impl<B: AsRef<[u8]>> Image<B> {
    /// All properties of the image, one [`Line`] per name. Checks the image first.
    pub fn dump(&self) -> Result<String, ImageError> {
        let mut text = String::new();
        self.lines(&mut |line| writeln!(text, "{line}").expect("a String takes everything"))?;
        Ok(text)
    }

    /// Passes every name to `take`, a directory before its content. Checks the image first.
    pub fn lines(&self, take: &mut dyn FnMut(Line<'_>)) -> Result<(), ImageError> {
        self.check()?;
        let mut first_names: HashMap<Nid, Vec<u8>> = HashMap::new();
        let mut path = Vec::new();
        // Directories on the path of the walk, each with the length of its path.
        let mut open = vec![(self.read_dir(self.root(), 0)?, 0)];
        self.take_line(self.root(), &path, &mut first_names, take)?;
        while let Some((names, path_length)) = open.last_mut() {
            let Some(entry) = names.next().transpose()? else {
                open.pop();
                continue;
            };
            if matches!(entry.name, b"." | b"..") {
                continue;
            }
            path.truncate(*path_length);
            path.extend(path.last().map(|_| b'/'));
            path.extend(entry.name);
            self.take_line(entry.nid, &path, &mut first_names, take)?;
            if entry.kind == Kind::Directory {
                open.push((self.read_dir(entry.nid, 0)?, path.len()));
            }
        }
        Ok(())
    }

    fn take_line(
        &self,
        nid: Nid,
        path: &[u8],
        first_names: &mut HashMap<Nid, Vec<u8>>,
        take: &mut dyn FnMut(Line<'_>),
    ) -> Result<(), ImageError> {
        let inode = self.inode(nid)?;
        let mut xattrs = Vec::new();
        for xattr in self.xattrs(nid)? {
            let xattr = xattr?;
            xattrs.push((xattr.name(), xattr.value));
        }
        xattrs.sort_unstable();
        let line = Line {
            path,
            kind: inode.kind,
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            size: inode.size,
            mtime: inode.mtime,
            links: inode.links,
            target: if inode.kind == Kind::Symlink { Some(self.read_link(nid)?) } else { None },
            device: matches!(inode.kind, Kind::CharDevice | Kind::BlockDevice).then_some(inode.device),
            object: self.object(nid)?,
            xattrs,
            same_as: first_names.get(&nid).map(|first| &**first),
        };
        take(line);
        first_names.entry(nid).or_insert_with(|| path.to_vec());
        Ok(())
    }
}
