//! The result of merging layers, rule by rule.

use tarpon_layer::{LayerIndex, Node, ObjectId};
use tarpon_testkit::entries::{
    Made, block_device, char_device, dir, fifo, file, layer, link, opaque, sized_file, symlink, whiteout,
};
use tarpon_tree::{MergeError, Problem, Tree, merge};

/// The names below the root, each with its distinguishing properties: `name/` for directories, `name=object size` for files,
/// `name->target`, `name|` for fifos, with ` xN` where a file has N names.
fn names(tree: &Tree<'_>) -> Vec<String> {
    let describe = |dentry| {
        let inode = tree.inode(dentry);
        let path = String::from_utf8_lossy(&tree.path(dentry)).into_owned();
        let text = match inode.node() {
            Node::Directory => return format!("{path}/"),
            Node::File(content) => format!("{path}={}", content.size),
            Node::Symlink(target) => format!("{path}->{}", String::from_utf8_lossy(target)),
            Node::Fifo => format!("{path}|"),
            _ => format!("{path}*"),
        };
        if inode.links() == 1 { text } else { format!("{text} x{}", inode.links()) }
    };
    tree.walk().skip(1).map(describe).collect()
}

/// Checks the merge of layers, in the given order and in reverse.
fn check<const N: usize>(layers: [Vec<Made>; N], expected: &[&str]) {
    for backwards in [false, true] {
        let order = |mut entries: Vec<Made>| {
            if backwards {
                entries.reverse();
            }
            layer(entries)
        };
        let layers = layers.clone().map(order);
        assert_eq!(names(&merge(&layers).expect("not refused")), expected, "backwards: {backwards}");
    }
}

fn check_refused<const N: usize>(layers: [Vec<Made>; N], message: &str) {
    let layers: Vec<LayerIndex> = layers.into_iter().map(layer).collect();
    assert_eq!(merge(&layers).expect_err("refused").to_string(), message);
}

#[test]
fn no_layers_are_an_empty_root() {
    let tree = merge(&[]).unwrap();
    assert_eq!(tree.dump(), "d 0755 0:0 - 0.000000000 2 /\n");
}

#[test]
fn a_whiteout_hides_a_file_of_a_lower_layer() {
    check([vec![file("a", "1"), file("b", "1")], vec![whiteout("a")]], &["b=1"]);
}

#[test]
fn a_whiteout_of_a_directory_hides_all_that_is_below_it() {
    check([vec![dir("d"), dir("d/e"), file("d/e/f", "1")], vec![whiteout("d")]], &[]);
}

#[test]
fn a_whiteout_does_not_hide_what_its_own_layer_creates_again() {
    check([vec![file("a", "1")], vec![whiteout("a"), file("a", "22")]], &["a=2"]);
}

#[test]
fn a_directory_removed_and_created_again_in_one_layer_has_no_old_entries() {
    let lower = vec![dir("d"), file("d/old", "1")];
    check([lower, vec![whiteout("d"), dir("d"), file("d/new", "1")]], &["d/", "d/new=1"]);
}

#[test]
fn a_whiteout_of_nothing_does_nothing() {
    check([vec![file("a", "1")], vec![whiteout("b"), whiteout("c/d")]], &["a=1"]);
}

#[test]
fn a_whiteout_in_the_bottom_layer_hides_nothing_above_it() {
    check([vec![whiteout("a")], vec![file("a", "1")]], &["a=1"]);
}

#[test]
fn what_was_removed_can_come_back_in_a_higher_layer() {
    check([vec![file("a", "1")], vec![whiteout("a")], vec![file("a", "333")]], &["a=3"]);
}

#[test]
fn an_opaque_marker_hides_only_lower_layers() {
    let upper = vec![file("d/new", "1"), opaque("d"), dir("d/sub")];
    check([vec![dir("d"), file("d/old", "1")], upper], &["d/", "d/new=1", "d/sub/"]);
}

#[test]
fn an_opaque_marker_keeps_the_directory_with_its_attributes() {
    let layers = [layer([dir("d").mode(0o700), file("d/old", "1")]), layer([opaque("d")])];
    let tree = merge(&layers).unwrap();
    assert_eq!(names(&tree), ["d/"]);
    assert_eq!(tree.inode(tree.lookup(b"d").unwrap()).attributes().mode, 0o700);
}

#[test]
fn an_opaque_marker_acts_on_directories_below_its_own() {
    let lower = vec![file("d/e/f", "1"), file("d/g", "1")];
    check([lower, vec![opaque("d"), dir("d/e")]], &["d/", "d/e/"]);
}

#[test]
fn an_opaque_root_hides_everything_below() {
    check([vec![file("a", "1"), dir("b")], vec![opaque(""), file("c", "1")]], &["c=1"]);
}

#[test]
fn a_layer_above_an_opaque_marker_shows_through() {
    check([vec![file("d/a", "1")], vec![opaque("d")], vec![file("d/b", "1")]], &["d/", "d/b=1"]);
}

#[test]
fn a_file_over_a_directory_hides_what_is_in_it() {
    check([vec![dir("d"), file("d/a", "1")], vec![file("d", "22")]], &["d=2"]);
}

