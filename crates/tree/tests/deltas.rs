//! The changes of a layer to those below it.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use tarpon_layer::LayerIndex;
use tarpon_testkit::entries::{dir, file, layer, link, opaque, symlink, whiteout};
use tarpon_testkit::{matrix, stacks};
use tarpon_tree::{Kind, Stack, Tree, delta, erofs, merge, underlay};

/// The difference that the topmost layer makes: for each name its kind, `W` for a whiteout, `D` for an opaque directory.
fn topmost(layers: &[LayerIndex]) -> Vec<String> {
    let below = merge(&layers[..layers.len() - 1]).unwrap();
    let merged = merge(layers).unwrap();
    let delta = delta(layers, &below, &merged);
    let image = erofs::Image::open(erofs::write(&delta)).unwrap();
    image.check().unwrap();
    lines(&delta, &image)
}

fn lines(delta: &Tree<'_>, image: &erofs::Image<Vec<u8>>) -> Vec<String> {
    let line = |at| {
        let (path, inode) = (delta.path(at), delta.inode(at));
        let nid = image.resolve(&path).unwrap().expect("what the tree has, the image has");
        assert_eq!(image.is_opaque(nid).unwrap(), inode.is_opaque());
        let letter = match (inode.kind(), inode.device()) {
            (Kind::CharDevice, Some(device)) if (device.major, device.minor) == (0, 0) => 'W',
            (Kind::Directory, _) if inode.is_opaque() => 'D',
            (kind, _) => kind.letter(),
        };
        format!("{letter} /{}", String::from_utf8(path).unwrap())
    };
    delta.walk().map(line).collect()
}

#[test]
fn the_lowest_layer_adds_itself() {
    assert_eq!(topmost(&[layer([dir("a"), file("a/f", "1")])]), ["d /", "d /a", "f /a/f"]);
}

#[test]
fn what_is_as_before_is_left_out_and_what_is_listed_again_is_in() {
    let lowest = layer([dir("a"), file("a/f", "1"), file("a/g", "2"), dir("b"), file("b/f", "3")]);
    assert_eq!(topmost(&[lowest, layer([file("a/f", "1")])]), ["d /", "d /a", "f /a/f"]);
}

#[test]
fn a_directory_that_the_layer_does_not_list_is_as_below() {
    let layers = [layer([dir("a").mode(0o700).owner(7, 8)]), layer([file("a/b/f", "1")])];
    let (below, merged) = (merge(&layers[..1]).unwrap(), merge(&layers).unwrap());
    let delta = delta(&layers, &below, &merged);
    let attributes = |path: &[u8]| delta.inode(delta.lookup(path).unwrap()).attributes();
    assert_eq!((attributes(b"a").mode, attributes(b"a").uid), (0o700, 7));
    assert_eq!((attributes(b"a/b").mode, attributes(b"a/b").uid), (0o755, 0));
}

#[test]
fn whiteouts_are_of_what_is_there() {
    let lowest = layer([dir("a"), file("a/f", "1"), file("a/g", "2"), file("h", "3")]);
    let removing = layer([whiteout("a/f"), whiteout("a/none"), whiteout("none/x"), whiteout("h")]);
    assert_eq!(topmost(&[lowest, removing]), ["d /", "d /a", "W /a/f", "W /h"]);
}

#[test]
fn a_directory_of_which_nothing_is_left_is_opaque_with_all_that_is_new_in_it() {
    let lowest = layer([dir("a"), dir("a/d"), file("a/d/f", "1"), file("a/g", "2")]);
    for marker in [opaque("a"), whiteout("a")] {
        let layers = [lowest.clone(), layer([marker, dir("a"), dir("a/d"), file("a/d/new", "3")])];
        assert_eq!(topmost(&layers), ["d /", "D /a", "d /a/d", "f /a/d/new"]);
    }
    let emptied = [lowest, layer([whiteout("a/d"), whiteout("a/g")])];
    assert_eq!(topmost(&emptied), ["d /", "D /a"]);
}

#[test]
fn the_root_is_never_opaque() {
    let lowest = layer([dir("a"), file("a/f", "1"), file("g", "2")]);
    assert_eq!(topmost(&[lowest, layer([opaque(""), dir("a"), file("new", "3")])]), ["d /", "D /a", "W /g", "f /new"]);
}

#[test]
fn files_and_directories_replace_each_other() {
    let lowest = layer([dir("a"), file("a/f", "1"), symlink("b", "a")]);
    assert_eq!(
        topmost(&[lowest, layer([file("a", "2"), dir("b"), file("b/f", "3")])]),
        ["d /", "f /a", "d /b", "f /b/f"]
    );
}

#[test]
fn links_of_one_layer_stay_links_and_one_to_below_is_a_file_of_its_own() {
    let layers = [layer([file("f", "1")]), layer([link("g", "f"), file("h", "2"), link("i", "h")])];
    let (below, merged) = (merge(&layers[..1]).unwrap(), merge(&layers).unwrap());
    let delta = delta(&layers, &below, &merged);
    let names: Vec<_> = delta.walk().map(|at| (delta.path(at), delta.inode(at).links())).collect();
    assert_eq!(names, [(b"".to_vec(), 2), (b"g".to_vec(), 1), (b"h".to_vec(), 2), (b"i".to_vec(), 2)]);
    assert_eq!(delta.objects().len(), 2);
}

