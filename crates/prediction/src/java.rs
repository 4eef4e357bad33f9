//! What a Java virtual machine reads at its start: its library, its archive of classes, the index of its modules, and directories of jars.
//!
//! Measured for OpenJDK 17 (`java -version`): 91 % of `classes.jsa`, 39 % of `libjvm.so` in pages everywhere, 0.1 % of `modules`.

use std::ops::Range;

use super::files::{File, Files, file_name, join, parent};
use crate::error::Result;

/// Bytes of the class archive that is read whole: that of OpenJDK 17 has 14 MB.
const WHOLE_BYTES: u64 = 32 << 20;
/// Jars of a class path. Applications have up to about two hundred.
const JARS: usize = 256;
/// Bytes of a jar that is read whole.
const JAR_BYTES: u64 = 1 << 20;
/// Bytes at the end of a jar in which the end of its directory is looked for: the record has 22, and comments are rare.
const END_BYTES: u64 = 4 << 10;
/// Bytes of the directory of a jar, of twenty thousand classes, or of the index of `modules`, of which OpenJDK 17 has 1.3 MB.
const DIRECTORY_BYTES: u64 = 4 << 20;
/// What is below the home of a virtual machine: since OpenJDK 9, and before.
const LIBRARIES: [&[u8]; 4] = [b"lib", b"lib/amd64", b"jre/lib/amd64", b"lib/aarch64"];
/// Libraries that a start loads by name.
const LOADED: [&[u8]; 5] = [b"libjava.so", b"libjimage.so", b"libzip.so", b"libnio.so", b"libnet.so"];
/// Other files of a start.
const READ: [&[u8]; 4] = [b"lib/jvm.cfg", b"lib/tzdb.dat", b"conf/security/java.security", b"conf/net.properties"];
/// The end of a jar's directory (APPNOTE.TXT 4.3.16), and the places in it of the directory's size and its offset.
const END_OF_DIRECTORY: &[u8] = b"PK\x05\x06";
const DIRECTORY_SIZE_AT: usize = 12;
const DIRECTORY_OFFSET_AT: usize = 16;
/// The header of `modules` (`imageFile.hpp` of OpenJDK): its magic number, and the places of the table's length and of two sizes.
const MODULES_MAGIC: u32 = 0xCAFE_DADA;
const MODULES_HEADER: u64 = 28;
const TABLE_LENGTH_AT: usize = 16;
const LOCATIONS_AT: usize = 20;
const STRINGS_AT: usize = 24;
/// Bytes of an entry of the two tables together.
const TABLE_ENTRY: u64 = 8;

/// What a start reads.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct JavaStart {
    /// Libraries, of which the first is the virtual machine itself.
    pub(crate) libraries: Vec<File>,
    /// Parts of other files.
    pub(crate) parts: Vec<(File, Vec<Range<u64>>)>,
}

/// Whether a program of this name starts a virtual machine.
pub(crate) fn is_launcher(name: &[u8]) -> bool {
    name == b"java"
}

/// What the virtual machine of a launcher reads for a program with these arguments. `class_path` is that of the environment.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn start(
    files: &dyn Files,
    launcher: &File,
    arguments: &[Vec<u8>],
    class_path: &[u8],
    directory: &[u8],
) -> Result<JavaStart> {
    let home = parent(parent(&launcher.path));
    let mut start = JavaStart::default();
    for folder in LIBRARIES.iter().map(|folder| join(home, folder)) {
        let Some(machine) = files.find(&join(&folder, b"server/libjvm.so")) else { continue };
        start.libraries.push(machine);
        start.libraries.extend(LOADED.iter().filter_map(|name| files.find(&join(&folder, name))));
        let archive = files.find(&join(&folder, b"server/classes.jsa"));
        start.parts.extend(archive.filter(|file| file.size <= WHOLE_BYTES).map(whole));
        break;
    }
    start.parts.extend(READ.iter().filter_map(|path| files.find(&join(home, path))).map(whole));
    if let Some(modules) = files.find(&join(home, b"lib/modules")) {
        let index = index_of_modules(&files.read(&modules, 0..MODULES_HEADER)?).min(modules.size);
        start.parts.extend((index > 0).then(|| (modules, std::iter::once(0..index).collect())));
    }
    for jar in jars(files, arguments, class_path, directory) {
        let parts = parts_of_jar(files, &jar)?;
        start.parts.push((jar, parts));
    }
    Ok(start)
}

