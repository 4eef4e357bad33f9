//! What programs see of a mounted image.

use std::collections::{BTreeSet, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode as FileMode, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use tarpon_mount::Mode;
use tarpon_oci::Digest;
use tarpon_testkit::entries::{Made, char_device, dir, fifo, file, link, sized_file, symlink};

use crate::fixture::{MODES, MountFixture, errno};
use crate::handles;
use crate::objects::{HUNG, Manner};

/// Bytes that differ wherever a mistake would show.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((at ^ (at >> 8) ^ (at >> 16)) & 0xff).unwrap()).collect()
}

fn in_both_modes(image: impl Fn() -> Vec<Made>, check: impl Fn(&MountFixture, Mode)) {
    for mode in MODES {
        let Some(fixture) = MountFixture::new() else { return };
        let mounted = fixture.mount(mode, image());
        assert_eq!(mounted.mode(), mode);
        check(&fixture, mode);
    }
}

#[test]
fn attributes_are_those_of_the_layer() {
    let image = || {
        vec![
            dir("d").mode(0o1777).owner(1, 70_000),
            file("d/f", b"").mode(0o4755).owner(70_000, 3).mtime(-5, 250_000_000),
            sized_file("d/g", tarpon_oci::Digest::of(b"x"), 1).mode(0o600).mtime(1_700_000_001, 123_456_789),
            symlink("l", "d/f"),
            fifo("p"),
            char_device("c", 1, 3),
            link("h", "d/g"),
        ]
    };
    in_both_modes(image, |fixture, _| {
        let stat = |name: &str| fixture.at(name).symlink_metadata().unwrap();
        let directory = stat("d");
        assert_eq!((directory.mode(), directory.uid(), directory.gid()), (0o041_777, 1, 70_000));
        let empty = stat("d/f");
        assert_eq!((empty.mode(), empty.uid(), empty.gid(), empty.size()), (0o104_755, 70_000, 3, 0));
        assert_eq!((empty.mtime(), empty.mtime_nsec()), (-5, 250_000_000));
        let linked = stat("h");
        assert_eq!((linked.nlink(), linked.ino()), (2, stat("d/g").ino()));
        assert_eq!((linked.mtime(), linked.mtime_nsec()), (1_700_000_001, 123_456_789));
        assert_eq!(std::fs::read_link(fixture.at("l")).unwrap().to_str(), Some("d/f"));
        assert!(stat("p").file_type().is_fifo());
        let device = stat("c");
        assert!(device.file_type().is_char_device());
        assert_eq!(device.rdev(), rustix::fs::makedev(1, 3));
        assert_eq!(errno(fixture.at("no/such").metadata()), Errno::NOENT);
        assert_eq!(errno(fixture.at("no").metadata()), Errno::NOENT);
        assert_eq!(errno(fixture.at("d/f/x").metadata()), Errno::NOTDIR);
    });
}

#[test]
fn reads_give_exactly_the_bytes_wherever_they_are() {
    let content = pattern(3_000_017);
    for manner in [Manner::Local, Manner::Remote] {
        let image = || vec![file("big", &content)];
        in_both_modes(image, |fixture, _| {
            fixture.objects.add(content.clone(), manner);
            let mut big = File::open(fixture.at("big")).unwrap();
            for (offset, length) in [(0, 1), (1, 4096), (4095, 3), (131_071, 1 << 20), (2_999_999, 18), (3_000_016, 9)]
            {
                let mut read = vec![0; length];
                let got = big.read_at(&mut read, offset as u64).unwrap();
                let expected = &content[offset..content.len().min(offset + length)];
                assert_eq!(&read[..got], expected, "{length} bytes at {offset}");
            }
            assert_eq!(big.read_at(&mut [0; 8], 3_000_017).unwrap(), 0);
            assert_eq!(big.read_at(&mut [0; 8], 1 << 40).unwrap(), 0);
            let mut all = Vec::new();
            big.seek(SeekFrom::Start(0)).unwrap();
            big.read_to_end(&mut all).unwrap();
            assert!(all == content, "the whole file");
        });
    }
}

#[test]
fn complete_objects_are_read_without_asking_us() {
    let content = pattern(1 << 20);
    in_both_modes(
        || vec![file("big", &content)],
        |fixture, mode| {
            fixture.objects.add(content.clone(), Manner::Broken);
            fixture.objects.complete(&content);
            assert!(std::fs::read(fixture.at("big")).unwrap() == content, "{mode}");
            assert_eq!(fixture.objects.asked(), 0, "{mode}");
        },
    );
}

