//! The messages of the virtual machine, one per line.

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// A message of `guest.sh`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    /// The machine runs.
    Boot,
    /// Before tarpon ran, so many objects in the store did not match their names.
    Found { torn: u64 },
    /// Some of the objects that matched their names then.
    Sound(Vec<String>),
    /// Output of `tarpon cache verify`: hashed objects and damaged items.
    Verified { objects: u64, damaged: Vec<String> },
    /// After that, so many objects in the store did not match their names.
    Hashed { wrong: u64 },
    /// Files of an image that were read through its mount, and how many of them had other bytes than their digests.
    Read { files: u64, wrong: u64 },
    /// The store was checked.
    Ready,
    /// The store was changed.
    Step,
    /// Some objects that were complete before a flush that has ended.
    Flushed(Vec<String>),
    /// The objects of this image are removed from now on; `None`: of all images.
    Removing(Option<String>),
    /// A command failed.
    Failed(String),
}

impl Message {
    pub(super) fn parse(line: &str) -> Result<Self> {
        let line = line.trim_end();
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let parsed = match kind {
            "boot" => Some(Self::Boot),
            "found" => numbers(rest).map(|(_, torn)| Self::Found { torn }),
            "sound" => Some(Self::Sound(words(rest))),
            "verified" => verified(rest),
            "hashed" => numbers(rest).map(|(_, wrong)| Self::Hashed { wrong }),
            "read" => {
                let of_image = rest.split_once(' ').and_then(|(_, rest)| numbers(rest));
                of_image.map(|(files, wrong)| Self::Read { files, wrong })
            }
            "ready" => Some(Self::Ready),
            "step" => Some(Self::Step),
            "flushed" => Some(Self::Flushed(words(rest))),
            "removing" => Some(Self::Removing((rest != "all").then(|| rest.to_owned()))),
            "failed" => Some(Self::Failed(rest.to_owned())),
            _ => bail!("the machine printed no message: {line}"),
        };
        parsed.with_context(|| format!("the machine printed an incomplete message: {line}"))
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn numbers(text: &str) -> Option<(u64, u64)> {
    let (first, second) = text.split_once(' ')?;
    Some((first.parse().ok()?, second.parse().ok()?))
}

fn verified(text: &str) -> Option<Message> {
    let report: Value = serde_json::from_str(text).ok()?;
    let mut damaged = Vec::new();
    for object in report["corrupt_objects"].as_array()? {
        damaged.push(format!("corrupt object {}", object.as_str()?));
    }
    for unreadable in report["unreadable_objects"].as_array()? {
        damaged.push(format!("unreadable object {}", unreadable["object"].as_str()?));
    }
    for image in report["damaged_images"].as_array()? {
        damaged.push(format!("damaged image {}", image.as_str()?));
    }
    Some(Message::Verified { objects: report["objects"].as_u64()?, damaged })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_a_verification_names_all_damaged_items() {
        let line = r#"verified {"objects":7,"bytes":9,"corrupt_objects":["sha256:ab"],"unreadable_objects":
            [{"object":"sha256:cd","error":"EIO"}],"damaged_images":["sha256:ef"]}"#;
        let damaged = ["corrupt object sha256:ab", "unreadable object sha256:cd", "damaged image sha256:ef"];
        let damaged = damaged.map(str::to_owned).to_vec();
        assert_eq!(Message::parse(line).unwrap(), Message::Verified { objects: 7, damaged });
    }

    #[test]
    fn messages_carry_their_numbers_digests_and_names() {
        let parse = |line| Message::parse(line).unwrap();
        assert_eq!(parse("found 12 3"), Message::Found { torn: 3 });
        assert_eq!(parse("read b 5 0\r\n"), Message::Read { files: 5, wrong: 0 });
        assert_eq!(parse("flushed ab cd"), Message::Flushed(vec!["ab".into(), "cd".into()]));
        assert_eq!(parse("removing all"), Message::Removing(None));
        assert_eq!(parse("removing a"), Message::Removing(Some("a".into())));
        assert_eq!(parse("step 4"), Message::Step);
    }

    #[test]
    fn a_line_that_is_no_message_is_an_error() {
        for line in ["", "kernel panic", "found 1", "verified {}"] {
            assert!(Message::parse(line).is_err(), "{line:?}");
        }
    }
}
