//! `php.ini`, the files beside it, and the extensions that they name.

use super::super::files::{File, file_name, join, parent};
use super::super::listings::Listings;
use super::super::sources::Sources;
use crate::error::Result;

/// Files of a configuration. That of Debian has about 40.
const FILES: usize = 512;
/// Directories that are searched for extensions.
const DIRECTORIES: usize = 64;
/// Folders with parts of a configuration, and the endings of those.
const PARTS: [&[u8]; 4] = [b"conf.d", b"php.d", b"php-fpm.d", b"pool.d"];
const ENDINGS: [&[u8]; 2] = [b".ini", b".conf"];
/// Settings that name extensions.
const EXTENSION: [&[u8]; 2] = [b"extension", b"zend_extension"];

/// The files of the configuration, each followed by the extensions that it names.
///
/// # Errors
/// The content of a file cannot be fetched.
pub(super) fn read(
    listings: &mut Listings<'_>,
    sources: &mut Sources<'_>,
    interpreter: &[u8],
    interface: &[u8],
) -> Result<Vec<File>> {
    let directories = extension_directories(listings, interpreter);
    let mut found = Vec::new();
    for path in files(listings, interface).into_iter().take(FILES) {
        let Some(file) = listings.find(&path) else { continue };
        let text = sources.read(&file)?;
        found.push(file);
        for name in extensions(&text).take(FILES) {
            let library = if name.ends_with(b".so") { name.to_vec() } else { [name, b".so"].concat() };
            let paths = directories.iter().map(|directory| join(directory, &library));
            found.extend(paths.take(DIRECTORIES).find_map(|path| listings.find(&path)));
        }
    }
    found.truncate(FILES);
    Ok(found)
}

/// The paths that a configuration may have: of the official image, Alpine and Fedora, and Debian.
fn files(listings: &mut Listings<'_>, interface: &[u8]) -> Vec<Vec<u8>> {
    let mut folders = vec![b"/usr/local/etc/php".to_vec(), b"/usr/local/etc".to_vec(), b"/etc".to_vec()];
    folders.extend(listings.paths(b"/etc/php", |_| true).iter().map(|version| join(version, interface)));
    let is_version = |name: &[u8]| matches!(name.strip_prefix(b"php"), Some([digit, ..]) if digit.is_ascii_digit());
    folders.extend(listings.paths(b"/etc", is_version));
    let mut found = Vec::new();
    for folder in folders.into_iter().take(DIRECTORIES) {
        let own = [b"php-", interface, b".ini"].concat();
        let names: [&[u8]; 3] = [b"php.ini", &own, b"php-fpm.conf"];
        found.extend(names.map(|name| join(&folder, name)));
        for part in PARTS.map(|part| join(&folder, part)) {
            found.extend(listings.paths(&part, |name| ENDINGS.iter().any(|ending| name.ends_with(ending))));
        }
    }
    found
}

/// The extensions that a file enables.
fn extensions(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let line = line.split(|byte| *byte == b';').next()?;
        let at = line.iter().position(|byte| *byte == b'=')?;
        let (name, value) = line.split_at_checked(at)?;
        let is_quote = |byte: &u8| b"\"'= \t\r".contains(byte);
        let mut words = value.split(is_quote).filter(|word| !word.is_empty());
        words.next().filter(|_| EXTENSION.contains(&name.trim_ascii()))
    })
}

/// Where extensions are: of the official image, Debian, Alpine and Fedora.
fn extension_directories(listings: &mut Listings<'_>, interpreter: &[u8]) -> Vec<Vec<u8>> {
    let mut prefixes = vec![b"/usr/local".to_vec(), b"/usr".to_vec()];
    if !file_name(interpreter).starts_with(b"lib") {
        prefixes.insert(0, parent(parent(interpreter)).to_vec());
    }
    let mut found = Vec::new();
    for library in prefixes.iter().flat_map(|prefix| [b"lib".as_slice(), b"lib64"].map(|name| join(prefix, name))) {
        let named = listings.paths(&library, |name| name.starts_with(b"php"));
        for directory in named.into_iter().take(DIRECTORIES) {
            for directory in [join(&directory, b"extensions"), directory] {
                found.extend(listings.paths(&directory, |_| true));
            }
        }
    }
    found.truncate(DIRECTORIES);
    found
}
