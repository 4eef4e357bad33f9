//! [`Endpoint`]: a host that serves an image.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tarpon_oci::Reference;
use zeroize::Zeroizing;

use crate::credentials::Secret;

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
    /// Headers of all requests.
    pub headers: Vec<Header>,
    /// The registry whose images it serves, which it learns from the parameter `ns` of each request.
    pub namespace: Option<String>,
    /// How long a request may take until the head of its response, if that is less than for every mirror.
    pub time_limit: Option<Duration>,
    /// The credentials that it may see.
    pub credentials: EndpointCredentials,
}

/// A header. Its value may be secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(String, Zeroizing<String>)", into = "(String, Zeroizing<String>)")]
pub struct Header {
    name: String,
    value: Secret,
}

/// The credentials that a host may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndpointCredentials {
    /// Those under its own name.
    #[default]
    Own,
    /// None.
    None,
    /// Those that the registry itself gets.
    Registry,
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

/// The host as in references, where one without a dot has a port.
pub(super) fn host_in_names(url: &url::Url) -> String {
    let authority = url.authority();
    match url.port_or_known_default() {
        Some(port) if !authority.contains(['.', ':']) && authority != "localhost" => format!("{authority}:{port}"),
        _ => authority.to_owned(),
    }
}

impl Address {
    /// The host with this root of its API, with nothing else stated about it.
    pub fn at(api: String) -> Self {
        Self {
            api,
            authorities: Vec::new(),
            identities: Vec::new(),
            headers: Vec::new(),
            namespace: None,
            time_limit: None,
            credentials: EndpointCredentials::default(),
        }
    }

    /// Whether what it is sent can be read on the way there: it speaks plain HTTP, and is another machine.
    pub(crate) fn is_exposed(&self) -> bool {
        // What is no URL is sent nothing.
        let api = url::Url::parse(&self.api);
        api.is_ok_and(|api| api.scheme() == "http" && !crate::transport::is_loopback(&api))
    }

    /// The files that are read to reach it.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let identities = self.identities.iter().flat_map(|(certificate, key)| std::iter::once(certificate).chain(key));
        self.authorities.iter().chain(identities)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").field("api", &self.api).field("headers", &self.headers).finish_non_exhaustive()
    }
}

impl Header {
    /// A header, which need not be valid.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: Secret::new(value) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its value, only for use in a request.
    pub(crate) fn value(&self) -> &str {
        self.value.expose()
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.name, self.value)
    }
}

impl Hash for Header {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.name, self.value()).hash(state);
    }
}

impl From<(String, Zeroizing<String>)> for Header {
    fn from((name, mut value): (String, Zeroizing<String>)) -> Self {
        Self { name, value: Secret::new(std::mem::take(&mut *value)) }
    }
}

/// For another process that sends the requests.
impl From<Header> for (String, Zeroizing<String>) {
    fn from(Header { name, value }: Header) -> Self {
        (name, Zeroizing::new(value.expose().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_named_by_its_host_without_secrets() {
        let named = |api: &str| {
            let address = Address::at(api.to_owned());
            let endpoint = Endpoint::of("docker.io/library/redis".parse().unwrap(), false);
            Endpoint { address: Some(address), ..endpoint }.host()
        };
        assert_eq!(named("http://user:password@cache.test:5000/v2"), "cache.test:5000");
        assert_eq!(named("https://cache.test/v2/hub"), "cache.test");
        assert_eq!(Endpoint::of("cache.test:5000/hub/x".parse().unwrap(), false).host(), "cache.test:5000");
        assert_eq!(Endpoint::of("redis".parse().unwrap(), false).host(), "docker.io");
    }

    #[test]
    fn values_of_headers_are_not_shown_and_reach_another_process() {
        let address = Address { headers: vec![Header::new("x-token", "s3cret")], ..Address::at("https://a".into()) };
        let shown = format!("{address:?}");
        assert!(shown.contains("x-token") && !shown.contains("s3cret"), "{shown}");
        let sent = serde_json::to_vec(&address).unwrap();
        assert_eq!(serde_json::from_slice::<Address>(&sent).unwrap(), address);
    }

    #[test]
    fn plain_http_to_another_machine_can_be_read_on_the_way() {
        for (api, is_exposed) in [
            ("http://cache.test/v2", true),
            ("https://cache.test/v2", false),
            ("http://127.0.0.1:5001/v2", false),
            ("http://localhost/v2", false),
            ("http://localhost.test/v2", true),
        ] {
            assert_eq!(Address::at(api.to_owned()).is_exposed(), is_exposed, "{api}");
        }
    }
}
