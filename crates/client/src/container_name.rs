//! [`ContainerName`]: the name of a container, given or generated.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tarpon_store::Store;

/// The directory, in a container's own, on which its image is mounted.
pub const ROOTFS: &str = "rootfs";

/// Longest name. It names a directory, which gets a longer name while it is removed.
const NAME_BYTES: usize = 128;

const QUALITIES: [&str; 16] = [
    "amber", "brisk", "calm", "deft", "eager", "fleet", "gentle", "hardy", "keen", "lucid", "mellow", "nimble",
    "quiet", "rapid", "silver", "wry",
];
const FISH: [&str; 16] = [
    "anchovy", "bass", "carp", "dace", "eel", "flounder", "gudgeon", "halibut", "ide", "ling", "mullet", "perch",
    "roach", "salmon", "tench", "zander",
];

/// The name of a container: letters, digits, `_`, `.` and `-`, and the first is a letter or digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContainerName(String);

impl ContainerName {
    /// A generated name that is likely to be free.
    pub fn random() -> Self {
        let mut number = random();
        let mut pick = |words: &[&'static str; 16]| {
            let word = words[usize::try_from(number % 16).unwrap_or(0)];
            number /= 16;
            word
        };
        let (quality, fish) = (pick(&QUALITIES), pick(&FISH));
        Self(format!("{quality}_{fish}_{:03x}", number % 0x1000))
    }

    /// The container of the store whose root file system is mounted at `mountpoint`.
    pub fn of_mount(store: &Store, mountpoint: &Path) -> Option<Self> {
        let name: Self = mountpoint.parent()?.file_name()?.to_str()?.parse().ok()?;
        (mountpoint == store.containers_folder().join(name.as_str()).join(ROOTFS)).then_some(name)
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Twelve hexadecimal digits, unique to a container.
pub fn random_id() -> String {
    format!("{:012x}", random() & 0xffff_ffff_ffff)
}

/// A random number. Its quality is sufficient for names, which need not be unpredictable.
fn random() -> u64 {
    RandomState::new().hash_one((std::process::id(), std::time::UNIX_EPOCH.elapsed().unwrap_or_default()))
}

impl FromStr for ContainerName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let begins_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !begins_well || !text.bytes().all(is_plain) || text.len() > NAME_BYTES {
            let rule = "expected letters, digits, _, . and -, a letter or digit first";
            return Err(format!("{text:?} is no name of a container: {rule}"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for ContainerName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ContainerName> for String {
    fn from(name: ContainerName) -> Self {
        name.0
    }
}

impl fmt::Display for ContainerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_podman_takes() {
        for name in ["a", "web-1", "A.b_c", "0"] {
            assert!(name.parse::<ContainerName>().is_ok(), "{name}");
        }
        for name in ["", "-a", ".a", "_a", "a/b", "..", "a b", "\u{e4}", &"a".repeat(NAME_BYTES + 1)] {
            assert!(name.parse::<ContainerName>().is_err(), "{name}");
        }
    }

    #[test]
    fn a_random_name_is_a_name() {
        for _ in 0..100 {
            let name = ContainerName::random();
            assert_eq!(name.as_str().parse(), Ok(name.clone()));
            assert!(random_id().len() == 12);
        }
    }
}
