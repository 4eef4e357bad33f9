//! Mounts. Skipped without root and /dev/fuse.

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tarpon_daemon::{Daemon, Socket};
use tarpon_testkit::kernel::can_mount;

use crate::fixture::{Fixture, HELLO, Lines, options, with};

/// Reads on a separate thread: the server runs on ours.
async fn read(path: String) -> String {
    tokio::task::spawn_blocking(move || std::fs::read_to_string(path).unwrap()).await.unwrap()
}

async fn mounted(fixture: &Fixture, place: &str, more: Value) -> Value {
    let body = with(with(fixture.image_body("app:v1"), json!({"mountpoint": place, "mode": "fuse"})), more);
    let (status, mount) = fixture.post("/v1/mounts", &body).await;
    assert_eq!(status, StatusCode::CREATED, "{mount}");
    mount
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_mounted_read_described_and_unmounted() {
    if !can_mount() {
        return;
    }
    let mut fixture = Fixture::new().await;
    let mut events = Lines::of(fixture.open(Method::GET, "/v1/events", b"").await);
    let place = fixture.directory("mnt");
    let mount = mounted(&fixture, &place, json!({})).await;
    assert_eq!((&mount["mountpoint"], &mount["mode"], &mount["alive"]), (&json!(place), &json!("fuse"), &json!(true)));
    assert_eq!(read(format!("{place}/etc/hello")).await, HELLO);
    let id = mount["id"].as_str().unwrap();
    for name in [id.to_owned(), place.replace('/', "%2F")] {
        assert_eq!(fixture.get(&format!("/v1/mounts/{name}")).await["id"], id);
    }
    let body = with(fixture.image_body("app:v1"), json!({"mountpoint": place}));
    let (status, failure) = fixture.post("/v1/mounts", &body).await;
    assert_eq!((status, &failure["kind"]), (StatusCode::CONFLICT, &json!("cannot-mount")), "{failure}");
    assert_eq!(events.until("mounted").await["mountpoint"], json!(place));
    let (status, unmounted) = fixture.send(Method::DELETE, &format!("/v1/mounts/{id}"), b"").await;
    assert_eq!((status, unmounted), (StatusCode::OK, json!({"how": "clean"})));
    assert_eq!(events.until("unmounted").await["mountpoint"], json!(place));
    assert_eq!(fixture.get("/v1/mounts").await, json!([]));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_in_use_is_unmounted_only_with_lazy() {
    if !can_mount() {
        return;
    }
    let mut fixture = Fixture::new().await;
    let place = fixture.directory("mnt");
    let mount = mounted(&fixture, &place, json!({})).await;
    assert_eq!(mount["damage"], Value::Null, "{mount}");
    let path = format!("/v1/mounts/{}", mount["id"].as_str().unwrap());
    let open = format!("{place}/etc/hello");
    let open = tokio::task::spawn_blocking(move || std::fs::File::open(open).unwrap()).await.unwrap();
    for query in ["", "?lazy=false"] {
        let (status, failure) = fixture.send(Method::DELETE, &format!("{path}{query}"), b"").await;
        assert_eq!((status, &failure["kind"]), (StatusCode::CONFLICT, &json!("cannot-mount")), "{failure}");
        assert!(failure["cause"].as_str().unwrap().ends_with("is in use"), "{failure}");
    }
    assert_eq!(fixture.get(&path).await["alive"], json!(true));
    let (status, _) = fixture.send(Method::DELETE, &format!("{path}?lazy=yes"), b"").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let (status, unmounted) = fixture.send(Method::DELETE, &format!("{path}?lazy=true"), b"").await;
    assert_eq!((status, unmounted), (StatusCode::OK, json!({"how": "lazy"})));
    drop(open);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_that_is_bound_elsewhere_is_in_use() {
    if !can_mount() {
        return;
    }
    let mut fixture = Fixture::new().await;
    let (place, bound) = (fixture.directory("mnt"), fixture.directory("bound"));
    let mount = mounted(&fixture, &place, json!({})).await;
    rustix::mount::mount_bind(&place, &bound).unwrap();
    let path = format!("/v1/mounts/{}", mount["id"].as_str().unwrap());
    let (status, failure) = fixture.send(Method::DELETE, &path, b"").await;
    assert_eq!(status, StatusCode::CONFLICT, "{failure}");
    assert!(failure["cause"].as_str().unwrap().contains(&format!("also mounted at {bound}")), "{failure}");
    rustix::mount::unmount(&bound, rustix::mount::UnmountFlags::empty()).unwrap();
    let (status, unmounted) = fixture.send(Method::DELETE, &path, b"").await;
    assert_eq!((status, unmounted), (StatusCode::OK, json!({"how": "clean"})));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writable_mount_keeps_its_changes_in_the_upper_directory() {
    if !can_mount() {
        return;
    }
    let mut fixture = Fixture::new().await;
    let (place, upper) = (fixture.directory("mnt"), fixture.directory("upper"));
    let mount = mounted(&fixture, &place, json!({"upper": upper})).await;
    assert_eq!((&mount["is_writable"], &mount["upper"]), (&json!(true), &json!(upper)));
    let new = format!("{place}/etc/new");
    tokio::task::spawn_blocking(move || std::fs::write(new, "new").unwrap()).await.unwrap();
    fixture.stop().await;
    assert_eq!(std::fs::read_to_string(format!("{upper}/etc/new")).unwrap(), "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remount_never_follows_a_symbolic_link() {
    if !can_mount() {
        return;
    }
    let mut fixture = Fixture::new().await;
    let parent = fixture.directory("parent");
    std::fs::create_dir(format!("{parent}/mnt")).unwrap();
    mounted(&fixture, &format!("{parent}/mnt"), json!({})).await;
    fixture.stop().await;
    // As an unprivileged owner of the parent directory does.
    let victim = fixture.directory("victim");
    std::fs::create_dir(format!("{victim}/mnt")).unwrap();
    std::fs::rename(&parent, format!("{parent}-away")).unwrap();
    std::os::unix::fs::symlink(&victim, &parent).unwrap();
    fixture.start().await;
    let mounts = fixture.get("/v1/mounts").await;
    assert_eq!(std::fs::read_dir(format!("{victim}/mnt")).unwrap().count(), 0, "{mounts}");
    assert_eq!(mounts[0]["alive"], json!(false));
    assert!(mounts[0]["problem"].as_str().unwrap().contains("a symbolic link is on the way"), "{mounts}");
    std::fs::remove_file(&parent).unwrap();
    std::fs::rename(format!("{parent}-away"), &parent).unwrap();
    fixture.stop().await;
    fixture.start().await;
    assert_eq!(read(format!("{parent}/mnt/etc/hello")).await, HELLO, "the remount is retried");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mounts_at_shutdown_are_unmounted_and_recorded_for_the_next_start() {
    if !can_mount() {
        return;
    }
    let mut fixture = Fixture::new().await;
    let (kept, given_up) = (fixture.directory("kept"), fixture.directory("given-up"));
    mounted(&fixture, &kept, json!({})).await;
    let other = mounted(&fixture, &given_up, json!({})).await;
    fixture.send(Method::DELETE, &format!("/v1/mounts/{}", other["id"].as_str().unwrap()), b"").await;
    fixture.stop().await;
    assert!(!std::path::Path::new(&kept).join("etc").exists());
    let left = fixture.engine.mounts().unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!((left[0].mountpoint.to_str(), left[0].alive, &*left[0].mode), (Some(&*kept), false, "fuse"));
    assert!(left[0].problem.as_ref().unwrap().contains("the next one mounts it again"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_daemon_of_a_store_works_beside_the_server_and_leaves_its_mounts_alone() {
    if !can_mount() {
        return;
    }
    let mut fixture = Fixture::new().await;
    let place = fixture.directory("mnt");
    mounted(&fixture, &place, json!({})).await;
    let socket = Socket::open(&fixture.path("other.sock")).unwrap();
    let second = Daemon::start(fixture.engine.clone(), options(socket)).await.unwrap();
    assert!(!second.serves() && fixture.path("other.sock").exists());
    second.stop().await;
    assert_eq!(read(format!("{place}/etc/hello")).await, HELLO, "served by another process");
    fixture.stop().await;
}
