//! Whether two processes see the same mounts.

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Result};

/// The namespaces that determine where a mount is visible, as the kernel names them: `mnt:[4026531841]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    mount: String,
    user: String,
}

impl Namespaces {
    /// The namespaces of this process.
    pub(crate) fn of_this_process() -> Self {
        let name = |kind: &str| {
            let link = std::fs::read_link(format!("/proc/self/ns/{kind}"));
            link.map(|link| link.to_string_lossy().into_owned()).unwrap_or_default()
        };
        Self { mount: name("mnt"), user: name("user") }
    }

    /// Refuses a mount for a client in other namespaces: the client could not see it.
    pub fn check(&self) -> Result<()> {
        let ours = Self::of_this_process();
        let what = match (self.mount == ours.mount, self.user == ours.user) {
            (true, true) => return Ok(()),
            (false, _) => "mount",
            (true, false) => "user",
        };
        let cause = format!(
            "the server of this store (process {}) runs in another {what} namespace: this process would not see the mount",
            std::process::id()
        );
        Err(Error::new(ErrorKind::CannotMount, "mount", cause)
            .hint("use a store of its own for each namespace: --store DIR or $TARPON_STORE"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clients_of_the_same_namespaces_are_served() {
        let ours = Namespaces::of_this_process();
        assert!(ours.mount.starts_with("mnt:[") && ours.user.starts_with("user:["), "{ours:?}");
        assert!(ours.check().is_ok());
        let elsewhere = Namespaces { mount: "mnt:[1]".into(), ..ours.clone() };
        let error = elsewhere.check().unwrap_err();
        assert_eq!(error.kind, ErrorKind::CannotMount);
        assert!(error.cause().to_string().contains("another mount namespace") && error.hint.is_some());
        assert!(Namespaces { user: "user:[1]".into(), ..ours }.check().is_err());
    }
}
