//! Mounting, unmounting, and unmounts by other processes.

use std::fs::File;
use std::io::Read;
use std::time::Duration;

use rustix::mount::UnmountFlags;
use tarpon_mount::{Feature, Mode, ModeChoice, MountError, Protected, Unmounted};
use tarpon_testkit::entries::{dir, file};

use crate::fixture::{MODES, MountFixture};
use crate::objects::Manner;

#[test]
fn a_mount_that_is_in_use_is_unmounted_lazily_and_its_users_go_on() {
    let content = vec![9_u8; 500_000];
    for mode in MODES {
        let Some(fixture) = MountFixture::new() else { return };
        fixture.objects.add(content.clone(), Manner::Remote);
        let mounted = fixture.mount(mode, [file("f", &content)]);
        let mut open = File::open(fixture.at("f")).unwrap();
        assert_eq!(mounted.unmount().unwrap(), Unmounted::Lazy, "{mode}");
        assert!(!mounted.is_attached());
        assert_eq!(mounted.unmount().unwrap(), Unmounted::Already);
        let mut read = Vec::new();
        open.read_to_end(&mut read).unwrap();
        assert!(read == content, "{mode}: served to the end");
        let early = fixture.runtime.block_on(async { tokio::time::timeout(Duration::ZERO, mounted.unused()).await });
        assert!(early.is_err(), "{mode}: it is still in use");
        drop(open);
        fixture.runtime.block_on(mounted.unused());
        fixture.runtime.block_on(fixture.host.drained());
    }
}

#[test]
fn a_mount_that_is_in_use_can_be_left_as_it_is() {
    for mode in MODES {
        let Some(fixture) = MountFixture::new() else { return };
        let mounted = fixture.mount(mode, [dir("d")]);
        assert!(!mounted.is_busy() && !mounted.is_busy(), "{mode}: looking does not unmount it");
        let user = File::open(fixture.path("mnt")).unwrap();
        assert!(mounted.is_busy(), "{mode}");
        let error = mounted.unmount_unused().unwrap_err();
        assert!(matches!(&error, MountError::Busy { path } if *path == fixture.path("mnt")), "{mode}: {error}");
        assert!(mounted.is_attached(), "{mode}");
        drop(user);
        assert_eq!(mounted.unmount_unused().unwrap(), Unmounted::Clean, "{mode}");
    }
}

#[test]
fn a_mount_that_is_bound_elsewhere_is_in_use_until_that_is_unmounted() {
    for mode in MODES {
        let Some(fixture) = MountFixture::new() else { return };
        let mounted = fixture.mount(mode, [dir("d")]);
        for part in ["mnt", "mnt/d"] {
            std::fs::create_dir_all(fixture.path("bound")).unwrap();
            rustix::mount::mount_bind(fixture.path(part), fixture.path("bound")).unwrap();
            let error = mounted.unmount_unused().unwrap_err();
            let is_named = matches!(&error, MountError::Bound { path, at } if *path == fixture.path("mnt") && *at == fixture.path("bound"));
            assert!(is_named && mounted.is_attached(), "{mode}, {part}: {error}");
            let found = tarpon_mount::bound_elsewhere(&[fixture.path("mnt"), "/proc".into()]).unwrap();
            assert_eq!(found, [(fixture.path("mnt"), fixture.path("bound"))].into(), "{mode}, {part}");
            rustix::mount::unmount(fixture.path("bound"), UnmountFlags::empty()).unwrap();
        }
        assert!(tarpon_mount::bound_elsewhere(&[fixture.path("mnt")]).unwrap().is_empty());
        assert_eq!(mounted.unmount_unused().unwrap(), Unmounted::Clean, "{mode}");
    }
}

#[test]
fn nothing_is_mounted_on_what_the_host_or_the_server_needs_or_where_a_link_leads() {
    for mode in MODES {
        let Some(fixture) = MountFixture::new() else { return };
        std::os::unix::fs::symlink(fixture.path("mnt"), fixture.path("link")).unwrap();
        fixture.host.protect(Protected { reachable: Vec::new(), closed: vec![fixture.path("objects")] });
        std::fs::create_dir(fixture.path("objects/ab")).unwrap();
        let places = ["run", "", "objects/ab", "link"].map(|name| fixture.path(name));
        for place in places.into_iter().chain([std::path::PathBuf::from("/sys/kernel")]) {
            let mut spec = fixture.spec(mode, []);
            spec.mountpoint = place.clone();
            let error = fixture.mount_spec(&spec).err().expect("refused");
            assert!(matches!(error, MountError::Mountpoint { .. }), "{mode}: {}: {error}", place.display());
        }
        let mut spec = fixture.spec(mode, []);
        spec.writable = tarpon_mount::Writable::Upper("/etc".into());
        assert!(matches!(fixture.mount_spec(&spec), Err(MountError::Upper { .. })), "{mode}");
    }
}

/// A tmpfs that is unmounted with its guard.
struct Tmpfs(std::path::PathBuf);

