//! Each workload of the image corpus becomes ready in each way of running containers that tarpon supports, in any image
//! format. Each start begins with empty stores.

use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use tarpon_harness::ready::{FIRST_EXEC, Running, answers};
use tarpon_harness::workloads::{self, Workload};
use tarpon_testkit::matrix;
use tarpon_tests::containerd::Containerd;
use tarpon_tests::podman::Podman;
use tarpon_tests::real;
use tarpon_tests::tarpon::Tarpon;
use tarpon_tests::wire::Wire;

/// Small images, and those that the tests of each change have: a full run starts them in each format, others in one.
const IN_EACH_FORMAT: [&str; 2] = ["dev/debian-base", "dev/redis"];

/// Images that are started by default. `READY=all` starts all images in the registry, which takes ten minutes.
const USUAL: [&str; 3] = ["dev/debian-base", "dev/redis", "dev/quirks"];

/// The workload that a part of the combinations omits: another workload of its image checks the same names and also reads the files.
const IN_FULL_RUNS: &str = "quirks-meta";

/// Held while containers run: they share the host's ports.
static HOST: Mutex<()> = Mutex::new(());

/// A way to run containers, on stores of its own. Dropping it removes its containers, mounts and stores.
trait Way: Sized {
    /// Its name in the table.
    const NAME: &str;
    /// The supported formats; the first is the one in which large images are started, if they have it.
    const FORMATS: &[&str];

    /// `None` with a printed reason if it cannot run here.
    fn new() -> Option<Self>;

    /// Adds the image, and returns the command that runs a shell in a container of it.
    fn container(&self, workload: &Workload, image: &str, script: &str) -> Result<Command>;

    /// Ends a container, if it still runs.
    fn end(&self, name: &str);
}

fn network(workload: &Workload) -> &str {
    if workload.on_host_network { "host" } else { "none" }
}

/// `tarpon run`.
struct Run(Tarpon);

impl Way for Run {
    const NAME: &str = "tarpon run";
    const FORMATS: &[&str] = &["gzip", "estargz", "zstdchunked"];

    fn new() -> Option<Self> {
        if let Some(reason) = real::missing_for_containers() {
            println!("skipped: {reason}");
            return None;
        }
        Some(Self(Tarpon::new().unwrap()))
    }

    fn container(&self, workload: &Workload, image: &str, script: &str) -> Result<Command> {
        let mut command = self.0.command("run");
        command.args(["--rm", "--quiet", "--name", &workload.id, "--network", network(workload)]);
        command.args(["--entrypoint", "/bin/sh", image, "-c", script]);
        Ok(command)
    }

    fn end(&self, name: &str) {
        let _ = self.0.output("rm", &["-f", name]);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.0.remove_containers();
    }
}

/// Runs a shell in a container of an image in Podman.
fn podman_run(podman: &Podman, workload: &Workload, image: &str, script: &str) -> Command {
    let options = ["--network", network(workload), "--name", &workload.id];
    podman.container_command(&options, image, &["/bin/sh", "-c", script])
}

fn podman_end(podman: &Podman, name: &str) {
    let _ = podman.podman_command(&["rm", "--force", "--ignore", "-t", "0", name]).output();
}

/// Podman, with the image in the additional image store.
struct Shown(Podman);

impl Way for Shown {
    const NAME: &str = "podman add, podman run";
    const FORMATS: &[&str] = &["gzip", "estargz", "zstdchunked"];

    fn new() -> Option<Self> {
        Podman::new(&[]).map(Self)
    }

    fn container(&self, workload: &Workload, image: &str, script: &str) -> Result<Command> {
        self.0.add(image)?;
        Ok(podman_run(&self.0, workload, image, script))
    }

    fn end(&self, name: &str) {
        podman_end(&self.0, name);
    }
}

/// Podman, with the image pulled through the store of layers.
struct Layers(Podman);

impl Way for Layers {
    const NAME: &str = "podman pull, podman run";
    const FORMATS: &[&str] = &["estargz", "zstdchunked"];

    fn new() -> Option<Self> {
        Podman::new(&["--layers"]).filter(Podman::has_lazy_layers).map(Self)
    }

    fn container(&self, workload: &Workload, image: &str, script: &str) -> Result<Command> {
        self.0.pull(image)?;
        if !self.0.all_layers_are_lazy() {
            bail!("Podman has layers of its own");
        }
        Ok(podman_run(&self.0, workload, image, script))
    }

    fn end(&self, name: &str) {
        podman_end(&self.0, name);
    }
}

/// Containerd, with the image pulled as the kubelet does.
struct Pulled(Containerd);

