//! An image for containers in guests: a shell, and files of which each has a digest in a list.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tarpon_harness::process;

use crate::images::registry::Registry;

/// The programs of a container.
const PROGRAMS: [&str; 8] = ["bash", "sh", "ls", "seq", "sha256sum", "sleep", "true", "wc"];
/// Every so many files is a program, each with content of its own: a copy of `true` with bytes behind its end.
const PROGRAM_EVERY: usize = 5;
const FILES_OF_A_FOLDER: usize = 50;
/// More would make the image large, less would make one request fetch many files: small files are fetched along with their neighbours.
const FILE_BYTES: usize = 48 << 10;
/// At least so many bytes of a program are its own.
const OWN_BYTES: usize = 64;
/// Is to be changed when [`build`] makes another image of as many files.
const VERSION: u32 = 1;
const REPOSITORY: &str = "test/sample";

/// An image in a registry.
pub(crate) struct Image {
    /// HOST:PORT/NAME:TAG
    pub(crate) reference: String,
    /// The files in it, by path; the value is the sha256.
    pub(crate) files: Vec<(String, String)>,
}

impl Image {
    /// Lets the guests fetch the image from this address.
    pub(crate) fn set_registry(&mut self, address: &str) {
        if let Some((_, rest)) = self.reference.split_once('/') {
            self.reference = format!("{address}/{rest}");
        }
    }
}

/// The image with this many files, which is built if the registry does not have it.
pub(crate) fn get(folder: &Path, root: &Path, registry: &Registry, tarpon: &Path, files: usize) -> Result<Image> {
    let tag = format!("files{files}-{VERSION}");
    let reference = format!("{}/{REPOSITORY}:{tag}", registry.address());
    let list = folder.join(format!("{tag}.list"));
    if !list.exists() || !registry.has(REPOSITORY, &tag)? {
        println!("building an image with {files} files");
        let work = folder.join("image");
        let _absent = fs::remove_dir_all(&work);
        let found = build(&work, root, files)?;
        let mut convert = Command::new(tarpon);
        convert.args(["convert", "--format", "zstd:chunked", "--level", "1"]);
        convert.arg(format!("oci:{}", work.join("layout").display())).arg(&reference);
        convert.env("TARPON_STORE", work.join("store"));
        process::check_logged(&mut convert, &folder.join("convert.log"))?;
        fs::write(&list, found)?;
        fs::remove_dir_all(&work)?;
    }
    Ok(Image { reference, files: read_list(&list)? })
}

/// As [`get`], with layers of plain gzip, as most images have them.
pub(crate) fn get_plain(folder: &Path, root: &Path, registry: &Registry, files: usize) -> Result<Image> {
    let tag = format!("plain{files}-{VERSION}");
    let reference = format!("{}/{REPOSITORY}:{tag}", registry.address());
    let list = folder.join(format!("{tag}.list"));
    if !list.exists() || !registry.has(REPOSITORY, &tag)? {
        println!("building a plain image with {files} files");
        let work = folder.join("image");
        let _absent = fs::remove_dir_all(&work);
        let found = build(&work, root, files)?;
        // It compresses the layers when it copies them to a registry.
        let mut copy = Command::new("skopeo");
        copy.args(["copy", "--quiet", "--dest-tls-verify=false"]);
        copy.arg(format!("oci:{}", work.join("layout").display())).arg(format!("docker://{reference}"));
        process::check_logged(&mut copy, &folder.join("copy.log"))?;
        fs::write(&list, found)?;
        fs::remove_dir_all(&work)?;
    }
    Ok(Image { reference, files: read_list(&list)? })
}

fn read_list(list: &Path) -> Result<Vec<(String, String)>> {
    let text = fs::read_to_string(list)?;
    let files = text.lines().filter_map(|line| line.split_once(' '));
    Ok(files.map(|(sum, path)| (path.to_owned(), sum.to_owned())).collect())
}

