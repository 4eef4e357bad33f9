//! [`TokenServices`]: the hosts that may receive the credentials of a registry.
//!
//! A registry names the token service that a client should use. An attacker who can change its answers (a cache in front of it that
//! passes on the challenges of others, for example) could so have the password sent anywhere. So credentials are only sent to
//!
//! - the registry's own host, on any port, where GHCR, Google, Amazon, Azure, Quay, Red Hat, Harbor, Gitea and most others have
//!   their token service;
//! - the hosts of [`KNOWN`];
//! - the hosts that a file of the user or the machine names for the registry.
//!
//! Tokens for anonymous users may come from anywhere, because no credentials are sent for them.

use std::io;
use std::path::{Path, PathBuf};

use tarpon_oci::DOCKER_HUB;
use tokio::io::AsyncReadExt as _;

use super::UNREADABLE;

/// Registries whose token service is another host of the same operator.
const KNOWN: [(&str, &str); 9] = [
    (DOCKER_HUB, "auth.docker.io"),
    ("registry-1.docker.io", "auth.docker.io"),
    ("registry.hub.docker.com", "auth.docker.io"),
    ("registry.gitlab.com", "gitlab.com"),
    ("registry.digitalocean.com", "api.digitalocean.com"),
    ("docker.elastic.co", "docker-auth.elastic.co"),
    // Scaleway's regions. Clients name https://api.scaleway.com/registry-internal/v1/regions/REGION/tokens in their errors.
    ("rg.fr-par.scw.cloud", "api.scaleway.com"),
    ("rg.nl-ams.scw.cloud", "api.scaleway.com"),
    ("rg.pl-waw.scw.cloud", "api.scaleway.com"),
];

/// Alibaba's registries are `registry.REGION` or `registry-vpc.REGION`, and `dockerauth.REGION` is their token service.
const ALIBABA: (&[&str], &str, &str) =
    (&["registry.", "registry-vpc.", "registry-internal."], "dockerauth.", ".aliyuncs.com");

/// Bytes of a file: thousands of lines.
const FILE_BYTES: u64 = 64 << 10;

/// The user's configuration of token services by registry.
#[derive(Debug, Clone, Default)]
pub(crate) struct TokenServices {
    files: Vec<PathBuf>,
}

impl TokenServices {
    /// Reads these files.
    pub(crate) fn new(files: Vec<PathBuf>) -> Self {
        Self { files }
    }

    /// `$TARPON_TOKEN_SERVICES` alone, or else the files of the user and the machine.
    pub(crate) fn from_environment() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(only) = variable("TARPON_TOKEN_SERVICES") {
            return Self::new(vec![only]);
        }
        let config = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")));
        let own = config.map(|folder| folder.join("tarpon/token-services"));
        Self::new(own.into_iter().chain([PathBuf::from("/etc/tarpon/token-services")]).collect())
    }

    /// Whether the credentials of `registry` (as written in references, perhaps with a port) may be sent to `host`. Files are read
    /// each time, so that a new line takes effect at once.
    pub(crate) async fn may_have(&self, registry: &str, host: &str) -> bool {
        if is_known(registry, host) {
            return true;
        }
        for path in &self.files {
            match read(path).await {
                Ok(text) if text.lines().any(|line| names(line, registry, host)) => return true,
                Ok(_) => {}
                Err(error) => {
                    if let Some(left_out) = UNREADABLE.admit() {
                        tracing::warn!("token services of {registry}: {}: {error}{left_out}", path.display());
                    }
                }
            }
        }
        false
    }

    /// The file to add a line to, for messages.
    pub(crate) fn file(&self) -> String {
        self.files.first().map_or_else(|| "/etc/tarpon/token-services".to_owned(), |path| path.display().to_string())
    }
}

/// The host of `HOST[:PORT]`.
fn without_port(registry: &str) -> &str {
    match registry.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => registry,
    }
}