/// The layer by itself.
fn by_itself(only: LayerIndex) -> Vec<String> {
    let root = (*dir("").mode(0o1777).entry.attributes).clone();
    let layers = [underlay(&only, root), only];
    let (below, merged) = (merge(&layers[..1]).unwrap(), merge(&layers).unwrap());
    let delta = delta(&layers, &below, &merged);
    assert_eq!(delta.inode(delta.root()).attributes().mode, 0o1777, "the root that the layer does not list");
    let image = erofs::Image::open(erofs::write(&delta)).unwrap();
    image.check().unwrap();
    lines(&delta, &image)
}

#[test]
fn a_single_layer_has_a_whiteout_for_each_removed_name_and_no_other() {
    let only = layer([dir("a"), file("a/new", "1"), whiteout("a/f"), whiteout("b/c/d"), whiteout("e")]);
    let seen = by_itself(only);
    assert_eq!(seen, ["d /", "d /a", "W /a/f", "f /a/new", "d /b", "d /b/c", "W /b/c/d", "W /e"]);
}

#[test]
fn a_single_layer_marks_recreated_directories_as_opaque() {
    for marker in [opaque("a"), whiteout("a")] {
        let only = layer([marker, dir("a"), file("a/f", "1"), whiteout("a/g")]);
        assert_eq!(by_itself(only), ["d /", "D /a", "f /a/f"]);
    }
    assert_eq!(by_itself(layer([opaque("a/b")])), ["d /", "d /a", "D /a/b"], "also one that it does not list");
    let listed = layer([dir("a"), opaque("a/b"), dir("a/b"), file("a/b/f", "1")]);
    assert_eq!(by_itself(listed), ["d /", "d /a", "D /a/b", "f /a/b/f"], "the parent directory is not opaque");
    assert_eq!(by_itself(layer([opaque(""), file("f", "1")])), ["d /", "f /f"]);
}

#[test]
fn a_layer_without_removals_is_by_itself_what_it_lists() {
    let only = layer([dir("a"), file("a/f", "1"), link("g", "a/f")]);
    assert_eq!(by_itself(only), ["d /", "d /a", "f /a/f", "f /g"]);
}

/// Compares the changes of each layer, found among few entries, with those between whole merges. Returns how many were compared.
fn compare_deltas(layers: &[LayerIndex]) -> usize {
    let Ok(mut stack) = Stack::new(layers) else { return 0 };
    let merged: Vec<Tree<'_>> = (0..=layers.len()).map_while(|count| merge(&layers[..count]).ok()).collect();
    for (number, pair) in merged.windows(2).enumerate() {
        let expected = delta(layers, &pair[0], &pair[1]);
        let found = stack.delta(number).unwrap();
        assert_eq!(found.dump(), expected.dump(), "layer {number}");
        assert!(erofs::write(&found) == erofs::write(&expected), "layer {number}");
    }
    let whole = merged.get(layers.len()).map(Tree::dump);
    assert_eq!(stack.merged().ok().map(|tree| tree.dump()), whole);
    merged.len() - 1
}

proptest! {
    #![proptest_config(ProptestConfig { cases: matrix::cases(512), ..ProptestConfig::default() })]

    #[test]
    fn the_changes_of_each_layer_of_a_stack_are_those_between_whole_merges(
        bytes in proptest::collection::vec(any::<u8>(), 0..900),
    ) {
        compare_deltas(&stacks::from_bytes(&bytes));
    }
}

#[test]
fn a_name_that_only_deeper_entries_imply_is_there_below_the_layer() {
    let lowest = layer([file("a/b/c/f", "1"), file("a/g", "2"), file("x/1", "3"), file("x/2", "4"), file("x/3", "5")]);
    let replacing = layer([whiteout("a/b"), file("a/b/c/d/f", "6"), file("y/1", "7"), file("y/2", "8")]);
    for top in [layer([whiteout("a/b")]), layer([file("a/b", "9")]), layer([opaque("a")]), layer([file("a/new", "9")])]
    {
        assert_eq!(compare_deltas(&[lowest.clone(), replacing.clone(), top]), 3);
    }
}

#[test]
fn links_are_followed_through_directories_that_the_layer_does_not_touch() {
    let far = (0..40).map(|number| file(format!("far/{number}"), "1"));
    let lowest =
        layer(far.chain([file("one/target", "2"), link("two/link", "one/target"), link("three/link", "two/link")]));
    let tops = [
        layer([link("four/link", "three/link")]),
        layer([file("three/new", "3")]),
        layer([whiteout("one/target")]),
        layer([link("four/link", "three/link"), file("two/link", "4")]),
    ];
    for top in tops {
        assert_eq!(compare_deltas(&[lowest.clone(), top]), 2);
    }
}

#[test]
fn many_links_in_a_row_are_followed_too() {
    let chain = (0..20).map(|number| link(format!("{}/f", number + 1), format!("{number}/f")));
    let layers = [layer([file("0/f", "1"), file("g", "2")].into_iter().chain(chain)), layer([link("h", "20/f")])];
    assert_eq!(compare_deltas(&layers), 2);
}
