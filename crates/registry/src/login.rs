//! Checks a user's credentials at a registry, before they are stored.

use std::sync::Arc;

use tarpon_blob::Fault;
use tarpon_oci::Reference;

use crate::credentials::Credentials;
use crate::error::Error;
use crate::http::{Hosts, Purpose, Session};
use crate::options::AccessOptions;
use crate::registries::Endpoint;
use crate::stats::Counters;
use crate::transport::{HttpsTransport, Transport};

/// The name of no repository: the session is for the registry alone.
const NO_REPOSITORY: &str = "none";

/// Asks `registry` (`HOST[:PORT]`, as in references) once whether it accepts the credentials of `options`. A registry that requires none
/// accepts any.
///
/// # Errors
/// [`Error::Login`] if it refuses them; it is not reachable, or is no registry.
pub async fn check_login(registry: &str, options: &AccessOptions) -> Result<(), Error> {
    let reference = reference(registry)?;
    let cert_dir = options.cert_dir.as_deref();
    let transport =
        HttpsTransport::new(reference.api_host(), options.verifies_registry(), cert_dir).map_err(Error::Options)?;
    check_login_over(&reference, Arc::new(transport), options).await
}

/// As [`check_login`], of the registry of `reference` over `transport`: for tests.
pub async fn check_login_over(
    reference: &Reference,
    transport: Arc<dyn Transport>,
    options: &AccessOptions,
) -> Result<(), Error> {
    let (credentials, counters) = (options.credential_source(), Arc::new(Counters::default()));
    let hosts = Hosts::of_this_process();
    let endpoint = Endpoint::of(reference.clone(), !options.verifies_registry());
    let session = Session::new(transport, &endpoint, credentials, Purpose::Login, counters, hosts)
        .map_err(|error| Error::Options(error.to_string()))?;
    session.check_access().await.map_err(|error| match (error.fault, options.credentials.as_ref()) {
        (Fault::Denied, Some(Credentials::Basic { .. })) => Error::Login(reference.registry().to_owned()),
        _ => Error::Source(error),
    })
}

/// A reference in the registry.
fn reference(registry: &str) -> Result<Reference, Error> {
    let found = format!("{registry}/{NO_REPOSITORY}").parse::<Reference>();
    let found = found.ok().filter(|reference| reference.repository().ends_with(NO_REPOSITORY));
    let is_host = |reference: &Reference| reference.registry() == registry;
    found.filter(is_host).ok_or_else(|| Error::Options(format!("{registry:?} is not HOST[:PORT]")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_a_host_with_or_without_a_port() {
        for registry in ["docker.io", "quay.io", "localhost:5000", "registry.example:443"] {
            assert!(reference(registry).is_ok(), "{registry}");
        }
        for odd in ["", "quay.io/team", "https://quay.io", "alpine", "a b", "quay.io/"] {
            assert!(reference(odd).is_err(), "{odd}");
        }
    }
}
