//! Invariant: a configuration of registries that parses leads each name to at most as many hosts as it has mirrors or endpoints and one
//! more, each a valid name, and completes each short name to names that begin with a registry. An endpoint may see the credentials of
//! the registry over HTTPS or on this machine only, and gets no header that the client owns. An error is one line.

use tarpon_oci::{Reference, is_short_name};
use tarpon_registry::{Endpoint, EndpointCredentials, Registries};

/// Names of each kind; the registries are those of the seeds.
const NAMES: [&str; 6] = [
    "a.example/app:1",
    "a.example/team/app",
    "x.a.example/app:1",
    "localhost:5000/app:1",
    "library/redis:7",
    "a.example/app@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
];

/// Most endpoints that a registry may have.
const ENDPOINTS: usize = 16;

/// Parses `data` as a file, and looks names up in it.
pub fn registries_conf(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    check_endpoints(text);
    let Ok(registries) = Registries::parse(text) else { return };
    let mirrors = text.matches("mirror").count();
    for name in NAMES {
        let reference: Reference = name.parse().expect("a reference");
        if let Ok(endpoints) = registries.endpoints(&reference) {
            assert!((1..=mirrors + 1).contains(&endpoints.len()), "{} hosts", endpoints.len());
            endpoints.iter().for_each(|endpoint| check_name(endpoint, &reference));
        }
        for full in registries.full_names(name).unwrap_or_default() {
            assert!(full == name || !is_short_name(&full), "{name} became {full}");
        }
    }
}

fn check_name(endpoint: &Endpoint, reference: &Reference) {
    let found = endpoint.reference.to_string();
    assert_eq!(found.parse().as_ref(), Ok(&endpoint.reference));
    assert_eq!(endpoint.reference.digest(), reference.digest());
}

/// The text as a file of tarpon's own configuration of endpoints.
fn check_endpoints(text: &str) {
    let registries = match Registries::default().with_endpoints(text) {
        Ok(registries) => registries,
        Err(error) => return assert!(!error.to_string().contains('\n'), "{error}"),
    };
    for name in NAMES {
        let reference: Reference = name.parse().expect("a reference");
        let Ok(endpoints) = registries.endpoints(&reference) else { continue };
        assert!((1..=ENDPOINTS + 1).contains(&endpoints.len()), "{} hosts", endpoints.len());
        for endpoint in &endpoints[..endpoints.len() - 1] {
            check_name(endpoint, &reference);
            let address = endpoint.address.as_ref().expect("an endpoint has one");
            let url: url::Url = address.api.parse().expect("a URL");
            let is_here = match url.host() {
                Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
                Some(url::Host::Ipv4(at)) => at.is_loopback(),
                Some(url::Host::Ipv6(at)) => at.is_loopback(),
                None => false,
            };
            let is_safe = url.scheme() == "https" || is_here;
            assert!(is_safe || address.credentials != EndpointCredentials::Registry, "{url}");
            assert!(url.username().is_empty() && url.password().is_none() && url.path() == "/v2", "{url}");
            for header in &address.headers {
                let name = header.name().to_ascii_lowercase();
                assert!(!["authorization", "host", "range", "cookie"].contains(&&*name), "{name}");
            }
        }
        assert!(endpoints.last().is_some_and(|registry| registry.reference == reference));
    }
}
