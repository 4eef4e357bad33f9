//! The names under which an image is looked up in a policy.

use std::path::Path;

use tarpon_oci::{Reference, Source};

/// The transport of an image, and its scopes, the narrowest first.
pub(crate) fn of(source: &Source) -> (&'static str, Vec<String>) {
    match source {
        Source::Registry(reference) => ("docker", of_reference(reference)),
        Source::OciLayout { directory, .. } => ("oci", of_path(directory)),
        Source::OciArchive { file, .. } => ("oci-archive", of_path(file)),
        Source::DockerArchive { .. } => ("docker-archive", Vec::new()),
    }
}

/// `HOST/REPOSITORY` without tag and digest.
pub(crate) fn name(reference: &Reference) -> String {
    format!("{}/{}", reference.registry(), reference.repository())
}

/// The reference that is looked up: a digest takes precedence over a tag, as in the registry.
pub(crate) fn exact(reference: &Reference) -> Reference {
    reference.digest().map_or_else(|| reference.clone(), |digest| reference.pinned(*digest))
}

fn of_reference(reference: &Reference) -> Vec<String> {
    let name = name(reference);
    let mut names = vec![exact(reference).to_string(), name.clone()];
    let parents = name.match_indices('/').map(|(at, _)| name[..at].to_owned());
    names.extend(parents.collect::<Vec<_>>().into_iter().rev());
    let host = reference.registry().split(':').next().unwrap_or_default();
    names.extend(host.match_indices('.').map(|(at, _)| format!("*{}", &host[at..])));
    names
}

/// The path without symbolic links, and the folders that contain it.
fn of_path(path: &Path) -> Vec<String> {
    // A path that does not exist is refused when it is opened.
    let resolved = path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned());
    let paths = resolved.ancestors().filter(|path| path.parent().is_some());
    paths.map(|path| path.display().to_string()).collect()
}

/// Whether an image of the transport can have the scope. Transports that no image of ours has are not checked.
pub(crate) fn check(transport: &str, scope: &str) -> Result<(), &'static str> {
    match transport {
        "oci" | "oci-archive" | "dir" => {
            if !scope.starts_with('/') {
                return Err("the path is not absolute");
            }
            if scope == "/" {
                return Err("the scope of all paths is \"\"");
            }
            let components = &scope[1..];
            let is_clean = components.split('/').all(|part| !matches!(part, "" | "." | ".."));
            if is_clean { Ok(()) } else { Err("the path is not in its shortest form") }
        }
        "docker-archive" | "tarball" => Err("it has no scopes but \"\""),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_looked_up_from_its_tag_up_to_its_domain() {
        let (transport, names) = of(&"r.a.example:5000/team/app:v1".parse().unwrap());
        let expected = [
            "r.a.example:5000/team/app:v1",
            "r.a.example:5000/team/app",
            "r.a.example:5000/team",
            "r.a.example:5000",
            "*.a.example",
            "*.example",
        ];
        assert_eq!((transport, names), ("docker", expected.map(str::to_owned).to_vec()));
        let pinned = format!("debian:12@sha256:{}", "0".repeat(64));
        let (_, names) = of(&pinned.parse().unwrap());
        assert_eq!(names[0], format!("docker.io/library/debian@sha256:{}", "0".repeat(64)));
        assert_eq!(
            names[1..],
            ["docker.io/library/debian", "docker.io/library", "docker.io", "*.io"].map(str::to_owned)
        );
    }

    #[test]
    fn a_path_is_looked_up_without_its_links_and_without_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, folder.path().join("link")).unwrap();
        let (transport, names) = of(&format!("oci:{}/link:v1", folder.path().display()).parse().unwrap());
        assert_eq!((transport, names[0].as_str()), ("oci", real.to_str().unwrap()));
        assert!(names.len() >= 2 && !names.contains(&"/".to_owned()));
        assert!(of(&"docker-archive:/a.tar".parse().unwrap()).1.is_empty());
    }
}