fn whole(file: File) -> (File, Vec<Range<u64>>) {
    let all = file.whole();
    (file, all)
}

/// The jars that the arguments name, or else the environment.
fn jars(files: &dyn Files, arguments: &[Vec<u8>], class_path: &[u8], directory: &[u8]) -> Vec<File> {
    let mut path = class_path;
    let mut named: Vec<&[u8]> = Vec::new();
    let mut words = arguments.iter().map(Vec::as_slice);
    while let Some(word) = words.next() {
        match word {
            b"-jar" => {
                // The class path is that of the jar's manifest, and what follows are arguments of its program.
                path = words.next().unwrap_or_default();
                break;
            }
            b"-cp" | b"-classpath" | b"--class-path" => path = words.next().unwrap_or_default(),
            // The main class ends the options, and a word of a script before them may stand for some.
            _ if !word.starts_with(b"-") && path != class_path => break,
            _ => {
                if let Some(value) = word.strip_prefix(b"--class-path=") {
                    path = value;
                }
                let agent = word.strip_prefix(b"-javaagent:").unwrap_or_default();
                named.extend(agent.split(|byte| *byte == b'=').next().filter(|name| !name.is_empty()));
            }
        }
    }
    named.extend(path.split(|byte| *byte == b':').filter(|name| !name.is_empty()).take(JARS));
    let mut found = Vec::new();
    for name in named {
        let path = join(directory, name);
        match path.strip_suffix(b"/*") {
            Some(folder) => {
                let mut names = files.list(folder).unwrap_or_default();
                names.sort();
                let jars = names.iter().filter(|name| name.ends_with(b".jar"));
                found.extend(jars.filter_map(|name| files.find(&join(folder, name))).take(JARS));
            }
            None => found.extend(files.find(&path).filter(|file| file_name(&file.path).ends_with(b".jar"))),
        }
    }
    found.truncate(JARS);
    found
}

/// The parts of a jar that are read before any class: its directory, at the end.
fn parts_of_jar(files: &dyn Files, jar: &File) -> Result<Vec<Range<u64>>> {
    if jar.size <= JAR_BYTES {
        return Ok(jar.whole());
    }
    let tail = files.read(jar, jar.size.saturating_sub(END_BYTES)..jar.size)?;
    let at = tail.windows(END_OF_DIRECTORY.len()).rposition(|window| window == END_OF_DIRECTORY);
    let end = at.and_then(|at| tail.get(at..)).unwrap_or_default();
    let (size, offset) = (number(end, DIRECTORY_SIZE_AT), number(end, DIRECTORY_OFFSET_AT));
    let is_sound = size > 0 && u64::from(size) <= DIRECTORY_BYTES && u64::from(offset) < jar.size;
    let start = if is_sound { u64::from(offset) } else { jar.size.saturating_sub(END_BYTES) };
    // At least: an end that lies about its directory may begin it anywhere.
    Ok(std::iter::once(start.max(jar.size.saturating_sub(DIRECTORY_BYTES + END_BYTES))..jar.size).collect())
}

/// Bytes of the index at the beginning of `modules`.
fn index_of_modules(header: &[u8]) -> u64 {
    if number(header, 0) != MODULES_MAGIC {
        return 0;
    }
    let table = u64::from(number(header, TABLE_LENGTH_AT)).saturating_mul(TABLE_ENTRY);
    let names = u64::from(number(header, LOCATIONS_AT)) + u64::from(number(header, STRINGS_AT));
    (MODULES_HEADER + table + names).min(DIRECTORY_BYTES)
}

