//! The `package.json` files of packages, and what they say about the package's modules.

use std::collections::HashMap;
use std::rc::Rc;

use serde_json::{Map, Value};

use super::super::files::{File, Files, file_name, join, parent};
use super::super::listings::Listings;
use super::specifiers::Kind;
use crate::error::Result;

/// Bytes of one `package.json`.
const PACKAGE_BYTES: u64 = 1 << 20;
/// Bytes of all of them that are parsed: four thousand of usual length. Parsed JSON needs a multiple of them in memory.
const ALL_PACKAGE_BYTES: u64 = 8 << 20;
/// Names in `exports` or `imports`, and values that are looked at for one target. Packages have hundreds.
const PARTS: usize = 1024;
/// Directories above a module.
pub(super) const ABOVE: usize = 64;

/// A `package.json`.
pub(super) struct Package {
    pub(super) file: File,
    /// Where it is.
    pub(super) directory: Vec<u8>,
    pub(super) name: Option<String>,
    pub(super) main: Option<String>,
    exports: Option<Value>,
    imports: Option<Value>,
}

impl Package {
    pub(super) fn has_exports(&self) -> bool {
        self.exports.is_some()
    }

    /// The target of a part of the package: `.` or `./PART`.
    pub(super) fn exported(&self, part: &str, kind: Kind) -> Option<String> {
        match self.exports.as_ref()? {
            Value::Object(parts) if parts.keys().take(PARTS).any(|key| key.starts_with('.')) => {
                mapped(parts, part, kind)
            }
            all => (part == ".").then(|| target(all, kind)).flatten(),
        }
    }

    /// The target of an internal name: `#NAME`.
    pub(super) fn imported(&self, name: &str, kind: Kind) -> Option<String> {
        mapped(self.imports.as_ref()?.as_object()?, name, kind)
    }
}

/// The target of a name in a map, in which names may have one `*`.
fn mapped(parts: &Map<String, Value>, name: &str, kind: Kind) -> Option<String> {
    if let Some(value) = parts.get(name) {
        return target(value, kind);
    }
    let matching = parts.iter().take(PARTS).filter_map(|(key, value)| {
        let (before, after) = key.split_once('*')?;
        let middle = name.strip_prefix(before)?.strip_suffix(after).filter(|middle| !middle.is_empty())?;
        Some((before.len(), middle, value))
    });
    let (_, middle, value) = matching.max_by_key(|(length, ..)| *length)?;
    Some(target(value, kind)?.replacen('*', middle, 1))
}

/// The first target whose conditions hold. The order of conditions in the file is not known: the most special one is taken.
fn target(value: &Value, kind: Kind) -> Option<String> {
    let conditions = match kind {
        Kind::Require => ["node", "require", "default"],
        Kind::Import => ["node", "import", "default"],
    };
    // The next one last.
    let mut left = vec![value];
    for _ in 0..PARTS {
        match left.pop()? {
            Value::String(target) => return Some(target.clone()),
            Value::Array(values) => left.extend(values.iter().take(PARTS).rev()),
            Value::Object(values) => {
                left.extend(conditions.iter().rev().filter_map(|condition| values.get(*condition)))
            }
            _ => {}
        }
    }
    None
}

/// The packages that were looked at.
#[derive(Default)]
pub(super) struct Packages {
    known: HashMap<Vec<u8>, Option<Rc<Package>>>,
    bytes: u64,
}

impl Packages {
    /// The package that a directory is.
    pub(super) fn at(
        &mut self,
        files: &dyn Files,
        listings: &mut Listings<'_>,
        directory: &[u8],
    ) -> Result<Option<Rc<Package>>> {
        if let Some(known) = self.known.get(directory) {
            return Ok(known.clone());
        }
        let package = match listings.find(&join(directory, b"package.json")) {
            Some(file) => Some(Rc::new(self.parse(files, file, directory)?)),
            None => None,
        };
        self.known.insert(directory.to_vec(), package.clone());
        Ok(package)
    }

    /// The package of which the modules in a directory are part.
    pub(super) fn around(
        &mut self,
        files: &dyn Files,
        listings: &mut Listings<'_>,
        directory: &[u8],
    ) -> Result<Option<Rc<Package>>> {
        let mut here = directory;
        for _ in 0..ABOVE {
            if file_name(here) == b"node_modules" {
                break;
            }
            if let Some(package) = self.at(files, listings, here)? {
                return Ok(Some(package));
            }
            if here.is_empty() {
                break;
            }
            here = parent(here);
        }
        Ok(None)
    }

    /// A file that is too long, or is not JSON, counts as empty.
    fn parse(&mut self, files: &dyn Files, file: File, directory: &[u8]) -> Result<Package> {
        let bytes = self.bytes.saturating_add(file.size);
        let mut value = Value::Null;
        if file.size <= PACKAGE_BYTES && bytes <= ALL_PACKAGE_BYTES {
            self.bytes = bytes;
            value = serde_json::from_slice(&files.read(&file, 0..file.size)?).unwrap_or_default();
        }
        let mut field = |name: &str| value.get_mut(name).map(Value::take).filter(|value| !value.is_null());
        let text = |value: Value| value.as_str().map(str::to_owned);
        Ok(Package {
            directory: directory.to_vec(),
            name: field("name").and_then(text),
            main: field("main").and_then(text),
            exports: field("exports"),
            imports: field("imports"),
            file,
        })
    }
}
