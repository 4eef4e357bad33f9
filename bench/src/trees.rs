//! One image in several forms for reading: plain overlayfs over unpacked layers, and mounts by tarpon with
//! everything local. Unmounted when dropped.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use tarpon_harness::{paths, process};

use super::machine;
use super::podman::Podman;
use super::userns::{self, UserNamespace};

/// A tree of files to be read.
pub(super) struct Tree {
    pub(super) name: &'static str,
    pub(super) root: PathBuf,
    /// Where it is mounted and read.
    pub(super) namespace: Option<Rc<UserNamespace>>,
    how: How,
}

enum How {
    /// Overlayfs over layers unpacked by Podman.
    Plain,
    /// tarpon, with this store.
    Tarpon { program: PathBuf, store: PathBuf },
}

/// The layers of an image as unpacked by Podman, mounted read-only by overlayfs.
pub(super) fn plain(image: &str, namespace: Option<Rc<UserNamespace>>) -> Result<Tree> {
    let tree = Tree { name: "overlayfs", root: paths::benchmarks().join("plain-root"), namespace, how: How::Plain };
    let podman = Podman::new(paths::benchmarks().join("plain-layers"), String::new())?;
    tree.unmount();
    podman.wipe()?;
    fs::create_dir_all(&tree.root)?;
    let mut pull = podman.command("pull -q --tls-verify=false \"$IMAGE\"");
    process::check_logged(pull.env("IMAGE", image), &paths::benchmarks().join("plain.log"))?;
    let mut inspect = podman
        .command("image inspect --format '{{.GraphDriver.Data.UpperDir}}:{{.GraphDriver.Data.LowerDir}}' \"$IMAGE\"");
    let output = inspect.env("IMAGE", image).stderr(Stdio::null()).output().context("cannot ask Podman")?;
    let layers = lowers(&String::from_utf8_lossy(&output.stdout))?;
    let mut mount = tree.command("mount");
    let attributes = if tree.namespace.is_some() { "ro,userxattr" } else { "ro" };
    mount.args(["-t", "overlay", "overlay", "-o", &format!("{attributes},lowerdir={layers}")]).arg(&tree.root);
    process::check(&mut mount)?;
    Ok(tree)
}

/// The lower directories of an image, from Podman's output about its layers. A single one needs a second for overlayfs.
fn lowers(layers_text: &str) -> Result<String> {
    let layers: Vec<&str> = layers_text.trim().split(':').filter(|layer| layer.starts_with('/')).collect();
    match layers[..] {
        [] => bail!("Podman names no layers: {layers_text}"),
        [one] => {
            let empty = paths::benchmarks().join("plain-empty");
            fs::create_dir_all(&empty)?;
            Ok(format!("{one}:{}", empty.display()))
        }
        _ => Ok(layers.join(":")),
    }
}

/// How tarpon mounts a tree.
pub(super) struct Arrangement {
    pub(super) name: &'static str,
    mode: &'static str,
    /// Variables of the server's environment.
    variables: &'static [(&'static str, &'static str)],
}

/// Fetches the whole image, and mounts it in an arrangement.
pub(super) fn tarpon(
    arrangement: &Arrangement,
    program: &Path,
    image: &str,
    namespace: Option<Rc<UserNamespace>>,
) -> Result<Tree> {
    let Arrangement { name, mode, variables } = arrangement;
    let store = paths::benchmarks().join(format!("steady-{name}"));
    let root = paths::benchmarks().join(format!("steady-{name}-root"));
    let how = How::Tarpon { program: program.to_owned(), store: store.clone() };
    let tree = Tree { name, root, namespace, how };
    tree.unmount();
    machine::remove(&store)?;
    fs::create_dir_all(&store)?;
    fs::create_dir_all(&tree.root)?;
    let log = paths::benchmarks().join("steady.log");
    let command = |line: &[&str]| {
        let mut command = tree.command(program);
        command.env("TARPON_STORE", &store).envs(variables.iter().copied());
        command.arg(line[0]).args(["--quiet", "--tls-verify=false"]).args(&line[1..]);
        command
    };
    process::check_logged(&mut command(&["pull", image]), &log)?;
    process::check_logged(command(&["mount", "--mode", mode, image]).arg(&tree.root), &log)?;
    Ok(tree)
}

/// The arrangements, the usual ones first.
pub(super) const ARRANGEMENTS: [Arrangement; 4] = [
    Arrangement { name: "tarpon-native", mode: "native", variables: &[] },
    Arrangement { name: "tarpon-fuse", mode: "fuse", variables: &[] },
    Arrangement { name: "tarpon-loop", mode: "native", variables: &[("TARPON_EROFS", "loop")] },
    Arrangement {
        name: "tarpon-ordinary",
        mode: "native",
        variables: &[("TARPON_EROFS", "loop"), ("TARPON_OVERLAY", "ordinary")],
    },
];

impl Tree {
    /// A command where the tree is mounted.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        userns::command(self.namespace.as_deref(), program)
    }

    /// The server of the tree, if it has one.
    pub(super) fn server(&self) -> Option<u32> {
        let How::Tarpon { program, store } = &self.how else { return None };
        machine::server_by(self.command(program), store)
    }

    fn unmount(&self) {
        let mut unmount = match &self.how {
            How::Plain => self.command("umount"),
            How::Tarpon { program, store } => {
                let mut command = self.command(program);
                command.env("TARPON_STORE", store).arg("umount");
                command
            }
        };
        unmount.arg(&self.root);
        machine::quietly(unmount);
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.unmount();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layers_of_an_image_are_those_that_podman_names() {
        assert_eq!(lowers("/a/diff:/b/diff:/c/diff\n").unwrap(), "/a/diff:/b/diff:/c/diff");
        assert!(lowers("<no value>\n").is_err());
    }
}
