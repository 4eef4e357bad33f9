//! [`MountSpec`]: what to mount, and how.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tarpon_fs::Objects;

/// How an image is presented to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Overlayfs over an EROFS image, the local objects and one FUSE connection for the others.
    Native,
    /// One FUSE file system that serves the merged tree.
    Fuse,
}

impl Mode {
    /// Name of the mode on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Fuse => "fuse",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The mode that the caller requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeChoice {
    /// `native` where it works, else `fuse`.
    #[default]
    Auto,
    /// This mode or an error.
    #[serde(untagged)]
    Only(Mode),
}

impl FromStr for ModeChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "native" => Ok(Self::Only(Mode::Native)),
            "fuse" => Ok(Self::Only(Mode::Fuse)),
            other => Err(format!("unknown mount mode {other:?}: use auto, native or fuse")),
        }
    }
}

impl fmt::Display for ModeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Only(mode) => mode.fmt(f),
        }
    }
}

/// Whether and where writes go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Writable {
    /// Nowhere: the mount is read-only.
    #[default]
    No,
    /// To a directory in the store that is removed at unmount.
    ///
    /// In mode `native` it is the upper of the same overlay that has the image's lowers: changing the mode or owner of a
    /// file fetches and copies no data. The cost is overlayfs' own metadata in it, which nothing else reads.
    Temporary,
    /// To this directory, which is kept. Its work directory lies beside it.
    ///
    /// It belongs to a plain overlay on top of the read-only image, so it holds whole files only, readable by any tool
    /// that supports overlayfs. The cost: changing the mode of a file copies the file.
    Upper(PathBuf),
    /// As [`Writable::Upper`], for content that need not survive a crash of the machine: nothing is synced to the disk (the mount option
    /// `volatile` of overlayfs).
    Discarded(PathBuf),
}

/// A finished EROFS file of the store, verified and immutable: the kernel mounts it, and its bytes are served.
#[derive(Debug, Clone)]
pub struct TreeFile {
    /// The file.
    pub file: Arc<File>,
    /// Its content, mapped into memory.
    pub bytes: Bytes,
}

/// One image to be mounted.
#[derive(Debug, Clone)]
pub struct MountSpec {
    /// The image's tree.
    pub tree: TreeFile,
    /// The store's directory of complete objects, `ab/cdef…`.
    pub objects: PathBuf,
    /// An existing directory.
    pub mountpoint: PathBuf,
    /// The requested mode.
    pub mode: ModeChoice,
    /// Whether and where writes go.
    pub writable: Writable,
    /// Whether setuid bits and file capabilities of the image take effect.
    pub suid: bool,
    /// Whether device nodes of the image work.
    pub dev: bool,
    /// Whether the kernel may read ahead of readers. Off where only parts of files are fetched early (a boot pack): the
    /// kernel would read just outside of those parts.
    pub read_ahead: bool,
    /// An observer of every read of this mount.
    pub watch: Option<Watch>,
}

/// Reads use these objects instead of those of the host, without exception: no file is passed through to the kernel, and
/// the kernel reads nothing ahead. In mode `fuse` only.
#[derive(Clone)]
pub struct Watch(pub Arc<dyn Objects>);

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_of_mode_is_one_word_in_every_spelling() {
        for word in ["auto", "native", "fuse"] {
            let choice: ModeChoice = word.parse().unwrap();
            assert_eq!(choice.to_string(), word);
            assert_eq!(serde_json::to_string(&choice).unwrap(), format!("\"{word}\""));
            assert_eq!(serde_json::from_str::<ModeChoice>(&format!("\"{word}\"")).unwrap(), choice);
        }
    }
}