impl Way for Pulled {
    const NAME: &str = "containerd pull, ctr run";
    const FORMATS: &[&str] = &["zstdchunked", "gzip", "estargz"];

    fn new() -> Option<Self> {
        if let Some(reason) = Containerd::missing() {
            println!("skipped: {reason}");
            return None;
        }
        Some(Self(Containerd::start(&[]).unwrap()))
    }

    fn container(&self, workload: &Workload, image: &str, script: &str) -> Result<Command> {
        self.0.pull(image)?;
        if self.0.logs().contains("containerd pulls and unpacks this layer") {
            bail!("containerd unpacked it");
        }
        let options: &[&str] = if workload.on_host_network { &["--net-host"] } else { &[] };
        Ok(self.0.container("tarpon", options, image, &workload.id, &["/bin/sh", "-c", script]))
    }

    fn end(&self, name: &str) {
        let _ = self.0.ctr(&["task", "kill", "--signal", "SIGKILL", name]);
    }
}

/// Starts a workload, waits until it is ready and ends it. Returns the time from the start of its container's command until it was ready.
fn start<W: Way>(way: &W, workload: &Workload, image: &str) -> Result<Duration> {
    if workload.ready.answers(&answers) {
        bail!("another process listens at its port");
    }
    let script = format!("echo {FIRST_EXEC}; {}", workload.command);
    let mut running = Running::start(way.container(workload, image, &script)?)?;
    let ready = running.wait(workload, |_| false);
    way.end(&workload.id);
    let ended = running.wait_for_end();
    let took = ready?.ready;
    ended.map(|()| took)
}

/// The formats in which workload `number` is started: one, in turn, unless all combinations are tested.
fn formats<W: Way>(registry: &str, image: &str, number: usize) -> Vec<&'static str> {
    let has_tag = |format: &&str| real::has_tag(registry, image, format);
    if matrix::is_full() {
        let count = if IN_EACH_FORMAT.contains(&image) { W::FORMATS.len() } else { 1 };
        return W::FORMATS.iter().copied().filter(has_tag).take(count).collect();
    }
    let in_turn = W::FORMATS.iter().cycle().skip(number).take(W::FORMATS.len()).copied();
    in_turn.filter(has_tag).take(1).collect()
}

/// The workloads that are started here.
fn workloads() -> Vec<Workload> {
    let wants_all = std::env::var_os("READY").is_some_and(|wanted| wanted == "all");
    let is_usual = |workload: &Workload| USUAL.contains(&workload.image.as_str());
    let is_omitted = |workload: &Workload| workload.id == IN_FULL_RUNS && !matrix::is_full();
    let mut workloads = workloads::all(None).unwrap();
    workloads.retain(|workload| wants_all || is_usual(workload) && !is_omitted(workload));
    workloads
}

fn each_workload_becomes_ready<W: Way>() {
    let _alone = HOST.lock().unwrap_or_else(PoisonError::into_inner);
    let mut first = W::new();
    if first.is_none() {
        return;
    }
    let registry = real::registry().unwrap();
    let (mut starts, mut failures) = (0, Vec::new());
    for (number, workload) in workloads().into_iter().enumerate() {
        let formats = formats::<W>(&registry, &workload.image, number);
        if formats.is_empty() {
            println!("{}: {}: the registry has no {} for it", W::NAME, workload.id, workload.image);
        }
        for format in formats {
            let subject = format!("{}: {} from {}:{format}", W::NAME, workload.id, workload.image);
            starts += 1;
            let way = first.take().or_else(W::new).unwrap();
            let wire = Wire::to(&registry).unwrap();
            match start(&way, &workload, &format!("{}/{}:{format}", wire.address(), workload.image)) {
                Ok(took) => {
                    println!("{subject}: ready after {:.1} s and {} bytes", took.as_secs_f64(), wire.bytes());
                }
                Err(error) => {
                    println!("{subject}: NOT READY: {error:#}");
                    failures.push(format!("{subject}: {error:#}"));
                }
            }
        }
    }
    if starts == 0 {
        return println!("skipped: the registry has no image of a workload");
    }
    assert!(failures.is_empty(), "{} of {starts} are not ready:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn each_workload_becomes_ready_with_tarpon_run() {
    each_workload_becomes_ready::<Run>();
}

#[test]
fn each_workload_becomes_ready_with_podman_from_the_additional_image_store() {
    each_workload_becomes_ready::<Shown>();
}

#[test]
fn each_workload_becomes_ready_with_podman_after_a_lazy_pull() {
    each_workload_becomes_ready::<Layers>();
}

#[test]
fn each_workload_becomes_ready_with_containerd_and_the_snapshotter() {
    each_workload_becomes_ready::<Pulled>();
}
