//! [`Network`]: the networks that a user can choose.

use super::{bridge, pasta};
use crate::Result;

/// The network of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// The network of this host.
    #[default]
    Host,
    /// No network beyond the container itself.
    None,
    /// A network of its own, from which pasta connects to where this user can connect.
    Pasta,
    /// A bridge of root that all such containers share.
    Bridge,
}

impl Network {
    /// The network for published ports if the user names none: the bridge for root where netavark is installed, otherwise pasta.
    pub fn for_ports() -> Self {
        let may_bridge = rustix::process::geteuid().is_root() && !tarpon_store::in_user_namespace();
        if may_bridge && bridge::is_installed() { Self::Bridge } else { Self::Pasta }
    }

    /// # Errors
    /// The program that connects such a network is missing, or this user cannot use it.
    pub fn check(self) -> Result<()> {
        match self {
            Self::Host | Self::None => Ok(()),
            Self::Pasta => pasta::find().map(drop),
            Self::Bridge => bridge::find().map(drop),
        }
    }

    /// Its name, as in the option.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::None => "none",
            Self::Pasta => "pasta",
            Self::Bridge => "bridge",
        }
    }

    /// Whether programs of the host connect it, so that ports can be published.
    pub fn is_connected(self) -> bool {
        matches!(self, Self::Pasta | Self::Bridge)
    }
}
