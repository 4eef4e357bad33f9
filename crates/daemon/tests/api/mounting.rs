//! Mounts. Skipped without root and /dev/fuse.

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tarpon_daemon::{Daemon, Options, Socket};
use tarpon_testkit::kernel::can_mount;

use crate::lab::{HELLO, Lab, Lines, with};

/// Reads on a separate thread: the server runs on ours.
async fn read(path: String) -> String {
    tokio::task::spawn_blocking(move || std::fs::read_to_string(path).unwrap()).await.unwrap()
}

async fn mounted(lab: &Lab, place: &str, more: Value) -> Value {
    let wish = with(with(lab.wish("app:v1"), json!({"mountpoint": place, "mode": "fuse"})), more);
    let (status, mount) = lab.post("/v1/mounts", &wish).await;
    assert_eq!(status, StatusCode::CREATED, "{mount}");
    mount
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_mounted_read_described_and_unmounted() {
    if !can_mount() {
        return;
    }
    let mut lab = Lab::new().await;
    let mut events = Lines::of(lab.open(Method::GET, "/v1/events", b"").await);
    let place = lab.directory("mnt");
    let mount = mounted(&lab, &place, json!({})).await;
    assert_eq!((&mount["mountpoint"], &mount["mode"], &mount["alive"]), (&json!(place), &json!("fuse"), &json!(true)));
    assert_eq!(read(format!("{place}/etc/hello")).await, HELLO);
    let id = mount["id"].as_str().unwrap();
    for name in [id.to_owned(), place.replace('/', "%2F")] {
        assert_eq!(lab.get(&format!("/v1/mounts/{name}")).await["id"], id);
    }
    let wish = with(lab.wish("app:v1"), json!({"mountpoint": place}));
    let (status, failure) = lab.post("/v1/mounts", &wish).await;
    assert_eq!((status, &failure["kind"]), (StatusCode::CONFLICT, &json!("cannot-mount")), "{failure}");
    assert_eq!(events.until("mounted").await["mountpoint"], json!(place));
    let (status, gone) = lab.send(Method::DELETE, &format!("/v1/mounts/{id}"), b"").await;
    assert_eq!((status, gone), (StatusCode::OK, json!({"how": "clean"})));
    assert_eq!(events.until("unmounted").await["mountpoint"], json!(place));
    assert_eq!(lab.get("/v1/mounts").await, json!([]));
    lab.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_that_is_in_use_is_unmounted_only_if_that_is_asked_for() {
    if !can_mount() {
        return;
    }
    let mut lab = Lab::new().await;
    let place = lab.directory("mnt");
    let mount = mounted(&lab, &place, json!({})).await;
    assert_eq!(mount["damage"], Value::Null, "{mount}");
    let path = format!("/v1/mounts/{}", mount["id"].as_str().unwrap());
    let open = format!("{place}/etc/hello");
    let open = tokio::task::spawn_blocking(move || std::fs::File::open(open).unwrap()).await.unwrap();
    for query in ["", "?lazy=false"] {
        let (status, failure) = lab.send(Method::DELETE, &format!("{path}{query}"), b"").await;
        assert_eq!((status, &failure["kind"]), (StatusCode::CONFLICT, &json!("cannot-mount")), "{failure}");
        assert!(failure["cause"].as_str().unwrap().ends_with("is in use"), "{failure}");
    }
    assert_eq!(lab.get(&path).await["alive"], json!(true));
    let (status, _) = lab.send(Method::DELETE, &format!("{path}?lazy=yes"), b"").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let (status, gone) = lab.send(Method::DELETE, &format!("{path}?lazy=true"), b"").await;
    assert_eq!((status, gone), (StatusCode::OK, json!({"how": "lazy"})));
    drop(open);
    lab.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_that_is_bound_elsewhere_is_in_use() {
    if !can_mount() {
        return;
    }
    let mut lab = Lab::new().await;
    let (place, bound) = (lab.directory("mnt"), lab.directory("bound"));
    let mount = mounted(&lab, &place, json!({})).await;
    rustix::mount::mount_bind(&place, &bound).unwrap();
    let path = format!("/v1/mounts/{}", mount["id"].as_str().unwrap());
    let (status, failure) = lab.send(Method::DELETE, &path, b"").await;
    assert_eq!(status, StatusCode::CONFLICT, "{failure}");
    assert!(failure["cause"].as_str().unwrap().contains(&format!("also mounted at {bound}")), "{failure}");
    rustix::mount::unmount(&bound, rustix::mount::UnmountFlags::empty()).unwrap();
    let (status, gone) = lab.send(Method::DELETE, &path, b"").await;
    assert_eq!((status, gone), (StatusCode::OK, json!({"how": "clean"})));
    lab.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writable_mount_keeps_its_changes_where_it_was_told() {
    if !can_mount() {
        return;
    }
    let mut lab = Lab::new().await;
    let (place, upper) = (lab.directory("mnt"), lab.directory("upper"));
    let mount = mounted(&lab, &place, json!({"upper": upper})).await;
    assert_eq!((&mount["is_writable"], &mount["upper"]), (&json!(true), &json!(upper)));
    let new = format!("{place}/etc/new");
    tokio::task::spawn_blocking(move || std::fs::write(new, "new").unwrap()).await.unwrap();
    lab.stop().await;
    assert_eq!(std::fs::read_to_string(format!("{upper}/etc/new")).unwrap(), "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_mounted_again_goes_where_it_was_and_never_where_a_link_leads() {
    if !can_mount() {
        return;
    }
    let mut lab = Lab::new().await;
    let parent = lab.directory("parent");
    std::fs::create_dir(format!("{parent}/mnt")).unwrap();
    mounted(&lab, &format!("{parent}/mnt"), json!({})).await;
    lab.stop().await;
    // As an unprivileged owner of the parent directory does.
    let victim = lab.directory("victim");
    std::fs::create_dir(format!("{victim}/mnt")).unwrap();
    std::fs::rename(&parent, format!("{parent}-away")).unwrap();
    std::os::unix::fs::symlink(&victim, &parent).unwrap();
    lab.start().await;
    let mounts = lab.get("/v1/mounts").await;
    assert_eq!(std::fs::read_dir(format!("{victim}/mnt")).unwrap().count(), 0, "{mounts}");
    assert_eq!(mounts[0]["alive"], json!(false));
    assert!(mounts[0]["problem"].as_str().unwrap().contains("a symbolic link is on the way"), "{mounts}");
    std::fs::remove_file(&parent).unwrap();
    std::fs::rename(format!("{parent}-away"), &parent).unwrap();
    lab.stop().await;
    lab.start().await;
    assert_eq!(read(format!("{parent}/mnt/etc/hello")).await, HELLO, "it is tried again");
    lab.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_mounted_at_the_end_is_unmounted_and_on_record_for_the_next_start() {
    if !can_mount() {
        return;
    }
    let mut lab = Lab::new().await;
    let (kept, given_up) = (lab.directory("kept"), lab.directory("given-up"));
    mounted(&lab, &kept, json!({})).await;
    let other = mounted(&lab, &given_up, json!({})).await;
    lab.send(Method::DELETE, &format!("/v1/mounts/{}", other["id"].as_str().unwrap()), b"").await;
    lab.stop().await;
    assert!(!std::path::Path::new(&kept).join("etc").exists());
    let left = lab.engine.mounts().unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!((left[0].mountpoint.to_str(), left[0].alive, &*left[0].mode), (Some(&*kept), false, "fuse"));
    assert!(left[0].problem.as_ref().unwrap().contains("the next one mounts it again"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_daemon_of_a_store_works_beside_the_server_and_leaves_its_mounts_alone() {
    if !can_mount() {
        return;
    }
    let mut lab = Lab::new().await;
    let place = lab.directory("mnt");
    mounted(&lab, &place, json!({})).await;
    let socket = Socket::open(&lab.path("other.sock")).unwrap();
    let options = Options { socket, metrics: None, keeper_command: Vec::new(), runtime: None, scrub: None };
    let second = Daemon::start(lab.engine.clone(), options).await.unwrap();
    assert!(!second.serves() && lab.path("other.sock").exists());
    second.stop().await;
    assert_eq!(read(format!("{place}/etc/hello")).await, HELLO, "it is another's");
    lab.stop().await;
}