#[test]
fn after_the_first_open_the_kernel_asks_about_no_other() {
    let Some(fixture) = MountFixture::new() else { return };
    let contents = [pattern(300 << 10), pattern(3), pattern(5000), Vec::new()];
    let files = (0..).zip(&contents).map(|(number, content)| file(format!("f{number}"), content));
    let mounted = fixture.mount(Mode::Fuse, files);
    for content in &contents {
        fixture.objects.add(content.clone(), Manner::Local);
        fixture.objects.complete(content);
    }
    for _ in 0..3 {
        for (number, content) in (0..).zip(&contents) {
            assert!(std::fs::read(fixture.at(&format!("f{number}"))).unwrap() == *content);
        }
    }
    assert_eq!(mounted.counters().opens.load(Ordering::Relaxed), 1);
}

/// Whether the kernel is new enough for passthrough.
fn passes_through() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|number| number.parse::<u32>().unwrap_or_default());
    (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default()) >= (6, 9)
}

#[test]
fn files_of_an_image_of_large_files_are_passed_through() {
    if !passes_through() {
        println!("skipped: Linux passes files of FUSE through since 6.9");
        return;
    }
    let Some(fixture) = MountFixture::new() else { return };
    let content = pattern(1 << 20);
    let mounted = fixture.mount(Mode::Fuse, [file("big", &content)]);
    fixture.objects.add(content.clone(), Manner::Local);
    fixture.objects.complete(&content);
    for _ in 0..2 {
        assert!(std::fs::read(fixture.at("big")).unwrap() == content);
    }
    let counters = mounted.counters();
    assert_eq!((counters.opens.load(Ordering::Relaxed), counters.reads_local.load(Ordering::Relaxed)), (2, 0));
}

#[test]
fn a_program_runs_from_the_mount() {
    let program = std::fs::read("/bin/echo").unwrap();
    in_both_modes(
        || vec![file("echo", &program).mode(0o755)],
        |fixture, _| {
            fixture.objects.add(program.clone(), Manner::Remote);
            let output = Command::new(fixture.at("echo")).arg("mapped").output().unwrap();
            assert_eq!(output.stdout, b"mapped\n");
        },
    );
}

#[test]
fn xattrs_are_those_of_the_image_and_no_others() {
    let image = || {
        let content = "bytes, so that overlayfs needs its marks";
        vec![file("f", content).xattr("user.note", b"a\0b").xattr("security.capability", b"raw"), file("g", content)]
    };
    in_both_modes(image, |fixture, mode| {
        let get = |name: &str, attribute: &str| {
            let mut value = vec![0; 256];
            rustix::fs::getxattr(fixture.at(name), attribute, &mut value).map(|length| value[..length].to_vec())
        };
        assert_eq!(get("f", "user.note"), Ok(b"a\0b".to_vec()), "{mode}");
        assert_eq!(get("f", "user.none"), Err(Errno::NODATA));
        assert_eq!(get("g", "user.note"), Err(Errno::NODATA));
        let list = |name: &str| {
            let mut names = vec![0_u8; 256];
            let length = rustix::fs::listxattr(fixture.at(name), &mut names).unwrap();
            let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
            names.map(|name| String::from_utf8(name.to_vec()).unwrap()).collect::<BTreeSet<_>>()
        };
        assert_eq!(list("f"), BTreeSet::from(["user.note".to_owned(), "security.capability".to_owned()]), "{mode}");
        assert_eq!(list("g"), BTreeSet::new(), "{mode}");
        let mut small = [0; 2];
        assert_eq!(rustix::fs::getxattr(fixture.at("f"), "user.note", &mut small), Err(Errno::RANGE));
    });
}

