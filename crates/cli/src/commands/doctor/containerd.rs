//! Whether containerd is configured to use the snapshotter, in the way of its version.

use std::path::Path;

use toml_edit::{DocumentMut, Item, TableLike};

/// The command that prints the whole configuration, with its imports and defaults.
pub(super) const DUMP: [&str; 3] = ["containerd", "config", "dump"];

/// The snapshotter's name in configurations.
const NAME: &str = "tarpon";
/// The first version of the format with a separate plugin for images: that of containerd 2.
const OF_CONTAINERD_2: i64 = 3;

/// Checks the configuration of the snapshotter. Returns a description of the configuration or of the problem.
pub(super) async fn check(config: &str, listens: impl AsyncFn(&Path) -> bool) -> Result<String, String> {
    let config: DocumentMut = config.parse().map_err(|error: toml_edit::TomlError| error.message().to_owned())?;
    let version = config.get("version").and_then(Item::as_integer).unwrap_or(1);
    let cri = match version >= OF_CONTAINERD_2 {
        true => at(config.as_item(), &["plugins", "io.containerd.cri.v1.images"]),
        false => at(config.as_item(), &["plugins", "io.containerd.grpc.v1.cri", "containerd"]),
    };
    let flag = |name: &str| cri.and_then(|cri| cri.get(name)).and_then(Item::as_bool);
    let is_of_cri = cri.and_then(|cri| cri.get("snapshotter")).and_then(Item::as_str) == Some(NAME);
    let Some(plugin) = at(config.as_item(), &["proxy_plugins", NAME]) else {
        return match is_of_cri {
            true => Err("the snapshotter is tarpon, but there is no proxy_plugins.tarpon".to_owned()),
            false => Ok("tarpon is not configured".to_owned()),
        };
    };
    let text = |name: &str| plugin.get(name).and_then(Item::as_str).unwrap_or_default();
    if text("type") != "snapshot" {
        return Err("the type of proxy_plugins.tarpon is not \"snapshot\"".to_owned());
    }
    if is_of_cri && flag("discard_unpacked_layers") == Some(true) {
        return Err("discard_unpacked_layers is true".to_owned());
    }
    match version >= OF_CONTAINERD_2 {
        true => check_transfer(&config, plugin)?,
        false if is_of_cri && flag("disable_snapshot_annotations") != Some(false) => {
            return Err("disable_snapshot_annotations is not false: images are unpacked, not mounted".to_owned());
        }
        false => {}
    }
    let address = text("address");
    if !listens(Path::new(address)).await {
        return Err(format!("no snapshotter listens at {address:?}: start tarpon snapshotter"));
    }
    let scope = if is_of_cri {
        "tarpon is configured, also for Kubernetes"
    } else {
        "tarpon is configured, but not for Kubernetes"
    };
    Ok(scope.to_owned())
}

/// Containerd 2 unpacks in its transfer service, which accepts only snapshotters that are listed there with their platforms.
fn check_transfer(config: &DocumentMut, plugin: &Item) -> Result<(), String> {
    let annotations = at(plugin, &["exports", "enable_remote_snapshot_annotations"]).and_then(Item::as_str);
    if annotations != Some("true") {
        return Err("proxy_plugins.tarpon.exports has no enable_remote_snapshot_annotations = \"true\"".to_owned());
    }
    let listed = at(config.as_item(), &["plugins", "io.containerd.transfer.v1.local", "unpack_config"]);
    let is_ours = |table: &dyn TableLike| {
        let has_platform = table.get("platform").and_then(Item::as_str).is_some_and(|platform| !platform.is_empty());
        has_platform && table.get("snapshotter").and_then(Item::as_str) == Some(NAME)
    };
    let is_listed = match listed {
        Some(Item::ArrayOfTables(tables)) => tables.iter().any(|table| is_ours(table)),
        Some(Item::Value(toml_edit::Value::Array(values))) => {
            values.iter().filter_map(toml_edit::Value::as_inline_table).any(|table| is_ours(table))
        }
        _ => false,
    };
    match is_listed {
        true => Ok(()),
        false => Err("io.containerd.transfer.v1.local has no unpack_config for tarpon: pulls fail".to_owned()),
    }
}

fn at<'i>(item: &'i Item, path: &[&str]) -> Option<&'i Item> {
    path.iter().try_fold(item, |item, key| item.get(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENTATION: &str = include_str!("../../../../../docs/containerd.md");

    /// The configurations in the documentation, by the version of their format.
    fn documented(version: i64) -> String {
        let blocks = DOCUMENTATION.split("```toml\n").skip(1).filter_map(|block| block.split("```").next());
        let of_version = format!("version = {version}\n");
        let found: Vec<&str> = blocks.filter(|block| block.contains(&of_version)).collect();
        assert_eq!(found.len(), 1, "one configuration of version {version}");
        found[0].to_owned()
    }

    async fn checked(config: &str) -> Result<String, String> {
        check(config, async |_: &Path| true).await
    }

    #[tokio::test]
    async fn the_documented_configurations_are_accepted() {
        for version in [2, 3] {
            assert_eq!(checked(&documented(version)).await.as_deref(), Ok("tarpon is configured, also for Kubernetes"));
        }
        let unpacked = documented(3);
        for snapshotter in ["tarpon", "overlayfs"] {
            assert!(unpacked.contains(&format!("platform = \"linux/amd64\"\n    snapshotter = \"{snapshotter}\"\n")));
        }
    }

    #[tokio::test]
    async fn configurations_with_failing_or_eager_pulls_are_rejected() {
        let (old, new) = (documented(2), documented(3));
        for (config, problem) in [
            (
                new.replace("[[plugins.\"io.containerd.transfer.v1.local\".unpack_config]]", "[[unused]]"),
                "unpack_config",
            ),
            (new.replace("enable_remote_snapshot_annotations", "other"), "enable_remote_snapshot_annotations"),
            (new.replace("\"snapshot\"", "\"content\""), "type"),
            (new.replace("[proxy_plugins.tarpon", "[proxy_plugins.other"), "no proxy_plugins.tarpon"),
            (old.replace("disable_snapshot_annotations = false", ""), "disable_snapshot_annotations"),
            (old.clone() + "  discard_unpacked_layers = true\n", "discard_unpacked_layers"),
            ("version = 2\n[".to_owned(), ""),
        ] {
            let found = checked(&config).await.expect_err(problem);
            assert!(found.contains(problem), "{found}");
        }
        assert!(
            check(&new, async |_: &Path| false)
                .await
                .expect_err("no listener")
                .contains("/run/tarpon/snapshotter.sock")
        );
        assert_eq!(checked("version = 3\n").await.as_deref(), Ok("tarpon is not configured"));
    }
}
