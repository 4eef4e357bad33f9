//! Builds one tag of one image with the scripts of the corpus, in a copy of the corpus below the target folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tarpon_harness::packages::{self, Tool, tool};
use tarpon_harness::{paths, process};

use super::corpus::Step;
use super::registry::Registry;

/// Programs that the builds need.
const TOOLS: &[Tool] = &[
    tool("buildah", "buildah"),
    tool("crun", "crun"),
    tool("skopeo", "skopeo"),
    tool("debootstrap", "debootstrap"),
    tool("python3", "python3"),
    tool("zstd", "zstd"),
    tool("sha256sum", "coreutils"),
];

/// A folder where images are built.
pub(crate) struct Workshop<'a> {
    registry: &'a Registry,
    folder: PathBuf,
    ready: bool,
}

impl<'a> Workshop<'a> {
    pub(crate) fn new(registry: &'a Registry) -> Self {
        Self { registry, folder: paths::images(), ready: false }
    }

    pub(crate) fn build(&mut self, step: &Step) -> Result<()> {
        self.prepare()?;
        match step.tag {
            "gzip" => self.script("build.sh", step),
            "zstdchunked" => self.script("push-zstdchunked.sh", step),
            "estargz" => self.estargz(step),
            "docker2" => self.docker2(step),
            "index" => self.index(step),
            other => bail!("there is no way to make the tag {other}"),
        }
    }

    /// Installs the tools and copies the corpus, once, when the first image must be built.
    fn prepare(&mut self) -> Result<()> {
        if self.ready {
            return Ok(());
        }
        if !packages::is_root() {
            bail!("images are built as root: debootstrap and the chroot builds need it");
        }
        packages::ensure(TOOLS)?;
        copy_tree(&paths::root().join("fixtures/corpus"), &self.corpus())?;
        self.ready = true;
        Ok(())
    }

    /// The writable copy of fixtures/corpus, with the caches of earlier builds.
    fn corpus(&self) -> PathBuf {
        self.folder.join("corpus")
    }

    fn script(&self, script: &str, step: &Step) -> Result<()> {
        if step.name == "node" {
            packages::ensure(&[tool("npm", "npm")])?;
        }
        // One script writes all the hand-made images; it exists only in the folder of the first.
        let maker = if step.name.starts_with("quirks-") { "dev/quirks-tar" } else { &step.image() };
        let mut command = Command::new(self.corpus().join(script));
        command.arg(maker).env("CORPUS", self.corpus()).env("REGISTRY", self.registry.address());
        command.envs(step.packages.map(|packages| ("PACKAGES", packages)));
        process::check_logged(&mut command, &self.log(step))
    }

    /// Rebuilds the layers of `:gzip` with the eStargz reference library.
    fn estargz(&self, step: &Step) -> Result<()> {
        let program = self.estargz_program(step)?;
        let mut command = Command::new("nice");
        command.args(["-n", "10"]).arg(program).arg("-http").arg(self.reference(step, "gzip")).arg(step.tag);
        process::check_logged(&mut command, &self.log(step))
    }

    fn estargz_program(&self, step: &Step) -> Result<PathBuf> {
        packages::ensure(&[tool("go", "golang-go")])?;
        let go = process::find("go").context("go is not installed")?;
        let program = self.folder.join("bin/estargz");
        let mut command = Command::new(go);
        command.args(["build", "-buildvcs=false", "-o"]).arg(&program).arg(".");
        command.current_dir(paths::root().join("xtask/tools/estargz"));
        process::check_logged(&mut command, &self.log(step))?;
        Ok(program)
    }

    /// The same image with a Docker schema 2 manifest.
    fn docker2(&self, step: &Step) -> Result<()> {
        let mut command = Command::new("skopeo");
        command.args(["copy", "--src-tls-verify=false", "--dest-tls-verify=false", "--format", "v2s2"]);
        command.arg(format!("docker://{}", self.reference(step, "gzip")));
        command.arg(format!("docker://{}", self.reference(step, step.tag)));
        process::check_logged(&mut command, &self.log(step))
    }

    /// An image index with the manifest of `:gzip` as its only entry.
    fn index(&self, step: &Step) -> Result<()> {
        let manifest = self.registry.manifest(&step.image(), "gzip")?;
        let index = format!(
            r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:{}","size":{},"platform":{{"architecture":"{}","os":"linux"}}}}]}}"#,
            sha256(&manifest, &self.folder)?,
            manifest.len(),
            if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        );
        let media_type = "application/vnd.oci.image.index.v1+json";
        self.registry.put_manifest(&step.image(), step.tag, media_type, index.as_bytes())
    }

    fn reference(&self, step: &Step, tag: &str) -> String {
        format!("{}/{}:{tag}", self.registry.address(), step.image())
    }

    fn log(&self, step: &Step) -> PathBuf {
        self.folder.join(format!("logs/{}-{}.log", step.name, step.tag))
    }
}

/// The hex sha256 of some bytes, by coreutils.
fn sha256(bytes: &[u8], folder: &Path) -> Result<String> {
    let file = folder.join("sha256-input");
    fs::write(&file, bytes)?;
    let output = Command::new("sha256sum").arg(&file).output().context("cannot start sha256sum")?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}

/// Copies a folder over another; files that exist only in `to` stay.
///
/// An equal file is not touched, because buildah's layer cache checks the times.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let (source, copy) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy_tree(&source, &copy)?;
        } else if fs::read(&source)? != fs::read(&copy).unwrap_or_default() {
            fs::copy(&source, &copy)?;
        }
        set_mode_of_a_checkout(&copy)?;
    }
    Ok(())
}

/// Sets a fixed mode: files of an image must not depend on the umask at the time of the checkout.
fn set_mode_of_a_checkout(path: &Path) -> Result<()> {
    let runnable = fs::metadata(path)?.permissions().mode() & 0o100 != 0;
    fs::set_permissions(path, fs::Permissions::from_mode(if runnable { 0o755 } else { 0o644 }))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copied_folder_keeps_what_only_the_copy_has() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("sub")).unwrap();
        fs::write(from.join("sub/script"), "new").unwrap();
        fs::create_dir_all(to.join("sub")).unwrap();
        fs::write(to.join("sub/script"), "old").unwrap();
        fs::write(to.join("sub/cache"), "kept").unwrap();
        copy_tree(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("sub/script")).unwrap(), "new");
        assert_eq!(fs::read_to_string(to.join("sub/cache")).unwrap(), "kept");
    }
}