/// Builds an OCI layout. Returns the list of its files: a sha256 and a path per line.
fn build(work: &Path, root: &Path, files: usize) -> Result<String> {
    let (base, content) = (work.join("base"), work.join("content"));
    make_base(&base, root)?;
    let found = make_content(&content, root, files)?;
    let layout = work.join("layout");
    fs::create_dir_all(layout.join("blobs/sha256"))?;
    let layers = [add_layer(&layout, &base)?, add_layer(&layout, &content)?];
    let diff_ids: Vec<_> = layers.iter().map(|layer| layer["digest"].clone()).collect();
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": { "Cmd": ["/bin/bash"], "Env": ["PATH=/usr/bin"] },
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    });
    let config = add_blob(&layout, &config, "application/vnd.oci.image.config.v1+json")?;
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({ "schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers });
    let manifest = add_blob(&layout, &manifest, kind)?;
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    fs::write(layout.join("index.json"), json!({ "schemaVersion": 2, "manifests": [manifest] }).to_string())?;
    Ok(found)
}

/// The programs and the libraries that they load, from the guest's root.
fn make_base(base: &Path, root: &Path) -> Result<()> {
    for folder in ["usr/bin", "usr/lib", "usr/lib64", "proc", "sys", "dev", "etc", "run", "tmp", "readers"] {
        fs::create_dir_all(base.join(folder))?;
    }
    for folder in ["bin", "lib", "lib64"] {
        symlink(format!("usr/{folder}"), base.join(folder))?;
    }
    fs::write(base.join("etc/passwd"), "root:x:0:0:root:/root:/bin/bash\n")?;
    let programs: Vec<_> = PROGRAMS.iter().map(|program| format!("/usr/bin/{program}")).collect();
    let libraries = Command::new("chroot").arg(root).arg("/usr/bin/ldd").args(&programs).output()?;
    if !libraries.status.success() {
        bail!("ldd failed in {}: {}", root.display(), String::from_utf8_lossy(&libraries.stderr));
    }
    let libraries = String::from_utf8_lossy(&libraries.stdout).into_owned();
    let libraries =
        libraries.split_whitespace().filter(|word| word.starts_with("/lib")).map(|path| format!("/usr{path}"));
    for path in programs.iter().cloned().chain(libraries) {
        let path = path.trim_start_matches('/');
        let to = base.join(path);
        fs::create_dir_all(to.parent().context("no parent")?)?;
        fs::copy(root.join(path), &to).with_context(|| format!("cannot copy {path} from {}", root.display()))?;
    }
    Ok(())
}

/// Folders of files and programs, and `data/list`, with what `read.sh` is to find in which order.
fn make_content(content: &Path, root: &Path, files: usize) -> Result<String> {
    let program = fs::read(root.join("usr/bin/true"))?;
    let mut random = File::open("/dev/urandom")?;
    let (mut lines, mut found) = (Vec::new(), String::new());
    for number in 0..files {
        let folder = format!("data/{:04}", number / FILES_OF_A_FOLDER);
        if number % FILES_OF_A_FOLDER == 0 {
            fs::create_dir_all(content.join(&folder))?;
            // `ls -l` prints a line more than there are files.
            lines.push(format!("folder {} /{folder}", FILES_OF_A_FOLDER.min(files - number) + 1));
        }
        let is_program = number % PROGRAM_EVERY == 0;
        let mut bytes = if is_program { program.clone() } else { Vec::new() };
        let start = bytes.len();
        bytes.resize(FILE_BYTES.max(start + OWN_BYTES), 0);
        random.read_exact(&mut bytes[start..])?;
        let path = format!("{folder}/{number:06}");
        fs::write(content.join(&path), &bytes)?;
        let mode = if is_program { 0o755 } else { 0o644 };
        fs::set_permissions(content.join(&path), fs::Permissions::from_mode(mode))?;
        let sum = sha256(&bytes);
        found.push_str(&format!("{sum} /{path}\n"));
        lines.push(if is_program { format!("program ran /{path}") } else { format!("file {sum} /{path}") });
    }
    shuffle(&mut lines, &mut random)?;
    fs::write(content.join("data/list"), lines.join("\n") + "\n")?;
    Ok(found)
}

fn shuffle(lines: &mut [String], random: &mut File) -> Result<()> {
    for last in (1..lines.len()).rev() {
        let mut bytes = [0; 4];
        random.read_exact(&mut bytes)?;
        let other = u32::from_ne_bytes(bytes) as usize % (last + 1);
        lines.swap(last, other);
    }
    Ok(())
}

/// Packs a folder as a layer of the layout. Returns its descriptor.
fn add_layer(layout: &Path, folder: &Path) -> Result<Value> {
    let archive = folder.with_extension("tar");
    let mut tar = Command::new("tar");
    tar.args(["--create", "--format=pax", "--sort=name", "--numeric-owner", "--owner=0", "--group=0"]);
    process::check(tar.arg("--file").arg(&archive).arg("--directory").arg(folder).arg("."))?;
    let bytes = fs::read(&archive)?;
    fs::remove_file(archive)?;
    describe(layout, &bytes, "application/vnd.oci.image.layer.v1.tar")
}

fn add_blob(layout: &Path, blob: &Value, media_type: &str) -> Result<Value> {
    describe(layout, blob.to_string().as_bytes(), media_type)
}

fn describe(layout: &Path, bytes: &[u8], media_type: &str) -> Result<Value> {
    let digest = sha256(bytes);
    fs::write(blob_path(layout, &digest), bytes)?;
    Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len() }))
}

fn blob_path(layout: &Path, digest: &str) -> PathBuf {
    layout.join("blobs/sha256").join(digest)
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
