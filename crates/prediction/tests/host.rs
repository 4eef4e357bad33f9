//! Predictions about programs of this host, compared with what its dynamic linker lists.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use bytes::Bytes;
use tarpon_oci::{Digest, RunConfig};
use tarpon_prediction::{File, Files, Result, predict_in};

/// The files of this host. An object is named by the path of its file.
#[derive(Default)]
struct HostFiles {
    found: Mutex<HashMap<Digest, PathBuf>>,
}

impl Files for HostFiles {
    fn find(&self, path: &[u8]) -> Option<File> {
        let path = std::fs::canonicalize(OsStr::from_bytes(path)).ok()?;
        let metadata = std::fs::metadata(&path).ok().filter(|found| found.is_file() && found.len() > 0)?;
        let object = Digest::of(path.as_os_str().as_bytes());
        self.found.lock().unwrap().insert(object, path.clone());
        let is_executable = metadata.permissions().mode() & 0o111 != 0;
        Some(File { path: path.into_os_string().into_vec(), object, size: metadata.len(), is_executable })
    }

    fn list(&self, directory: &[u8]) -> Option<Vec<Vec<u8>>> {
        let entries = std::fs::read_dir(OsStr::from_bytes(directory)).ok()?;
        Some(entries.filter_map(|entry| Some(entry.ok()?.file_name().into_vec())).collect())
    }

    fn read(&self, file: &File, range: Range<u64>) -> Result<Bytes> {
        let mut bytes = vec![0; usize::try_from(range.end.min(file.size).saturating_sub(range.start))?];
        std::fs::File::open(OsStr::from_bytes(&file.path))?.read_exact_at(&mut bytes, range.start)?;
        Ok(bytes.into())
    }
}

/// The files of which the start of this command is predicted to read anything.
fn predicted(command: &[&str]) -> BTreeSet<PathBuf> {
    let files = HostFiles::default();
    let cmd = command.iter().map(|word| (*word).to_owned()).collect();
    let config = RunConfig { cmd, working_dir: "/".into(), ..RunConfig::default() };
    let pieces = predict_in(&files, &config).unwrap();
    let found = files.found.into_inner().unwrap();
    pieces.iter().map(|(object, _)| found[object].clone()).collect()
}

/// The libraries and the dynamic linker of a program, as `ldd` lists them.
fn listed(program: &Path) -> Option<BTreeSet<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
    Some(paths.map(|path| std::fs::canonicalize(path).unwrap()).collect())
}

#[test]
fn the_libraries_of_a_program_are_those_that_the_dynamic_linker_loads() {
    let programs = ["/bin/sh", "/usr/bin/find", "/usr/bin/git", "/usr/bin/curl", "/usr/bin/perl", "/usr/bin/podman"];
    for program in programs.map(Path::new).into_iter().filter(|program| program.exists()) {
        let Some(listed) = listed(program) else { continue };
        let found = predicted(&[program.to_str().unwrap()]);
        let is_library = |path: &&PathBuf| path.to_str().is_some_and(|path| path.contains(".so"));
        let libraries: BTreeSet<PathBuf> = found.iter().filter(is_library).cloned().collect();
        let cache = PathBuf::from("/etc/ld.so.cache");
        let libraries: BTreeSet<PathBuf> = libraries.into_iter().filter(|path| *path != cache).collect();
        assert_eq!(libraries, listed, "{}", program.display());
        assert!(found.contains(&std::fs::canonicalize(program).unwrap()));
    }
}

/// What an interpreter of this host lists as loaded. None: it is not installed.
fn loaded(command: &[&str]) -> Option<Vec<PathBuf>> {
    let (program, arguments) = command.split_first()?;
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(
        text.lines().filter(|line| line.starts_with('/')).filter_map(|line| std::fs::canonicalize(line).ok()).collect(),
    )
}

#[test]
fn most_modules_that_perl_and_ruby_load_are_predicted() {
    let commands: [&[&str]; 3] = [
        &["perl", "-MPOSIX", "-MFile::Temp", "-MGetopt::Long", "-e", "print map { \"$_\\n\" } values %INC"],
        &["perl", "-MIO::Socket", "-MStorable", "-MData::Dumper", "-e", "print map { \"$_\\n\" } values %INC"],
        &["ruby", "-rset", "-rjson", "-roptparse", "-e", "puts $LOADED_FEATURES"],
    ];
    for command in commands {
        let Some(loaded) = loaded(command).filter(|loaded| !loaded.is_empty()) else { continue };
        let predicted = predicted(command);
        let missing: Vec<_> = loaded.iter().filter(|path| !predicted.contains(*path)).collect();
        assert!(missing.len() * 5 <= loaded.len(), "{command:?}: {missing:?} of {}", loaded.len());
    }
}
