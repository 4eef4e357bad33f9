//! Whether the kernel asks the server at each open of a mount in mode `fuse`.
//!
//! It does so by connection, not by file: once an open is answered with `ENOSYS`, no open and no close of the connection is sent
//! any more, and an answer is the only way to pass a file through to the kernel. So an image has either opens that cost nothing,
//! or large files that are read without the server and whose pages all mounts share (docs/design/reads.md).

use std::os::fd::AsFd;

use bytes::Bytes;
use tarpon_fs::ImageFs;

use crate::adapter::{OpenPolicy, Opens};
use crate::error::MountError;
use crate::holder::InheritedConnection;
use crate::kernel::io_step;
use crate::overlay;
use crate::spec::MountSpec;

/// Mean size of an image's files from which on they are passed through. Reading so much through the page cache of FUSE costs more than
/// a request at the open does; a file of half of it costs about the same both ways.
const LARGE_MEAN: u64 = 1 << 20;
/// Entries of directories that are looked at to find the mean, which bounds the time that a mount takes. An image with more counts as one of small
/// files.
const MOST_ENTRIES: u64 = 1 << 16;
/// The first version of Linux with passthrough.
const PASSTHROUGH_SINCE: (u32, u32) = (6, 9);

/// How the files of a new mount are opened.
pub(crate) fn of_new_mount(spec: &MountSpec, files: &ImageFs<Bytes>) -> OpenPolicy {
    // Reads of a watched mount must all be seen.
    if spec.watch.is_none() && passes_through() && has_large_files(files) {
        OpenPolicy::PassThrough(Opens::default())
    } else {
        OpenPolicy::NoOpen
    }
}

/// How the files of an inherited connection are opened: as before. Each connection whose opens are sent has a record of them. Opens
/// of a file that is passed through have to be answered as long as one of them is left.
pub(crate) fn of_inherited(inherited: &InheritedConnection) -> Result<OpenPolicy, MountError> {
    Ok(if inherited.opens.is_some() { OpenPolicy::PassThrough(opens(inherited)?) } else { OpenPolicy::NoOpen })
}

/// The open files of an inherited connection.
pub(crate) fn opens(inherited: &InheritedConnection) -> Result<Opens, MountError> {
    let Some(record) = &inherited.opens else { return Ok(Opens::default()) };
    let opens = record.as_fd().try_clone_to_owned().and_then(Opens::inherited);
    opens.map_err(|error| io_step("read the record of open files", &error).into())
}

/// Whether the kernel may pass files through for this process. In other user namespaces than the first it refuses each.
fn passes_through() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    overlay::kernel_version(&release) >= PASSTHROUGH_SINCE && overlay::is_initial_user_namespace()
}

fn has_large_files(files: &ImageFs<Bytes>) -> bool {
    files.mean_file_size(MOST_ENTRIES).is_some_and(|mean| mean >= LARGE_MEAN)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use tarpon_oci::Digest;
    use tarpon_testkit::entries::{layer, sized_file};

    use super::*;
    use crate::holder::{ConnectionHolder, Inheritance, NoHolder};

    /// An image with `small` files of 1 KiB and one of 1 GiB.
    fn image(small: u64) -> ImageFs<Bytes> {
        let sizes = std::iter::repeat_n(1 << 10, usize::try_from(small).unwrap()).chain([1 << 30]);
        let file = |(number, size)| {
            let name = format!("f{number}");
            sized_file(&name, Digest::of(name.as_bytes()), size)
        };
        let files = sizes.enumerate().map(file);
        let tree = tarpon_tree::erofs::write(&tarpon_tree::merge(&[layer(files)]).unwrap());
        ImageFs::new(tree.into()).unwrap()
    }

    #[test]
    fn an_image_has_large_files_if_they_have_a_mebibyte_on_average() {
        assert!(has_large_files(&image(1000)));
        assert!(!has_large_files(&image(1100)));
    }

    #[test]
    fn a_successor_is_asked_about_opens_if_its_predecessor_was() {
        let descriptor = || OwnedFd::from(tempfile::tempfile().unwrap());
        let mut held = ["fuse.1.0", "opens.1", "fuse.2.0"].map(|name| (name.to_owned(), descriptor())).into();
        let holder: Arc<dyn ConnectionHolder> = Arc::new(NoHolder);
        let inheritance = Inheritance::take(&mut held, &holder);
        let policy = |number| of_inherited(&inheritance.connection(number).unwrap()).unwrap();
        assert!(matches!(policy(1), OpenPolicy::PassThrough(_)));
        assert!(matches!(policy(2), OpenPolicy::NoOpen));
    }
}
