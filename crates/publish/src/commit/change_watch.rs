//! [`ChangeWatch`]: whether an upper directory changed while it was read.
//!
//! Overlayfs cannot be frozen, and a read-only remount would make programs fail that write to it. So the directory is read first, and
//! afterwards the `ctime` of every inode is checked. A change of a file changes its `ctime`, a name that appears or goes the `ctime` of its
//! directory; no program can set that. What was read without a change in between is a consistent snapshot.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{CWD, Mode, OFlags};

use super::upper::{Moment, UpperError, newest_change};
use tarpon_containers::LeftOut;

/// Maximum step of the kernel's clock for files: that of a kernel with 100 ticks a second.
const TICK: Duration = Duration::from_millis(10);
/// Maximum difference of two clocks that is no sign of one being set.
const DRIFT: Duration = Duration::from_secs(1);

/// An upper directory, and the moment since which nothing in it may have changed.
pub(super) struct ChangeWatch {
    upper: PathBuf,
    since: Moment,
    /// The same moment by two clocks. A wall clock that was set back meanwhile would hide changes.
    began: (Instant, SystemTime),
}

impl ChangeWatch {
    /// Starts to watch `upper`.
    pub(super) fn begin(upper: &Path) -> Result<Self, UpperError> {
        let failed = |error: rustix::io::Errno| UpperError::unreadable(b"", &error.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, upper, flags, Mode::empty()).map_err(failed)?;
        // A write to a mapped page that is already dirty does not change the `ctime`. After the page was written to the disk, the next
        // write does.
        rustix::fs::syncfs(&directory).map_err(failed)?;
        Ok(Self { upper: upper.to_owned(), since: now(&directory), began: (Instant::now(), SystemTime::now()) })
    }

    /// The first path in the directory that changed since then, if any.
    pub(super) fn changed(&self, left_out: &LeftOut) -> Result<Option<Vec<u8>>, UpperError> {
        let (began, at) = self.began;
        let passed = SystemTime::now().duration_since(at).unwrap_or_default();
        if passed + DRIFT < began.elapsed() {
            return Ok(Some(Vec::new()));
        }
        newest_change(&self.upper, left_out, self.since)
    }
}

/// The current time of this directory's file system: that of an unnamed file.
fn now(directory: impl AsFd) -> Moment {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let made = rustix::fs::openat(directory, ".", flags, Mode::RUSR).and_then(rustix::fs::fstat);
    match made {
        Ok(made) => (made.st_ctime, u32::try_from(made.st_ctime_nsec).unwrap_or(0)),
        Err(_) => {
            let now = SystemTime::now() - TICK;
            let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            (i64::try_from(since.as_secs()).unwrap_or(0), since.subsec_nanos())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, create_dir, create_dir_all, hard_link, remove_file, rename, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn tree() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        create_dir_all(folder.path().join("etc/deep/er")).unwrap();
        for name in ["etc/file", "etc/deep/er/file", "other"] {
            write(folder.path().join(name), "old").unwrap();
        }
        folder
    }

    /// A watch that began later than every change of the tree, as far as the clock of files shows.
    fn still(folder: &Path) -> ChangeWatch {
        loop {
            let still = ChangeWatch::begin(folder).unwrap();
            if still.changed(&LeftOut::default()).unwrap().is_none() {
                return still;
            }
        }
    }

    #[test]
    fn every_kind_of_change_is_seen_with_its_path() {
        type Change = fn(&Path);
        let changes: [(Change, &str); 9] = [
            (|root| write(root.join("etc/file"), "new").unwrap(), "etc/file"),
            (|root| File::options().append(true).open(root.join("other")).unwrap().set_len(1).unwrap(), "other"),
            (|root| write(root.join("etc/deep/er/new"), "").unwrap(), "etc/deep/er"),
            (|root| remove_file(root.join("etc/deep/er/file")).unwrap(), "etc/deep/er"),
            (|root| rename(root.join("other"), root.join("etc/moved")).unwrap(), ""),
            (|root| set_permissions(root.join("other"), PermissionsExt::from_mode(0o600)).unwrap(), "other"),
            (|root| hard_link(root.join("other"), root.join("etc/deep/link")).unwrap(), "etc/deep"),
            (|root| create_dir(root.join("directory")).unwrap(), ""),
            (
                |root| {
                    let file = File::open(root.join("etc/file")).unwrap();
                    // A program can restore any time that it can set.
                    let old = file.metadata().unwrap().modified().unwrap();
                    write(root.join("etc/file"), "new").unwrap();
                    File::options().append(true).open(root.join("etc/file")).unwrap().set_modified(old).unwrap();
                },
                "etc/file",
            ),
        ];
        for (number, (change, path)) in changes.into_iter().enumerate() {
            let folder = tree();
            let still = still(folder.path());
            change(folder.path());
            let changed = still.changed(&LeftOut::default()).unwrap();
            assert_eq!(changed.as_deref(), Some(path.as_bytes()), "change {number}");
        }
    }

    #[test]
    fn what_is_no_part_of_the_layer_may_change() {
        let folder = tree();
        let still = still(folder.path());
        let left_out = LeftOut { volumes: [b"etc/deep".to_vec()].into(), ..LeftOut::default() };
        write(folder.path().join("etc/deep/er/file"), "new").unwrap();
        assert_eq!(still.changed(&left_out).unwrap(), None);
        assert_eq!(still.changed(&LeftOut::default()).unwrap().as_deref(), Some(&b"etc/deep/er/file"[..]));
    }

    #[test]
    fn a_mapped_file_that_is_written_through_memory_is_seen() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = folder.path().join("mapped");
        write(&file, vec![1; 8192]).unwrap();
        let script = "import mmap,sys\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),0)\nm[0]=2\nprint('dirty',flush=True)\n\
                      sys.stdin.readline()\nm[1]=3\nprint('again',flush=True)\nsys.stdin.readline()\n";
        let started = std::process::Command::new("python3")
            .args(["-c", script])
            .arg(&file)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn();
        let Ok(mut writer) = started else {
            println!("skipped: no python3");
            return;
        };
        let (mut input, output) = (writer.stdin.take().unwrap(), writer.stdout.take().unwrap());
        let mut said = std::io::BufRead::lines(std::io::BufReader::new(output));
        assert_eq!(said.next().unwrap().unwrap(), "dirty");
        let still = still(folder.path());
        std::io::Write::write_all(&mut input, b"go on\n").unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "again");
        assert_eq!(still.changed(&LeftOut::default()).unwrap().as_deref(), Some(&b"mapped"[..]));
        drop(input);
        writer.wait().unwrap();
    }
}