fn is_known(registry: &str, host: &str) -> bool {
    let registry = without_port(registry);
    let (registries, service, domain) = ALIBABA;
    let region = |name: &'_ str, prefix: &str| {
        let region = name.strip_prefix(prefix)?.strip_suffix(domain)?;
        (!region.is_empty() && !region.contains('.')).then(|| region.to_owned())
    };
    registry.eq_ignore_ascii_case(host)
        || KNOWN.contains(&(registry, host))
        || region(host, service)
            .is_some_and(|at| registries.iter().any(|prefix| region(registry, prefix).as_ref() == Some(&at)))
}

/// Whether a line `REGISTRY HOST...` names `host` for `registry`. A `#` starts a comment.
fn names(line: &str, registry: &str, host: &str) -> bool {
    let line = line.split('#').next().unwrap_or_default();
    let mut words = line.split_ascii_whitespace();
    words.next().is_some_and(|first| first.eq_ignore_ascii_case(registry))
        && words.any(|word| word.eq_ignore_ascii_case(host))
}

/// The text of the file. Empty if it does not exist.
async fn read(path: &Path) -> io::Result<String> {
    let file = match tokio::fs::File::open(path).await {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(String::new());
        }
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.take(FILE_BYTES + 1).read_to_string(&mut text).await?;
    if text.len() as u64 > FILE_BYTES {
        return Err(io::Error::other("larger than 64 KiB"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn credentials_go_to_the_registry_itself_and_to_pairs_that_are_known_or_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token-services");
        let services = TokenServices::new(vec![file.clone()]);
        for (registry, host) in [
            ("ghcr.io", "ghcr.io"),
            ("registry.test:5000", "registry.test"),
            ("docker.io", "auth.docker.io"),
            ("registry.gitlab.com", "gitlab.com"),
            ("registry.redhat.io", "registry.redhat.io"),
            ("rg.fr-par.scw.cloud", "api.scaleway.com"),
            ("registry.cn-hangzhou.aliyuncs.com", "dockerauth.cn-hangzhou.aliyuncs.com"),
        ] {
            assert!(services.may_have(registry, host).await, "{registry} {host}");
        }
        let others = [
            ("ghcr.io", "auth.docker.io"),
            ("docker.io", "auth.docker.io.evil.test"),
            ("registry.gitlab.com", "evil.gitlab.com"),
            ("rg.evil.scw.cloud", "api.scaleway.com"),
            ("registry.cn-hangzhou.aliyuncs.com", "dockerauth.evil.test"),
            ("registry.cn-hangzhou.aliyuncs.com", "dockerauth.cn-beijing.aliyuncs.com"),
            ("registry.x.evil.aliyuncs.com", "dockerauth.x.evil.aliyuncs.com"),
            ("registry.example.com", "gitlab.example.com"),
            ("registry.example.com", "example.com"),
        ];
        for (registry, host) in others {
            assert!(!services.may_have(registry, host).await, "{registry} {host}");
        }
        std::fs::write(&file, "# ours\nregistry.example.com  gitlab.example.com # GitLab\n").unwrap();
        assert!(services.may_have("registry.example.com", "gitlab.example.com").await, "without a restart");
        assert!(!services.may_have("registry.example.com", "example.com").await);
        assert!(!services.may_have("registry.example.com:5000", "gitlab.example.com").await, "another registry");
    }

    #[tokio::test]
    async fn a_file_that_is_too_large_or_not_text_names_no_service() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token-services");
        let services = TokenServices::new(vec![file.clone()]);
        let mut large = b"registry.test evil.test\n".to_vec();
        large.resize(usize::try_from(FILE_BYTES).unwrap() + 1, b'#');
        for text in [large, b"registry.test evil.test\n\xff".to_vec()] {
            std::fs::write(&file, text).unwrap();
            assert!(!services.may_have("registry.test", "evil.test").await);
        }
    }
}
