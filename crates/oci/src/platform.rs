//! Decides which build of an image runs on which machine.
//!
//! The variant rules are containerd's: amd64 has none, arm64 means v8, arm means v7, and an arm machine runs builds for the
//! variants below its own.

use std::fmt;
use std::str::FromStr;

use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize, Serializer};

/// An operating system, an architecture in Go's spelling, and its variant. Always normalised: no two values mean
/// the same machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Platform {
    os: String,
    architecture: String,
    variant: Option<String>,
}

/// The text was not `OS/ARCHITECTURE[/VARIANT]`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a platform (os/architecture[/variant]): {0:?}")]
pub struct InvalidPlatform(String);

/// The platform object of a descriptor, before it is normalised.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct RawPlatform {
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) variant: Option<String>,
}

impl From<RawPlatform> for Platform {
    fn from(raw: RawPlatform) -> Self {
        // A string that could not be typed is never shown and matches nothing.
        let known = |text: &str| if text.is_empty() || is_plain(text) { text.to_owned() } else { "unknown".to_owned() };
        Self::new(&known(&raw.os), &known(&raw.architecture), raw.variant.as_deref().map(known).as_deref())
    }
}

/// As the platform object of a descriptor.
impl Serialize for Platform {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Platform", if self.variant.is_some() { 3 } else { 2 })?;
        object.serialize_field("architecture", &self.architecture)?;
        object.serialize_field("os", &self.os)?;
        match &self.variant {
            Some(variant) => object.serialize_field("variant", variant)?,
            None => object.skip_field("variant")?,
        }
        object.end()
    }
}

impl Platform {
    /// The normalised platform. Spellings of `uname` are accepted: `x86_64`, `aarch64`, `armhf`, ….
    pub fn new(os: &str, architecture: &str, variant: Option<&str>) -> Self {
        let variant = variant.unwrap_or_default().to_ascii_lowercase();
        let (architecture, variant) = match (architecture.to_ascii_lowercase().as_str(), variant.as_str()) {
            ("x86_64" | "x86-64" | "amd64", "" | "v1") => ("amd64".to_owned(), ""),
            ("x86_64" | "x86-64" | "amd64", variant) => ("amd64".to_owned(), variant),
            ("i386" | "i486" | "i586" | "i686" | "386", _) => ("386".to_owned(), ""),
            ("aarch64" | "arm64", "" | "8" | "v8") => ("arm64".to_owned(), "v8"),
            ("aarch64" | "arm64", variant) => ("arm64".to_owned(), variant),
            ("armhf", _) => ("arm".to_owned(), "v7"),
            ("armel", _) => ("arm".to_owned(), "v6"),
            ("arm", "" | "7" | "v7") => ("arm".to_owned(), "v7"),
            ("arm", "5") => ("arm".to_owned(), "v5"),
            ("arm", "6") => ("arm".to_owned(), "v6"),
            ("arm", "8") => ("arm".to_owned(), "v8"),
            (other, variant) => (other.to_owned(), variant),
        };
        let variant = (!variant.is_empty()).then(|| variant.to_owned());
        Self { os: os.to_ascii_lowercase(), architecture, variant }
    }

    /// The machine this runs on. The operating system is always Linux: images of others cannot be mounted.
    pub fn host() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86" => "386",
            "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        Self::new("linux", architecture, None)
    }

    /// The operating system.
    pub fn os(&self) -> &str {
        &self.os
    }

    /// The architecture, in Go's spelling.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// How well a machine of platform `self` runs a build for `built`: `None` not at all, else lower is better and 0 is exact.
    pub fn distance(&self, built: &Self) -> Option<u32> {
        if self == built {
            return Some(0);
        }
        if self.os != built.os {
            return None;
        }
        self.fallbacks().iter().position(|fallback| fallback == built).and_then(|at| u32::try_from(at + 1).ok())
    }

    /// Other platforms that such a machine runs, best first.
    fn fallbacks(&self) -> Vec<Self> {
        let level = |prefix: &str| {
            self.variant.as_deref().and_then(|variant| variant.strip_prefix(prefix)?.parse::<u32>().ok())
        };
        let with = |architecture: &str, variant: Option<String>| Self {
            os: self.os.clone(),
            architecture: architecture.to_owned(),
            variant,
        };
        match self.architecture.as_str() {
            "amd64" => {
                let top = level("v").unwrap_or(1).min(4);
                (1..top).rev().map(|v| with("amd64", (v > 1).then(|| format!("v{v}")))).collect()
            }
            "arm" => {
                let top = level("v").unwrap_or(7).min(8);
                (5..top).rev().map(|v| with("arm", Some(format!("v{v}")))).collect()
            }
            // A 64-bit image is exact. Later 8.x and 9.x machines run all v8 builds.
            "arm64" if self.variant.as_deref() != Some("v8") => vec![with("arm64", Some("v8".to_owned()))],
            _ => Vec::new(),
        }
    }
}

