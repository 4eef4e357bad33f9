//! The files of a locale, which most interpreters and shells read if a variable names one.

use super::environment::Environment;
use super::files::{File, Files, join};

/// Variables that name a locale, in the order in which they count.
const VARIABLES: [&str; 3] = ["LC_ALL", "LC_CTYPE", "LANG"];
/// Locales without files.
const BUILT_IN: [&str; 3] = ["", "C", "POSIX"];
const DIRECTORY: &[u8] = b"/usr/lib/locale";
/// All locales of Debian in one file, of which a start reads parts; it is read whole only if it is small.
const ARCHIVE: &[u8] = b"/usr/lib/locale/locale-archive";
const ARCHIVE_BYTES: u64 = 4 << 20;
/// What the C library reads of a locale.
const PARTS: [&str; 12] = [
    "LC_CTYPE",
    "LC_COLLATE",
    "LC_NUMERIC",
    "LC_TIME",
    "LC_MESSAGES/SYS_LC_MESSAGES",
    "LC_MONETARY",
    "LC_ADDRESS",
    "LC_IDENTIFICATION",
    "LC_MEASUREMENT",
    "LC_PAPER",
    "LC_TELEPHONE",
    "LC_NAME",
];
/// Aliases of locales, and the index of character sets.
const OTHERS: [&[u8]; 4] = [
    b"/usr/share/locale/locale.alias",
    b"/usr/lib/x86_64-linux-gnu/gconv/gconv-modules.cache",
    b"/usr/lib/aarch64-linux-gnu/gconv/gconv-modules.cache",
    b"/usr/lib64/gconv/gconv-modules.cache",
];

/// The files of the locale of an environment.
pub(crate) fn files(files: &dyn Files, environment: Environment<'_>) -> Vec<File> {
    let name = VARIABLES.iter().find_map(|name| environment.get(name)).unwrap_or_default();
    if BUILT_IN.contains(&name) || name.contains('/') {
        return Vec::new();
    }
    // As the C library looks for it: `C.UTF-8` and `C.utf8` are the same.
    let (language, codes) = name.split_once('.').unwrap_or((name, ""));
    let codes: String =
        codes.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect();
    let name = if codes.is_empty() { language.to_owned() } else { format!("{language}.{codes}") };
    let directory = join(DIRECTORY, name.as_bytes());
    let parts = PARTS.iter().filter_map(|part| files.find(&join(&directory, part.as_bytes())));
    let archive = files.find(ARCHIVE).filter(|file| file.size <= ARCHIVE_BYTES);
    let others = OTHERS.iter().filter_map(|path| files.find(path));
    archive.into_iter().chain(parts).chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::MapFiles;

    #[test]
    fn the_files_of_the_locale_are_those_of_the_first_variable_that_names_one() {
        let image = MapFiles::default()
            .with("/usr/lib/locale/C.utf8/LC_CTYPE", "x")
            .with("/usr/lib/locale/de_DE.utf8/LC_CTYPE", "x")
            .with("/usr/share/locale/locale.alias", "x");
        let found = |variables: &[&str]| -> Vec<String> {
            let variables: Vec<String> = variables.iter().map(|line| (*line).to_owned()).collect();
            let found = files(&image, Environment(&variables));
            found.into_iter().map(|file| String::from_utf8(file.path).unwrap()).collect()
        };
        let alias = "/usr/share/locale/locale.alias";
        assert_eq!(found(&["LANG=C.UTF-8"]), ["/usr/lib/locale/C.utf8/LC_CTYPE", alias]);
        assert_eq!(found(&["LANG=C.UTF-8", "LC_ALL=de_DE.utf-8"]), ["/usr/lib/locale/de_DE.utf8/LC_CTYPE", alias]);
        assert_eq!(found(&["LANG=C.UTF-8", "LC_ALL=C"]), [""; 0]);
        assert_eq!(found(&["PATH=/bin"]), [""; 0]);
    }
}
