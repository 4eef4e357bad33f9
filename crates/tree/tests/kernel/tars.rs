//! Every name of real images is found: `TARPON_TARS=DIR cargo test -p tarpon-tree --test kernel tars -- --ignored --nocapture`.
//!
//! DIR contains plain tars named `*.tar`: of packages (`dpkg-deb --fsys-tarfile X.deb > DIR/X.tar`), or of layers. Each is tested
//! as an image of one layer, and as many together as one image may have.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use tarpon_layer::LayerIndex;
use tarpon_layer::plain::{Access, Options, import};
use tarpon_oci::limits;
use tarpon_testkit::sinks::Forgetful;

use crate::names::look_up_every_name;

fn read(path: &Path) -> LayerIndex {
    let tar = BufReader::new(File::open(path).expect("readable"));
    let options = Options { access: Access::Random, hides_toc_files: false };
    import(tar, options, &mut Forgetful).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
#[ignore = "takes a folder of tars: TARPON_TARS"]
fn every_name_of_a_folder_of_tars_is_found() {
    let folder = PathBuf::from(std::env::var_os("TARPON_TARS").expect("TARPON_TARS names a folder"));
    let files = fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("readable").path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|ending| ending == "tar")).collect();
    files.sort();
    assert!(!files.is_empty(), "{} holds no tars", folder.display());
    let layers: Vec<LayerIndex> = files.iter().map(|path| read(path)).collect();
    let (mut images, mut names, mut missing) = (0, 0, Vec::new());
    for layers in layers.chunks(1).chain(layers.chunks(limits::LAYERS)) {
        let Some(found) = look_up_every_name(layers) else { return };
        images += 1;
        names += found.names;
        missing.extend(found.missing);
    }
    println!("{images} images, {names} names, {} not found", missing.len());
    assert_eq!(missing, Vec::<String>::new());
}
