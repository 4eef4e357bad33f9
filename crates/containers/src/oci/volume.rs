//! [`Volume`] and [`Tmpfs`]: the mounts of a container that the user asks for.

use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// Options for a directory of the host: whether containers share it, for SELinux.
const RELABEL: [&str; 2] = ["z", "Z"];

/// Options for every mount.
const VOLUME_OPTIONS: [&str; 8] = ["ro", "rw", "nosuid", "suid", "nodev", "dev", "noexec", "exec"];

/// A directory or file mounted in a container: `SOURCE:DESTINATION[:OPTIONS]`, or `DESTINATION` alone, which is a volume as an image
/// declares them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Absolute path on the host. `None`: in the container's writable layer.
    pub source: Option<PathBuf>,
    /// Absolute path in the container.
    pub destination: PathBuf,
    /// `ro` and the like.
    pub options: Vec<String>,
}

/// A file system in memory: `DESTINATION[:OPTIONS]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tmpfs {
    /// Absolute path in the container.
    pub destination: PathBuf,
    /// `size=1m` and the like.
    pub options: Vec<String>,
}

impl Volume {
    /// Parses `text`. A relative path of the host begins with `.` and is resolved from `base`.
    ///
    /// # Errors
    /// One line: invalid or not supported.
    pub fn parse_in(text: &str, base: &Path) -> Result<Self, String> {
        let is_relative = text.split(['/', ':']).next().is_some_and(|first| [".", ".."].contains(&first));
        if !is_relative || !text.contains(':') {
            return text.parse();
        }
        let base = base.to_str().filter(|base| !base.contains(':'));
        let base = base.ok_or("the current directory's name has a colon or no UTF-8 in it: name the whole path")?;
        format!("{}/{text}", base.trim_end_matches('/')).parse()
    }
}

impl FromStr for Volume {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let (source, place, options) = match parts[..] {
            [place] => (None, place, ""),
            [source, place] => (Some(source), place, ""),
            [source, place, options] => (Some(source), place, options),
            _ => return Err("expected SOURCE:DESTINATION[:OPTIONS]".to_owned()),
        };
        if let Some(source) = source.filter(|source| !source.starts_with('/')) {
            let named = "a path of the host begins with / or ./, and there are no volumes with names";
            return Err(format!("{source:?} is no path of the host: {named}"));
        }
        let known = |option: &str| VOLUME_OPTIONS.contains(&option) || RELABEL.contains(&option);
        let mut options = split(options, known)?;
        // Containers have no SELinux label of their own that a directory would have to match.
        options.retain(|option| !RELABEL.contains(&option.as_str()));
        Ok(Self { source: source.map(PathBuf::from), destination: destination(place)?, options })
    }
}

impl FromStr for Tmpfs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (place, options) = text.split_once(':').unwrap_or((text, ""));
        let known = |option: &str| match option.split_once('=') {
            Some((name, value)) => ["size", "mode", "nr_inodes"].contains(&name) && !value.is_empty(),
            None => VOLUME_OPTIONS.contains(&option),
        };
        Ok(Self { destination: destination(place)?, options: split(options, known)? })
    }
}

fn split(options: &str, is_known: impl Fn(&str) -> bool) -> Result<Vec<String>, String> {
    let options: Vec<String> = options.split(',').filter(|option| !option.is_empty()).map(str::to_owned).collect();
    match options.iter().find(|option| !is_known(option)) {
        None => Ok(options),
        Some(odd) => Err(format!("the option {odd:?} of a mount is not offered")),
    }
}

/// Parses a path in a container, in canonical spelling.
pub(super) fn destination(text: &str) -> Result<PathBuf, String> {
    let path: PathBuf = Path::new(text).components().collect();
    let is_plain = path.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
    if !path.is_absolute() || !is_plain || path.parent().is_none() {
        return Err(format!("{text:?} is no place for a mount: expected an absolute path without .. and not /"));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_a_source_a_destination_and_options() {
        let volume: Volume = "/srv/data:/data//x/:ro,noexec".parse().unwrap();
        assert_eq!(volume.source.as_deref(), Some(Path::new("/srv/data")));
        assert_eq!(volume.destination, Path::new("/data/x"));
        assert_eq!(volume.options, ["ro", "noexec"]);
        assert_eq!("/data".parse::<Volume>().unwrap().source, None);
    }

    #[test]
    fn what_is_not_supported_is_an_error() {
        for (text, why) in [
            ("data:/data", "no volumes with names"),
            ("./data:/data", "no path of the host"),
            ("/a:data", "no place for a mount"),
            ("/a:/", "no place for a mount"),
            ("/a:/b/../c", "no place for a mount"),
            ("/a:/b:U", "\"U\""),
            ("/a:/b:ro:rw", "expected SOURCE"),
            ("", "no place for a mount"),
        ] {
            let error = text.parse::<Volume>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!("/t:size=1m,mode=0700,ro".parse::<Tmpfs>().is_ok());
        assert!("/t:size=".parse::<Tmpfs>().is_err() && "/t:uid=3".parse::<Tmpfs>().is_err());
    }

    #[test]
    fn a_relative_path_of_the_host_is_one_from_the_current_directory() {
        let source = |text: &str, base: &str| Volume::parse_in(text, Path::new(base)).map(|volume| volume.source);
        for (text, path) in
            [("./x:/x", "/here/./x"), ("../x:/x:ro", "/here/../x"), (".:/x", "/here/."), ("/x:/x", "/x")]
        {
            assert_eq!(source(text, "/here"), Ok(Some(path.into())), "{text}");
        }
        assert!(source("x:/x", "/here").unwrap_err().contains("./"));
        assert!(source("./x:/x", "/a:b").unwrap_err().contains("colon"));
        assert!(source(".", "/here").is_err() && source("..:/x:odd", "/here").is_err());
    }

    #[test]
    fn no_text_is_read_as_a_mount_outside_of_the_container() {
        for text in ["/a:/../b", "/a:..", "/a:/./b", "/a://b", "/a:/b/.", ":/b", "/a:", ":", "::", "/a:/b:", "/a:/b:,"]
        {
            if let Ok(volume) = text.parse::<Volume>() {
                assert!(volume.destination.is_absolute() && volume.destination.parent().is_some(), "{text}");
                assert!(!volume.destination.components().any(|part| part == Component::ParentDir), "{text}");
            }
        }
    }
}
