use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use tarpon_harness::process;

use super::*;

/// A release of a small program, and keys.
struct Release {
    folder: tempfile::TempDir,
    archive: PathBuf,
    sums: PathBuf,
}

const NAME: &str = "tarpon-1.2.3-x86_64-unknown-linux-musl";

/// Answers as `tarpon completions SHELL` and `tarpon man DIR` do.
const PROGRAM: &str = "#!/bin/sh
if [ \"$1\" = completions ]; then echo \"completions for $2\"; else
    /bin/mkdir -p \"$2\" && echo page >\"$2/tarpon.1\" && echo page >\"$2/tarpon-mount.1\"
fi
";

impl Release {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        fs::write(&program, PROGRAM).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let to = folder.path().join("release");
        check_empty(&to).unwrap();
        let (root, tree) = (paths::root(), folder.path().join("tree"));
        let input = tree::Input { root: &root, program: &program, runnable: &program, licences: "licences" };
        tree::write(&input, &tree).unwrap();
        let archive = archive::write(&tree, NAME, 1_700_000_000, &to).unwrap();
        let sums = checksums::write(&to, std::slice::from_ref(&archive)).unwrap();
        Self { folder, archive, sums }
    }

    /// Makes a pair of keys without a password; returns the secret and the public one.
    fn keys(&self, name: &str) -> [PathBuf; 2] {
        let keys = ["key", "pub"].map(|kind| self.folder.path().join(format!("{name}.{kind}")));
        let mut command = Command::new("minisign");
        command.args(["-G", "-W", "-s"]).arg(&keys[0]).arg("-p").arg(&keys[1]).stdout(Stdio::null());
        process::check(&mut command).unwrap();
        keys
    }

    /// The two commands of docs/releases.md: whether the signature, and whether the checksums are accepted.
    fn verify(&self, public: &Path) -> [bool; 2] {
        let folder = self.sums.parent().unwrap();
        let accepts = |command: &mut Command| command.current_dir(folder).output().unwrap().status.success();
        let signature = accepts(Command::new("minisign").args(["-V", "-m", "SHA256SUMS", "-p"]).arg(public));
        let sums = accepts(Command::new("sha256sum").args(["--check", "--strict", "--ignore-missing", "SHA256SUMS"]));
        [signature, sums]
    }
}

fn append(file: &Path, text: &str) {
    let bytes = [&fs::read(file).unwrap(), text.as_bytes()].concat();
    fs::write(file, bytes).unwrap();
}

#[test]
fn a_signed_release_is_accepted_and_each_changed_file_and_each_other_key_is_rejected() {
    if process::find("minisign").is_none() {
        println!("skipped: minisign is not installed");
        return;
    }
    let release = Release::new();
    let ([secret, public], [_, other]) = (release.keys("good"), release.keys("other"));
    assert_eq!(release.verify(&public), [false, true], "not signed yet");
    checksums::sign(&release.sums, &secret, "tarpon 1.2.3").unwrap();
    assert_eq!(release.verify(&public), [true, true]);
    assert_eq!(release.verify(&other), [false, true]);
    // A changed archive, then checksums that fit it.
    append(&release.archive, "x");
    assert_eq!(release.verify(&public), [true, false]);
    checksums::write(release.sums.parent().unwrap(), std::slice::from_ref(&release.archive)).unwrap();
    assert_eq!(release.verify(&public), [false, true]);
}

#[test]
fn a_changed_comment_of_the_signature_is_rejected() {
    if process::find("minisign").is_none() {
        println!("skipped: minisign is not installed");
        return;
    }
    let release = Release::new();
    let [secret, public] = release.keys("good");
    checksums::sign(&release.sums, &secret, "tarpon 1.2.3").unwrap();
    let signature = release.sums.with_extension("minisig");
    let text = fs::read_to_string(&signature).unwrap();
    assert!(text.contains("trusted comment: tarpon 1.2.3"), "{text}");
    fs::write(&signature, text.replace("tarpon 1.2.3", "tarpon 1.2.4")).unwrap();
    assert_eq!(release.verify(&public), [false, true]);
}

#[test]
fn the_same_program_gives_the_same_archive_with_one_folder_and_no_owner() {
    let [first, second] = [Release::new(), Release::new()];
    assert_eq!(fs::read(&first.archive).unwrap(), fs::read(&second.archive).unwrap());
    assert_eq!(fs::read(&first.sums).unwrap(), fs::read(&second.sums).unwrap());
    let listed = process::output(Command::new("tar").args(["-tvzf"]).arg(&first.archive)).unwrap();
    for line in listed.lines() {
        assert!(line.contains(NAME) && line.contains(" 0/0 ") && line.contains("2023-11-14"), "{line}");
    }
    let program = listed.lines().find(|line| line.ends_with("/bin/tarpon")).unwrap();
    assert!(program.starts_with("-rwxr-xr-x"), "{program}");
    let page = listed.lines().find(|line| line.ends_with("/share/man/man1/tarpon-mount.1.gz")).unwrap();
    assert!(page.starts_with("-rw-r--r--"), "{page}");
}

#[test]
fn the_packages_take_every_file_of_the_tree() {
    let release = Release::new();
    let manifest = fs::read_to_string(paths::root().join("crates/cli/Cargo.toml")).unwrap();
    let (deb, rpm) = manifest.split_once("[package.metadata.generate-rpm]").unwrap();
    // Debian has its own file for the licence, and cargo-deb finds these units by itself.
    let not_named = ["share/licenses/", "lib/systemd/system/tarpon.service", "lib/systemd/system/tarpon.socket"];
    let tree = release.folder.path().join("tree");
    let mut folders = vec![tree.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(&tree).unwrap().to_str().unwrap();
            let takes = |assets: &str| {
                let sources = assets.split('"').filter_map(|part| part.strip_prefix("target/release/tree/"));
                sources.into_iter().any(|source| name.starts_with(source.trim_end_matches('*').trim_end_matches("**/")))
            };
            assert!(takes(rpm), "the package for RPM does not take {name}");
            assert!(
                takes(deb) || not_named.iter().any(|start| name.starts_with(start)),
                "Debian's does not take {name}"
            );
        }
    }
}

#[test]
fn a_folder_with_files_of_another_release_is_refused() {
    let release = Release::new();
    let error = check_empty(release.sums.parent().unwrap()).unwrap_err().to_string();
    assert!(error.contains("is not empty"), "{error}");
}
