//! Forged tree images: the errors of the reader. None makes it panic, loop or read out of bounds.

use proptest::prelude::*;
use tarpon_layer::LayerIndex;
use tarpon_testkit::entries::{dir, file, layer, link, symlink};
use tarpon_testkit::{fuzz, stacks};
use tarpon_tree::erofs::{self, Image, ImageError};
use tarpon_tree::merge;

fn small() -> Vec<u8> {
    let entries = [
        dir("d").mtime(5, 0),
        file("d/a", "1").xattr("user.x", "y"),
        file("d/b", "2").xattr("user.x", "y"),
        link("d/c", "d/b"),
        symlink("s", "d/a"),
    ];
    erofs::write(&merge(&[layer(entries)]).expect("not refused"))
}

/// Offset of the inode at `path`.
fn inode_offset(image: &[u8], path: &str) -> usize {
    let nid = Image::open(image).expect("an image").resolve(path.as_bytes()).expect("readable").expect("there");
    usize::try_from(nid.0 * 32).expect("small")
}

/// Offset of the first `needle`.
fn find(image: &[u8], needle: &[u8]) -> usize {
    image.windows(needle.len()).position(|window| window == needle).expect("it is there")
}

/// The result of the check of the small image after a change, with a corrected checksum.
fn check(change: impl FnOnce(&mut Vec<u8>)) -> Result<(), ImageError> {
    let mut image = small();
    change(&mut image);
    fuzz::erofs_image(&image);
    Image::open(image)?.check().map(drop)
}

fn with_right_checksum(image: &mut [u8]) {
    image[1028..1032].fill(0);
    let checksum = image[1024..4096].iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    });
    image[1028..1032].copy_from_slice(&checksum.to_le_bytes());
}

fn check_part(part: &'static str, change: impl FnOnce(&mut Vec<u8>)) {
    let checked = check(|image| {
        change(image);
        with_right_checksum(image);
    });
    assert_eq!(checked, Err(ImageError::Corrupt(part)));
}

#[test]
fn an_untouched_image_passes() {
    assert_eq!(check(|_| {}), Ok(()));
    assert_eq!(check(|image| with_right_checksum(image)), Ok(()));
}

#[test]
fn what_is_no_image_is_not_opened() {
    for wrong in [vec![], vec![0; 1151], vec![0; 10_000], small()[1024..].to_vec()] {
        assert_eq!(Image::open(&wrong).unwrap_err(), ImageError::NotAnImage);
    }
    assert_eq!(check(|image| image[1024 + 80] |= 1), Err(ImageError::NotAnImage), "an unknown feature");
    assert_eq!(check(|image| image[1024 + 12] = 9), Err(ImageError::NotAnImage), "another block size");
}

#[test]
fn a_cut_off_image_is_not_opened() {
    let image = small();
    for length in (1152..image.len()).step_by(97) {
        assert_eq!(Image::open(&image[..length]).unwrap_err(), ImageError::Truncated, "{length}");
    }
}

#[test]
fn an_image_without_its_last_block_is_not_opened() {
    let entries = (0..1000).map(|number| file(format!("name {number}"), "x"));
    let image = erofs::write(&merge(&[layer(entries)]).expect("not refused"));
    Image::open(&image[..]).expect("all of it");
    for blocks in 1..image.len() / 4096 {
        assert_eq!(Image::open(&image[..4096 * blocks]).unwrap_err(), ImageError::Truncated, "{blocks} blocks");
    }
}

#[test]
fn a_directory_leads_to_itself_and_to_its_parent() {
    for (entry, names) in [(5, "itself"), (4, "its parent")] {
        check_part("dot entries", |image| {
            let (place, file) = (find(image, b"...abc") - entry * 12, inode_offset(image, "s"));
            image[place..place + 8].copy_from_slice(&(file as u64 / 32).to_le_bytes());
        });
        check_part("dot entries", |image| {
            let kind = find(image, b"...abc") - entry * 12 + 10;
            assert_eq!(std::mem::replace(&mut image[kind], 1), 2, "{names}");
        });
    }
}

#[test]
fn an_image_has_as_many_inodes_as_it_states() {
    check_part("number of inodes", |image| image[1024 + 16] += 1);
}

#[test]
fn a_changed_superblock_fails_its_checksum() {
    assert_eq!(check(|image| image[1024 + 24] ^= 1), Err(ImageError::Corrupt("superblock checksum")));
}

#[test]
fn a_directory_in_itself_has_two_names() {
    check_part("directory with two names", |image| {
        let root = inode_offset(image, "");
        let inline = find(image, b"...ds") - 4 * 12;
        let entry = inline + 2 * 12;
        image[entry..entry + 8].copy_from_slice(&(root as u64 / 32).to_le_bytes());
    });
}

