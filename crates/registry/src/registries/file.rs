//! One file of the configuration, checked.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::Path;

use serde::Deserialize;

use super::error::RegistriesError;

/// Longest file: real ones have a few KiB.
const FILE_BYTES: u64 = 1 << 20;
/// Most mirrors of a registry: real ones have a few, and a request names all of them to a worker.
const MIRRORS: usize = 64;

/// The contents of a file.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) registries: Vec<RegistryEntry>,
    pub(super) search: Option<Vec<String>>,
    pub(super) mode: Option<Mode>,
    pub(super) aliases: BTreeMap<String, String>,
}

/// A `[[registry]]`.
#[derive(Debug, Clone)]
pub(super) struct RegistryEntry {
    pub(super) prefix: String,
    /// Replaces the prefix. Empty: the name is used as it is.
    pub(super) location: String,
    pub(super) insecure: bool,
    pub(super) blocked: bool,
    pub(super) mirror_by_digest_only: bool,
    pub(super) mirrors: Vec<Mirror>,
}

/// A `[[registry.mirror]]`.
#[derive(Debug, Clone)]
pub(super) struct Mirror {
    pub(super) location: String,
    pub(super) insecure: bool,
    pub(super) pull: Pull,
}

/// The kinds of names that a mirror is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Pull {
    #[default]
    #[serde(alias = "")]
    All,
    DigestOnly,
    TagOnly,
}

/// Whether several search registries may be tried for a short name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    /// All of them.
    Disabled,
    /// Podman asks on a terminal, and else tries all.
    #[default]
    #[serde(alias = "")]
    Permissive,
    /// Only the user decides.
    Enforcing,
}

/// A file as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Written {
    registry: Vec<WrittenRegistry>,
    unqualified_search_registries: Option<Vec<String>>,
    short_name_mode: Option<Mode>,
    aliases: BTreeMap<String, String>,
    /// Version 1 of the format.
    registries: FirstVersion,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct WrittenRegistry {
    prefix: String,
    location: String,
    insecure: bool,
    blocked: bool,
    mirror_by_digest_only: bool,
    mirror: Vec<WrittenMirror>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct WrittenMirror {
    location: String,
    insecure: bool,
    pull_from_mirror: Option<Pull>,
}

/// `[registries.search]`, `[registries.insecure]` and `[registries.block]`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FirstVersion {
    search: Hosts,
    insecure: Hosts,
    block: Hosts,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Hosts {
    registries: Vec<String>,
}

impl Contents {
    /// Reads a file. None if it does not exist and need not.
    pub(super) fn read(file: &Path, must_exist: bool) -> Result<Option<Self>, RegistriesError> {
        let text = match text(file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !must_exist => return Ok(None),
            Err(error) => return Err(RegistriesError::Read { file: file.to_owned(), error }),
        };
        Self::parse(&text).map(Some).map_err(|why| RegistriesError::Invalid { file: file.to_owned(), why })
    }

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let written: Written = toml_edit::de::from_str(text).map_err(|error| located(text, &error))?;
        let Written { registry, unqualified_search_registries, short_name_mode, aliases, registries: first } = written;
        let is_first = !(first.search.registries.is_empty()
            && first.insecure.registries.is_empty()
            && first.block.registries.is_empty());
        if is_first && (!registry.is_empty() || unqualified_search_registries.is_some()) {
            return Err("it mixes version 1 and version 2 of the format".to_owned());
        }
        let (registry, search) = match is_first {
            true => first.second_version(),
            false => (registry, unqualified_search_registries),
        };
        let registries = registry.into_iter().map(WrittenRegistry::checked).collect::<Result<Vec<_>, _>>()?;
        check_conflicts(&registries)?;
        let search = search.map(|hosts| hosts.iter().map(|host| search_host(host)).collect()).transpose()?;
        Ok(Self { registries, search, mode: short_name_mode, aliases: checked_aliases(aliases)? })
    }
}

impl FirstVersion {
    fn second_version(self) -> (Vec<WrittenRegistry>, Option<Vec<String>>) {
        let mut registries: BTreeMap<String, WrittenRegistry> = BTreeMap::new();
        for location in self.insecure.registries {
            registries.entry(location).or_default().insecure = true;
        }
        for location in self.block.registries {
            registries.entry(location).or_default().blocked = true;
        }
        let registries = registries.into_iter().map(|(location, entry)| WrittenRegistry { location, ..entry });
        (registries.collect(), Some(self.search.registries))
    }
}