#[test]
fn everything_that_would_change_something_is_refused() {
    in_both_modes(
        || vec![dir("d"), file("f", b"content"), symlink("l", "f")],
        |fixture, mode| {
            let (f, d, new) = (fixture.at("f"), fixture.at("d"), fixture.at("new"));
            let owner = Some(rustix::fs::Uid::from_raw(1));
            let times = Timestamps {
                last_access: Timespec { tv_sec: 1, tv_nsec: 0 },
                last_modification: Timespec { tv_sec: 1, tv_nsec: 0 },
            };
            let refusals = [
                ("open to write", errno(OpenOptions::new().write(true).open(&f))),
                ("truncate at open", errno(File::create(&f))),
                ("create", errno(File::create(&new))),
                ("mkdir", errno(std::fs::create_dir(&new))),
                ("rmdir", errno(std::fs::remove_dir(&d))),
                ("unlink", errno(std::fs::remove_file(&f))),
                ("rename", errno(std::fs::rename(&f, &new))),
                ("symlink", errno(std::os::unix::fs::symlink("x", &new))),
                ("link", errno(std::fs::hard_link(&f, &new))),
                ("chmod", errno(rustix::fs::chmod(&f, FileMode::RWXU).map_err(Into::into))),
                ("chown", errno(rustix::fs::chown(&f, owner, None).map_err(Into::into))),
                ("utimens", errno(rustix::fs::utimensat(CWD, &f, &times, AtFlags::empty()).map_err(Into::into))),
                ("setxattr", errno(rustix::fs::setxattr(&f, "user.a", b"b", XattrFlags::empty()).map_err(Into::into))),
                ("removexattr", errno(rustix::fs::removexattr(&f, "user.a").map_err(Into::into))),
                (
                    "mknod",
                    errno(
                        rustix::fs::mknodat(CWD, &new, rustix::fs::FileType::Fifo, FileMode::RWXU, 0)
                            .map_err(Into::into),
                    ),
                ),
            ];
            for (what, errno) in refusals {
                assert_eq!(errno, Errno::ROFS, "{what} in mode {mode}");
            }
        },
    );
}

#[test]
fn a_directory_of_a_hundred_thousand_names_is_listed_once_each() {
    const NAMES: usize = 100_000;
    let image = || {
        let names = (0..NAMES).map(|number| symlink(format!("many/{number:06}"), "x"));
        std::iter::once(dir("many")).chain(names).collect()
    };
    in_both_modes(image, |fixture, mode| {
        let entries = std::fs::read_dir(fixture.at("many")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names.len(), NAMES, "{mode}");
        assert!(names.iter().enumerate().all(|(number, name)| *name == format!("{number:06}")), "{mode}");
        assert!(fixture.at("many/099999").symlink_metadata().is_ok());
    });
}

#[test]
fn listing_goes_on_where_a_seek_leads() {
    let image =
        || std::iter::once(dir("d")).chain((0..500).map(|number| symlink(format!("d/{number:03}"), "x"))).collect();
    in_both_modes(image, |fixture, mode| {
        let mut listing = rustix::fs::Dir::new(File::open(fixture.at("d")).unwrap()).unwrap();
        let all: Vec<_> = listing.by_ref().map(Result::unwrap).collect();
        assert_eq!(all.len(), 502, "{mode}");
        for at in [0, 1, 77, 300, 500] {
            listing.seek(all[at].offset()).unwrap();
            let next = listing.by_ref().next().unwrap().unwrap();
            assert_eq!(next.file_name(), all[at + 1].file_name(), "{mode}");
        }
        listing.rewind();
        assert_eq!(listing.next().unwrap().unwrap().file_name(), all[0].file_name());
    });
}

#[test]
fn devices_and_setuid_are_off_unless_asked_for() {
    for mode in MODES {
        for on in [false, true] {
            let Some(fixture) = MountFixture::new() else { return };
            let mut spec = fixture.spec(mode, [char_device("null", 1, 3)]);
            (spec.dev, spec.suid) = (on, on);
            let _mounted = fixture.mount_spec(&spec).unwrap();
            let opened = File::open(fixture.at("null"));
            if on {
                assert!(opened.is_ok(), "{mode}");
            } else {
                assert_eq!(errno(opened), Errno::ACCESS, "{mode}");
            }
            let flags = rustix::fs::statvfs(fixture.at("")).unwrap().f_flag;
            assert_eq!(flags.contains(rustix::fs::StatVfsMountFlags::NOSUID), !on, "{mode}");
            assert!(flags.contains(rustix::fs::StatVfsMountFlags::RDONLY), "{mode}");
        }
    }
}

#[test]
fn names_that_are_not_text_can_be_opened() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let name = b"\xff\xfe \n";
    in_both_modes(
        || vec![file(name, b"")],
        |fixture, _| {
            assert!(File::open(fixture.path("mnt").join(OsStr::from_bytes(name))).is_ok());
        },
    );
}

