//! What is between the hosts and the registry.

use anyhow::{Result, bail};
use clap::ValueEnum;
use tarpon_harness::bucket;
use tarpon_harness::dragonfly;
use tarpon_harness::packages::{self, Tool, tool};

use super::form::Form;

/// Caches in front of the registry.
pub(super) const CACHES: usize = 3;

/// The two programs of a folder of GlusterFS.
const GLUSTER: [Tool; 2] = [tool("glusterfsd", "glusterfs-server"), tool("glusterfs", "glusterfs-client")];

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Engine {
    /// Nothing
    None,
    /// nginx with contrib/nginx/tarpon-cache.conf
    Cache,
    /// Three of them, and contrib/nginx/tarpon-balancer.conf on each host
    ThreeCaches,
    /// Dragonfly with contrib/dragonfly: a scheduler, a seed peer, and a peer on each host
    Dragonfly,
    /// The same in front of one cache
    DragonflyCache,
    /// A tier in a folder on the disk of all hosts: as a shared file system that costs nothing
    Folder,
    /// A tier in a bucket of an S3 server
    Bucket,
    /// A tier in a folder of GlusterFS
    Gluster,
}

impl Engine {
    /// As the rows name it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "no cache",
            Self::Cache => "one cache",
            Self::ThreeCaches => "three caches",
            Self::Dragonfly => "Dragonfly",
            Self::DragonflyCache => "Dragonfly and one cache",
            Self::Folder => "tier in a folder",
            Self::Bucket => "tier in a bucket",
            Self::Gluster => "tier on GlusterFS",
        }
    }

    /// The number of its caches.
    pub(super) fn caches(self) -> usize {
        match self {
            Self::Cache | Self::DragonflyCache => 1,
            Self::ThreeCaches => CACHES,
            _ => 0,
        }
    }

    /// Whether each host has a peer of Dragonfly.
    pub(super) fn has_peers(self) -> bool {
        matches!(self, Self::Dragonfly | Self::DragonflyCache)
    }

    fn is_tier(self) -> bool {
        matches!(self, Self::Folder | Self::Bucket | Self::Gluster)
    }

    /// Whether it matters for a form. Layers with an index or a table of contents are not put into a tier by those who start them: with
    /// an empty tier they would be measured without one again.
    pub(super) fn is_for(self, form: Form) -> bool {
        !self.is_tier() || form == Form::Gzip
    }

    /// Ensures that its programs are installed.
    pub(super) fn ensure(self) -> Result<()> {
        if let Some(missing) = dragonfly::missing().filter(|_| self.has_peers()) {
            bail!(missing);
        }
        match self {
            Self::None | Self::Folder | Self::Dragonfly => Ok(()),
            Self::Cache | Self::ThreeCaches | Self::DragonflyCache => packages::ensure(&[tool("nginx", "nginx-light")]),
            Self::Bucket => bucket::ensure(),
            Self::Gluster => packages::ensure(&GLUSTER),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_is_measured_where_layers_are_streamed_and_a_cache_everywhere() {
        let forms = |engine: Engine| Form::value_variants().iter().filter(|form| engine.is_for(**form)).count();
        assert_eq!([Engine::None, Engine::ThreeCaches, Engine::Dragonfly].map(forms), [4; 3]);
        assert_eq!([Engine::Folder, Engine::Bucket, Engine::Gluster].map(forms), [1; 3]);
        assert!(Engine::Gluster.is_for(Form::Gzip));
    }
}
