//! The files of the repository, by kind.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::manifest::Manifest;
use super::source::Source;

/// The input of the rules.
pub(super) struct Repository {
    /// All tracked text files.
    pub(super) files: Vec<File>,
    /// The paths of tracked files that are not text.
    pub(super) binaries: Vec<String>,
    /// The Rust files among them.
    pub(super) sources: Vec<Source>,
    /// The packages.
    pub(super) manifests: Vec<Manifest>,
}

/// A tracked text file; the path is relative to the root, with slashes.
pub(super) struct File {
    pub(super) path: String,
    pub(super) text: String,
}

impl File {
    /// The lines with their numbers.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(i, line)| (i + 1, line))
    }

    pub(super) fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|e| e == extension)
    }
}

impl Repository {
    /// Reads the files that git tracks or would track.
    pub(super) fn load(root: &Path) -> Result<Self> {
        let output = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .context("cannot start git")?;
        if !output.status.success() {
            bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr));
        }
        let (mut files, mut binaries) = (Vec::new(), Vec::new());
        for name in output.stdout.split(|b| *b == 0).filter(|n| !n.is_empty()) {
            let path = std::str::from_utf8(name).context("a file name is not UTF-8")?;
            // A tracked file may be deleted in the work tree.
            let Ok(bytes) = fs::read(root.join(path)) else { continue };
            match String::from_utf8(bytes) {
                Ok(text) => files.push(File { path: path.to_owned(), text }),
                Err(_) => binaries.push(path.to_owned()),
            }
        }
        Ok(Self::new(files, binaries))
    }

    pub(super) fn new(files: Vec<File>, binaries: Vec<String>) -> Self {
        let rust = files.iter().filter(|f| f.has_extension("rs"));
        let mut sources: Vec<_> = rust.map(|f| Source::new(&f.path, &f.text)).collect();
        mark_test_modules(&mut sources);
        let manifests = files.iter().filter_map(|f| Manifest::new(&f.path, &f.text)).collect();
        Self { files, binaries, sources, manifests }
    }

    pub(super) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|f| f.path == path)
    }

    /// The names of the folders in crates/.
    pub(super) fn crates(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.manifests.iter().filter_map(|m| m.crate_name()).collect();
        names.sort_unstable();
        names
    }

    /// The sources of a crate without tests.
    pub(super) fn code_of<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a Source> {
        let folder = format!("crates/{name}/src/");
        self.sources.iter().filter(move |s| !s.is_test && s.path.starts_with(&folder))
    }
}

/// Marks files that another one declares as `#[cfg(test)] mod name;` as tests.
fn mark_test_modules(sources: &mut [Source]) {
    let declared: Vec<String> = sources.iter().flat_map(Source::declared_test_modules).collect();
    for source in sources {
        source.is_test |= declared.iter().any(|module| {
            source.path.strip_prefix(module.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        });
    }
}