#[test]
fn a_directory_over_a_file_takes_its_place() {
    check([vec![file("d", "1")], vec![dir("d"), file("d/a", "1")]], &["d/", "d/a=1"]);
}

#[test]
fn a_directory_that_was_a_file_in_between_does_not_get_its_old_content_back() {
    let layers = [vec![file("d/old", "1")], vec![file("d", "1")], vec![dir("d"), file("d/new", "1")]];
    check(layers, &["d/", "d/new=1"]);
}

#[test]
fn directories_merge_and_take_the_attributes_of_the_upper_one() {
    let upper = [dir("d").mode(0o711).owner(5, 6), file("d/b", "1")];
    let layers = [layer([dir("d").xattr("user.gone", "x"), file("d/a", "1")]), layer(upper)];
    let tree = merge(&layers).unwrap();
    assert_eq!(names(&tree), ["d/", "d/a=1", "d/b=1"]);
    let inode = tree.inode(tree.lookup(b"d").unwrap());
    assert_eq!((inode.attributes().mode, inode.attributes().uid, inode.xattrs().count()), (0o711, 5, 0));
}

#[test]
fn the_root_takes_its_attributes_from_the_topmost_root_entry() {
    let layers = [layer([dir("").mode(0o700)]), layer([dir("").mode(0o711)]), layer([file("a", "1")])];
    let tree = merge(&layers).unwrap();
    assert_eq!(tree.inode(tree.root()).attributes().mode, 0o711);
}

#[test]
fn missing_parents_are_implied_as_roots_0755_at_the_epoch() {
    let layers = [layer([file("a/b/c", "1")])];
    let expected = ["d 0755 0:0 - 0.000000000 3 /", "d 0755 0:0 - 0.000000000 3 /a", "d 0755 0:0 - 0.000000000 2 /a/b"];
    assert_eq!(merge(&layers).unwrap().dump().lines().take(3).collect::<Vec<_>>(), expected);
}

#[test]
fn a_missing_parent_keeps_the_attributes_of_a_lower_layer() {
    let layers = [layer([dir("d").mode(0o700)]), layer([file("d/a", "1")])];
    let tree = merge(&layers).unwrap();
    assert_eq!(tree.inode(tree.lookup(b"d").unwrap()).attributes().mode, 0o700);
}

#[test]
fn an_implied_directory_stays_when_its_content_is_removed() {
    check([vec![file("d/a", "1")], vec![whiteout("d/a")]], &["d/"]);
}

#[test]
fn an_implied_directory_takes_the_place_of_a_lower_symbolic_link() {
    let layers = [vec![symlink("lib", "usr/lib"), dir("usr/lib")], vec![file("lib/a", "1")]];
    check(layers, &["lib/", "lib/a=1", "usr/", "usr/lib/"]);
}

#[test]
fn names_that_byte_order_would_tear_apart_stay_in_their_directories() {
    let layers = [vec![dir("a"), file("a-b", "1"), file("a/c", "1"), file("a.d", "1")], vec![whiteout("a")]];
    check(layers, &["a-b=1", "a.d=1"]);
}

#[test]
fn hard_links_share_an_inode_across_directories_and_chains() {
    let entries = vec![dir("d"), file("d/a", "1"), link("b", "d/a"), dir("e"), link("e/c", "b")];
    check([entries], &["b=1 x3", "d/", "d/a=1 x3", "e/", "e/c=1 x3"]);
}

#[test]
fn links_to_symbolic_links_and_fifos_share_them() {
    let entries = vec![symlink("s", "x"), link("s2", "s"), fifo("p"), link("p2", "p")];
    check([entries], &["p| x2", "p2| x2", "s->x x2", "s2->x x2"]);
}

#[test]
fn link_counts_count_the_names_that_are_left() {
    let lower = vec![file("a", "1"), link("b", "a"), link("c", "a")];
    check([lower, vec![whiteout("a"), file("c", "22")]], &["b=1", "c=2"]);
}

#[test]
fn a_link_prefers_its_own_layer() {
    check([vec![file("a", "1")], vec![file("a", "22"), link("b", "a")]], &["a=2 x2", "b=2 x2"]);
}

#[test]
fn a_link_to_a_lower_layer_joins_the_file_there() {
    check([vec![file("a", "1")], vec![link("b", "a")]], &["a=1 x2", "b=1 x2"]);
    check([vec![file("a", "1")], vec![link("b", "a")], vec![file("a", "22")]], &["a=2", "b=1"]);
    check([vec![file("a", "1"), link("b", "a")], vec![link("c", "b")]], &["a=1 x3", "b=1 x3", "c=1 x3"]);
}

#[test]
fn links_that_lead_nowhere_are_refused() {
    let message = "layer 2: /b: hard link to /a, which does not exist";
    check_refused([vec![], vec![link("b", "a")]], message);
    check_refused([vec![file("a", "1")], vec![whiteout("a"), link("b", "a")]], message);
    let nested = "layer 2: /b: hard link to /d/a, which does not exist";
    check_refused([vec![file("d/a", "1")], vec![opaque("d"), link("b", "d/a")]], nested);
    check_refused([vec![file("d/a", "1")], vec![file("d", ""), link("b", "d/a")]], nested);
    check_refused([vec![link("b", "a")], vec![file("a", "1")]], "layer 1: /b: hard link to /a, which does not exist");
}

