//! Invariant: for any bytes of a tree image, reading it never panics and ends in time proportional to its size; an image
//! that passes its own check shows the same names by listing as by lookup. An image of an older version is rewritten, or
//! refused.

use tarpon_tree::erofs::{self, Image, ImageError, Nid};

/// Opens `data` as a tree image and calls every reader on all of it.
pub fn erofs_image(data: &[u8]) {
    if let Ok(Some(renewed)) = erofs::renew(data) {
        let renewed = Image::open(renewed).expect("what was written can be opened");
        renewed.check().expect("what was written holds together");
    }
    let Ok(image) = Image::open(data) else { return };
    let checked = image.check();
    // Every possible position of an inode, including those that no directory refers to.
    for nid in (0..data.len() as u64 / 32).map(Nid).chain([Nid(u64::MAX), Nid(u64::MAX / 32)]) {
        let _ = read_everything(&image, nid);
    }
    let dump = image.dump();
    match (checked, dump) {
        (Ok(summary), Ok(dump)) => assert_eq!(summary.names, dump.lines().count() as u64),
        (checked, dump) => assert_eq!(checked.err(), dump.err()),
    }
}

fn read_everything(image: &Image<&[u8]>, nid: Nid) -> Result<(), ImageError> {
    /// Names read per directory. Directories may overlap, so reading all of each takes quadratic time; reading their
    /// beginnings does not.
    const NAMES_READ: usize = 64;
    image.inode(nid)?;
    let _ = image.read_link(nid);
    let _ = image.object(nid);
    image.xattrs(nid)?.for_each(drop);
    for entry in image.read_dir(nid, 0)?.take(NAMES_READ) {
        let entry = entry?;
        let _ = image.lookup(nid, entry.name)?;
        let _ = image.read_dir(nid, entry.next)?.next();
    }
    let _ = image.read_dir(nid, u64::MAX)?.next();
    Ok(())
}