#[test]
fn the_kernel_reads_nothing_ahead_once_read_ahead_is_disabled() {
    let Some(fixture) = MountFixture::new() else { return };
    let mounted = fixture.mount(Mode::Fuse, vec![file("f", b"x")]);
    let device = fixture.path("mnt").metadata().unwrap().dev();
    let setting = format!("/sys/class/bdi/0:{}/read_ahead_kb", rustix::fs::minor(device));
    let ahead = || std::fs::read_to_string(&setting).unwrap().trim().parse::<u32>().unwrap();
    assert!(ahead() > 0);
    mounted.stop_read_ahead();
    assert_eq!(ahead(), 0);
}

#[test]
fn without_read_ahead_what_is_local_around_a_small_read_needs_no_further_request() {
    for mode in MODES {
        let Some(mut fixture) = MountFixture::new() else { return };
        fixture.host = fixture.held_host();
        let content = pattern(1 << 20);
        fixture.objects.add(content.clone(), Manner::Local);
        let mut spec = fixture.spec(mode, [file("f", &content)]);
        spec.read_ahead = false;
        let mounted = fixture.mount_spec(&spec).unwrap();
        let file = File::open(fixture.at("f")).unwrap();
        let read = |at: usize| {
            let mut bytes = [0; 4096];
            file.read_exact_at(&mut bytes, at as u64).unwrap();
            assert_eq!(bytes, content[at..at + 4096], "{mode}");
            mounted.counters().reads_local.load(Ordering::Relaxed)
        };
        let first = read(300 << 10);
        fixture.objects.wait_until_paged_in(&fixture.runtime);
        // Waits until the kernel has it; drops no pages.
        assert!(fixture.host.forget_pages(&HashSet::from([Digest::of(b"in no file")]), HUNG));
        for at in (256 << 10..512 << 10).step_by(4096) {
            assert_eq!(read(at), first, "{mode}: {at}");
        }
        assert_eq!(read(512 << 10), first + 1, "{mode}");
    }
}

#[test]
fn pages_that_cannot_be_dropped_while_the_kernel_takes_some_are_dropped_by_the_next_call() {
    for mode in MODES {
        let Some(mut fixture) = MountFixture::new() else { return };
        fixture.host = fixture.held_host();
        let content = pattern(200_000);
        fixture.objects.add(content.clone(), Manner::Silent);
        let mut spec = fixture.spec(mode, [file("f", &content)]);
        spec.read_ahead = false;
        let mounted = fixture.mount_spec(&spec).unwrap();
        let file = File::open(fixture.at("f")).unwrap();
        let read = |at: u64| file.read_exact_at(&mut [0; 4096], at).unwrap();
        std::thread::scope(|scope| {
            // The lock of a page that the kernel is to take is held by a request that is not answered.
            scope.spawn(|| read(20_480));
            fixture.objects.wait_until_asked(&fixture.runtime);
            fixture.objects.add(content.clone(), Manner::Local);
            read(0);
            fixture.objects.wait_until_paged_in(&fixture.runtime);
            let damaged = HashSet::from([Digest::of(&content)]);
            assert!(!fixture.host.forget_pages(&damaged, Duration::ZERO), "{mode}: it takes some");
            fixture.objects.speak();
        });
        let requests = || mounted.counters().reads_local.load(Ordering::Relaxed);
        let before = requests();
        read(0);
        assert_eq!(requests(), before, "{mode}: the kernel has it");
        assert!(fixture.host.forget_pages(&HashSet::new(), HUNG), "{mode}");
        read(0);
        assert_eq!(requests(), before + 1, "{mode}: the kernel has dropped it");
    }
}

#[test]
fn a_handle_opens_a_file_that_the_kernel_never_looked_up() {
    let (Some(first), Some(second)) = (MountFixture::new(), MountFixture::new()) else { return };
    let image = || vec![dir("d"), dir("d/e"), file("d/e/f", b"content"), file("empty", b"")];
    let _mounts = [&first, &second].map(|fixture| {
        fixture.objects.add(b"content".to_vec(), Manner::Remote);
        fixture.mount(Mode::Fuse, image())
    });
    // The handle is of one mount, and opens a file of another one, of which the kernel has no inode yet.
    let root = File::open(second.path("mnt")).unwrap();
    let mut file = handles::open(&root, &handles::of(&first.at("d/e/f")).unwrap()).unwrap();
    let mut content = String::new();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "content");
    let directory = handles::open(&root, &handles::of(&first.at("d/e")).unwrap()).unwrap();
    assert_eq!(directory.metadata().unwrap().ino(), second.at("d/e").metadata().unwrap().ino());
    let path = std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&directory))).unwrap();
    assert!(path.ends_with("d/e"), "its parents were looked up: {}", path.display());
}
