//! The images, and the order in which they are built.

use std::fmt;

use anyhow::{Result, bail};

use super::hello::HELLO;

/// One image of the corpus.
#[derive(Clone, Copy)]
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

/// Which images are built if none is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Those of the tests and of the benchmarks of starts.
    All,
    /// Those of the quick tests.
    Quick,
    /// Those of `bench papers`.
    Papers,
}

/// The images of the corpus that `bench papers` starts too.
const PAPERS: &[&str] = &["debian-base", "python", "redis", "nginx"];

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

/// The corpus, then the images of one program each.
fn every() -> impl Iterator<Item = Image> {
    let hello = HELLO.iter().map(|(name, _)| Image { name, from: BASE, tags: GZIP, quick: false });
    CORPUS.iter().copied().chain(hello)
}

/// The packages of an image that is Debian with packages.
fn packages(name: &str) -> Option<&'static str> {
    HELLO.iter().find(|(known, _)| *known == name).map(|(_, packages)| *packages)
}

/// One tag of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) tag: &'static str,
    /// The packages that it adds to Debian, if that is all it has.
    pub(crate) packages: Option<&'static str>,
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

/// The tags to build for `names` (those of the choice if empty), in build order.
pub(crate) fn steps(names: &[String], choice: Choice) -> Result<Vec<Step>> {
    let names: Vec<&str> = names.iter().map(|n| n.strip_prefix("dev/").unwrap_or(n)).collect();
    if let Some(unknown) = names.iter().find(|n| !every().any(|i| i.name == **n)) {
        let known: Vec<_> = every().map(|i| i.name).collect();
        bail!("no image is named {unknown}; there are {}", known.join(", "));
    }
    let chosen = |i: &Image| match choice {
        Choice::All => packages(i.name).is_none(),
        Choice::Quick => i.quick,
        Choice::Papers => packages(i.name).is_some() || PAPERS.contains(&i.name),
    };
    let named = |i: &Image| names.is_empty() && chosen(i) || names.contains(&i.name);
    let needed = |i: &Image| every().any(|other| named(&other) && other.from.contains(&i.name));
    let mut steps = Vec::new();
    for image in every() {
        let tags = match (named(&image), needed(&image)) {
            (true, _) if choice == Choice::Papers => GZIP,
            (true, _) => image.tags,
            (false, true) => GZIP,
            (false, false) => &[],
        };
        let step = |&tag| Step { name: image.name, tag, packages: packages(image.name) };
        steps.extend(tags.iter().map(step));
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
        let steps = steps(&names(&["dev/python"]), Choice::All).unwrap();
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
        let quick = steps(&[], Choice::Quick).unwrap();
        assert!(quick.iter().all(|s| CORPUS.iter().any(|i| i.name == s.name && i.quick)));
    }

    #[test]
    fn images_of_the_papers_are_built_only_if_they_are_asked_for() {
        let all = steps(&[], Choice::All).unwrap();
        assert!(all.iter().all(|step| step.packages.is_none()) && all.iter().any(|step| step.tag == "estargz"));
        let papers = steps(&[], Choice::Papers).unwrap();
        assert!(papers.len() == PAPERS.len() + HELLO.len() && papers.iter().all(|step| step.tag == "gzip"));
        let one = steps(&names(&["dev/hello-gcc"]), Choice::All).unwrap();
        assert_eq!(shown(&one), ["dev/debian-base:gzip", "dev/hello-gcc:gzip"]);
        assert_eq!(one[1].packages, Some("gcc libc6-dev"));
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = steps(&names(&["pyhton"]), Choice::All).unwrap_err().to_string();
        assert!(error.contains("pyhton") && error.contains("python"), "{error}");
    }
}
