//! [`MountOption`]: `--mount type=…,source=…,destination=…`, the long form of `--volume` and `--tmpfs`.

use std::path::Path;

use super::{Tmpfs, Volume};

/// The value of one `--mount`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountOption {
    /// `type=bind`, or `type=volume` without a source.
    Volume(Volume),
    /// `type=tmpfs`.
    Tmpfs(Tmpfs),
}

/// The parts of one `--mount`.
#[derive(Default)]
struct Parts<'a> {
    kind: Option<&'a str>,
    source: Option<&'a str>,
    destination: Option<&'a str>,
    options: Vec<String>,
}

impl MountOption {
    /// Parses `text`. Relative paths of the host are resolved from `base`.
    ///
    /// # Errors
    /// One line: invalid or not supported.
    pub fn parse_in(text: &str, base: &Path) -> Result<Self, String> {
        let mut parts = Parts::default();
        for part in text.split(',') {
            parts.take(part)?;
        }
        let Parts { kind, source, destination, options } = parts;
        let destination = destination.ok_or("it names no destination")?;
        if let Some(odd) = [source, Some(destination)].into_iter().flatten().find(|path| path.contains(':')) {
            return Err(format!("{odd:?} has a colon in it"));
        }
        let options = options.join(",");
        match (kind.unwrap_or("volume"), source) {
            ("tmpfs", None) => format!("{destination}:{options}").parse().map(Self::Tmpfs),
            ("tmpfs", Some(_)) => Err("a tmpfs has no source".to_owned()),
            ("bind", None) => Err("a bind mount needs a source".to_owned()),
            ("bind", Some(source)) => {
                // A source without a slash is a relative directory here, unlike with `--volume`.
                let source = if source.contains('/') { source.to_owned() } else { format!("./{source}") };
                Volume::parse_in(&format!("{source}:{destination}:{options}"), base).map(Self::Volume)
            }
            ("volume", None) if options.is_empty() => Volume::parse_in(destination, base).map(Self::Volume),
            ("volume", None) => Err("a volume of the container's own has no options".to_owned()),
            ("volume", Some(_)) => Err("there are no volumes with names: use type=bind with a directory".to_owned()),
            (kind, _) => Err(format!("the type {kind:?} of a mount is not offered: expected bind, tmpfs or volume")),
        }
    }
}

impl<'a> Parts<'a> {
    fn take(&mut self, part: &'a str) -> Result<(), String> {
        let (name, value) = part.split_once('=').map_or((part, None), |(name, value)| (name, Some(value)));
        let needed = || value.filter(|value| !value.is_empty()).ok_or_else(|| format!("{name} needs a value"));
        let is_on = || match value {
            None | Some("true" | "1") => Ok(true),
            Some("false" | "0") => Ok(false),
            Some(odd) => Err(format!("{name}={odd}: expected true or false")),
        };
        match name {
            "type" => self.kind = Some(needed()?),
            "source" | "src" => self.source = Some(needed()?),
            "destination" | "dst" | "target" => self.destination = Some(needed()?),
            "readonly" | "ro" => self.options.push(if is_on()? { "ro" } else { "rw" }.to_owned()),
            "tmpfs-size" => self.options.push(format!("size={}", needed()?)),
            "tmpfs-mode" => self.options.push(format!("mode={}", needed()?)),
            "relabel" => self.options.push(match needed()? {
                "shared" => "z".to_owned(),
                "private" => "Z".to_owned(),
                odd => return Err(format!("relabel={odd}: expected shared or private")),
            }),
            // Every mount is private.
            "bind-propagation" if matches!(value, Some("private" | "rprivate")) => {}
            _ => return Err(format!("{part:?} is not offered")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<MountOption, String> {
        MountOption::parse_in(text, Path::new("/here"))
    }

    fn volume(text: &str) -> Result<MountOption, String> {
        Volume::parse_in(text, Path::new("/here")).map(MountOption::Volume)
    }

    #[test]
    fn a_mount_is_what_the_short_options_say() {
        assert_eq!(parsed("type=bind,source=/srv,destination=/data"), volume("/srv:/data"));
        assert_eq!(parsed("type=bind,src=www,dst=/data,ro,relabel=shared"), volume("./www:/data:ro,z"));
        assert_eq!(parsed("type=bind,src=/srv,target=/data,readonly=false"), volume("/srv:/data:rw"));
        assert_eq!(parsed("destination=/data"), volume("/data"));
        let tmpfs = "/data:size=1m,mode=1777".parse().map(MountOption::Tmpfs);
        assert_eq!(parsed("type=tmpfs,dst=/data,tmpfs-size=1m,tmpfs-mode=1777"), tmpfs);
    }

    #[test]
    fn what_is_not_supported_is_an_error() {
        for (text, why) in [
            ("type=bind,dst=/data", "needs a source"),
            ("type=bind,src=/srv", "no destination"),
            ("type=volume,src=data,dst=/data", "no volumes with names"),
            ("type=volume,dst=/data,ro", "no options"),
            ("type=tmpfs,src=/a,dst=/data", "no source"),
            ("type=image,dst=/data", "expected bind, tmpfs or volume"),
            ("type=bind,src=/srv,dst=/data,bind-propagation=shared", "not offered"),
            ("type=bind,src=/srv:/etc,dst=/data", "colon"),
            ("type=bind,src=/srv,dst=data", "no place for a mount"),
            ("type=bind,src=/srv,dst=/data,ro=maybe", "true or false"),
            ("type=bind,src=,dst=/data", "src needs a value"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
