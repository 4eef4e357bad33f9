//! Short names: names without a registry.

use tarpon_oci::is_short_name;

use super::Registries;
use super::error::RegistriesError;
use super::file::Mode;

impl Registries {
    /// The full names that a name as written in a command may mean, in the order in which they are tried. A name that is not short
    /// means itself. A short one means its alias, else that name at each search registry, else that name at Docker Hub.
    ///
    /// # Errors
    /// Several search registries are configured, and only the user may choose.
    pub fn full_names(&self, name: &str) -> Result<Vec<String>, RegistriesError> {
        if !is_short_name(name) {
            return Ok(vec![name.to_owned()]);
        }
        let (repository, version) = split_version(name);
        if let Some(full) = self.aliases.get(repository) {
            return Ok(vec![format!("{full}{version}")]);
        }
        if self.search.is_empty() {
            return Ok(vec![name.to_owned()]);
        }
        let candidates: Vec<_> = self.search.iter().map(|host| format!("{host}/{name}")).collect();
        match (self.mode, candidates.len()) {
            (Mode::Enforcing, 2..) => Err(RegistriesError::Ambiguous { name: name.to_owned(), candidates }),
            _ => Ok(candidates),
        }
    }
}

/// The repository of a short name, and its tag or digest with the sign before it.
fn split_version(name: &str) -> (&str, &str) {
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let at = name[last..].find([':', '@']).map_or(name.len(), |at| last + at);
    name.split_at(at)
}
