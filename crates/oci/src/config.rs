//! The image config: the digests of the uncompressed layers, and how to start a container of the image.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::platform::RawPlatform;
use crate::{Digest, InvalidManifest, Platform, Verified, json, limits};

/// An image config, with its verified bytes.
#[derive(Debug, Clone)]
pub struct ImageConfig {
    /// The unchanged document.
    pub bytes: Verified<Bytes>,
    /// The platform that the image was built for.
    pub platform: Platform,
    /// The digests of the uncompressed layers, base first.
    pub diff_ids: Vec<Digest>,
    /// Time of the build, RFC 3339, unchanged.
    pub created: Option<String>,
    /// How to start it.
    pub run: RunConfig,
}

/// The defaults of a container of the image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RunConfig {
    /// `USER[:GROUP]`, names or numbers; empty is root.
    #[serde(deserialize_with = "or_default")]
    pub user: String,
    /// `NAME=VALUE`, in order.
    #[serde(deserialize_with = "or_default")]
    pub env: Vec<String>,
    /// The arguments before the command.
    #[serde(deserialize_with = "or_default")]
    pub entrypoint: Vec<String>,
    /// The command, or the arguments of the entrypoint.
    #[serde(deserialize_with = "or_default")]
    pub cmd: Vec<String>,
    /// The working directory. Empty means `/`.
    #[serde(deserialize_with = "or_default")]
    pub working_dir: String,
    /// The signal to stop it with.
    #[serde(deserialize_with = "or_default")]
    pub stop_signal: String,
    /// Directories for data that does not belong to the image.
    #[serde(deserialize_with = "names")]
    pub volumes: Vec<String>,
    /// Free-form metadata. Never interpreted.
    #[serde(deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
}

/// Accepts `null`, which Docker writes for every unset field.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The names of an object whose values are meaningless, in their order.
fn names<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let names: Option<BTreeMap<String, IgnoredAny>> = Option::deserialize(deserializer)?;
    Ok(names.unwrap_or_default().into_keys().collect())
}

#[derive(Deserialize)]
struct RawConfig {
    os: String,
    architecture: String,
    variant: Option<String>,
    created: Option<String>,
    config: Option<RunConfig>,
    rootfs: RawRootFs,
}

#[derive(Deserialize)]
struct RawRootFs {
    #[serde(rename = "type")]
    kind: String,
    #[serde(deserialize_with = "or_default")]
    diff_ids: Vec<String>,
}

impl ImageConfig {
    /// Parses a config.
    pub fn parse(bytes: Verified<Bytes>) -> Result<Self, InvalidManifest> {
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if size > limits::MANIFEST_BYTES {
            return Err(InvalidManifest::TooLarge { size });
        }
        json::check(&bytes)?;
        let raw: RawConfig = serde_json::from_slice(&bytes)?;
        if raw.rootfs.kind != "layers" {
            return Err(InvalidManifest::NotAnImage(format!("its rootfs is of type {:?}", raw.rootfs.kind)));
        }
        if raw.rootfs.diff_ids.len() > limits::LAYERS {
            return Err(InvalidManifest::TooManyLayers(raw.rootfs.diff_ids.len()));
        }
        let diff_ids = raw.rootfs.diff_ids.iter().map(|text| text.parse().map_err(InvalidManifest::Digest));
        Ok(Self {
            diff_ids: diff_ids.collect::<Result<_, _>>()?,
            platform: RawPlatform { os: raw.os, architecture: raw.architecture, variant: raw.variant }.into(),
            created: raw.created,
            run: raw.config.unwrap_or_default(),
            bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ImageConfig, InvalidManifest> {
        ImageConfig::parse(Verified::seal(Bytes::from(text.to_owned())))
    }

    #[test]
    fn what_docker_leaves_null_is_empty() {
        let config = parse(
            r#"{"os":"linux","architecture":"amd64","config":{"Env":["A=1"],"Cmd":null,"Labels":null,"Entrypoint":["/x"],
                "Volumes":{"/data":{},"/a":null}},
                "rootfs":{"type":"layers","diff_ids":null},"history":[{"created_by":"x"}]}"#,
        )
        .unwrap();
        assert_eq!(config.run.env, ["A=1"]);
        assert_eq!(config.run.volumes, ["/a", "/data"]);
        assert!(config.run.cmd.is_empty() && config.diff_ids.is_empty());
        assert_eq!(config.platform.to_string(), "linux/amd64");
    }

    #[test]
    fn configs_without_rootfs_or_with_odd_digests_are_refused() {
        assert!(parse(r#"{"os":"linux","architecture":"amd64"}"#).is_err());
        let odd = r#"{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["../../etc/passwd"]}}"#;
        assert!(matches!(parse(odd), Err(InvalidManifest::Digest(_))));
        let other = r#"{"os":"linux","architecture":"amd64","rootfs":{"type":"windows","diff_ids":[]}}"#;
        assert!(matches!(parse(other), Err(InvalidManifest::NotAnImage(_))));
    }

    #[test]
    fn a_config_with_two_readings_is_refused() {
        let one = r#"{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":[]}}"#;
        assert!(parse(one).is_ok());
        for other in [r#""RootFS":{"type":"layers","diff_ids":["x"]}"#, r#""history":[],"history":[]"#] {
            let two = one.replacen('{', &format!("{{{other},"), 1);
            assert!(matches!(parse(&two), Err(InvalidManifest::Json(_))), "{two}");
        }
    }

    #[test]
    fn the_size_and_the_layers_of_a_config_are_bounded() {
        let of = |layers: usize, bytes: usize| {
            let digest = format!("\"{}\"", Digest::of(b""));
            let rootfs = format!(r#"{{"type":"layers","diff_ids":[{}]}}"#, vec![digest; layers].join(","));
            let mut text = format!(r#"{{"os":"linux","architecture":"amd64","rootfs":{rootfs}}}"#);
            text.push_str(&" ".repeat(bytes.saturating_sub(text.len())));
            parse(&text)
        };
        let most = usize::try_from(limits::MANIFEST_BYTES).unwrap();
        assert_eq!(of(limits::LAYERS, most).unwrap().diff_ids.len(), limits::LAYERS);
        assert!(matches!(of(limits::LAYERS + 1, 0), Err(InvalidManifest::TooManyLayers(n)) if n == limits::LAYERS + 1));
        assert!(matches!(of(0, most + 1), Err(InvalidManifest::TooLarge { .. })));
    }
}
