//! What a tier that fails costs the hosts that share it: no error, and no wrong byte.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tarpon_harness::bucket::{Bucket, Server};
use tarpon_testkit::{matrix, processes};
use tarpon_tests::disks::{Hung, ReadOnly, SmallDisk};
use tarpon_tests::real;
use tarpon_tests::shared_image::{SharedImage, image, other_image};
use tarpon_tests::tiered::{
    Place, Shared, SharedBucket, TieredHost, assert_none_requested, crowd, fill, hosts, is_skipped, mounted, objects,
    read_through, start, wire,
};
use tarpon_tests::wait::wait_for;
use tarpon_tests::wire::{Behaviour, Wire};

/// What takes longer hangs.
const HUNG: Duration = Duration::from_secs(120);
/// A registry that is held back has sent this many bytes: less than the smallest layer, so that none of them is complete.
const HELD_BACK: u64 = 3 << 20;

/// How many hosts read at the same time.
fn readers() -> usize {
    crowd() / 2
}

fn assert_each_requested(image: &SharedImage, wire: &Wire) {
    let requests = image.requests(wire);
    assert!(requests.iter().all(|requests| *requests > 0), "{requests:?}");
}

/// Lets hosts mount the image and read it. `fault` happens while they stream layers or wait for those who do. Returns what the commands print.
fn start_through(hosts: &[TieredHost], wire: &Wire, fault: impl FnOnce()) -> Vec<String> {
    wire.behave(Behaviour::SilentAfter(HELD_BACK));
    thread::scope(|scope| {
        let started = scope.spawn(|| start(hosts, image()));
        wait_for(HUNG, "layers are streamed, and all hosts wait", || {
            let manifests = wire.asked().iter().filter(|path| path.contains("/manifests/")).count();
            (wire.bytes() >= HELD_BACK && manifests >= hosts.len()).then_some(())
        });
        fault();
        wire.behave(Behaviour::Honest);
        started.join().unwrap()
    })
}

/// Checks that hosts report the tier. The one that streams all layers may notice nothing until their copies end.
fn assert_reported(notes: &[String], place: &Place) {
    let reports = |notes: &&String| {
        let failed = |how: &str| notes.contains(&format!("the tier {} {how}: ", place.url));
        failed("is not used at the moment") || failed("failed")
    };
    assert!(notes.iter().filter(reports).count() + 1 >= notes.len(), "{notes:#?}");
}

#[test]
fn a_bucket_that_goes_away_while_hosts_prepare_costs_no_error_and_is_used_when_it_returns() {
    if is_skipped() {
        return;
    }
    let Some(mut shared) = SharedBucket::new() else { return };
    let (image, wire, place) = (image(), wire(), Place::bucket(&shared.bucket));
    let notes = start_through(&hosts(crowd(), &wire, &place), &wire, || shared.bucket.stop().unwrap());
    assert_reported(&notes, &place);
    shared.bucket.start_again().unwrap();
    let before = image.requests(&wire);
    // The claims of the hosts that could not release them expire.
    start(&hosts(2, &wire, &place), image);
    let after = image.requests(&wire);
    assert!(before.iter().zip(&after).all(|(before, after)| after - before <= 1), "{before:?} {after:?}");
    start(&hosts(1, &wire, &place), image);
    assert_eq!(image.requests(&wire), after, "it has all layers now");
}

/// Waits until the host's server asks the tier again.
fn wait_for_end_of_rest(host: &TieredHost) {
    wait_for(HUNG, "the tier does not rest", || {
        let rest = host.endpoint(image(), "tier")["rest_millis"].as_u64();
        rest.is_none_or(|rest| rest == 0).then_some(())
    });
}

#[test]
fn a_bucket_that_goes_away_while_hosts_read_costs_no_error_and_is_used_when_it_returns() {
    if is_skipped() {
        return;
    }
    let Some(mut shared) = SharedBucket::new() else { return };
    let (wire, place) = (wire(), Place::bucket(&shared.bucket));
    fill(&place, other_image());
    let hosts = mounted(readers(), &wire, &place);
    read_through(&hosts, image(), || shared.bucket.stop().unwrap());
    assert_each_requested(image(), &wire);
    shared.bucket.start_again().unwrap();
    for host in &hosts {
        wait_for_end_of_rest(host);
        host.mount(other_image());
        host.check(other_image());
        assert!(host.counted(other_image()).bytes > 0, "the tier is used again");
    }
    assert_none_requested(other_image(), &wire);
}

