//! The images, and the order in which they are built.

use std::fmt;

use anyhow::{Result, bail};

/// One image of the corpus.
struct Image {
    name: &'static str,
    /// Images whose `:gzip` tag this one is built from.
    from: &'static [&'static str],
    tags: &'static [&'static str],
    /// Whether the quick tests use it.
    quick: bool,
}

const ALL_FORMATS: &[&str] = &["gzip", "zstdchunked", "estargz"];
const GZIP: &[&str] = &["gzip"];
const BASE: &[&str] = &["debian-base"];

/// Each image comes after the images that it is built from.
const CORPUS: &[Image] = &[
    Image { name: "debian-base", from: &[], tags: ALL_FORMATS, quick: true },
    Image { name: "redis", from: BASE, tags: &["gzip", "zstdchunked", "estargz", "docker2", "index"], quick: true },
    Image { name: "quirks", from: BASE, tags: ALL_FORMATS, quick: true },
    Image { name: "quirks-tar", from: &["debian-base", "quirks"], tags: GZIP, quick: true },
    Image { name: "quirks-sparse", from: &["debian-base", "quirks"], tags: GZIP, quick: true },
    Image { name: "quirks-gnusparse", from: &["debian-base", "quirks"], tags: GZIP, quick: true },
    Image { name: "quirks-dup", from: &["debian-base", "quirks"], tags: GZIP, quick: true },
    Image { name: "python", from: BASE, tags: ALL_FORMATS, quick: false },
    Image { name: "nginx", from: BASE, tags: ALL_FORMATS, quick: false },
    Image { name: "node", from: BASE, tags: ALL_FORMATS, quick: false },
    Image { name: "manylayers", from: BASE, tags: ALL_FORMATS, quick: false },
];

/// One tag of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) tag: &'static str,
}

impl Step {
    /// The repository of the image.
    pub(crate) fn image(&self) -> String {
        format!("dev/{}", self.name)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dev/{}:{}", self.name, self.tag)
    }
}

/// The tags to build for `names` (all images if empty), in build order.
pub(crate) fn steps(names: &[String], quick: bool) -> Result<Vec<Step>> {
    let names: Vec<&str> = names.iter().map(|n| n.strip_prefix("dev/").unwrap_or(n)).collect();
    if let Some(unknown) = names.iter().find(|n| !CORPUS.iter().any(|i| i.name == **n)) {
        let known: Vec<_> = CORPUS.iter().map(|i| i.name).collect();
        bail!("no image is named {unknown}; there are {}", known.join(", "));
    }
    let named = |i: &Image| names.is_empty() && (i.quick || !quick) || names.contains(&i.name);
    let needed = |i: &Image| CORPUS.iter().any(|other| named(other) && other.from.contains(&i.name));
    let mut steps = Vec::new();
    for image in CORPUS {
        let tags = match (named(image), needed(image)) {
            (true, _) => image.tags,
            (false, true) => GZIP,
            (false, false) => &[],
        };
        steps.extend(tags.iter().map(|&tag| Step { name: image.name, tag }));
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|n| (*n).to_owned()).collect()
    }

    fn shown(steps: &[Step]) -> Vec<String> {
        steps.iter().map(Step::to_string).collect()
    }

    #[test]
    fn an_image_brings_the_images_it_is_built_from_as_gzip_only() {
        let steps = steps(&names(&["dev/python"]), false).unwrap();
        assert_eq!(
            shown(&steps),
            ["dev/debian-base:gzip", "dev/python:gzip", "dev/python:zstdchunked", "dev/python:estargz"]
        );
    }

    #[test]
    fn every_image_stands_behind_the_images_it_is_built_from() {
        for (place, image) in CORPUS.iter().enumerate() {
            for from in image.from {
                assert!(CORPUS[..place].iter().any(|i| i.name == *from), "{} before {from}", image.name);
            }
        }
    }

    #[test]
    fn the_quick_images_need_no_other_image() {
        let quick = steps(&[], true).unwrap();
        assert!(quick.iter().all(|s| CORPUS.iter().any(|i| i.name == s.name && i.quick)));
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = steps(&names(&["pyhton"]), false).unwrap_err().to_string();
        assert!(error.contains("pyhton") && error.contains("python"), "{error}");
    }
}
