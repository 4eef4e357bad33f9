//! Values of options that several subcommands have.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use tarpon_engine::{Backfill, LayerFormat, ModeChoice};

/// A parser for modes, which lists all of them in help and completions.
pub(super) fn mode() -> impl TypedValueParser<Value = ModeChoice> {
    let value = |name: &'static str, help: &'static str| PossibleValue::new(name).help(help);
    PossibleValuesParser::new([
        value("auto", "native if it works, else fuse"),
        value("native", "The kernel serves all local data; requires root and Linux 5.15, in a user namespace 6.16"),
        value("fuse", "FUSE serves all data; works without root"),
    ])
    .try_map(|name| name.parse())
}

/// `--backfill`.
pub(super) fn backfill() -> impl TypedValueParser<Value = Backfill> {
    PossibleValuesParser::new(["off", "idle", "now"]).map(|when| match &*when {
        "idle" => Backfill::Idle,
        "now" => Backfill::Now,
        _ => Backfill::Off,
    })
}

/// Whether starts are learned.
#[derive(Debug, Args)]
pub(super) struct Learning {
    /// Neither fetch first what earlier starts of the image read, nor keep what this one reads
    ///
    /// The first minute of an image without a boot pack leaves a trace in the store, which the next start of the image, or of another
    /// version of it, follows. `tarpon trace ls` lists these traces.
    #[arg(long, env = "TARPON_NO_LEARN", value_parser = clap::builder::FalseyValueParser::new())]
    no_learn: bool,
}

impl Learning {
    pub(super) fn is_on(&self) -> bool {
        !self.no_learn
    }
}

/// Parses an address. Without a host it is loopback, which other machines cannot reach.
pub(super) fn address(text: &str) -> std::result::Result<SocketAddr, String> {
    let port = text.strip_prefix("localhost:").or_else(|| text.strip_prefix(':')).unwrap_or(text);
    match port.parse() {
        Ok(port) => Ok((Ipv4Addr::LOCALHOST, port).into()),
        Err(_) => text.parse().map_err(|_| "expected PORT or IP:PORT, such as 127.0.0.1:9464".to_owned()),
    }
}

/// Reads a path and makes it absolute, because the server works in another directory.
pub(super) fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(std::path::absolute)
}

/// Target format of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum FormatName {
    /// gzip with a table of contents, for containerd's stargz snapshotter; readable by all clients
    Estargz,
    /// zstd with a table of contents, for Podman and CRI-O; readable by all clients with zstd support
    #[value(name = "zstd:chunked", alias = "zstd-chunked")]
    ZstdChunked,
}

impl From<FormatName> for LayerFormat {
    fn from(name: FormatName) -> Self {
        match name {
            FormatName::Estargz => Self::Estargz,
            FormatName::ZstdChunked => Self::ZstdChunked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn an_address_without_a_host_is_loopback() {
        for (text, expected) in [
            ("9464", "127.0.0.1:9464"),
            (":9464", "127.0.0.1:9464"),
            ("localhost:9464", "127.0.0.1:9464"),
            ("0.0.0.0:9464", "0.0.0.0:9464"),
            ("[::1]:9464", "[::1]:9464"),
        ] {
            assert_eq!(address(text), Ok(expected.parse().expect("an address")), "{text}");
        }
        for wrong in ["", "host:9464", "127.0.0.1", "99999", "localhost:"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}
