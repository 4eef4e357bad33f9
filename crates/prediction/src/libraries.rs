//! Finds the libraries of a program as the dynamic linker does.
//!
//! Source: ld.so(8) and the musl manual. The cache of ld.so is a list of what is in the directories of `ld.so.conf`, so these are searched
//! instead.

use std::collections::HashSet;

use tarpon_oci::limits;

use super::elf::Elf;
use super::files::{File, Files, join, parent};
use crate::error::Result;

/// Directories that are searched last, in glibc and musl.
const DEFAULT_DIRECTORIES: [&[u8]; 5] = [b"/lib64", b"/usr/lib64", b"/lib", b"/usr/local/lib", b"/usr/lib"];
/// The configuration of the dynamic linker of glibc, and the folder of its parts.
const CONFIG: &[u8] = b"/etc/ld.so.conf";
const CONFIG_PARTS: &[u8] = b"/etc/ld.so.conf.d";
/// Bytes of a configuration file: a few lines.
const CONFIG_BYTES: u64 = 64 << 10;
/// Directories that are searched. Distributions have fewer than ten.
const DIRECTORIES: usize = 64;
/// Names of libraries of a program: browsers and media players have about 300.
const LIBRARIES: usize = 2048;

/// The directories in which an image's dynamic linker searches.
pub(super) struct Libraries<'a> {
    files: &'a dyn Files,
    directories: Vec<Vec<u8>>,
}

/// A file that is loaded, with what its headers name.
pub(super) struct Loaded {
    pub(super) file: File,
    pub(super) elf: Elf,
}

impl Loaded {
    /// Reads the headers of a file. None: it is no ELF file, or a damaged one.
    ///
    /// # Errors
    /// The content cannot be fetched.
    pub(super) fn read(files: &dyn Files, file: File) -> Result<Option<Self>> {
        Ok(Elf::read(files, &file)?.map(|elf| Self { file, elf }))
    }
}

impl<'a> Libraries<'a> {
    /// `library_path`: the value of `LD_LIBRARY_PATH`.
    ///
    /// # Errors
    /// A configuration file cannot be fetched.
    pub(super) fn of(files: &'a dyn Files, library_path: &[u8]) -> Result<Self> {
        let mut directories: Vec<Vec<u8>> =
            library_path.split(|byte| matches!(byte, b':' | b';')).map(<[u8]>::to_vec).collect();
        let mut parts = files.list(CONFIG_PARTS).unwrap_or_default();
        parts.sort();
        let parts = parts.iter().filter(|name| name.ends_with(b".conf")).map(|name| join(CONFIG_PARTS, name));
        for path in parts.chain([CONFIG.to_vec()]).take(DIRECTORIES) {
            let Some(file) = files.find(&path) else { continue };
            let text = files.read(&file, 0..CONFIG_BYTES)?;
            let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
            directories.extend(lines.filter(|line| line.starts_with(b"/")).map(<[u8]>::to_vec));
        }
        directories.extend(DEFAULT_DIRECTORIES.map(<[u8]>::to_vec));
        directories.retain(|directory| directory.starts_with(b"/") && directory.len() <= limits::PATH_BYTES);
        directories.truncate(DIRECTORIES);
        Ok(Self { files, directories })
    }

    /// The program, the dynamic linker, and the libraries that these load, breadth first, as the dynamic linker loads them.
    ///
    /// # Errors
    /// The content of one cannot be fetched.
    pub(super) fn loaded_with(&self, program: Loaded) -> Result<Vec<Loaded>> {
        let kind = program.elf.kind;
        let inherited = if program.elf.search_is_inherited { origin_paths(&program) } else { Vec::new() };
        let linker = program.elf.interpreter.as_ref().and_then(|path| self.files.find(path));
        let linker = linker.map(|file| Loaded::read(self.files, file)).transpose()?.flatten();
        let mut seen = HashSet::from([program.file.object]);
        let mut found = vec![program];
        found.extend(linker.filter(|linker| seen.insert(linker.file.object)));
        let mut names: HashSet<Vec<u8>> = HashSet::new();
        let mut next = 0;
        while let Some(loading) = found.get(next) {
            let own = if next == 0 && !inherited.is_empty() { Vec::new() } else { origin_paths(loading) };
            for name in loading.elf.needed.clone() {
                if names.len() == LIBRARIES || !names.insert(name.clone()) {
                    continue;
                }
                let library = self.find(&name, kind, own.iter().chain(&inherited))?;
                found.extend(library.filter(|library| seen.insert(library.file.object)));
            }
            next += 1;
        }
        Ok(found)
    }

    /// The library of this name in the first directory that has one of this kind.
    fn find<'d>(
        &'d self,
        name: &[u8],
        kind: (u16, bool),
        first: impl Iterator<Item = &'d Vec<u8>>,
    ) -> Result<Option<Loaded>> {
        if name.contains(&b'/') {
            return self.files.find(name).map_or(Ok(None), |file| Loaded::read(self.files, file));
        }
        for directory in first.chain(&self.directories) {
            let Some(file) = self.files.find(&join(directory, name)) else { continue };
            if let Some(library) = Loaded::read(self.files, file)?.filter(|library| library.elf.kind == kind) {
                return Ok(Some(library));
            }
        }
        Ok(None)
    }
}

/// The directories that a file names for its libraries. `$ORIGIN` is its own.
fn origin_paths(loaded: &Loaded) -> Vec<Vec<u8>> {
    let origin = parent(&loaded.file.path);
    let expand = |path: &Vec<u8>| {
        let rest = [b"$ORIGIN".as_slice(), b"${ORIGIN}"].iter().find_map(|variable| path.strip_prefix(*variable));
        rest.map_or_else(|| path.clone(), |rest| [origin, rest].concat())
    };
    loaded.elf.search.iter().map(expand).filter(|path| path.starts_with(b"/")).collect()
}