#[test]
fn a_bucket_that_falls_silent_costs_no_error() {
    if is_skipped() {
        return;
    }
    let Some(shared) = SharedBucket::new() else { return };
    let (wire, line) = (wire(), Wire::to(&shared.bucket.address()).unwrap());
    let place = Place::bucket_behind(&shared.bucket, &line);
    let hosts = mounted(readers(), &wire, &place);
    read_through(&hosts, image(), || line.behave(Behaviour::Silent));
    assert_each_requested(image(), &wire);
    for notes in start(&self::hosts(2, &wire, &place), image()) {
        assert!(notes.contains("is not used at the moment: "), "{notes}");
    }
}

#[test]
fn a_bucket_that_lies_costs_no_wrong_byte() {
    if is_skipped() {
        return;
    }
    let Some(shared) = SharedBucket::new() else { return };
    let (wire, line) = (wire(), Wire::to(&shared.bucket.address()).unwrap());
    let place = Place::bucket_behind(&shared.bucket, &line);
    let hosts = mounted(readers(), &wire, &place);
    read_through(&hosts, image(), || line.behave(Behaviour::Lying));
    assert_each_requested(image(), &wire);
    assert!(hosts.iter().all(|host| host.counted(image()).failures > 0));
    start(&self::hosts(2, &wire, &place), image());
}

/// Changes each object with these names.
fn change(shared: &Shared, change: impl Fn(&Path)) {
    let objects = [shared.objects("blob"), shared.objects("index-")].concat();
    assert_eq!(objects.len(), 2 * image().layers.len());
    objects.iter().for_each(|object| change(object));
}

fn overwrite(object: &Path) {
    let bytes: Vec<u8> = fs::read(object).unwrap().iter().map(|byte| byte ^ 0x55).collect();
    fs::write(object, bytes).unwrap();
}

fn truncate(object: &Path) {
    let file = fs::File::options().write(true).open(object).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
}

/// Damages a tier while hosts read from it.
fn damage_while_hosts_read(damage: fn(&Path)) -> (Shared, Wire) {
    let (shared, wire) = (Shared::new(), wire());
    let hosts = mounted(readers(), &wire, &shared.place());
    read_through(&hosts, image(), || change(&shared, damage));
    assert_each_requested(image(), &wire);
    (shared, wire)
}

#[test]
fn a_folder_with_wrong_bytes_costs_no_wrong_byte() {
    if is_skipped() {
        return;
    }
    let (shared, wire) = damage_while_hosts_read(overwrite);
    start(&hosts(2, &wire, &shared.place()), image());
}

#[test]
fn a_folder_with_parts_of_blobs_costs_no_error_and_gets_them_whole_again() {
    if is_skipped() {
        return;
    }
    let (shared, wire) = damage_while_hosts_read(truncate);
    if !matrix::is_full() {
        return println!("skipped: the rest waits for 15 seconds, until claims expire (cargo xtask test --all)");
    }
    start(&hosts(2, &wire, &shared.place()), image());
    let before = image().requests(&wire);
    start(&hosts(1, &wire, &shared.place()), image());
    assert_eq!(image().requests(&wire), before);
}

#[test]
fn wrong_bytes_in_a_tier_are_no_alarm_of_the_background_completion() {
    if is_skipped() {
        return;
    }
    let (shared, wire) = (Shared::new(), wire());
    fill(&shared.place(), image());
    shared.objects("blob").iter().for_each(|blob| overwrite(blob));
    let host = TieredHost::new(&wire.address(), Some(&shared.place()));
    real::run(host.mount_command(image()).args(["--backfill", "now"])).unwrap();
    wait_for(HUNG, "the image is complete", || {
        let status = host.status(image());
        assert_eq!(status["backfill"]["alarms"], json!([]));
        (status["backfill"]["state"] == "complete").then_some(())
    });
    assert_each_requested(image(), &wire);
    host.check(image());
}

#[test]
fn a_folder_that_vanishes_while_hosts_read_costs_no_error() {
    if is_skipped() {
        return;
    }
    let (shared, wire) = (Shared::new(), wire());
    let hosts = mounted(readers(), &wire, &shared.place());
    read_through(&hosts, image(), || fs::rename(shared.path().join("v1"), shared.path().join("away")).unwrap());
    assert_each_requested(image(), &wire);
}

#[test]
fn a_folder_that_does_not_answer_costs_no_error() {
    if is_skipped() {
        return;
    }
    let (shared, wire) = (Shared::new(), wire());
    let hosts = mounted(readers(), &wire, &shared.place());
    let mut hung = None;
    read_through(&hosts, image(), || hung = Some(Hung::over(shared.path())));
    assert_each_requested(image(), &wire);
    // Also if it has not answered since the host started.
    for notes in start(&self::hosts(2, &wire, &shared.place()), image()) {
        assert!(notes.contains("is not used: "), "{notes}");
    }
    drop(hung);
}

