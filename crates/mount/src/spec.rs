//! [`MountSpec`]: what a caller wants mounted, and how.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tarpon_fs::Objects;

/// How an image is put into the kernel's hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Overlayfs over an EROFS image, the local objects and one FUSE connection for the others.
    Native,
    /// One FUSE file system that serves the merged tree.
    Fuse,
}

impl Mode {
    /// The word for it on the command line and in reports.
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

/// Which mode the caller asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeChoice {
    /// `native` where it works, else `fuse`.
    #[default]
    Auto,
    /// This one or an error.
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
    /// In mode `native` it is the upper of the very overlay that has the image's lowers: changing the mode or owner of a file
    /// fetches and copies no data. The price are overlayfs' own marks in it, which nobody will read.
    Temporary,
    /// To this directory, which is kept. Its work directory lies beside it.
    ///
    /// It belongs to a plain overlay on top of the read-only image, so that it holds whole files only and any tool
    /// that knows overlayfs can read it. The price: changing the mode of a file copies the file.
    Upper(PathBuf),
}

/// A finished EROFS file of the store, verified, never to be written again: for the kernel to mount, and its bytes to be
/// served from.
#[derive(Debug, Clone)]
pub struct TreeFile {
    /// The file.
    pub file: Arc<File>,
    /// What is in it, mapped in memory.
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
    /// How.
    pub mode: ModeChoice,
    /// Whether and where writes go.
    pub writable: Writable,
    /// Let setuid bits and file capabilities of the image work.
    pub suid: bool,
    /// Let device nodes of the image work.
    pub dev: bool,
    /// Whether the kernel may read ahead of readers. Not where only parts of files are brought early (a boot pack): what it reads
    /// ahead lies just outside of them.
    pub read_ahead: bool,
    /// Somebody sees every read of this mount.
    pub watch: Option<Watch>,
}

/// Reads go through these objects instead of those of the host, and all of them do: no file is passed through to the kernel, and
/// it reads nothing ahead. In mode `fuse` only.
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
