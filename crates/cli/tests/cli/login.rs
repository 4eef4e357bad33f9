//! `tarpon login` and `logout`.

use std::io::Write;
use std::process::{Output, Stdio};

use tarpon_registry::serve::Contents;
use tarpon_testkit::registry::{Auth, PASSWORD, USER};

use crate::world::{World, small_image};

fn world(auth: Auth) -> World {
    let (image, mut contents) = (small_image(), Contents::new());
    for (_, blob) in image.blobs() {
        contents.add_blob(blob);
    }
    contents.add_manifest(Some(("app", "v1")), tarpon_oci::media_type::OCI_MANIFEST, image.manifest.clone());
    World::serving(contents, auth)
}

/// Logs in with this password on standard input.
fn log_in(world: &World, options: &[&str], password: &str) -> Output {
    let arguments = [&["login", "--username", USER, "--password-stdin"], options, &["HOST"]].concat();
    let mut command = world.command(&arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    writeln!(child.stdin.take().expect("a pipe"), "{password}").expect("it reads");
    child.wait_with_output().expect("it ends")
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_login_is_checked_stored_used_and_removed() {
    for auth in [Auth::Basic, Auth::Bearer { anonymous: false, expires_in: Some(60) }] {
        let world = world(auth);
        let file = world.path("auth.json");
        let inspect = ["inspect", "--authfile", "TMP/auth.json", "HOST/app:v1"];
        let output = log_in(&world, &["--authfile", "TMP/auth.json"], PASSWORD);
        assert!(output.status.success(), "{}", errors(&output));
        assert!(!errors(&output).contains(PASSWORD));
        world.stdout(&inspect);
        assert_eq!(world.stdout(&["login", "--get-login", "--authfile", "TMP/auth.json", "HOST"]), format!("{USER}\n"));
        world.stdout(&["logout", "--authfile", "TMP/auth.json", "HOST"]);
        assert_eq!(world.output(&inspect).status.code(), Some(4));
        assert!(!std::fs::read_to_string(&file).expect("it stays").contains(&world.server().host()));
        let again = world.output(&["logout", "--authfile", "TMP/auth.json", "HOST"]);
        assert_eq!(again.status.code(), Some(3), "{}", errors(&again));
    }
}

#[test]
fn a_wrong_password_is_called_that_and_not_stored() {
    for auth in [Auth::Basic, Auth::Bearer { anonymous: false, expires_in: Some(60) }] {
        let world = world(auth);
        let output = log_in(&world, &["--authfile", "TMP/auth.json"], "wrong");
        assert_eq!(output.status.code(), Some(4));
        let message = errors(&output).replace(&world.server().host(), "HOST");
        assert_eq!(
            message,
            "tarpon: cannot log in to HOST: check the credentials: HOST does not accept this user name and password\n"
        );
        assert!(!world.path("auth.json").exists());
    }
}

#[test]
fn a_login_without_a_terminal_needs_the_password_on_standard_input() {
    let world = world(Auth::Basic);
    let output = world.output(&["login", "HOST"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("--password-stdin"), "{}", errors(&output));
    let output = world.output(&["login", "--username", "a:b", "--password-stdin", "HOST"]);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    let output = log_in(&world, &["--authfile", "TMP/auth.json"], "two\nlines");
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
}

#[test]
fn a_logout_names_the_file_that_still_has_a_password() {
    let world = world(Auth::Basic);
    let docker = world.path(".docker/config.json");
    let output = log_in(&world, &["--authfile", docker.to_str().expect("text")], PASSWORD);
    assert!(output.status.success(), "{}", errors(&output));
    let mut command = world.command(&["logout", "HOST"]);
    let output = command.env("XDG_RUNTIME_DIR", world.directory("run")).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains(".docker/config.json still has a password"), "{}", errors(&output));
}

#[test]
fn all_logins_are_removed_at_once() {
    let world = world(Auth::Basic);
    let output = log_in(&world, &["--authfile", "TMP/auth.json"], PASSWORD);
    assert!(output.status.success(), "{}", errors(&output));
    world.stdout(&["logout", "--all", "--authfile", "TMP/auth.json"]);
    let output = world.output(&["login", "--get-login", "--authfile", "TMP/auth.json", "HOST"]);
    assert_eq!(output.status.code(), Some(3));
}
