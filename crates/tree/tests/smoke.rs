//! One stack of layers through everything: merged, written, read back.

use tarpon_testkit::entries::{char_device, dir, file, layer, link, opaque, symlink, whiteout};
use tarpon_tree::{erofs, merge};

#[test]
fn what_is_written_is_read_back() {
    let below = [
        dir("").mode(0o700),
        dir("etc"),
        file("etc/passwd", "root"),
        link("etc/p2", "etc/passwd"),
        symlink("bin", "usr/bin"),
        file("a/b/c", "x"),
        file("empty", ""),
    ];
    let above = [
        whiteout("etc/passwd"),
        file("etc/new", "root").owner(100_000, 7).xattr("user.x", "y"),
        opaque("a"),
        file("a/d", "x"),
        char_device("null", 1, 3),
    ];
    let layers = [layer(below), layer(above)];
    let tree = merge(&layers).unwrap();
    let image = erofs::Image::open(erofs::write(&tree)).unwrap();
    assert_eq!(image.dump().unwrap(), tree.dump());
}