#[test]
fn links_in_a_circle_or_to_directories_are_refused() {
    let circle = vec![link("a", "b"), link("b", "c"), link("c", "a")];
    check_refused([circle], "layer 1: /a: hard link to /b, which leads back here");
    check_refused([vec![link("a", "d"), dir("d")]], "layer 1: /a: hard link to /d, which is a directory");
    let covered = [vec![file("d", "1")], vec![file("d/x", "1")], vec![link("a", "d")]];
    check_refused(covered, "layer 3: /a: hard link to /d, which is a directory");
}

#[test]
fn a_bad_link_is_refused_even_where_a_higher_layer_hides_it() {
    check_refused([vec![link("b", "a")], vec![whiteout("b")]], "layer 1: /b: hard link to /a, which does not exist");
}

#[test]
fn what_a_layer_cannot_say_is_refused_with_its_number_and_path() {
    let check_one = |entries: Vec<Made>, message: &str| check_refused([entries], message);
    check_one(vec![file("", "1")], "layer 1: /: the root must be a directory");
    check_one(vec![whiteout("")], "layer 1: /: the root must be a directory");
    check_one(vec![file("a", "1"), fifo("a")], "layer 1: /a: listed twice");
    let below = "layer 1: /a/b/c: lies below an entry of the same layer that is not a directory";
    check_one(vec![symlink("a", "x"), file("a/b/c", "1")], below);
    check_one(vec![char_device("a", 0, 0)], "layer 1: /a: device 0:0 is not allowed");
    check_one(vec![block_device("a", 4096, 0)], "layer 1: /a: device 4096:0 is not allowed");
    let target = "layer 1: /a: the target of the symbolic link is empty, too long or has a NUL in it";
    for wrong in [&b""[..], &[b'x'; 4096], b"a\0b"] {
        check_one(vec![symlink("a", wrong)], target);
    }
    check_one(vec![dir("a").mtime(0, 1_000_000_000)], "layer 1: /a: the time has 1000000000 nanoseconds");
    let large = sized_file("a", ObjectId::of(b""), (1 << 43) + 1);
    check_one(vec![large], "layer 1: /a: has 8796093022209 bytes; 8796093022208 are allowed");
}

#[test]
fn one_content_cannot_have_two_sizes() {
    let object = ObjectId::of(b"x");
    let layers = [layer([sized_file("a", object, 1)]), layer([sized_file("b", object, 2)])];
    let problem = Problem::ObjectSize { size: 2, other_size: 1 };
    let path = layers[1].entries[0].path.clone();
    assert_eq!(merge(&layers).unwrap_err(), MergeError::Entry { layer: 1, path, problem });
}

#[test]
fn too_many_layers_are_refused() {
    let layers = vec![LayerIndex::default(); 513];
    assert_eq!(merge(&layers).unwrap_err().to_string(), "the image has 513 layers; 512 are allowed");
    assert!(merge(&layers[..512]).is_ok());
}

#[test]
fn objects_are_listed_once_and_only_if_some_file_shows_them() {
    let lower = [file("hidden", "gone"), file("a", "same"), file("empty", ""), file("last", "last")];
    let upper = [whiteout("hidden"), file("b", "same"), link("c", "b")];
    let layers = [layer(lower), layer(upper)];
    let tree = merge(&layers).unwrap();
    let mut expected = [(ObjectId::of(b"same"), 4, 0, 1, 1), (ObjectId::of(b"last"), 4, 0, 2, 1)];
    expected.sort();
    let objects = tree.objects().map(|o| (o.id, o.size, o.layer, o.first_chunk, o.chunk_count));
    assert_eq!(objects.collect::<Vec<_>>(), expected);
}

#[test]
fn an_object_is_taken_from_a_layer_with_random_access_if_there_is_one() {
    let mut stream = layer([file("a", "same")]);
    if let tarpon_layer::ChunkPlace::Blob { codec, .. } = &mut stream.chunks[0].place {
        *codec = tarpon_layer::Codec::Stream;
    }
    let layers = [stream, layer([file("b", "same")])];
    let tree = merge(&layers).unwrap();
    assert_eq!(tree.objects().map(|object| object.layer).collect::<Vec<_>>(), [1]);
}

#[test]
fn paths_are_looked_up_without_following_links() {
    let layers = [layer([file("a/b", "1"), symlink("l", "a")])];
    let tree = merge(&layers).unwrap();
    let found = |path: &str| tree.lookup(path.as_bytes()).map(|dentry| tree.path(dentry));
    assert_eq!(found("/a//b"), Some(b"a/b".to_vec()));
    assert_eq!(found(""), Some(Vec::new()));
    assert_eq!((found("l/b"), found("a/c"), found("a/b/x")), (None, None, None));
}