#[test]
fn names_out_of_order_with_slashes_or_out_of_their_block_are_refused() {
    check_part("order of names", |image| {
        let names = find(image, b"...abc") + 3;
        image[names..names + 3].copy_from_slice(b"bac");
    });
    check_part("order of names", |image| {
        let names = find(image, b"...abc") + 3;
        image[names..names + 3].copy_from_slice(b"aac");
    });
    check_part("directory entry", |image| {
        let names = find(image, b"...abc") + 3;
        image[names] = b'/';
    });
    check_part("directory entry", |image| {
        let last_entry = find(image, b"...abc") - 12;
        image[last_entry + 8..last_entry + 10].copy_from_slice(&u16::MAX.to_le_bytes());
    });
    check_part("directory block", |image| {
        let first_entry = find(image, b"...abc") - 5 * 12;
        image[first_entry + 8..first_entry + 10].copy_from_slice(&13_u16.to_le_bytes());
    });
}

#[test]
fn a_last_name_without_a_nul_in_the_directory_is_refused() {
    check_part("end of a name", |image| {
        let size = inode_offset(image, "d") + 8;
        assert_eq!(image[size], 12 * 5 + 7, "five entries, their names and a NUL");
        image[size] -= 1;
    });
}

#[test]
fn an_image_of_an_older_version_is_not_opened() {
    let older = |image: &mut Vec<u8>| {
        let version = find(image, b"tarpon tree v2") + 13;
        image[version] = b'1';
    };
    assert_eq!(check(older), Err(ImageError::Outdated));
    assert_eq!(check(|image| image[1024 + 64] = b'x'), Err(ImageError::NotAnImage), "another format");
}

#[test]
fn names_that_lead_nowhere_or_to_another_kind_are_refused() {
    check_part("inode number", |image| {
        let entry = find(image, b"...abc") - 12;
        image[entry..entry + 8].fill(0xff);
    });
    check_part("kind in a directory entry", |image| {
        let entry = find(image, b"...abc") - 3 * 12;
        image[entry + 10] = 7;
    });
}

#[test]
fn wrong_link_counts_are_refused() {
    check_part("link count", |image| {
        let inode = inode_offset(image, "d/b");
        assert_eq!(image[inode] & 1, 0, "a compact inode");
        image[inode + 6] = 3;
    });
}

#[test]
fn xattrs_and_links_that_leave_the_image_are_refused() {
    check_part("an address leads out of the image", |image| {
        let inode = inode_offset(image, "d/b");
        image[inode + 2..inode + 4].fill(0xff);
    });
    check_part("xattrs", |image| {
        let shared_id = inode_offset(image, "d/b") + 32 + 12;
        image[shared_id..shared_id + 4].fill(0xff);
    });
    check_part("symbolic link", |image| {
        let inode = inode_offset(image, "s");
        image[inode + 8..inode + 12].copy_from_slice(&4096_u32.to_le_bytes());
    });
}

#[test]
fn a_file_with_data_needs_an_object_and_an_empty_one_has_none() {
    check_part("file without object, or object without file", |image| {
        let inode = inode_offset(image, "d/a");
        image[inode + 8..inode + 12].fill(0);
    });
    check_part("redirect", |image| {
        let redirect = find(image, b"/6b/86b2");
        image[redirect + 3] = b'x';
    });
}

#[test]
fn a_directory_listing_continues_from_any_cookie() {
    let layers: [LayerIndex; 1] = [layer((0..1000).map(|n| file(format!("d/name {n}"), "x")))];
    let image = Image::open(erofs::write(&merge(&layers).unwrap())).unwrap();
    let d = image.resolve(b"d").unwrap().unwrap();
    let all: Vec<_> = image.read_dir(d, 0).unwrap().map(Result::unwrap).collect();
    assert_eq!(all.len(), 1002);
    for (at, entry) in all.iter().enumerate() {
        let rest: Vec<_> = image.read_dir(d, entry.next).unwrap().map(Result::unwrap).collect();
        assert_eq!(rest, all[at + 1..]);
    }
    for cookie in 0..50_000 {
        let next = image.read_dir(d, cookie).unwrap().next();
        assert!(next.is_none_or(|entry| all.contains(&entry.unwrap())));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn images_with_random_damage_are_read_or_refused(
        seed in proptest::collection::vec(any::<u8>(), 200..400),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let layers = stacks::from_bytes(&seed);
        if let Ok(tree) = merge(&layers) {
            let mut image = erofs::write(&tree);
            for (at, value) in damage {
                let at = at.index(image.len());
                image[at] = value;
            }
            with_right_checksum(&mut image);
            fuzz::erofs_image(&image);
        }
    }
}
