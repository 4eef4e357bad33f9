//! Mounting as an unprivileged user. The test runs itself again as `nobody`.

use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use tarpon_mount::{Mode, ModeChoice, Unmounted, Writable};
use tarpon_testkit::entries::file;

use crate::fixture::MountFixture;
use crate::objects::Manner;

const NOBODY: u32 = 65_534;

#[test]
fn a_user_without_rights_mounts_through_fusermount() {
    if MountFixture::new().is_none() {
        return;
    }
    if !std::path::Path::new("/usr/bin/fusermount3").exists() {
        println!("skipped: fusermount3 is not installed");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o755)).unwrap();
    chown(home.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    // The binary may be in a directory that `nobody` cannot read.
    let program = home.path().join("test");
    std::fs::copy(std::env::current_exe().unwrap(), program).unwrap();
    // In a private mount namespace, /dev/fuse gets the mode that it has on most systems.
    let script = "mknod -m 666 $TMPDIR/fuse c 10 229 && mount --bind $TMPDIR/fuse /dev/fuse && \
        exec setpriv --reuid 65534 --regid 65534 --clear-groups $TMPDIR/test \
        --ignored --exact unprivileged::as_unprivileged_user --nocapture";
    let output = Command::new("unshare").args(["-m", "sh", "-c", script]).env("TMPDIR", home.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
}

#[test]
#[ignore = "the test above runs it"]
fn as_unprivileged_user() {
    assert!(!rustix::process::geteuid().is_root());
    let fixture = MountFixture::in_folder(tempfile::tempdir().unwrap());
    fixture.objects.add("content", Manner::Remote);
    let mut spec = fixture.spec(Mode::Fuse, [file("f", "content").owner(NOBODY, NOBODY)]);
    spec.mode = ModeChoice::Auto;
    let mounted = fixture.mount_spec(&spec).unwrap();
    assert_eq!((mounted.mode(), mounted.fallback_reason()), (Mode::Fuse, Some("it needs root")));
    assert_eq!(std::fs::read(fixture.at("f")).unwrap(), b"content");
    assert!(fixture.mount_spec(&spec).is_err(), "occupied");
    assert_eq!(mounted.unmount().unwrap(), Unmounted::Clean);
    spec.writable = Writable::Temporary;
    let refusal = fixture.mount_spec(&spec).err().expect("refused").to_string();
    assert!(refusal.contains("--rw") || refusal.contains("user namespace"), "{refusal}");
    fixture.runtime.block_on(fixture.host.drained());
}
