//! Stacks of layers from arbitrary bytes: the input of the merge in property tests and fuzzers.
//!
//! Few names, so that entries collide; mostly valid layers, because refusals are the easy half; every kind of entry, and
//! attributes at the limits of the EROFS inode.

use tarpon_layer::{LayerIndex, Node, ObjectId};

use crate::entries::{Made, block_device, char_device, dir, fifo, layer, link, opaque, sized_file, symlink, whiteout};

const NAMES: [&[u8]; 5] = [b"a", b"b", b"a-b", b"\xff\n", &[b'n'; 255]];
const LAYERS: usize = 6;
const ENTRIES: usize = 100;

/// A stack of at most 6 layers and 100 entries. Deterministic for the same bytes.
pub fn from_bytes(bytes: &[u8]) -> Vec<LayerIndex> {
    let mut source = Source { bytes, linkable: Vec::new(), linkable_below: Vec::new() };
    let mut layers = Vec::new();
    let mut current = Layer::default();
    for _ in 0..ENTRIES {
        let Some(step) = source.byte() else { break };
        if step < 24 && layers.len() + 1 < LAYERS {
            layers.push(layer(std::mem::take(&mut current).entries));
            source.linkable_below.append(&mut source.linkable);
        }
        let made = source.entry(step);
        if step == 255 || current.admits(&made) {
            source.linkable.extend(can_be_linked(&made).then(|| made.entry.path.as_bytes().to_vec()));
            current.entries.push(made);
        }
    }
    layers.push(layer(current.entries));
    layers
}

fn can_be_linked(made: &Made) -> bool {
    !matches!(made.entry.node, Node::Directory | Node::Whiteout | Node::Opaque)
}

#[derive(Default)]
struct Layer {
    entries: Vec<Made>,
}

impl Layer {
    /// Whether one layer can contain this entry besides its present ones.
    fn admits(&self, made: &Made) -> bool {
        let path = &made.entry.path;
        if path.is_root() {
            return matches!(made.entry.node, Node::Directory | Node::Opaque)
                && !self.entries.iter().any(|other| other.entry.path.is_root());
        }
        let below = |lower: &[u8], upper: &[u8]| lower.starts_with(upper) && lower.get(upper.len()) == Some(&b'/');
        let marker = |made: &Made| matches!(made.entry.node, Node::Whiteout | Node::Opaque);
        marker(made)
            || self.entries.iter().filter(|other| !marker(other)).all(|other| {
                let (mine, theirs) = (path.as_bytes(), other.entry.path.as_bytes());
                mine != theirs
                    && !(can_be_linked(other) && below(mine, theirs))
                    && !(can_be_linked(made) && below(theirs, mine))
            })
    }
}

struct Source<'b> {
    bytes: &'b [u8],
    /// Paths of non-directories in this layer.
    linkable: Vec<Vec<u8>>,
    /// Paths of non-directories in lower layers; they may be hidden by now.
    linkable_below: Vec<Vec<u8>>,
}

impl Source<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte().unwrap_or(0)) % choices.len()].clone()
    }

    fn path(&mut self) -> Vec<u8> {
        let depth = self.pick(&[1, 2, 2, 3, 3, 4]);
        let names: Vec<&[u8]> = (0..depth).map(|_| self.pick(&NAMES)).collect();
        names.join(&b'/')
    }

    fn entry(&mut self, step: u8) -> Made {
        let path = self.path();
        let made = match step % 16 {
            0..=3 => dir(path),
            4..=6 => self.file(path),
            7 => symlink(path, vec![b't'; self.pick(&[1, 40, 4000, 4095])]),
            8 => self.pick(&[fifo(&path), char_device(&path, 4095, 0xf_ffff), block_device(&path, 8, 256)]),
            9 | 10 => return self.link(path),
            11 | 12 => return whiteout(path),
            13 | 14 => return opaque(path),
            _ => dir(self.pick(&[b"".to_vec(), path])),
        };
        self.attributes(made)
    }

    fn file(&mut self, path: Vec<u8>) -> Made {
        let size: u64 = self.pick(&[0, 1, 1, 4096, (1 << 32) - 1, 1 << 32, tarpon_oci::limits::FILE_BYTES]);
        sized_file(path, ObjectId::of(&size.to_le_bytes()), size)
    }

    fn link(&mut self, path: Vec<u8>) -> Made {
        let below = self.pick(&[false, false, false, false, false, false, false, true]);
        let known = if below { &self.linkable_below } else { &self.linkable };
        let known: Vec<Vec<u8>> = known.iter().filter(|known| **known != path).cloned().collect();
        if known.is_empty() { fifo(path) } else { link(path, self.pick(&known)) }
    }

    fn attributes(&mut self, made: Made) -> Made {
        let Some(choice) = self.byte() else { return made };
        let id = |bit: u8| if choice & bit == 0 { 0 } else { [65_535, 65_536, u32::MAX - 1][usize::from(choice) % 3] };
        let made = made.mode(u16::from(choice) << 4 | 0o5).owner(id(1), id(2));
        let made = if choice & 4 == 0 { made } else { made.mtime(-i64::from(choice), 999_999_999) };
        let made = if choice & 8 == 0 { made } else { made.xattr("user.same", "the same everywhere") };
        let made = if choice & 16 == 0 { made } else { made.xattr(b"user.\xff", vec![choice; 2000]) };
        // Version 2, not effective: the kernel refuses to show an invalid capability set.
        let capability = [&[0, 0, 0, 2][..], &[choice; 16]].concat();
        if choice & 48 == 48 { made.xattr("security.capability", capability) } else { made }
    }
}

/// A large image: `files` files in `layers` layers, twenty to a directory, eight directories to a package, with the
/// directories above them listed again in every layer, as builders do. Each layer above the first also replaces a file,
/// removes one and links one of its own.
pub fn large(files: usize, layers: usize) -> Vec<LayerIndex> {
    let per_layer = files.div_ceil(layers);
    let path = |number: usize| {
        let (directory, package) = (number / 20, number / 160);
        format!("usr/lib/python3.12/site-packages/package_{package}/part_{directory}/module_{number}.py")
    };
    let one = |at: usize| {
        let mut entries: Vec<Made> = ["", "usr", "usr/lib", "usr/lib/python3.12", "usr/lib/python3.12/site-packages"]
            .map(|path| dir(path).mtime(1_700_000_000, 0))
            .into();
        let first = at * per_layer;
        for number in first..files.min(first + per_layer) {
            let path = path(number);
            let mut above = path.rmatch_indices('/').map(|(slash, _)| &path[..slash]);
            let (directory, package) = (above.next().unwrap_or(""), above.next().unwrap_or(""));
            if number == first || number % 160 == 0 {
                entries.push(dir(package));
            }
            if number == first || number % 20 == 0 {
                entries.push(dir(directory));
            }
            let seconds = 1_600_000_000 + i64::try_from(number % 5000).unwrap_or(0);
            entries.push(sized_file(&path, ObjectId::of(path.as_bytes()), 1 + number as u64 % 9000).mtime(seconds, 0));
        }
        if at > 0 {
            entries.push(sized_file(path(first - 1), ObjectId::of(&at.to_le_bytes()), 7));
            entries.push(whiteout(path(first - 2)));
            entries.push(link(format!("{}.link", path(first)), path(first)));
        }
        layer(entries)
    };
    (0..layers).map(one).collect()
}