#[test]
fn a_folder_that_does_not_answer_while_hosts_prepare_costs_no_error() {
    if is_skipped() {
        return;
    }
    let (shared, wire) = (Shared::new(), wire());
    let mut hung = None;
    let hosts = hosts(crowd(), &wire, &shared.place());
    let notes = start_through(&hosts, &wire, || hung = Some(Hung::over(shared.path())));
    assert_reported(&notes, &shared.place());
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn kill(process: Pid) {
    kill_process(process, Signal::KILL).unwrap();
}

#[test]
fn a_host_that_is_killed_while_it_streams_layers_for_all_is_replaced() {
    if is_skipped() {
        return;
    }
    let (shared, held_back, wire) = (Shared::new(), wire(), wire());
    held_back.behave(Behaviour::SilentAfter(HELD_BACK));
    let killed = TieredHost::new(&held_back.address(), Some(&shared.place()));
    let mut mount = killed.mount_command(image());
    let mut client = mount.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for(HUNG, "a layer is streamed", || {
        let is_claimed = !shared.objects("claim-0").is_empty();
        (is_claimed && held_back.bytes() >= HELD_BACK).then_some(())
    });
    let workers = processes::workers_of(pid(&client));
    assert_eq!(workers.len(), 1);
    kill(pid(&client));
    workers.into_iter().for_each(kill);
    client.wait().unwrap();
    let claims = shared.objects("claim-0").len();
    start(&hosts(2, &wire, &shared.place()), image());
    assert_eq!(image().requests(&wire), vec![1; image().layers.len()], "one of them streams each layer");
    assert_eq!(shared.objects("claim-1").len(), claims, "they have replaced its claims");
    held_back.behave(Behaviour::Honest);
    let before = image().requests(&held_back);
    start(&[killed], image());
    assert_eq!(image().requests(&held_back), before, "the host finds the layers in the tier later");
}

#[test]
fn a_read_only_folder_is_read() {
    if is_skipped() {
        return;
    }
    let (shared, wire) = (Shared::new(), wire());
    fill(&shared.place(), image());
    let _read_only = ReadOnly::over(shared.path());
    start(&hosts(2, &wire, &shared.place()), image());
    assert_none_requested(image(), &wire);
    for notes in start(&hosts(1, &wire, &shared.place()), other_image()) {
        assert!(notes.contains("Read-only file system"), "{notes}");
    }
}

#[test]
fn a_full_disk_costs_no_error_and_nothing_is_left_of_what_did_not_fit() {
    if is_skipped() {
        return;
    }
    // Less than the first layer.
    let (disk, wire) = (SmallDisk::of(11 << 20), wire());
    let place = Place::folder(disk.path());
    start(&hosts(crowd(), &wire, &place), image());
    start(&hosts(2, &wire, &place), image());
    let files = real::run(Command::new("find").arg(disk.path()).args(["-name", "*#*"])).unwrap();
    assert_eq!(files, "");
    // Others would wait for it.
    let is_kept = |claim: &PathBuf| objects(disk.path(), "index-").iter().any(|index| index.parent() == claim.parent());
    let left: Vec<_> = objects(disk.path(), "claim-").into_iter().filter(|claim| !is_kept(claim)).collect();
    assert_eq!(left, [""; 0].map(PathBuf::from), "claims of what did not fit");
}

#[test]
fn a_folder_that_does_not_exist_costs_no_error_and_is_reported() {
    if is_skipped() {
        return;
    }
    let (shared, wire) = (Shared::new(), wire());
    let place = Place::folder(&shared.path().join("missing"));
    for notes in start(&hosts(2, &wire, &place), other_image()) {
        let expected = format!("the tier {} is not used: cannot open the tier: its folder does not exist", place.url);
        assert!(notes.contains(&expected), "{notes}");
    }
    assert!(!shared.path().join("missing").exists());
}

#[test]
fn credentials_that_the_bucket_refuses_cost_no_error_and_are_reported() {
    if is_skipped() {
        return;
    }
    if !Server::installed().contains(&Server::Versitygw) {
        return println!("skipped: no S3 server is installed that checks signatures");
    }
    let folder = real::scratch().unwrap();
    let bucket = Bucket::start_with(Server::Versitygw, std::net::Ipv4Addr::LOCALHOST, folder.path()).unwrap();
    let (mut place, wire) = (Place::bucket(&bucket), wire());
    fill(&place, other_image());
    let key = place.environment.iter_mut().find(|(name, _)| *name == "AWS_SECRET_ACCESS_KEY").unwrap();
    key.1 = "wrong-secret".to_owned();
    for notes in start(&hosts(2, &wire, &place), other_image()) {
        assert!(notes.contains("is not used at the moment: "), "{notes}");
        assert!(!notes.contains("wrong-secret"));
    }
}
