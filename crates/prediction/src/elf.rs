//! What the start of an ELF file reads: the file's own parts, and the names of what it needs.
//!
//! Source: System V ABI, chapters 4 (object files) and 5 (program loading and dynamic linking).

use std::iter;
use std::ops::Range;

use bytes::Bytes;
use object::elf::{
    DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_STRSZ, DT_STRTAB, FileHeader32, FileHeader64, PF_W, PF_X, PT_DYNAMIC,
    PT_INTERP, PT_LOAD,
};
use object::read::elf::{Dyn as _, FileHeader, ProgramHeader as _};
use object::{Endianness, FileKind, pod};

use super::files::{File, Files};
use crate::error::Result;

/// Bytes from the beginning that hold the header and the program headers. Linkers put these first; a file has about ten.
const HEAD_BYTES: u64 = 64 << 10;
/// Bytes of a dynamic section: 16 each, one for each needed library and about thirty others.
const DYNAMIC_BYTES: u64 = 64 << 10;
/// Bytes of a table of dynamic strings: the largest library of Debian 12 (libLLVM) has 6 MB.
const STRINGS_BYTES: u64 = 16 << 20;
/// Bytes of a name or of a list of directories: `PATH_MAX` of Linux.
const NAME_BYTES: usize = 4096;
/// Directories that one file names for its libraries. Those with more than three are rare.
const SEARCHED: usize = 64;
/// Bytes of their names, which are kept for each library: [`SEARCHED`] of 256 bytes. Those in the stores of Nix and Spack have about 100.
const SEARCH_BYTES: usize = 16 << 10;
/// Libraries that one file needs. Programs with 200 exist; those that dlopen more do it after their start.
const NEEDED: usize = 1024;
/// Bytes of their names, which are kept for each library: [`NEEDED`] of usual length.
const NEEDED_BYTES: usize = 64 << 10;

/// A file of which this many bytes or fewer are read whole. Starts touch 40 % of such a library, scattered, and what is missing would be
/// one request for each part: with the traces of Redis, nginx and Node.js, packs with whole libraries of up to 5 MB start sooner.
const WHOLE_BYTES: u64 = 5 << 20;
/// Bytes from the beginning of the code of a larger library. GNU ld puts the functions that run when it is loaded there (`.init`,
/// `.text.startup`).
const CODE_BYTES: u64 = 512 << 10;

/// The dynamic linker reads this of a program or a library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Elf {
    /// Processor and word size: a program uses libraries of its own kind only.
    pub(super) kind: (u16, bool),
    /// The path of the dynamic linker.
    pub(super) interpreter: Option<Vec<u8>>,
    /// Names of libraries, in order.
    pub(super) needed: Vec<Vec<u8>>,
    /// Directories that the file names for its libraries, as written.
    pub(super) search: Vec<Vec<u8>>,
    /// Whether `search` also applies to the libraries of its libraries (`DT_RPATH`).
    pub(super) search_is_inherited: bool,
    segments: Vec<Segment>,
}

/// A part of the file that is mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    range: Range<u64>,
    address: u64,
    is_code: bool,
    is_writable: bool,
}

impl Elf {
    /// Reads the headers of a file. None: it is no ELF file, or a damaged one.
    ///
    /// # Errors
    /// The content cannot be fetched.
    pub(super) fn read(files: &dyn Files, file: &File) -> Result<Option<Self>> {
        let head = files.read(file, 0..HEAD_BYTES)?;
        match FileKind::parse(&*head) {
            Ok(FileKind::Elf64) => Self::of_class::<FileHeader64<Endianness>>(files, file, &head),
            Ok(FileKind::Elf32) => Self::of_class::<FileHeader32<Endianness>>(files, file, &head),
            _ => Ok(None),
        }
    }

    fn of_class<H: FileHeader<Endian = Endianness>>(
        files: &dyn Files,
        file: &File,
        head: &Bytes,
    ) -> Result<Option<Self>> {
        let Ok(header) = H::parse(&**head) else { return Ok(None) };
        let Ok(endian) = header.endian() else { return Ok(None) };
        let Ok(programs) = header.program_headers(endian, &**head) else { return Ok(None) };
        let range = |program: &H::ProgramHeader| {
            let (start, size) = program.file_range(endian);
            start.min(file.size)..start.saturating_add(size).min(file.size)
        };
        let mut elf = Self {
            kind: (header.e_machine(endian).0, header.is_type_64()),
            interpreter: None,
            needed: Vec::new(),
            search: Vec::new(),
            search_is_inherited: false,
            segments: Vec::new(),
        };
        let mut dynamic = None;
        for program in programs {
            let range = range(program);
            match program.p_type(endian) {
                PT_LOAD => elf.segments.push(Segment {
                    range,
                    address: program.p_vaddr(endian).into(),
                    is_code: program.p_flags(endian).contains(PF_X),
                    is_writable: program.p_flags(endian).contains(PF_W),
                }),
                PT_INTERP => {
                    let path =
                        files.read(file, range.start..range.end.min(range.start.saturating_add(NAME_BYTES as u64)))?;
                    elf.interpreter = Some(until_nul(&path).to_vec());
                }
                PT_DYNAMIC => dynamic = Some(range),
                _ => {}
            }
        }
        if let Some(range) = dynamic.filter(|range| range.end - range.start <= DYNAMIC_BYTES) {
            let section = files.read(file, range)?;
            elf.read_dynamic::<H>(files, file, endian, &section)?;
        }
        Ok(Some(elf))
    }

