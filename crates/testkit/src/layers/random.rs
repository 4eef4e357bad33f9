//! Random layers and stacks of layers, for property tests.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Item, ItemKind};

const NAMES: [&str; 6] = ["a", "b", "c", "d-e", "f.g", "\u{e9}"];

/// A valid layer: no duplicate names, no entries below non-directories, hard links to earlier files only.
pub fn layer() -> impl Strategy<Value = Vec<Item>> {
    vec(raw_item(), 0..24).prop_map(sound)
}

/// Layers, lowest first. Hard links and whiteouts may refer to lower layers.
pub fn stack() -> impl Strategy<Value = Vec<Vec<Item>>> {
    vec(layer(), 1..6)
}

fn path() -> impl Strategy<Value = String> {
    vec(prop::sample::select(&NAMES[..]), 1..4).prop_map(|names| names.join("/"))
}

fn content() -> impl Strategy<Value = Vec<u8>> {
    let run = (any::<u8>(), prop_oneof![Just(0_usize), 1..300_usize, Just(512), Just(4096), 5000..40_000_usize]);
    vec((run, any::<bool>()), 0..3).prop_map(|runs| {
        let mut content = Vec::new();
        for ((seed, length), is_hole) in runs {
            let byte = |place: usize| if is_hole { 0 } else { seed.wrapping_add((place * place / 7).to_le_bytes()[0]) };
            content.extend((0..length).map(byte));
        }
        content
    })
}

fn kind() -> impl Strategy<Value = ItemKind> {
    prop_oneof![
        4 => content().prop_map(ItemKind::File),
        3 => Just(ItemKind::Directory),
        1 => path().prop_map(|target| ItemKind::Symlink(target.into_bytes())),
        2 => path().prop_map(|target| ItemKind::HardLink(target.into_bytes())),
        1 => (0..300_u32, 1..300_u32).prop_map(|(major, minor)| ItemKind::CharDevice(major, minor)),
        1 => (0..300_u32, 0..300_u32).prop_map(|(major, minor)| ItemKind::BlockDevice(major, minor)),
        1 => Just(ItemKind::Fifo),
        1 => Just(ItemKind::Whiteout),
        1 => Just(ItemKind::Opaque),
    ]
}

fn raw_item() -> impl Strategy<Value = Item> {
    let ids = prop_oneof![Just(0_u32), 0..70_000_u32, Just(u32::MAX - 1)];
    let mtime = (prop_oneof![0..3_000_000_000_i64, -1000..0_i64], prop_oneof![Just(0_u32), 0..1_000_000_000_u32]);
    let xattrs = vec((prop::sample::select(&["user.a", "user.b", "trusted.c"][..]), vec(any::<u8>(), 0..20)), 0..3);
    (path(), kind(), 0..0o10_000_u16, ids.clone(), ids, mtime, xattrs).prop_map(
        |(path, kind, mode, uid, gid, mtime, xattrs)| {
            let mut item = Item::file(path, b"").mode(mode).owner(uid, gid).mtime(mtime.0, mtime.1);
            item.kind = kind;
            for (name, value) in xattrs {
                if item.xattrs.iter().all(|(other, _)| other != name.as_bytes()) {
                    item = item.xattr(name, value);
                }
            }
            item
        },
    )
}

/// Drops items that conflict with earlier ones.
fn sound(items: Vec<Item>) -> Vec<Item> {
    let mut kept: Vec<Item> = Vec::new();
    for mut item in items {
        let is_marker = |item: &Item| matches!(item.kind, ItemKind::Whiteout | ItemKind::Opaque);
        let below =
            |lower: &[u8], upper: &[u8]| lower.strip_prefix(upper).is_some_and(|rest| rest.first() == Some(&b'/'));
        if is_marker(&item) {
            (item.mode, item.xattrs) = (0o644, Vec::new());
        }
        if let ItemKind::HardLink(target) = &item.kind {
            let found = kept.iter().filter(|other| !is_marker(other)).find(|other| other.path == *target);
            if *target == item.path || found.is_none_or(|found| found.kind == ItemKind::Directory) {
                continue;
            }
            item.xattrs = Vec::new();
        }
        let clashes = kept.iter().any(|other| match (is_marker(other), is_marker(&item)) {
            (true, true) => other.path == item.path && other.kind == item.kind,
            (false, false) => {
                other.path == item.path
                    || (below(&item.path, &other.path) && other.kind != ItemKind::Directory)
                    || (below(&other.path, &item.path) && item.kind != ItemKind::Directory)
            }
            // A whiteout below a symbolic link depends on the order, which only a tar has.
            _ => [(&item, other), (other, &item)].iter().any(|(marker, link)| {
                matches!(link.kind, ItemKind::Symlink(_))
                    && (below(&marker.path, &link.path) || marker.path == link.path)
            }),
        });
        if !clashes {
            kept.push(item);
        }
    }
    kept
}
