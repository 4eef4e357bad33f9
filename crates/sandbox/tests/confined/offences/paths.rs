//! Files and folders that are not those of the process.

use std::fs::{self, File};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::offence::{Act, Offence, offence};
use crate::child::Surroundings;

/// An offence that Landlock refuses.
const fn path(what: &'static str, error: Errno, prepare: fn(&Surroundings) -> Act) -> Offence {
    // Renaming and truncating are limited from version 3 on.
    Offence { error, landlock: 3, ..offence(what, prepare) }
}

pub(super) const OFFENCES: &[Offence] = &[
    path("read /etc/shadow", Errno::ACCESS, |_| read("/etc/shadow".into())),
    path("read the memory of its parent as a file", Errno::ACCESS, |at| {
        read(format!("/proc/{}/mem", at.parent).into())
    }),
    path("read a file outside of its folders", Errno::ACCESS, |at| read(at.folders.outside().join("file"))),
    path("list a folder outside of its folders", Errno::ACCESS, |at| {
        let folder = at.folders.outside();
        Box::new(move || fs::read_dir(folder).map(drop))
    }),
    path("read a file outside through a symbolic link", Errno::ACCESS, |at| {
        let link = at.folders.write().join("link");
        std::os::unix::fs::symlink(at.folders.outside().join("file"), &link).unwrap();
        read(link)
    }),
    path("write to a file that it may read", Errno::ACCESS, |at| {
        let file = at.folders.read().join("file");
        Box::new(move || File::options().write(true).open(file).map(drop))
    }),
    path("truncate a file that it may read", Errno::ACCESS, |at| {
        let file = at.folders.read().join("file");
        Box::new(move || Ok(rustix::fs::open(file, OFlags::RDONLY | OFlags::TRUNC, Mode::empty()).map(drop)?))
    }),
    path("create a file where it may read", Errno::ACCESS, |at| create(at.folders.read().join("new"))),
    path("create a file outside of its folders", Errno::ACCESS, |at| create(at.folders.outside().join("new"))),
    path("remove a file outside of its folders", Errno::ACCESS, |at| {
        let file = at.folders.outside().join("file");
        Box::new(move || fs::remove_file(file))
    }),
    path("make a folder outside of its folders", Errno::ACCESS, |at| {
        let folder = at.folders.outside().join("new");
        Box::new(move || fs::create_dir(folder))
    }),
    path("hard link a file to the outside", Errno::ACCESS, |at| {
        let (from, to) = (at.folders.write().join("file"), at.folders.outside().join("new"));
        Box::new(move || fs::hard_link(from, to))
    }),
    // The folder could take a new file: with EXDEV a program copies instead, for which it has to read.
    path("hard link a file from the outside", Errno::XDEV, |at| {
        let (from, to) = (at.folders.outside().join("file"), at.folders.write().join("new"));
        Box::new(move || fs::hard_link(from, to))
    }),
    path("rename a file to the outside", Errno::ACCESS, |at| {
        let (from, to) = (at.folders.write().join("file"), at.folders.outside().join("new"));
        Box::new(move || fs::rename(from, to))
    }),
    path("create a file without a name outside of its folders", Errno::ACCESS, |at| {
        let folder = at.folders.outside();
        Box::new(move || Ok(rustix::fs::open(folder, OFlags::RDWR | OFlags::TMPFILE, Mode::RUSR).map(drop)?))
    }),
    offence("create a program that runs as its owner", |at| {
        let file = at.folders.write().join("program");
        let mode = Mode::from_raw_mode(0o4755);
        Box::new(move || Ok(rustix::fs::open(file, OFlags::WRONLY | OFlags::CREATE, mode).map(drop)?))
    }),
    offence("let a program run as its owner", |at| {
        let file = File::create(at.folders.write().join("program")).unwrap();
        Box::new(move || Ok(rustix::fs::fchmod(&file, Mode::from_raw_mode(0o4755))?))
    }),
    offence("let a program run as its group, by its path", |at| {
        let path = at.folders.write().join("program");
        File::create(&path).unwrap();
        Box::new(move || Ok(rustix::fs::chmod(&path, Mode::from_raw_mode(0o2755))?))
    }),
    offence("make a pipe with a name", |at| {
        let path = at.folders.write().join("pipe");
        Box::new(move || Ok(rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, Mode::RUSR, 0)?))
    }),
];

fn read(path: PathBuf) -> Act {
    Box::new(move || File::open(path).map(drop))
}

fn create(path: PathBuf) -> Act {
    Box::new(move || File::create(path).map(drop))
}
