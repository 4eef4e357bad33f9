//! Splits `IMAGE[:PATH]` into the image and the path.
//!
//! The path is absolute, so it starts at the first `:/` after the transport. A tag or a port contains no `/`, so
//! `host:5000/img:tag:/etc` is unambiguous; `alpine:etc` is a tag. Does not check that the image is well formed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::commands::image::{ImageName, image_name};

/// An image and a path in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImagePath {
    /// The image, including its transport.
    pub(crate) image: ImageName,
    /// Absolute path. `/` if none was given.
    pub(crate) path: Vec<u8>,
}

const TRANSPORTS: [&str; 5] = ["docker://", "oci-archive:", "docker-archive:", "oci:", "dir:"];

/// Splits an argument. The error is a message for the user.
pub(crate) fn parse(argument: &OsStr) -> Result<ImagePath, String> {
    let (image, path) = split(argument)?;
    let image = image_name(image).map_err(|error| error.to_string())?;
    Ok(ImagePath { image, path: path.to_vec() })
}

fn split(argument: &OsStr) -> Result<(&str, &[u8]), String> {
    let bytes = argument.as_bytes();
    let transport = TRANSPORTS.iter().find(|name| bytes.starts_with(name.as_bytes())).map_or(0, |name| name.len());
    let split = bytes[transport..].windows(2).position(|pair| pair == b":/").map(|at| at + transport);
    let (image, path) = match split {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &b"/"[..]),
    };
    let image = std::str::from_utf8(image).map_err(|_| "an image reference must be UTF-8".to_owned())?;
    Ok((image, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_starts_at_the_first_colon_slash_after_the_transport() {
        let table = [
            ("alpine", "alpine", "/"),
            ("alpine:3.20", "alpine:3.20", "/"),
            ("alpine:etc", "alpine:etc", "/"),
            ("alpine:/etc", "alpine", "/etc"),
            ("alpine:/", "alpine", "/"),
            ("alpine:3.20:/etc/os-release", "alpine:3.20", "/etc/os-release"),
            ("library/alpine:/etc", "library/alpine", "/etc"),
            ("host:5000/img", "host:5000/img", "/"),
            ("host:5000/img:tag", "host:5000/img:tag", "/"),
            ("host:5000/img:/etc", "host:5000/img", "/etc"),
            ("host:5000/img:tag:/etc", "host:5000/img:tag", "/etc"),
            ("[::1]:5000/img:tag:/etc", "[::1]:5000/img:tag", "/etc"),
            ("img@DIGEST:/etc", "img@DIGEST", "/etc"),
            ("img:tag@DIGEST", "img:tag@DIGEST", "/"),
            ("docker://host/img", "docker://host/img", "/"),
            ("docker://host:5000/img:tag:/etc", "docker://host:5000/img:tag", "/etc"),
            ("oci:/srv/layout", "oci:/srv/layout", "/"),
            ("oci:/srv/layout:v1", "oci:/srv/layout:v1", "/"),
            ("oci:/srv/layout:v1:/etc", "oci:/srv/layout:v1", "/etc"),
            ("oci:/./layout:/etc", "oci:/layout", "/etc"),
            ("oci-archive:/srv/a.tar:/etc", "oci-archive:/srv/a.tar", "/etc"),
            ("docker-archive:/srv/a.tar", "docker-archive:/srv/a.tar", "/"),
            ("alpine:/odd:/name", "alpine", "/odd:/name"),
            ("alpine:/with space", "alpine", "/with space"),
        ];
        let digest = format!("sha256:{}", "0f".repeat(32));
        for (argument, image, path) in table {
            let (argument, image) = (&argument.replace("DIGEST", &digest), &image.replace("DIGEST", &digest));
            let parsed = parse(OsStr::new(argument)).expect(argument);
            assert_eq!(
                (parsed.image.text.as_str(), parsed.path.as_slice()),
                (image.as_str(), path.as_bytes()),
                "{argument}"
            );
        }
    }

    #[test]
    fn a_path_may_contain_any_bytes_but_an_image_must_be_utf_8() {
        let parsed = parse(OsStr::from_bytes(b"alpine:/\xff")).expect("the path is free");
        assert_eq!(parsed.path, b"/\xff");
        assert!(parse(OsStr::from_bytes(b"alp\xffine:/etc")).is_err());
    }

    #[test]
    fn invalid_image_names_are_rejected() {
        for argument in ["", ":/etc", "docker://", "oci:", "UPPER:/etc", "dir:/srv/x", "img:bad tag:/etc"] {
            assert!(parse(OsStr::new(argument)).is_err(), "{argument:?}");
        }
    }
}
