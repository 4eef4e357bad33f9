//! Finds the libraries of a program as the dynamic linker does.
//!
//! Source: ld.so(8) and the musl manual. The cache of ld.so is a list of what is in the directories of `ld.so.conf`, so these are searched
//! instead.

use std::collections::HashSet;

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
        directories.retain(|directory| directory.starts_with(b"/"));
        directories.truncate(DIRECTORIES);
        Ok(Self { files, directories })
    }

    /// The libraries that the program loads, breadth first, as the dynamic linker loads them, after the dynamic linker itself.
    ///
    /// # Errors
    /// The content of one cannot be fetched.
    pub(super) fn of_program(&self, program: &Loaded) -> Result<Vec<Loaded>> {
        let mut found: Vec<Loaded> = Vec::new();
        let mut seen = HashSet::from([program.file.object]);
        let mut names: HashSet<Vec<u8>> = HashSet::new();
        if let Some(linker) = program.elf.interpreter.as_ref().and_then(|path| self.files.find(path)) {
            self.load(linker, &mut seen, &mut found)?;
        }
        let mut next = None;
        loop {
            let loading = match next {
                None => program,
                Some(number) => match found.get(number) {
                    Some(library) => library,
                    None => return Ok(found),
                },
            };
            let inherited = if program.elf.search_is_inherited { origin_paths(program) } else { Vec::new() };
            let own = if next.is_none() && !inherited.is_empty() { Vec::new() } else { origin_paths(loading) };
            let wanted: Vec<Vec<u8>> = loading.elf.needed.clone();
            for name in wanted {
                if names.len() == LIBRARIES || !names.insert(name.clone()) {
                    continue;
                }
                if let Some(library) = self.find(&name, program.elf.kind, own.iter().chain(&inherited))? {
                    self.load(library, &mut seen, &mut found)?;
                }
            }
            next = Some(next.map_or(0, |number: usize| number + 1));
        }
    }

    fn load(&self, file: File, seen: &mut HashSet<tarpon_layer::ObjectId>, found: &mut Vec<Loaded>) -> Result<()> {
        if let Some(elf) = Elf::read(self.files, &file)?.filter(|_| seen.insert(file.object)) {
            found.push(Loaded { file, elf });
        }
        Ok(())
    }

    /// The library of this name in the first directory that has one of this kind.
    fn find<'d>(
        &'d self,
        name: &[u8],
        kind: (u16, bool),
        first: impl Iterator<Item = &'d Vec<u8>>,
    ) -> Result<Option<File>> {
        if name.contains(&b'/') {
            return Ok(self.files.find(name));
        }
        for directory in first.chain(&self.directories) {
            let Some(file) = self.files.find(&join(directory, name)) else { continue };
            if Elf::read(self.files, &file)?.is_some_and(|elf| elf.kind == kind) {
                return Ok(Some(file));
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