impl FromStr for Platform {
    type Err = InvalidPlatform;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidPlatform(text.chars().take(80).collect());
        let parts: Vec<&str> = text.split('/').collect();
        if !parts.iter().all(|part| is_plain(part)) {
            return Err(invalid());
        }
        match parts[..] {
            [os, architecture] => Ok(Self::new(os, architecture, None)),
            [os, architecture, variant] => Ok(Self::new(os, architecture, Some(variant))),
            _ => Err(invalid()),
        }
    }
}

fn is_plain(part: &str) -> bool {
    part.starts_with(|c: char| c.is_ascii_alphanumeric())
        && part.len() <= 32
        && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match (self.architecture.as_str(), self.variant.as_deref()) {
            (_, None) | ("arm64", Some("v8")) => Ok(()),
            (_, Some(variant)) => write!(f, "/{variant}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> Platform {
        text.parse().unwrap()
    }

    #[test]
    fn spellings_of_one_machine_are_one_platform() {
        assert_eq!(platform("linux/x86_64"), platform("Linux/amd64"));
        assert_eq!(platform("linux/arm64"), platform("linux/aarch64/v8"));
        assert_eq!(platform("linux/arm"), platform("linux/arm/v7"));
        assert_eq!(platform("linux/armhf").to_string(), "linux/arm/v7");
        assert_eq!(platform("linux/arm64/v8").to_string(), "linux/arm64");
    }

    #[test]
    fn arm_machines_run_what_was_built_for_lower_variants() {
        let machine = platform("linux/arm/v7");
        assert_eq!(machine.distance(&platform("linux/arm/v7")), Some(0));
        assert_eq!(machine.distance(&platform("linux/arm/v6")), Some(1));
        assert_eq!(machine.distance(&platform("linux/arm/v5")), Some(2));
        assert_eq!(machine.distance(&platform("linux/arm/v8")), None);
        assert_eq!(platform("linux/arm/v5").distance(&machine), None);
    }

    #[test]
    fn amd64_levels_fall_back_to_the_baseline() {
        assert_eq!(platform("linux/amd64").distance(&platform("linux/amd64/v3")), None);
        assert_eq!(platform("linux/amd64/v3").distance(&platform("linux/amd64/v2")), Some(1));
        assert_eq!(platform("linux/amd64/v3").distance(&platform("linux/amd64")), Some(2));
    }

    #[test]
    fn other_systems_and_architectures_never_match() {
        assert_eq!(platform("linux/amd64").distance(&platform("windows/amd64")), None);
        assert_eq!(platform("linux/amd64").distance(&platform("linux/arm64")), None);
        assert_eq!(platform("linux/amd64").distance(&Platform::new("", "", None)), None);
    }

    #[test]
    fn half_platforms_are_refused() {
        for text in ["", "linux", "linux/", "/amd64", "linux/arm/v7/x", "linux/a b", "linux/../etc"] {
            assert!(text.parse::<Platform>().is_err(), "{text}");
        }
    }

    #[test]
    fn its_parts_are_bounded_and_read_back() {
        let part = "a".repeat(32);
        let platform: Platform = format!("{part}/{part}").parse().unwrap();
        assert_eq!((platform.os(), platform.architecture()), (&*part, &*part));
        assert!(format!("{part}a/{part}").parse::<Platform>().is_err());
    }

    #[test]
    fn a_later_arm64_machine_runs_builds_for_v8_and_not_the_reverse() {
        let [v8, v9]: [Platform; 2] = ["linux/arm64/v8", "linux/arm64/v9"].map(|text| text.parse().unwrap());
        assert_eq!((v9.distance(&v8), v8.distance(&v9)), (Some(1), None));
        assert_eq!(v8.fallbacks(), []);
    }
}