impl WrittenRegistry {
    fn checked(self) -> Result<RegistryEntry, String> {
        let Self { prefix, location, insecure, blocked, mirror_by_digest_only, mirror } = self;
        let location = if location.is_empty() { location } else { trimmed(&location)? };
        let prefix = match (prefix.as_str(), location.as_str()) {
            ("", "") => return Err("a registry has neither a prefix nor a location".to_owned()),
            ("", location) => location.to_owned(),
            (prefix, _) => checked_prefix(prefix)?,
        };
        if location.is_empty() && !prefix.starts_with("*.") {
            return Err(format!(
                "the registry {prefix} has no location, and its prefix is not of the form *.example.com"
            ));
        }
        if mirror.len() > MIRRORS {
            return Err(format!("{prefix} has more than {MIRRORS} mirrors"));
        }
        let mirrors = mirror.into_iter().map(|mirror| mirror.checked(&prefix, mirror_by_digest_only));
        let mirrors = mirrors.collect::<Result<_, _>>()?;
        Ok(RegistryEntry { prefix, location, insecure, blocked, mirror_by_digest_only, mirrors })
    }
}

impl WrittenMirror {
    fn checked(self, prefix: &str, by_digest_only: bool) -> Result<Mirror, String> {
        if self.location.is_empty() {
            return Err(format!("a mirror of {prefix} has no location"));
        }
        if by_digest_only && self.pull_from_mirror.is_some() {
            return Err(format!("{prefix} has both mirror-by-digest-only and a mirror with pull-from-mirror"));
        }
        let pull = self.pull_from_mirror.unwrap_or_default();
        Ok(Mirror { location: trimmed(&self.location)?, insecure: self.insecure, pull })
    }
}

/// Entries with the same location must agree about it.
fn check_conflicts(registries: &[RegistryEntry]) -> Result<(), String> {
    let mut known: BTreeMap<&str, &RegistryEntry> = BTreeMap::new();
    for entry in registries {
        let first = *known.entry(&entry.location).or_insert(entry);
        let what = match () {
            () if first.insecure != entry.insecure => "insecure",
            () if first.blocked != entry.blocked => "blocked",
            () => continue,
        };
        return Err(format!("{} has two different values of {what}", entry.location));
    }
    Ok(())
}

/// A prefix of names, as `HOST[:PORT][/PATH]` or `*.example.com`.
pub(super) fn checked_prefix(text: &str) -> Result<String, String> {
    let prefix = trimmed(text)?;
    match prefix.starts_with("*.") && prefix.contains(['/', '@', ':']) {
        true => Err(format!("the prefix {prefix} is not of the form *.example.com")),
        false => Ok(prefix),
    }
}

/// The length of the part of `name` that the prefix matches.
pub(super) fn matched(name: &str, prefix: &str) -> Option<usize> {
    let ends_at = |length: usize| {
        let next = name.as_bytes().get(length);
        next.is_none_or(|next| matches!(next, b':' | b'/' | b'@')).then_some(length)
    };
    match prefix.strip_prefix('*') {
        // `*.example.com`: hosts below the domain.
        Some(domain) => {
            let at = name.find(domain)?;
            if name[..at].contains('/') { None } else { ends_at(at + domain.len()) }
        }
        None if name.starts_with(prefix) => ends_at(prefix.len()),
        None => None,
    }
}

/// The error of a parser, in one line with the number of its line. The text itself, which may be secret, is not in it.
pub(super) fn located(text: &str, error: &toml_edit::de::Error) -> String {
    let message = error.message().trim_end().replace('\n', ", ");
    match error.span().and_then(|span| text.get(..span.start)) {
        Some(before) => format!("line {}: {message}", before.matches('\n').count() + 1),
        None => message,
    }
}

/// A location or prefix without slashes at its end.
fn trimmed(text: &str) -> Result<String, String> {
    let trimmed = text.trim_end_matches('/');
    if trimmed.is_empty() || trimmed.starts_with("http://") || trimmed.starts_with("https://") {
        return Err(format!("{text:?} is not HOST[:PORT][/PATH]"));
    }
    Ok(trimmed.to_owned())
}

fn search_host(text: &str) -> Result<String, String> {
    let host = trimmed(text)?;
    match format!("{host}/a/b").parse::<tarpon_oci::Reference>() {
        Ok(reference) if reference.repository() == "a/b" => Ok(host),
        _ => Err(format!("the search registry {text:?} is not HOST[:PORT]")),
    }
}

/// Aliases lead from a short name to a full one, both without tag and digest. An empty one removes an earlier alias.
fn checked_aliases(aliases: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
    for (alias, name) in &aliases {
        let has_tag = |text: &str| text.contains('@') || text.rsplit('/').next().is_some_and(|last| last.contains(':'));
        if has_tag(alias) || !tarpon_oci::is_short_name(alias) || alias.parse::<tarpon_oci::Reference>().is_err() {
            return Err(format!("the alias {alias:?} is not a short name without tag and digest"));
        }
        let is_full = !has_tag(name) && !tarpon_oci::is_short_name(name);
        if !name.is_empty() && (!is_full || name.parse::<tarpon_oci::Reference>().is_err()) {
            return Err(format!(
                "the alias {alias:?} leads to {name:?}, which is not a full name without tag and digest"
            ));
        }
    }
    Ok(aliases)
}

/// The text of a file of bounded length.
pub(super) fn text(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(file)?.take(FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES {
        return Err(io::Error::other(format!("longer than {FILE_BYTES} bytes")));
    }
    Ok(text)
}
