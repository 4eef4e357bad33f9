//! A growing number of concurrent mounts of one image.

use std::fs;

use anyhow::{Context, Result};
use serde_json::json;
use tarpon_harness::{paths, process};

use super::images::{self, Shape};
use super::mounting::watched;
use super::setting::{Axis, Setting, log_run};
use super::store::{fresh_store, on_store};
use crate::machine::{self, Resources};
use crate::runs::Log;
use crate::stats::median;

const IMAGE: Shape = Shape { layers: 3, files: 1000, bytes: 100, contents: u64::MAX, gzip: false };

pub(super) fn run(setting: &Setting<'_>, log: &mut Log) -> Result<()> {
    let sizes = setting.sizes(Axis::Mounts);
    let image = images::made("mounts", IMAGE)?;
    let most = sizes.last().copied().unwrap_or_default();
    for number in 1..=setting.runs {
        let store = fresh_store(setting)?;
        process::check(on_store(setting).args(["pull", "--quiet", &image]))?;
        // A single mount is too short for a useful figure: the figure is the median of those since the last size.
        let mut times = Vec::new();
        for count in 1..=most {
            let root = paths::benchmarks().join("scale-roots").join(count.to_string());
            fs::create_dir_all(&root)?;
            let mut mount = on_store(setting);
            mount.args(["mount", "--quiet", &image]).arg(&root);
            times.push(watched(mount)?.0);
            if sizes.contains(&count) {
                let server = machine::server(&setting.tarpon, &store).context("no server of the mounts")?;
                let held = Resources::by(server).context("the server is gone")?;
                let line = json!({
                    "seconds": median(&std::mem::take(&mut times)),
                    "resident": held.resident,
                    "anonymous": held.anonymous,
                    "proportional": held.proportional,
                    "descriptors": held.descriptors,
                });
                log_run(log, Axis::Mounts, count, "one more", number, line)?;
            }
        }
        let server = machine::server(&setting.tarpon, &store).context("no server of the mounts")?;
        let mut unmount = on_store(setting);
        unmount.args(["umount", "--all"]);
        let (seconds, _) = watched(unmount)?;
        log_run(log, Axis::Mounts, most, "unmount all", number, json!({"seconds": seconds}))?;
        // The server runs on for a moment, with open files in the store.
        machine::wait_for_end(server)?;
        fresh_store(setting)?;
    }
    machine::remove(&paths::benchmarks().join("scale-roots"))
}
