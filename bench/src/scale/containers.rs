//! Containers of one image, started at once: with tarpon, and with the same runtime and configuration on plain overlayfs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tarpon_harness::{paths, process, registry};

use super::setting::{Axis, Setting, log_run};
use super::store::{fresh_store, on_store};
use crate::machine::{self, Resources};
use crate::runs::Log;
use crate::together::{Together, WAIT};
use crate::trees;

/// The runtime of both; it accepts the cgroups of any machine.
const RUNTIME: &str = "runc";
/// A container whose configuration the plain ones use.
const MODEL: &str = "tarpon-bench-model";

/// Mounts an overlay and runs the bundle: the minimum work of an engine.
const PLAIN: &str = "mount -t overlay overlay -o lowerdir=$LOWER,upperdir=$BUNDLE/upper,workdir=$BUNDLE/work $BUNDLE/rootfs && \
                     $RUNTIME --root $STATE run --bundle $BUNDLE $NAME; code=$?; umount $BUNDLE/rootfs; exit $code";

pub(super) fn run(setting: &Setting<'_>, log: &mut Log) -> Result<()> {
    let image = format!("{}/{}", registry::address(), setting.args.image);
    let tree = trees::plain(&image, None)?;
    let store = fresh_store(setting)?;
    process::check(on_store(setting).args(["pull", "--quiet", "--tls-verify=false", &image]))?;
    let mut model = tarpon(setting, &image, MODEL, false);
    model.stdin(std::process::Stdio::null());
    process::check_logged(&mut model, &paths::benchmarks().join("scale.log"))?;
    let config = store.join("containers").join(MODEL).join("config.json");
    let config: Value = serde_json::from_slice(&fs::read(&config)?).context("the model has no configuration")?;
    for number in 1..=setting.runs {
        for &size in setting.sizes(Axis::Containers) {
            let line = with_tarpon(setting, &image, &store, size).with_context(|| format!("{size} containers"))?;
            log_run(log, Axis::Containers, size, "tarpon run", number, line)?;
            let line = plain(&tree.root, &config, size).with_context(|| format!("{size} plain containers"))?;
            log_run(log, Axis::Containers, size, "runc on overlayfs", number, line)?;
        }
    }
    process::check_logged(on_store(setting).args(["rm", "--force", MODEL]), &paths::benchmarks().join("scale.log"))?;
    fresh_store(setting).map(drop)
}

fn tarpon(setting: &Setting<'_>, image: &str, name: &str, removed: bool) -> Command {
    let mut command = on_store(setting);
    command.args([
        "run",
        "--quiet",
        "-i",
        "--network",
        "host",
        "--tls-verify=false",
        "--runtime",
        RUNTIME,
        "--name",
        name,
    ]);
    if removed {
        command.arg("--rm");
    }
    command.args(["--entrypoint", "/bin/sh", image, "-c", WAIT]);
    command
}

fn with_tarpon(setting: &Setting<'_>, image: &str, store: &Path, size: u64) -> Result<Value> {
    let commands = (0..size).map(|number| tarpon(setting, image, &format!("tarpon-bench-{number}"), true)).collect();
    let together = Together::start(commands)?;
    let server = machine::server(&setting.tarpon, store).context("no server of the containers")?;
    let held = Resources::by(server).context("the server is gone")?;
    let (up, end) = (together.up(), together.end()?);
    machine::wait_for_end(server)?;
    Ok(json!({
        "seconds": up.as_secs_f64(),
        "end": end.as_secs_f64(),
        "resident": held.resident,
        "anonymous": held.anonymous,
        "proportional": held.proportional,
        "descriptors": held.descriptors,
    }))
}

fn plain(lower: &Path, config: &Value, size: u64) -> Result<Value> {
    let folder = paths::benchmarks().join("bundles");
    machine::remove(&folder)?;
    let bundles =
        (0..size).map(|number| bundle(&folder.join(number.to_string()), config)).collect::<Result<Vec<_>>>()?;
    let commands = bundles.iter().enumerate().map(|(number, bundle)| {
        let mut command = Command::new("sh");
        command.args(["-c", PLAIN]).env("LOWER", lower).env("BUNDLE", bundle).env("RUNTIME", RUNTIME);
        command.env("STATE", folder.join("state")).env("NAME", format!("tarpon-bench-{number}"));
        command
    });
    let together = Together::start(commands.collect())?;
    let (up, end) = (together.up(), together.end()?);
    machine::remove(&folder)?;
    Ok(json!({"seconds": up.as_secs_f64(), "end": end.as_secs_f64()}))
}

/// A bundle with the configuration of the model.
fn bundle(folder: &Path, config: &Value) -> Result<PathBuf> {
    for part in ["upper", "work", "rootfs"] {
        fs::create_dir_all(folder.join(part))?;
    }
    let mut config = config.clone();
    config["root"]["path"] = folder.join("rootfs").display().to_string().into();
    fs::write(folder.join("config.json"), config.to_string())?;
    Ok(folder.to_owned())
}
