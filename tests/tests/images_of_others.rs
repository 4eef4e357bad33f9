//! An image whose repository takes no pushes starts lazily on every host of a team: by its short name, through a mirror, by an index
//! that a key of the policy signed, without an option on the command line.

use std::fs;
use std::process::Command;

use rustix::process::{Signal, kill_process};
use tarpon_testkit::processes;
use tarpon_tests::mirrored::{IMAGE, MirroredHost};
use tarpon_tests::real;
use tarpon_tests::wire::Wire;

#[test]
fn a_signed_index_elsewhere_makes_an_image_lazy_by_its_short_name_through_a_mirror() {
    if let Some(reason) = real::missing() {
        eprintln!("skipped: {reason}");
        return;
    }
    let registry = real::registry().unwrap();
    let (mirror, origin) = (Wire::to(&registry).unwrap(), Wire::to(&registry).unwrap());
    let repository = format!("{registry}/indexes-{}", std::process::id());

    // One host makes the index, once.
    let maker = MirroredHost::new(&registry, &registry);
    let folder = maker.tarpon.store().with_file_name("keys");
    fs::create_dir(&folder).unwrap();
    let (private, public) = (folder.join("team.key"), folder.join("team.pub"));
    real::run(
        Command::new("openssl").args(["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out"]).arg(&private),
    )
    .unwrap();
    real::run(Command::new("openssl").args(["ec", "-pubout", "-in"]).arg(&private).arg("-out").arg(&public)).unwrap();
    let mut index = maker.command("index");
    index.args(["--quiet", "--push", "--index-repo", &repository, "--sign-by-key"]).arg(&private).arg("base:gzip");
    real::run(&mut index).unwrap();

    // Another one has the policy and the name of the index repository in its configuration.
    let host = MirroredHost::new(&origin.address(), &mirror.address());
    let policy = folder.join("policy.json");
    let signed = serde_json::json!([{
        "type": "sigstoreSigned", "keyPath": public, "signedIdentity": {"type": "matchRepository"},
    }]);
    let text = serde_json::json!({
        "default": [{"type": "insecureAcceptAnything"}], "transports": {"docker": {&repository: signed}},
    });
    fs::write(&policy, text.to_string()).unwrap();
    let expected = host.mount_plain(&registry);
    let environment = [("TARPON_INDEX_REPO", repository.as_ref()), ("TARPON_POLICY", policy.as_os_str())];
    let mount = host.mount_in("base:gzip", &[], &environment);
    let status = host.tarpon.status().unwrap();
    assert_eq!(status[0]["image"], format!("images.example/{IMAGE}:gzip"));
    let states = status[0]["verification"].to_string();
    assert!(states.contains("index-signed") && !states.contains("diffID"), "{states}");
    mount.check("usr/bin", &expected);

    // A server that knows nothing but the record of the mount finds the mirror, too.
    for server in processes::servers(&host.tarpon.store()) {
        kill_process(server, Signal::KILL).unwrap();
    }
    mount.check("usr/sbin", &expected);
    assert!(mirror.bytes() > 100_000, "the mirror sent the layers");
    assert_eq!(origin.bytes(), 0, "the registry was not needed");
}
