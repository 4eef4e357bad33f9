//! Finds a container by a prefix of its name.

use super::container_dir::ContainerDirs;
use super::containers::Containers;
use crate::{Error, ErrorKind, Result};
use tarpon_client::ContainerName;

/// Maximum number of names listed when a prefix is ambiguous.
const LISTED: usize = 4;

impl Containers {
    /// The container named `text`, or the only one whose name has that prefix. If there is none, returns `text`: the caller then reports
    /// that it does not exist.
    ///
    /// Not for calls that end or remove containers: a script that names a removed container must not hit another one.
    ///
    /// # Errors
    /// The prefix is ambiguous.
    pub fn named(&self, text: &ContainerName) -> Result<ContainerName> {
        let directories = ContainerDirs::of(self.store());
        if directories.place(text).exists() {
            return Ok(text.clone());
        }
        let names = directories.list()?.into_iter().map(|(name, _)| name);
        let mut found = names.filter(|name| name.as_str().starts_with(text.as_str())).collect::<Vec<_>>();
        match found.len() {
            0 => Ok(text.clone()),
            1 => Ok(found.remove(0)),
            count => {
                let mut list = found.iter().take(LISTED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
                if count > LISTED {
                    list.push_str(", …");
                }
                let cause = format!("{count} containers have names that begin with {text}: {list}");
                Err(Error::new(ErrorKind::NotFound, "find the container", cause))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::containers::tests::containers;
    use super::super::record::tests::record;
    use super::*;

    #[test]
    fn a_prefix_is_enough_if_it_is_of_one_name() {
        let folder = tempfile::tempdir().unwrap();
        let containers = containers(folder.path());
        let found = |text: &str| containers.named(&text.parse().unwrap()).map(|name| name.to_string());
        assert_eq!(found("we").unwrap(), "we");
        for name in ["web", "web-db", "other"] {
            ContainerDirs::of(containers.store()).create(&record(name)).unwrap();
        }
        assert_eq!(["web", "web-", "o", "x"].map(|text| found(text).unwrap()), ["web", "web-db", "other", "x"]);
        let error = found("we").unwrap_err();
        assert!(
            error.cause().to_string().contains("2 containers") && error.cause().to_string().ends_with("web, web-db"),
            "{error}"
        );
    }
}