/// The little-endian number there; 0 beyond the end.
fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::MapFiles;

    fn machine() -> MapFiles {
        let mut modules = vec![0_u8; 4096];
        for (at, value) in [(0, MODULES_MAGIC), (TABLE_LENGTH_AT, 10), (LOCATIONS_AT, 100), (STRINGS_AT, 50)] {
            modules[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        MapFiles::default()
            .with("/jvm/bin/java", "ELF")
            .with("/jvm/lib/server/libjvm.so", "ELF")
            .with("/jvm/lib/server/classes.jsa", "classes")
            .with("/jvm/lib/libjava.so", "ELF")
            .with("/jvm/lib/libawt.so", "ELF")
            .with("/jvm/lib/jvm.cfg", "-server KNOWN\n")
            .with("/jvm/lib/modules", modules)
    }

    fn started(files: &MapFiles, arguments: &[&str], class_path: &str) -> JavaStart {
        let arguments: Vec<Vec<u8>> = arguments.iter().map(|word| word.as_bytes().to_vec()).collect();
        let launcher = files.find(b"/jvm/bin/java").unwrap();
        start(files, &launcher, &arguments, class_path.as_bytes(), b"/app").unwrap()
    }

    fn jars(files: &MapFiles, arguments: &[&str], class_path: &str) -> Vec<String> {
        let parts = started(files, arguments, class_path).parts;
        let paths = parts.into_iter().map(|(file, _)| String::from_utf8(file.path).unwrap());
        paths.filter(|path| path.ends_with(".jar")).collect()
    }

    /// A jar with a directory of this size and offset, after so much content.
    fn jar(content: usize, size: u32, offset: u32) -> Vec<u8> {
        let mut jar = vec![7; content];
        jar.extend_from_slice(END_OF_DIRECTORY);
        jar.extend_from_slice(&[0; 8]);
        jar.extend_from_slice(&size.to_le_bytes());
        jar.extend_from_slice(&offset.to_le_bytes());
        jar.extend_from_slice(&[0; 2]);
        jar
    }

    #[test]
    fn a_virtual_machine_reads_its_library_its_classes_and_the_index_of_its_modules() {
        let JavaStart { libraries, parts } = started(&machine(), &["-version"], "");
        let libraries: Vec<_> = libraries.iter().map(|file| String::from_utf8_lossy(&file.path)).collect();
        assert_eq!(libraries, ["/jvm/lib/server/libjvm.so", "/jvm/lib/libjava.so"]);
        let parts: Vec<_> =
            parts.iter().map(|(file, parts)| (String::from_utf8_lossy(&file.path), &parts[0])).collect();
        let expected = [
            ("/jvm/lib/server/classes.jsa".into(), &(0..7)),
            ("/jvm/lib/jvm.cfg".into(), &(0..14)),
            ("/jvm/lib/modules".into(), &(0..28 + 80 + 150)),
        ];
        assert_eq!(parts, expected);
    }

    #[test]
    fn jars_are_named_by_options_or_the_environment() {
        let files = ["/app/app.jar", "/lib/a.jar", "/lib/b.jar", "/lib/notes.txt", "/agent.jar"]
            .iter()
            .fold(machine(), |files, path| files.with(path, "a jar"));
        assert_eq!(jars(&files, &["-Xmx1g", "-jar", "app.jar", "/lib/a.jar"], "/lib/b.jar"), ["/app/app.jar"]);
        assert_eq!(
            jars(&files, &["-cp", "/lib/*:/app/app.jar", "Main"], ""),
            ["/lib/a.jar", "/lib/b.jar", "/app/app.jar"]
        );
        let options = ["OPTIONS", "--class-path=/lib/b.jar", "Main", "-cp", "/lib/a.jar"];
        assert_eq!(jars(&files, &options, ""), ["/lib/b.jar"]);
        assert_eq!(jars(&files, &["-javaagent:/agent.jar=x", "Main"], "/lib/a.jar"), ["/agent.jar", "/lib/a.jar"]);
        assert_eq!(jars(&files, &["-jar"], ""), [""; 0]);
    }

    #[test]
    fn of_a_large_jar_its_directory_is_read_whatever_its_end_claims() {
        const CONTENT: u32 = 6 << 20;
        let content = u64::from(CONTENT);
        let end = content + 22;
        for (size, offset, start) in [
            (1000, CONTENT - 1000, content - 1000),
            (0, 0, end - END_BYTES),
            (1000, u32::MAX, end - END_BYTES),
            (u32::MAX, 0, end - END_BYTES),
            (1000, 0, end - DIRECTORY_BYTES - END_BYTES),
        ] {
            let files = machine().with("/app/app.jar", jar(CONTENT as usize, size, offset));
            let JavaStart { parts, .. } = started(&files, &["-jar", "app.jar"], "");
            assert_eq!(parts.last().unwrap().1[0], start..end, "{size} {offset}");
        }
        let without = machine().with("/app/app.jar", vec![7; CONTENT as usize]);
        let JavaStart { parts, .. } = started(&without, &["-jar", "app.jar"], "");
        assert_eq!(parts.last().unwrap().1[0], content - END_BYTES..content);
    }
}
