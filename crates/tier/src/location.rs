//! [`TierLocation`]: the URL of a tier.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use url::Url;

/// Longest URL: a bucket's name has at most 63 characters, and an object's name 1,024, of which tarpon needs 150.
const LONGEST: usize = 800;

/// Where a tier is: `s3://BUCKET[/PREFIX]`, `gs://BUCKET[/PREFIX]`, `az://CONTAINER[/PREFIX]` or `file:///FOLDER`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TierLocation {
    kind: Kind,
    /// Bucket or container; empty for a folder.
    bucket: String,
    /// Without slashes at its ends. The absolute path for a folder.
    prefix: String,
}

/// The kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    S3,
    Google,
    Azure,
    Folder,
}

/// Why a URL names no tier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}: a tier is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER")]
pub struct InvalidLocation(&'static str);

impl TierLocation {
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The prefix of names in the bucket; empty for a folder.
    pub(crate) fn prefix(&self) -> &str {
        if self.kind == Kind::Folder { "" } else { &self.prefix }
    }

    /// The folder of a tier in a shared file system.
    pub fn folder(&self) -> Option<&Path> {
        (self.kind == Kind::Folder).then(|| Path::new(&self.prefix))
    }

    /// The tier in this folder. `None`: the path is relative, has `..`, is no UTF-8, or too long.
    pub fn of_folder(folder: PathBuf) -> Option<Self> {
        let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        if !folder.is_absolute() || !folder.components().all(is_plain) {
            return None;
        }
        // Without slashes at its end or in a row.
        let folder: PathBuf = folder.components().collect();
        let prefix = folder.into_os_string().into_string().ok()?;
        let location = Self { kind: Kind::Folder, bucket: String::new(), prefix };
        (location.to_string().len() <= LONGEST).then_some(location)
    }
}

impl Kind {
    const ALL: [(Self, &'static str); 4] =
        [(Self::S3, "s3"), (Self::Google, "gs"), (Self::Azure, "az"), (Self::Folder, "file")];

    fn scheme(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, scheme)| scheme)
    }
}

impl FromStr for TierLocation {
    type Err = InvalidLocation;

    fn from_str(text: &str) -> Result<Self, InvalidLocation> {
        if text.len() > LONGEST {
            return Err(InvalidLocation("the URL is too long"));
        }
        let (scheme, place) = text.split_once("://").ok_or(InvalidLocation("it is no URL"))?;
        let (kind, _) = *Kind::ALL
            .iter()
            .find(|(_, known)| scheme == *known)
            .ok_or(InvalidLocation("no kind of store has this scheme"))?;
        let url = Url::parse(text).map_err(|_| InvalidLocation("it is no URL"))?;
        let is_plain = url.username().is_empty() && url.password().is_none() && url.port().is_none();
        if !is_plain || url.query().is_some() || url.fragment().is_some() {
            return Err(InvalidLocation("it has more than a place: credentials belong into the environment"));
        }
        if kind == Kind::Folder {
            let folder = url.to_file_path().map_err(|()| InvalidLocation("the path is not absolute"))?;
            return Self::of_folder(folder).ok_or(InvalidLocation("the path is no UTF-8, or too long"));
        }
        // Not from the parsed URL, which resolves `..`, also as `%2e%2e`.
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        let prefix = prefix.trim_matches('/');
        let is_simple = |part: &str| {
            let is_name = part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
            is_name && !["", ".", ".."].contains(&part)
        };
        if !is_simple(bucket) {
            return Err(InvalidLocation("the bucket's name may have letters, digits, '-', '_' and '.' only"));
        }
        if !prefix.is_empty() && !prefix.split('/').all(is_simple) {
            return Err(InvalidLocation("the prefix may have letters, digits, '-', '_', '.' and '/' only"));
        }
        Ok(Self { kind, bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

impl fmt::Display for TierLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, bucket, prefix } = self;
        match kind {
            // With `%23` for `#`, and so on: what is written can be read.
            Kind::Folder => match Url::from_file_path(prefix) {
                Ok(url) => url.fmt(f),
                Err(()) => write!(f, "file://{prefix}"),
            },
            _ if prefix.is_empty() => write!(f, "{}://{bucket}", kind.scheme()),
            _ => write!(f, "{}://{bucket}/{prefix}", kind.scheme()),
        }
    }
}

impl TryFrom<String> for TierLocation {
    type Error = InvalidLocation;

    fn try_from(text: String) -> Result<Self, InvalidLocation> {
        text.parse()
    }
}

impl From<TierLocation> for String {
    fn from(location: TierLocation) -> Self {
        location.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_read_as_it_is_written() {
        for (text, written) in [
            ("s3://bucket", "s3://bucket"),
            ("s3://bucket/", "s3://bucket"),
            ("gs://bucket/team/one/", "gs://bucket/team/one"),
            ("az://container/x", "az://container/x"),
            ("file:///srv/tarpon", "file:///srv/tarpon"),
        ] {
            let location: TierLocation = text.parse().unwrap();
            assert_eq!(location.to_string(), written);
            assert_eq!(written.parse(), Ok(location));
        }
        let folder: TierLocation = "file:///srv/tarpon".parse().unwrap();
        assert_eq!((folder.folder(), folder.prefix()), (Some(Path::new("/srv/tarpon")), ""));
    }

    #[test]
    fn a_folder_with_an_odd_name_is_written_so_that_it_is_read_again() {
        for name in ["/srv/a b", "/srv/100%", "/srv/%41", "/srv/a#b?c", "/srv/é", "/"] {
            let location = TierLocation::of_folder(name.into()).unwrap();
            let again: TierLocation = location.to_string().parse().unwrap();
            assert_eq!((again.folder(), &again), (Some(Path::new(name)), &location), "{location}");
            let sent = serde_json::to_string(&location).unwrap();
            assert_eq!(serde_json::from_str::<TierLocation>(&sent).unwrap(), location);
        }
        assert_eq!(TierLocation::of_folder("/srv//x/".into()), TierLocation::of_folder("/srv/x".into()));
        for name in ["srv", "/srv/../etc", &format!("/{}", "x".repeat(1_000))] {
            assert_eq!(TierLocation::of_folder(name.into()), None, "{name}");
        }
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for text in [
            "",
            "bucket",
            "s3:",
            "s3:///prefix",
            "http://host/x",
            "s3://user:secret@bucket/x",
            "s3://bucket/a?x=1",
            "s3://bucket/a//b",
            "s3://bucket/%2e%2e",
            "s3://bucket/a/../b",
            "s3://bucket/.",
            "s3://buck%65t/x",
            "s3://bucket\\x",
            " s3://bucket",
            "file:relative",
            "file:///srv/a?x=1",
            "file://host/srv",
            &format!("s3://bucket/{}", "x".repeat(1_000)),
        ] {
            assert!(text.parse::<TierLocation>().is_err(), "{text}");
        }
    }
}
