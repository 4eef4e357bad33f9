//! The configuration of a server in the folder of its name below `/etc`, and the modules that it names.
//!
//! Packages of nginx, Apache and others load modules by files in such folders; folders `…-available` have what could be enabled.

use super::files::{File, Files, file_name, join};
use crate::error::Result;

/// Files of a configuration. That of Apache has 150.
const FILES: usize = 512;
/// Directories of a configuration.
const DIRECTORIES: usize = 256;
/// Directories below each other.
const DEPTH: usize = 4;
/// Names in one directory.
const NAMES: usize = 4096;
/// Bytes of a configuration file that is read.
const FILE_BYTES: u64 = 256 << 10;
/// Where modules are that are named without a directory: below these, in a folder of the program's name.
const MODULES: [&[u8]; 3] = [b"/usr/lib", b"/usr/lib64", b"/usr/local/lib"];

/// The configuration files of the program of this name, each followed by the modules that it names.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn read(files: &dyn Files, program: &[u8]) -> Result<Vec<File>> {
    let mut found = Vec::new();
    if program.is_empty() || program.starts_with(b".") {
        return Ok(found);
    }
    let mut left = vec![(join(b"/etc", program), 0)];
    let mut directories = 0;
    while let Some((directory, depth)) = left.pop() {
        directories += 1;
        if directories > DIRECTORIES {
            break;
        }
        let mut names = files.list(&directory).unwrap_or_default();
        names.sort();
        for name in names.iter().filter(|name| !name.ends_with(b"-available")).take(NAMES) {
            let path = join(&directory, name);
            if let Some(file) = files.find(&path).filter(|file| file.size <= FILE_BYTES) {
                let modules = modules(files, program, &file)?;
                found.push(file);
                found.extend(modules);
            } else if depth + 1 < DEPTH && left.len() < DIRECTORIES {
                left.push((path, depth + 1));
            }
            if found.len() >= FILES {
                return Ok(found);
            }
        }
    }
    Ok(found)
}

/// The modules that a configuration file names: words that end like libraries.
fn modules(files: &dyn Files, program: &[u8], file: &File) -> Result<Vec<File>> {
    let text = files.read(file, 0..FILE_BYTES)?;
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii_start().starts_with(b"#"));
    let words = lines.flat_map(|line| line.split(|byte| byte.is_ascii_whitespace() || b";\"'=".contains(byte)));
    let words = words.filter(|word| word.ends_with(b".so")).take(FILES);
    let find = |word: &[u8]| {
        if word.starts_with(b"/") {
            return files.find(word);
        }
        let name = file_name(word);
        let folders = MODULES.iter().map(|folder| [folder, b"/".as_slice(), program].concat());
        folders
            .flat_map(|folder| [[&*folder, b"/modules"].concat(), folder])
            .find_map(|folder| files.find(&join(&folder, name)))
    };
    Ok(words.filter_map(find).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::MapFiles;

    #[test]
    fn a_server_reads_the_folder_of_its_name_and_loads_the_modules_that_are_enabled_there() {
        let files = MapFiles::default()
            .with("/etc/server/server.conf", "include modules-enabled/*.conf;\n# load_module off.so;\n")
            .with("/etc/server/modules-enabled/a.conf", "load_module modules/a.so;\n")
            .with("/etc/server/modules-enabled/b.load", "LoadModule b /opt/b.so\n")
            .with("/etc/server/modules-available/c.conf", "load_module modules/c.so;\n")
            .with("/etc/other/other.conf", "x")
            .with("/usr/lib/server/modules/a.so", "a module")
            .with("/usr/lib/server/modules/c.so", "a module")
            .with("/usr/lib/server/modules/off.so", "a module")
            .with("/opt/b.so", "a module");
        let found = read(&files, b"server").unwrap();
        let paths: Vec<_> = found.iter().map(|file| String::from_utf8_lossy(&file.path)).collect();
        assert_eq!(
            paths,
            [
                "/etc/server/server.conf",
                "/etc/server/modules-enabled/a.conf",
                "/usr/lib/server/modules/a.so",
                "/etc/server/modules-enabled/b.load",
                "/opt/b.so",
            ]
        );
        assert!(read(&files, b"..").unwrap().is_empty());
    }
}
