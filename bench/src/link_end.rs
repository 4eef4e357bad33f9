//! The link that this process is behind: its other end and its rate.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tarpon_harness::registry;

/// The link that this process is behind.
pub(super) struct Here {
    /// The address of its other end, where the registry is.
    pub(super) host: String,
    /// The registry, as seen from here.
    pub(super) registry: String,
}

impl Here {
    pub(super) fn find() -> Result<Self> {
        let host = std::env::var("TARPON_LINK_HOST").context("this is not behind a link")?;
        let registry = format!("{host}:{}", port(&registry::address())?);
        Ok(Self { host, registry })
    }

    /// The calibrated rate and round trip of the link.
    pub(super) fn measured(&self, link: &str) -> Value {
        let measured = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<f64>().ok());
        let (rate, rtt) = (measured("TARPON_LINK_RATE"), measured("TARPON_LINK_RTT"));
        json!({"link": link, "bits_per_second": rate, "round_trip": rtt})
    }
}

/// The port of a registry on this host.
pub(super) fn port(registry: &str) -> Result<&str> {
    let on_loopback = registry.starts_with("127.") || registry.starts_with("localhost:");
    let port = registry.rsplit_once(':').map(|(_, port)| port).filter(|_| on_loopback);
    port.with_context(|| format!("only a registry on loopback can be put behind a link, not {registry}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_elsewhere_is_refused() {
        assert_eq!(port("127.0.0.1:5000").unwrap(), "5000");
        assert!(port("registry.example:5000").is_err() && port("localhost").is_err());
    }
}
