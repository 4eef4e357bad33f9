//! The credentials of a pull, read as containerd reads them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tarpon_engine::Credentials;
use tarpon_oci::{DOCKER_HUB, Reference};
use zeroize::Zeroizing;

use super::messages::AuthConfig;

/// Longest user, password or token. Those of cloud registries have 1 to 4 KiB.
const SECRET_BYTES: usize = 16 << 10;

/// Docker Hub's host in Docker's configuration.
const DOCKER_HUB_LOGIN: &str = "index.docker.io";

/// The user that marks an identity token in pairs.
const TOKEN_USER: &str = "<token>";

/// Why credentials of a pull are not used. Has no part of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    /// Neither containerd nor tarpon sends such a token.
    #[error("they are a registry token, which containerd does not support either")]
    RegistryToken,
    /// The field `auth` cannot be decoded.
    #[error("the field auth is not base64 of USER:PASSWORD")]
    Malformed,
    /// For another registry than that of the image.
    #[error("they are for another registry")]
    OtherRegistry,
    /// Too long to be kept.
    #[error("they are longer than {} KiB", SECRET_BYTES >> 10)]
    TooLong,
}

/// The credentials in `auth` for `image`. `None` if there are none.
pub(crate) fn credentials(auth: &AuthConfig, image: &Reference) -> Result<Option<Credentials>, Unusable> {
    if !is_for(&auth.server_address, image) {
        return Err(Unusable::OtherRegistry);
    }
    let fields = [&auth.username, &auth.password, &auth.auth, &auth.identity_token];
    if fields.iter().any(|field| field.len() > SECRET_BYTES) {
        return Err(Unusable::TooLong);
    }
    if !auth.username.is_empty() {
        return Ok(Some(Credentials::from_pair(&auth.username, &auth.password)));
    }
    if !auth.identity_token.is_empty() {
        return Ok(Some(Credentials::from_pair(TOKEN_USER, &auth.identity_token)));
    }
    if !auth.auth.is_empty() {
        return pair(&auth.auth).ok_or(Unusable::Malformed).map(Some);
    }
    if auth.registry_token.is_empty() { Ok(None) } else { Err(Unusable::RegistryToken) }
}

/// Credentials from base64 of `USER:PASSWORD`. Some programs fill the password with zeros.
fn pair(encoded: &str) -> Option<Credentials> {
    let decoded = Zeroizing::new(STANDARD.decode(encoded).ok()?);
    let (user, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    (!user.is_empty()).then(|| Credentials::from_pair(user, password.trim_matches('\0')))
}

/// Whether an address, as in Docker's configuration, is that of the image's registry. Empty: of any.
fn is_for(address: &str, image: &Reference) -> bool {
    let host = address.split_once("://").map_or(address, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or_default();
    let host = if host == DOCKER_HUB_LOGIN { DOCKER_HUB } else { host };
    host.is_empty() || host == image.registry() || host == image.api_host()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(text: &str) -> Reference {
        text.parse().unwrap()
    }

    fn read(auth: &AuthConfig) -> Result<Option<Credentials>, Unusable> {
        credentials(auth, &image("registry.test:5000/team/app:v1"))
    }

    fn with(change: impl FnOnce(&mut AuthConfig)) -> AuthConfig {
        let mut auth = AuthConfig::default();
        change(&mut auth);
        auth
    }

    #[test]
    fn credentials_are_read_in_containerd_s_order() {
        let expected = |user: &str, password: &str| Ok(Some(Credentials::from_pair(user, password)));
        assert_eq!(read(&AuthConfig::default()), Ok(None));
        let mut auth = with(|auth| auth.auth = STANDARD.encode("alice:pass:word\0\0"));
        assert_eq!(read(&auth), expected("alice", "pass:word"));
        auth.identity_token = "refresh".into();
        assert_eq!(read(&auth), Ok(Some(Credentials::from_pair(TOKEN_USER, "refresh"))));
        (auth.username, auth.password) = ("bob".into(), "other".into());
        assert_eq!(read(&auth), expected("bob", "other"));
    }

    #[test]
    fn credentials_that_cannot_be_used_are_an_error_without_them() {
        for text in ["hunter2", "aHVudGVyMg==", "Omh1bnRlcjI="] {
            assert_eq!(read(&with(|auth| auth.auth = text.into())), Err(Unusable::Malformed), "{text}");
        }
        assert_eq!(read(&with(|auth| auth.registry_token = "hunter2".into())), Err(Unusable::RegistryToken));
        let long = with(|auth| (auth.username, auth.password) = ("alice".into(), "x".repeat(SECRET_BYTES + 1)));
        assert_eq!(read(&long), Err(Unusable::TooLong));
        assert!(!format!("{long:?}{:?}", read(&long)).contains("alice"));
    }

    #[test]
    fn credentials_for_another_registry_are_not_used() {
        let at = |address: &str| with(|auth| (auth.username, auth.server_address) = ("alice".into(), address.into()));
        for address in ["", "registry.test:5000", "https://registry.test:5000/v2/", "http://registry.test:5000"] {
            assert!(read(&at(address)).unwrap().is_some(), "{address}");
        }
        for address in
            ["registry.test", "other.test:5000", "https://registry.test:5000.evil.test", "https://index.docker.io/v1/"]
        {
            assert_eq!(read(&at(address)), Err(Unusable::OtherRegistry), "{address}");
        }
        for address in ["https://index.docker.io/v1/", "docker.io", "registry-1.docker.io"] {
            assert!(credentials(&at(address), &image("alpine")).unwrap().is_some(), "{address}");
        }
    }
}
