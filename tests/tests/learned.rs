//! Learned starts, from three runs of a container to a boot pack that other hosts use: by the command, and by the daemon.

use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tarpon_tests::manager::Manager;
use tarpon_tests::real;
use tarpon_tests::tarpon::Tarpon;
use tarpon_tests::wait::wait_for;

const IMAGE: &str = "dev/debian-base:gzip";
/// How long a pack of half a megabyte may take, with the start of a process that makes it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The image, and an index repository of this test; `None` if these tests cannot run here.
fn image(name: &str) -> Option<(String, String)> {
    if let Some(reason) = real::missing_for_containers() {
        println!("skipped: {reason}");
        return None;
    }
    let registry = real::registry()?;
    Some((format!("{registry}/{IMAGE}"), format!("{registry}/learned-{name}-{}", std::process::id())))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Runs the image once, with indexes and packs of this index repository.
fn start(tarpon: &Tarpon, image: &str, repository: &str) {
    let command = ["/bin/sh", "-c", "tar --version && sed --version && grep --version"];
    let options = ["--rm", "--network", "none", "--index-repo", repository, image];
    tarpon.run("run", &[&options[..], &command].concat()).unwrap();
}

fn learned(tarpon: &Tarpon) -> Vec<Value> {
    json(&tarpon.run("trace", &["ls", "--json"]).unwrap()).as_array().unwrap().clone()
}

/// A host on which the image started three times.
fn host(image: &str, repository: &str) -> Tarpon {
    let tarpon = Tarpon::new().unwrap();
    tarpon.run("index", &["--push", "--index-repo", repository, image]).unwrap();
    // It read the layers.
    tarpon.run("cache", &["clear"]).unwrap();
    for starts in 1..=3 {
        start(&tarpon, image, repository);
        let traces = learned(&tarpon);
        let [trace] = &traces[..] else { panic!("{traces:?}") };
        assert_eq!(trace["starts"], starts, "the second and the third wait for nothing");
    }
    tarpon
}

/// The profiles of the boot packs in the newest index of the image.
fn packs(tarpon: &Tarpon, image: &str, repository: &str) -> Vec<String> {
    let known = json(&tarpon.run("index", &["ls", "--json", "--index-repo", repository, image]).unwrap());
    let packs = known["indexes"][0]["packs"].as_array().unwrap().iter();
    packs.map(|pack| pack["profile"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_start_is_published_after_three_equal_ones_and_the_next_hosts_use_it() {
    let Some((image, repository)) = image("command") else { return };
    let tarpon = host(&image, &repository);
    let publish = |options: &[&str]| {
        let arguments = [&["publish", "--json", "--index-repo", &repository], options].concat();
        json(&tarpon.run("trace", &arguments).unwrap())["images"][0]["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(publish(&["--after", "4", "--all"]), "too-few");
    assert_eq!(packs(&tarpon, &image, &repository), ["predicted"]);
    assert_eq!(publish(&["--all"]), "published");
    assert_eq!(packs(&tarpon, &image, &repository), ["default"]);
    assert_eq!(publish(&[&image]), "known");

    // By hand, in another index repository.
    let other = format!("{repository}-exported");
    let file = tarpon.store().with_file_name("start.trace");
    let file = file.to_str().unwrap();
    tarpon.run("trace", &["export", learned(&tarpon)[0]["id"].as_str().unwrap(), "-o", file]).unwrap();
    tarpon.run("record", &["--push", "--index-repo", &other, "--trace", file, &image]).unwrap();
    assert_eq!(packs(&tarpon, &image, &other), ["default"]);

    let next = Tarpon::new().unwrap();
    start(&next, &image, &repository);
    assert_eq!(learned(&next), Vec::<Value>::new(), "it starts from the pack");
}

/// A daemon, ended with the test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

#[test]
fn a_daemon_publishes_by_itself() {
    let Some((image, repository)) = image("daemon") else { return };
    let tarpon = host(&image, &repository);
    let mut command: Command = tarpon.command("daemon");
    command.args(["--learn", "publish", "--index-repo", &repository, "--listen"]);
    command.arg(format!("unix://{}", tarpon.store().with_file_name("api.sock").display()));
    let _daemon = Daemon(Manager::new(&tarpon.store().with_file_name("notify.sock")).start(&mut command));
    let is_published = || (packs(&tarpon, &image, &repository) == ["default"]).then_some(());
    wait_for(PATIENCE, "the daemon publishes", is_published);
}
