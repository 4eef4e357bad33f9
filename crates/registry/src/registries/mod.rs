//! [`Registries`]: the host's configuration of registries, containers-registries.conf(5).
//!
//! It redirects names to other locations, adds mirrors, blocks registries, and completes short names. All tools of
//! github.com/containers read it; the semantics are those of its package `sysregistriesv2`.

mod containerd;
mod endpoint;
mod error;
mod file;
mod header_names;
mod paths;
mod short_names;
mod stated;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use tarpon_oci::{Reference, is_short_name};

pub use self::containerd::ContainerdHosts;
pub use self::endpoint::{Address, Endpoint, EndpointCredentials, Header};
pub use self::error::RegistriesError;
use self::file::{Contents, Mode, Pull, RegistryEntry, matched};
pub use self::paths::RegistriesPaths;
use self::stated::Stated;
pub use self::stated::StatedEndpoints;

/// The configuration of all registries of a host.
#[derive(Debug, Clone, Default)]
pub struct Registries {
    /// By prefix.
    registries: BTreeMap<String, Configured>,
    search: Vec<String>,
    mode: Mode,
    aliases: BTreeMap<String, String>,
    /// Endpoints of tarpon's own configuration.
    stated: Stated,
}

/// A registry, namespace, repository or image, and the file that configures it.
#[derive(Debug, Clone)]
struct Configured {
    entry: RegistryEntry,
    file: PathBuf,
}