    fn read_dynamic<H: FileHeader<Endian = Endianness>>(
        &mut self,
        files: &dyn Files,
        file: &File,
        endian: Endianness,
        section: &Bytes,
    ) -> Result<()> {
        let Ok((entries, _)) = pod::slice_from_bytes::<H::Dyn>(section, section.len() / size_of::<H::Dyn>()) else {
            return Ok(());
        };
        let value = |tag| Some(entries.iter().find(|entry| entry.d_tag(endian) == tag)?.d_val(endian).into());
        let strings = value(DT_STRTAB).zip(value(DT_STRSZ)).filter(|(_, size): &(u64, u64)| *size <= STRINGS_BYTES);
        let Some((offset, size)) = strings.and_then(|(address, size)| Some((self.offset(address)?, size))) else {
            return Ok(());
        };
        let strings = files.read(file, offset..offset.saturating_add(size))?;
        let string = |entry: &H::Dyn| {
            let place = usize::try_from(entry.d_val(endian).into()).ok()?;
            let rest = strings.get(place..)?;
            let string = until_nul(rest.get(..NAME_BYTES).unwrap_or(rest));
            Some(string.to_vec()).filter(|string| !string.is_empty() && string.len() < NAME_BYTES)
        };
        let named = |tag| entries.iter().filter(move |entry| entry.d_tag(endian) == tag).filter_map(string);
        self.needed = named(DT_NEEDED).take(NEEDED).take_while(within(NEEDED_BYTES)).collect();
        let searched = |tag| {
            let paths = named(tag).flat_map(|path| directories(&path));
            paths.take(SEARCHED).take_while(within(SEARCH_BYTES)).collect::<Vec<Vec<u8>>>()
        };
        // DT_RUNPATH replaces DT_RPATH.
        let run_path = searched(DT_RUNPATH);
        self.search_is_inherited = run_path.is_empty();
        self.search = if run_path.is_empty() { searched(DT_RPATH) } else { run_path };
        Ok(())
    }

    /// The place in the file of an address.
    fn offset(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let offset = address.checked_sub(segment.address)?;
            (offset < segment.range.end - segment.range.start).then_some(segment.range.start + offset)
        })
    }

    /// The parts of the file, of this size, that a start reads if it is a library: all of a small one; of a large one the parts that the
    /// dynamic linker reads and relocates, and the beginning of its code.
    pub(super) fn touched(&self, size: u64) -> Vec<Range<u64>> {
        if size <= WHOLE_BYTES {
            return iter::once(0..size).collect();
        }
        let code = self.segments.iter().position(|segment| segment.is_code);
        let mut ranges = Vec::new();
        for (number, segment) in self.segments.iter().enumerate() {
            let Range { start, end } = segment.range;
            match code {
                _ if segment.is_writable => ranges.push(start..end),
                // Symbols and relocations come before the code, constants after it.
                Some(code) if number < code => ranges.push(start..end),
                _ if segment.is_code => ranges.push(start..end.min(start.saturating_add(CODE_BYTES))),
                _ => {}
            }
        }
        ranges.retain(|range| range.start < range.end);
        ranges
    }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Whether a name and those before it have no more than `bytes` together.
fn within(bytes: usize) -> impl FnMut(&Vec<u8>) -> bool {
    let mut left = bytes;
    move |name| left.checked_sub(name.len()).map(|rest| left = rest).is_some()
}

