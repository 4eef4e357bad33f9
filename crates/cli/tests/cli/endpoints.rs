//! Endpoints of the user's own configuration: files, what is shown of them, and mistakes in them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use tarpon_testkit::registry::{Auth, PASSWORD, USER};

use crate::mounts::{MountFixture, code, stderr};
use crate::world::World;

/// The value of a header.
const TENANT: &str = "tenant-t0ken";

/// Writes a file of endpoints of the user, in which `HOST` stands for the registry.
fn write(world: &World, text: &str) {
    let folder = world.path(".config/tarpon/endpoints.d");
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("cache.toml"), text.replace("HOST", &world.server().host())).expect("a file");
}

/// The only endpoint of a registry that does not exist.
fn endpoint(line: &str) -> String {
    format!("[[registry]]\nprefix = 'images.invalid'\n[[registry.endpoint]]\nurl = 'http://HOST'\n{line}\n")
}

#[test]
fn an_image_is_read_from_an_endpoint_that_status_and_why_name() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    write(&fixture, &endpoint(&format!("headers = {{ X-Tenant = '{TENANT}' }}\ntimeout = '4s'")));
    fixture.directory("mnt");
    fixture.stdout(&["--quiet", "mount", "images.invalid/app:v1", "TMP/mnt"]);
    assert_eq!(fs::read_to_string(fixture.path("mnt/etc/hello")).expect("it is read"), "hello\n");
    let status = fixture.json(&["status", "--json", "TMP/mnt"]);
    let endpoints = &status["endpoints"];
    assert_eq!(endpoints[0]["endpoint"], "HOST", "{status}");
    assert_eq!((&endpoints[0]["kind"], &endpoints[0]["failures"]), (&"mirror".into(), &0.into()), "{status}");
    assert!(endpoints[0]["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{status}");
    assert_eq!(endpoints[1]["endpoint"], "images.invalid", "{status}");
    let mut shown = format!("{status} {}", fixture.stdout(&["status", "TMP/mnt"]));
    shown += &fixture.stdout(&["why", "TMP/mnt"]);
    assert!(shown.contains("mirror     HOST: "), "{shown}");
    for entry in fs::read_dir(fixture.path("store/run")).expect("there").flatten() {
        if entry.path().is_file() {
            shown += &String::from_utf8_lossy(&fs::read(entry.path()).expect("a file"));
        }
    }
    assert!(!shown.contains(TENANT), "{shown}");
    fixture.stdout(&["umount", "TMP/mnt"]);
}

#[test]
fn the_password_of_the_command_line_reaches_an_endpoint_that_stands_for_the_registry() {
    let Some(fixture) = MountFixture::serving(Auth::Basic) else { return };
    fixture.directory("mnt");
    let creds = format!("--creds={USER}:{PASSWORD}");
    let mount = ["--quiet", "mount", &creds, "images.invalid/app:v1", "TMP/mnt"];
    for line in ["", "credentials = 'none'"] {
        write(&fixture, &endpoint(line));
        let refused = fixture.output(&mount);
        assert!(!refused.status.success() && !stderr(&refused).contains(PASSWORD), "{}", stderr(&refused));
    }
    write(&fixture, &endpoint("credentials = 'registry'"));
    fixture.stdout(&mount);
    assert_eq!(fs::read_to_string(fixture.path("mnt/etc/hello")).expect("it is read"), "hello\n");
    fixture.stdout(&["umount", "TMP/mnt"]);
}

#[test]
fn a_mistake_in_a_file_is_an_error_with_its_line_and_ends_no_mount() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    fixture.directory("mnt");
    fixture.stdout(&["--quiet", "mount", "HOST/app:v1", "TMP/mnt"]);
    write(&fixture, &endpoint(&format!("header = {{ X-Tenant = '{TENANT}' }}")));
    let refused = fixture.output(&["inspect", "HOST/app:other"]);
    let text = stderr(&refused);
    assert_eq!(code(&refused), 6, "{text}");
    assert!(text.contains("/endpoints.d/cache.toml: line 5: unknown field `header`"), "{text}");
    assert!(text.contains("docs/registries.md") && !text.contains(TENANT), "{text}");
    fixture.kill_server();
    fixture.stdout(&["--quiet", "recover"]);
    assert_eq!(fs::read_to_string(fixture.path("mnt/etc/hello")).expect("it is read"), "hello\n");
    fixture.stdout(&["umount", "TMP/mnt"]);
}

#[test]
fn doctor_checks_the_files_and_contacts_the_endpoints() {
    let world = World::serving(tarpon_registry::serve::Contents::new(), Auth::Anonymous);
    let check = |name: &str| {
        let output = world.output(&["doctor", "--json", "--registry", "images.invalid"]);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let checks = report["checks"].as_array().expect("checks").clone();
        checks.into_iter().find(|check| check["name"] == name).unwrap_or_default()
    };
    assert!(check("endpoints").is_null(), "there are no files");
    write(&world, &endpoint(&format!("headers = {{ X-Tenant = '{TENANT}' }}")));
    let mirror = check("mirror");
    assert_eq!(mirror["found"], format!("{} responds", world.server().host()), "{mirror}");
    let file = world.path(".config/tarpon/endpoints.d/cache.toml");
    let shown = |mode: u32| {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("its mode");
        let endpoints = check("endpoints");
        (endpoints["works"] == true, endpoints["found"].as_str().unwrap_or_default().to_owned())
    };
    let path = file.display();
    assert_eq!(shown(0o600), (true, format!("1 in {path}")));
    assert_eq!(shown(0o644), (false, format!("all users can read the headers in {path}")));
    write(&world, "[[registry]]");
    let (works, found) = shown(0o600);
    assert!(!works && found.ends_with("cache.toml: line 1: missing field `prefix`"), "{found}");
}
