//! `tarpon demo`, really mounted: needs root and /dev/fuse, and is skipped without.

use tarpon_testkit::kernel::can_mount;

use crate::world::World;

fn demo(mode: &str) {
    if !can_mount() {
        return;
    }
    let world = World::new();
    let scratch = world.directory("scratch");
    let mut command = world.command(&["demo", "--json", "--mode", mode]);
    let output = command.env("TMPDIR", &scratch).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["layers"], serde_json::json!(["eStargz", "zstd:chunked", "tar+gzip"]));
    assert!(report["program"].as_str().expect("text").contains("perfect: the sum of its proper divisors"));
    let (fetched, whole) = (report["total"]["bytes"].as_u64(), report["image_bytes"].as_u64());
    assert!(fetched > Some(0) && fetched < whole.map(|whole| whole / 5), "{report}");
    assert_eq!(std::fs::read_dir(scratch).expect("there").count(), 0, "something was left behind");
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("there");
    assert!(!mounts.contains(world.path("scratch").to_str().expect("UTF-8")), "a mount was left behind");
}

#[test]
fn the_demo_runs_and_leaves_nothing_behind() {
    demo("auto");
}

#[test]
fn the_demo_runs_in_mode_fuse() {
    demo("fuse");
}
