//! [`PreparedBytes`]: the bytes that came when an image was prepared, read again only after its record has changed. Each scrape of the metrics
//! asks for those of all loaded images, and a record takes a read, a hash and a parser.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

/// A change this recent may be followed by another one at the same time, as the file system counts time.
const TICK: Duration = Duration::from_secs(2);

/// The last value, and the state of the record's folder when it was read.
#[derive(Default)]
pub(super) struct PreparedBytes(Mutex<Option<(Stamp, u64)>>);

/// Identifies the state of a folder. A record is replaced by a rename, in its folder or of its folder.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    modified: SystemTime,
}

impl Stamp {
    fn of(folder: &Path) -> Option<Self> {
        let of = |metadata: Metadata| Some(Self { inode: metadata.ino(), modified: metadata.modified().ok()? });
        std::fs::metadata(folder).ok().and_then(of)
    }

    fn is_settled(&self) -> bool {
        self.modified.elapsed().is_ok_and(|elapsed| elapsed > TICK)
    }
}

impl PreparedBytes {
    /// The bytes according to the record in `folder`, which `read` reads. `None` if it is not there, or cannot be read.
    pub(super) fn now(&self, folder: &Path, read: impl FnOnce() -> Option<u64>) -> Option<u64> {
        // Before the record is read: a change meanwhile is seen the next time.
        let stamp = Stamp::of(folder)?;
        let mut last = self.0.lock();
        if let Some((_, bytes)) = last.filter(|(of, _)| *of == stamp) {
            return Some(bytes);
        }
        let bytes = read()?;
        *last = stamp.is_settled().then_some((stamp, bytes));
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn set_modified(folder: &Path, seconds: u64) {
        File::open(folder).unwrap().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    }

    #[test]
    fn a_record_is_read_once_and_again_after_each_change() {
        let folder = tempfile::tempdir().unwrap();
        let (prepared, record) = (PreparedBytes::default(), folder.path().join("record"));
        let read = || std::fs::read_to_string(&record).ok()?.parse().ok();
        let now = || prepared.now(folder.path(), read);
        let must_not_read = || prepared.now(folder.path(), || panic!("it has not changed"));
        std::fs::write(&record, "1").unwrap();
        set_modified(folder.path(), 10);
        assert_eq!((now(), must_not_read()), (Some(1), Some(1)));
        std::fs::write(&record, "2").unwrap();
        set_modified(folder.path(), 11);
        assert_eq!((now(), must_not_read()), (Some(2), Some(2)));
        std::fs::remove_file(&record).unwrap();
        std::fs::write(&record, "3").unwrap();
        assert_eq!(now(), Some(3), "it has just changed");
        std::fs::write(&record, "4").unwrap();
        assert_eq!(now(), Some(4), "and may have changed again at the same time");
        std::fs::remove_dir_all(folder.path()).unwrap();
        assert_eq!(now(), None);
    }

    #[test]
    fn a_record_that_could_not_be_read_is_read_again() {
        let (folder, prepared) = (tempfile::tempdir().unwrap(), PreparedBytes::default());
        set_modified(folder.path(), 10);
        assert_eq!(prepared.now(folder.path(), || None), None);
        assert_eq!(prepared.now(folder.path(), || Some(1)), Some(1));
    }
}