impl Registries {
    /// Reads the files that exist.
    ///
    /// # Errors
    /// A file cannot be read or is invalid, or the file that the user named does not exist.
    pub fn load(paths: &RegistriesPaths) -> Result<Self, RegistriesError> {
        let mut all = Self::default();
        for file in paths.files()? {
            if let Some(contents) = Contents::read(&file, paths.must_exist(&file))? {
                all.update(contents, &file);
            }
        }
        if let Some(recorded) = paths.recorded_aliases() {
            match Contents::read(recorded, false) {
                Ok(contents) => all.add_aliases(contents.unwrap_or_default().aliases),
                // Another user's cache is no configuration of this one.
                Err(RegistriesError::Read { error, .. }) if error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(error) => return Err(error),
            }
        }
        for file in paths.endpoint_files()? {
            match all.stated.read(&file) {
                Ok(_) => {}
                // Its headers are secrets of another user, and its endpoints those of that user.
                Err(RegistriesError::Read { error, .. }) if error.kind() == io::ErrorKind::PermissionDenied => {
                    tracing::debug!("{}: {error}", file.display());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Reads one file of tarpon's own configuration of endpoints.
    ///
    /// # Errors
    /// It cannot be read or is invalid.
    pub fn check_endpoints(file: &Path) -> Result<StatedEndpoints, RegistriesError> {
        Stated::default().read(file)
    }

    /// Adds the text of a file of tarpon's own configuration of endpoints.
    ///
    /// # Errors
    /// It is invalid.
    pub fn with_endpoints(mut self, text: &str) -> Result<Self, RegistriesError> {
        self.stated.take(text, Path::new("endpoints.toml"))?;
        Ok(self)
    }

    /// The configuration in the text of one file.
    ///
    /// # Errors
    /// It is invalid.
    pub fn parse(text: &str) -> Result<Self, RegistriesError> {
        let file = PathBuf::from("registries.conf");
        let mut all = Self::default();
        let contents = Contents::parse(text).map_err(|why| RegistriesError::Invalid { file: file.clone(), why })?;
        all.update(contents, &file);
        Ok(all)
    }

    /// Takes over the contents of a later file: registries with the same prefix, and lists, replace earlier ones.
    fn update(&mut self, contents: Contents, file: &Path) {
        let configured = |entry: RegistryEntry| (entry.prefix.clone(), Configured { entry, file: file.to_owned() });
        self.registries.extend(contents.registries.into_iter().map(configured));
        if let Some(search) = contents.search {
            self.search = search;
        }
        if let Some(mode) = contents.mode {
            self.mode = mode;
        }
        self.add_aliases(contents.aliases);
    }

    /// An alias without a value removes an earlier one.
    fn add_aliases(&mut self, aliases: BTreeMap<String, String>) {
        self.aliases.extend(aliases);
        self.aliases.retain(|_, name| !name.is_empty());
    }

    /// The hosts that serve the image, in the order in which they are tried: endpoints of tarpon's own configuration, mirrors, then the
    /// registry itself.
    ///
    /// # Errors
    /// The registry is blocked, or a location does not lead to a valid name.
    pub fn endpoints(&self, reference: &Reference) -> Result<Vec<Endpoint>, RegistriesError> {
        let mirrors = self.mirrors(reference)?;
        let registry = mirrors.last().map_or(reference, |registry| &registry.reference);
        let mut endpoints = self.stated.endpoints(reference, registry.registry())?;
        // As mirrors.
        endpoints.retain(|endpoint| self.check(&endpoint.reference).is_ok());
        endpoints.extend(mirrors);
        Ok(endpoints)
    }

    /// The mirrors of the image, then the registry itself.
    fn mirrors(&self, reference: &Reference) -> Result<Vec<Endpoint>, RegistriesError> {
        let Some((Configured { entry, file }, length)) = self.of(reference) else {
            return Ok(vec![Endpoint::of(reference.clone(), false)]);
        };
        self.check(reference)?;
        let full = reference.to_string();
        let at = |location: &str, insecure| {
            if location.is_empty() {
                return Ok(Endpoint::of(reference.clone(), insecure));
            }
            let name = format!("{location}{}", &full[length..]);
            let parsed = match is_short_name(&name) {
                true => Err("it begins with no registry"),
                false => name.parse::<Reference>().map_err(|error| error.why()),
            };
            let (location, file) = (location.to_owned(), file.clone());
            let failed = |why| RegistriesError::Location { location, name, file, why };
            Ok(Endpoint::of(parsed.map_err(failed)?, insecure))
        };
        let is_pinned = reference.digest().is_some();
        let mirrors = entry.mirrors.iter().filter(|mirror| match mirror.pull {
            Pull::All => is_pinned || !entry.mirror_by_digest_only,
            Pull::DigestOnly => is_pinned,
            Pull::TagOnly => !is_pinned,
        });
        let mirrors = mirrors.map(|mirror| {
            // What it states about tags and lists is not wanted.
            let resolves = mirror.pull != Pull::DigestOnly && !entry.mirror_by_digest_only;
            at(&mirror.location, mirror.insecure).map(|endpoint| Endpoint { resolves, ..endpoint })
        });
        let mut endpoints = mirrors.collect::<Result<Vec<_>, _>>()?;
        // A mirror may be blocked by an entry of its own.
        endpoints.retain(|mirror| self.check(&mirror.reference).is_ok());
        let registry = at(&entry.location, entry.insecure)?;
        self.check(&registry.reference)?;
        endpoints.push(registry);
        Ok(endpoints)
    }

    /// The entry with the longest prefix of the image's name, and the length of the part that matches.
    fn of(&self, reference: &Reference) -> Option<(&Configured, usize)> {
        // Podman compares names without tag and digest.
        let name = format!("{}/{}", reference.registry(), reference.repository());
        let all = self.registries.values();
        let matching = all.filter_map(|known| Some((known, matched(&name, &known.entry.prefix)?)));
        matching.max_by_key(|(known, _)| known.entry.prefix.len())
    }

    fn check(&self, reference: &Reference) -> Result<(), RegistriesError> {
        match self.of(reference) {
            Some((Configured { entry, file }, _)) if entry.blocked => {
                Err(RegistriesError::Blocked { prefix: entry.prefix.clone(), file: file.clone() })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