impl Tmpfs {
    fn on(path: std::path::PathBuf) -> Self {
        rustix::mount::mount("tmpfs", &path, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
        Self(path)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _gone = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn what_others_mounted_over_it_or_in_it_is_never_taken_along() {
    for (mode, place) in MODES.into_iter().flat_map(|mode| [(mode, "mnt"), (mode, "mnt/d")]) {
        let Some(fixture) = MountFixture::new() else { return };
        let mounted = fixture.mount(mode, [dir("d")]);
        let tmpfs = Tmpfs::on(fixture.path(place));
        std::fs::write(fixture.path(place).join("precious"), "data").unwrap();
        let error = mounted.unmount().unwrap_err();
        assert!(
            matches!(&error, MountError::Covered { above, .. } if *above == fixture.path(place)),
            "{mode}: {error}"
        );
        assert_eq!(std::fs::read(fixture.path(place).join("precious")).unwrap(), b"data", "{mode}");
        assert!(tarpon_mount::clear(&fixture.path("mnt")).is_err(), "{mode}: not if its server is dead either");
        assert!(mounted.is_attached(), "{mode}");
        drop(tmpfs);
        assert_eq!(mounted.unmount().unwrap(), Unmounted::Clean, "{mode}");
    }
}

#[test]
fn an_unmount_by_another_process_is_noticed() {
    for mode in MODES {
        let Some(fixture) = MountFixture::new() else { return };
        let mounted = fixture.mount(mode, []);
        assert!(mounted.is_attached());
        rustix::mount::unmount(fixture.path("mnt"), UnmountFlags::empty()).unwrap();
        fixture.runtime.block_on(mounted.wait());
        fixture.runtime.block_on(fixture.host.drained());
    }
}

#[test]
fn a_second_mount_at_the_same_place_is_refused() {
    for mode in MODES {
        let Some(fixture) = MountFixture::new() else { return };
        let spec = fixture.spec(mode, []);
        let _mounted = fixture.mount_spec(&spec).unwrap();
        let error = fixture.mount_spec(&spec).err().expect("refused");
        assert!(matches!(error, MountError::Mountpoint { .. }), "{error}");
    }
}

#[test]
fn mounts_of_many_images_share_one_set_of_objects() {
    let Some(fixture) = MountFixture::new() else { return };
    fixture.objects.add("shared", Manner::Remote);
    let mut spec = fixture.spec(Mode::Native, [file("a", "shared")]);
    let first = fixture.mount_spec(&spec).unwrap();
    spec = fixture.spec(Mode::Native, [file("b", "shared")]);
    spec.mountpoint = fixture.path("other");
    std::fs::create_dir(&spec.mountpoint).unwrap();
    let second = fixture.mount_spec(&spec).unwrap();
    assert_eq!(std::fs::read(fixture.at("a")).unwrap(), b"shared");
    assert_eq!(std::fs::read(fixture.path("other/b")).unwrap(), b"shared");
    assert_eq!(fixture.objects.asked(), 1, "the kernel has it in its cache");
    assert_eq!(first.unmount().unwrap(), Unmounted::Clean);
    fixture.runtime.block_on(first.unused());
    drop(second);
    fixture.runtime.block_on(fixture.host.drained());
}

#[test]
fn an_object_that_comes_with_a_later_image_is_found() {
    let Some(fixture) = MountFixture::new() else { return };
    let image = || [file("f", "late")];
    let early = fixture.mount(Mode::Native, image());
    assert!(std::fs::read(fixture.at("f")).is_err(), "nobody knows the object");
    early.unmount().unwrap();
    fixture.objects.add("late", Manner::Remote);
    let _late = fixture.mount(Mode::Native, image());
    assert_eq!(std::fs::read(fixture.at("f")).unwrap(), b"late");
}

#[test]
fn auto_takes_native_where_it_works() {
    let Some(fixture) = MountFixture::new() else { return };
    let mut spec = fixture.spec(Mode::Fuse, []);
    spec.mode = ModeChoice::Auto;
    let mounted = fixture.mount_spec(&spec).unwrap();
    assert_eq!((mounted.mode(), mounted.fallback_reason()), (Mode::Native, None));
}

#[test]
fn shutting_down_unmounts_everything() {
    let Some(fixture) = MountFixture::new() else { return };
    let mounted = fixture.mount(Mode::Fuse, []);
    fixture.runtime.block_on(fixture.host.shut_down(Duration::from_secs(10)));
    assert!(!mounted.is_attached());
    fixture.runtime.block_on(fixture.host.drained());
}

#[test]
fn a_tree_that_is_none_mounts_nothing() {
    for mode in MODES {
        let Some(fixture) = MountFixture::new() else { return };
        let mut spec = fixture.spec(mode, []);
        spec.tree = fixture.tree(vec![0; 8192]);
        assert!(fixture.mount_spec(&spec).is_err(), "{mode}");
        assert!(std::fs::read_dir(fixture.path("mnt")).unwrap().next().is_none());
        fixture.runtime.block_on(fixture.host.drained());
    }
}

#[test]
fn the_capabilities_of_this_machine_can_be_probed() {
    let Some(fixture) = MountFixture::new() else { return };
    let found = tarpon_mount::probe(&fixture.path("run"), fixture.runtime.handle().clone());
    for capability in &found {
        println!("{capability:?}");
    }
    assert!(found.iter().any(|capability| capability.feature == Feature::Root && capability.found.is_ok()));
}
