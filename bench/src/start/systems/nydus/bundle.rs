//! The configuration of the container for crun, which `tarpon run` and Podman write themselves.

use anyhow::{Result, bail};
use serde_json::{Value, json};

/// What these may do by default, with Podman and with tarpon.
const CAPABILITIES: [&str; 11] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// What these hide, and what they show read-only.
const MASKED: [&str; 9] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The path of programs if the image names none.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The user of an image with this config, as a name or a number.
pub(super) fn user(image: &Value) -> Result<&str> {
    match image["config"]["User"].as_str().unwrap_or_default() {
        "" => Ok("0"),
        group if group.contains(':') => bail!("no workload needs a group as in {group}, so it is not supported"),
        user => Ok(user),
    }
}

/// The configuration of a container on the host's network that runs `script`, of an image with this config. The ids and the home of its user
/// are still to be filled in, because the names are in a file of the image.
pub(super) fn bundle(image: &Value, script: &str) -> Value {
    let config = &image["config"];
    let words = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut env = words(&config["Env"]);
    if !env.iter().any(|variable| variable.starts_with("PATH=")) {
        env.push(PATH.to_owned());
    }
    env.push("HOME=@HOME@".to_owned());
    let directory = config["WorkingDir"].as_str().filter(|directory| !directory.is_empty()).unwrap_or("/");
    json!({
        "ociVersion": "1.0.2",
        "hostname": "tarpon",
        "root": {"path": "rootfs"},
        "process": {
            "terminal": false,
            "user": {"uid": "@UID@", "gid": "@GID@"},
            "args": ["/bin/sh", "-c", script],
            "env": env,
            "cwd": directory,
            "capabilities": {"bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES},
        },
        "mounts": [
            mount("/proc", "proc", &["nosuid", "nodev", "noexec"]),
            mount("/dev", "tmpfs", &["nosuid", "noexec", "strictatime", "mode=755", "size=65536k"]),
            mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
            mount("/dev/pts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
            mount("/dev/shm", "tmpfs", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
            mount("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
            mount("/sys/fs/cgroup", "cgroup", &["nosuid", "noexec", "nodev", "relatime", "ro"]),
        ],
        "linux": {
            "namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}],
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
        },
    })
}

fn mount(destination: &str, kind: &str, options: &[&str]) -> Value {
    json!({"destination": destination, "type": kind, "source": kind, "options": options})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_has_the_environment_and_the_folder_of_its_image_and_runs_the_script() {
        let image = json!({"config": {"Env": ["PATH=/opt/bin", "LANG=C.UTF-8"], "WorkingDir": "/srv"}});
        let process = &bundle(&image, "exec a 'b'")["process"];
        assert_eq!(process["env"], json!(["PATH=/opt/bin", "LANG=C.UTF-8", "HOME=@HOME@"]));
        assert_eq!(process["args"], json!(["/bin/sh", "-c", "exec a 'b'"]));
        assert_eq!(process["cwd"], "/srv");
    }

    #[test]
    fn an_image_that_configures_nothing_has_a_path_and_begins_at_the_root() {
        let process = &bundle(&json!({}), "")["process"];
        assert_eq!((&process["env"][0], &process["cwd"]), (&json!(PATH), &json!("/")));
    }

    #[test]
    fn a_container_shares_the_network_of_the_host_alone() {
        let namespaces = &bundle(&json!({}), "")["linux"]["namespaces"];
        let kinds: Vec<_> = namespaces.as_array().unwrap().iter().map(|namespace| &namespace["type"]).collect();
        assert_eq!(kinds, ["pid", "ipc", "uts", "mount"]);
    }

    #[test]
    fn the_user_is_that_of_the_image_and_root_if_it_names_none() {
        let user = |user: &str| user_of(&json!({"config": {"User": user}}));
        assert_eq!([user("node").unwrap(), user("").unwrap()], ["node", "0"]);
        assert!(user("node:staff").is_err() && user_of(&json!({})).unwrap() == "0");
    }

    fn user_of(image: &Value) -> Result<String> {
        user(image).map(str::to_owned)
    }
}