fn directories(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b':').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::MapFiles;

    const LINKER: &[u8] = b"/lib/ld.so\0";

    /// A shared object of 64 bits, little-endian: one segment of constants, one of code, one of data, of this size each.
    fn shared_object(needed: &[&str], paths: &[(u64, &str)], segment: u64) -> Vec<u8> {
        let mut strings = vec![0];
        let mut entry = |tag: u64, text: &str| {
            let place = strings.len() as u64;
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
            [tag, place]
        };
        let mut dynamic: Vec<[u64; 2]> = needed.iter().map(|name| entry(1, name)).collect();
        dynamic.extend(paths.iter().map(|(tag, path)| entry(*tag, path)));
        let (head, address) = (64 + 56 * 5, 0x1_0000);
        let at_strings = head + LINKER.len() as u64;
        dynamic.extend([[5, address + at_strings], [10, strings.len() as u64], [0, 0]]);
        let at_dynamic = (at_strings + strings.len() as u64).next_multiple_of(8);
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(16, 0);
        [3_u16, 62].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
        bytes.extend(1_u32.to_le_bytes());
        [0_u64, 64, 0].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
        bytes.extend(0_u32.to_le_bytes());
        [64_u16, 56, 5, 0, 0, 0].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
        let length = dynamic.len() as u64 * 16;
        for (kind, flags, offset, size) in [
            (1_u32, 4_u32, 0, segment),
            (1, 5, segment, segment),
            (1, 6, segment * 2, segment),
            (3, 4, head, LINKER.len() as u64),
            (2, 6, at_dynamic, length),
        ] {
            [kind, flags].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
            let fields = [offset, address + offset, address + offset, size, size, 8];
            fields.iter().for_each(|field| bytes.extend(field.to_le_bytes()));
        }
        bytes.extend_from_slice(LINKER);
        bytes.extend_from_slice(&strings);
        bytes.resize(usize::try_from(at_dynamic).unwrap(), 0);
        dynamic.iter().flatten().for_each(|field| bytes.extend(field.to_le_bytes()));
        bytes.resize(bytes.len().max(usize::try_from(segment * 3).unwrap()), 0);
        bytes
    }

    fn read(bytes: Vec<u8>) -> Option<Elf> {
        let files = MapFiles::default().with("/a", bytes);
        Elf::read(&files, &files.find(b"/a").unwrap()).unwrap()
    }

    fn owned(names: &[&str]) -> Vec<Vec<u8>> {
        names.iter().map(|name| name.as_bytes().to_vec()).collect()
    }

    #[test]
    fn the_headers_name_the_linker_the_libraries_and_where_these_are() {
        let elf = read(shared_object(&["liba.so", "libb.so"], &[(29, "$ORIGIN/x:/opt"), (15, "/old")], 4096)).unwrap();
        assert_eq!(elf.interpreter.as_deref(), Some(b"/lib/ld.so".as_slice()));
        assert_eq!((elf.needed, elf.search), (owned(&["liba.so", "libb.so"]), owned(&["$ORIGIN/x", "/opt"])));
        assert!(!elf.search_is_inherited, "DT_RUNPATH replaces DT_RPATH");
        let old = read(shared_object(&["liba.so"], &[(15, "/old")], 4096)).unwrap();
        assert!(old.search_is_inherited && old.search == owned(&["/old"]));
    }

    #[test]
    fn names_that_no_path_can_have_are_ignored() {
        let long = "x".repeat(NAME_BYTES);
        let many: String = (0..500).map(|number| format!("/{number}:")).collect();
        let elf = read(shared_object(&[&long, "liba.so"], &[(29, &many), (29, &long)], 64 << 10)).unwrap();
        assert_eq!((elf.needed, elf.search.len()), (owned(&["liba.so"]), SEARCHED));
    }

    #[test]
    fn names_of_libraries_take_little_memory_however_often_they_are_repeated() {
        let long = "x".repeat(NAME_BYTES - 1);
        let elf = read(shared_object(&vec![long.as_str(); 100], &[], 512 << 10)).unwrap();
        assert_eq!(elf.needed.len(), NEEDED_BYTES / long.len());
    }

    #[test]
    fn directories_for_libraries_take_little_memory_too() {
        let long = "x".repeat(NAME_BYTES - 1);
        for tag in [29, 15] {
            let elf = read(shared_object(&[], &[(tag, long.as_str()); SEARCHED], 512 << 10)).unwrap();
            assert_eq!(elf.search.len(), SEARCH_BYTES / long.len());
        }
    }

    #[test]
    fn of_a_large_library_the_symbols_the_data_and_the_beginning_of_the_code_are_read() {
        let segment = 4 << 20;
        let elf = read(shared_object(&["liba.so"], &[], segment)).unwrap();
        assert_eq!(elf.touched(WHOLE_BYTES).as_slice(), std::slice::from_ref(&(0..WHOLE_BYTES)));
        assert_eq!(elf.touched(3 * segment), [0..segment, segment..segment + CODE_BYTES, 2 * segment..3 * segment]);
    }

    #[test]
    fn a_truncated_or_damaged_file_is_no_error() {
        let whole = shared_object(&["liba.so"], &[], 512);
        for end in 0..whole.len().min(1200) {
            read([b"x", &whole[..end]].concat());
            if end > 0 {
                read(whole[..end].to_vec());
            }
            let mut damaged = whole.clone();
            damaged[end] ^= 0xff;
            read(damaged);
        }
        assert!(read(b"#!/bin/sh\n".to_vec()).is_none());
    }
}
