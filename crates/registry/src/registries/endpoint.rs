//! [`Endpoint`]: a host that serves an image.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tarpon_oci::Reference;

/// A host that serves an image, and the image's name there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The name of the image there.
    pub reference: Reference,
    /// Whether its certificate is not checked, and plain HTTP is used if it has no HTTPS.
    pub insecure: bool,
    /// Whether it is asked for tags. If not, it is asked for what has a digest only.
    pub resolves: bool,
    /// Where it is, if its name does not state that.
    pub address: Option<Address>,
}

/// Where a host is, and how it is reached.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Address {
    /// The root of its API, such as `https://mirror.example/v2`.
    pub api: String,
    /// Files with the certificates of authorities that it may have its certificate from, besides those of the system.
    pub authorities: Vec<PathBuf>,
    /// Files with a client certificate and its key, or with both.
    pub identities: Vec<(PathBuf, Option<PathBuf>)>,
    /// Headers of all requests. They may be secret.
    pub headers: Vec<(String, String)>,
    /// The registry whose images it serves, which it learns from the parameter `ns` of each request.
    pub namespace: Option<String>,
}

impl Endpoint {
    /// The host that the name of the image states.
    pub fn of(reference: Reference, insecure: bool) -> Self {
        Self { reference, insecure, resolves: true, address: None }
    }

    /// The host, as `HOST[:PORT]`.
    pub fn host(&self) -> String {
        let url = self.address.as_ref().and_then(|address| url::Url::parse(&address.api).ok());
        match url.as_ref().and_then(|url| Some((url.host_str()?, url.port()))) {
            Some((host, Some(port))) => format!("{host}:{port}"),
            Some((host, None)) => host.to_owned(),
            None => self.reference.registry().to_owned(),
        }
    }
}

impl Address {
    /// The files that are read to reach it.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let identities = self.identities.iter().flat_map(|(certificate, key)| std::iter::once(certificate).chain(key));
        self.authorities.iter().chain(identities)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("Address").field("api", &self.api).field("headers", &names).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_named_by_its_host_without_secrets() {
        let named = |api: &str| {
            let address = Address {
                api: api.to_owned(),
                authorities: Vec::new(),
                identities: Vec::new(),
                headers: Vec::new(),
                namespace: None,
            };
            let endpoint = Endpoint::of("docker.io/library/redis".parse().unwrap(), false);
            Endpoint { address: Some(address), ..endpoint }.host()
        };
        assert_eq!(named("http://user:password@cache.test:5000/v2"), "cache.test:5000");
        assert_eq!(named("https://cache.test/v2/hub"), "cache.test");
        assert_eq!(Endpoint::of("cache.test:5000/hub/x".parse().unwrap(), false).host(), "cache.test:5000");
        assert_eq!(Endpoint::of("redis".parse().unwrap(), false).host(), "docker.io");
    }
}
