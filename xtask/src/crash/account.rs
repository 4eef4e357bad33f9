//! What the store must have after a cut, and what it had.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::message::Message;

/// Digests of objects, shortened to the first 16 hex digits.
pub(super) type Objects = BTreeSet<String>;

/// Length of a shortened digest.
pub(super) const SHORT: usize = 16;

/// The sum of all cuts.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// The objects of each image.
    images: BTreeMap<String, Objects>,
    /// Complete before a flush that has ended, and not removed since.
    flushed: Objects,
    /// Sound after the last boot, before tarpon ran.
    sound: Objects,
    /// Cuts before the current boot.
    pub(super) cuts: u32,
    /// Objects that were hashed after a boot, by `tarpon cache verify`.
    pub(super) checked: u64,
    /// Files that were read through mounts and compared with their digests.
    pub(super) read: u64,
    /// Objects that a cut left incomplete and that had not been flushed.
    pub(super) torn: u64,
    /// Flushed objects that were expected after a boot.
    pub(super) expected: u64,
    /// Items that `tarpon cache verify` reported, objects that did not match their names afterwards, and files that had
    /// other bytes than their digests.
    pub(super) damaged: u64,
    /// Flushed objects that were missing or damaged after a boot.
    pub(super) lost: u64,
    /// A line for each finding.
    pub(super) findings: Vec<String>,
}

impl Account {
    pub(super) fn new(images: BTreeMap<String, Objects>) -> Self {
        Self { images, ..Self::default() }
    }

    /// Counts what the machine printed.
    pub(super) fn note(&mut self, message: Message) {
        match message {
            Message::Boot => self.sound.clear(),
            Message::Found { torn } => self.torn += torn,
            Message::Sound(objects) => self.sound.extend(objects),
            Message::Verified { objects, damaged } => {
                self.checked += objects;
                self.damaged += damaged.len() as u64;
                self.findings.extend(damaged.iter().map(|item| format!("cut {}: cache verify: {item}", self.cuts)));
            }
            Message::Hashed { wrong } => self.damaged(wrong, "objects do not match their names"),
            Message::Read { files, wrong } => {
                self.read += files;
                self.damaged(wrong, "files have other bytes than their digests");
            }
            Message::Flushed(objects) => self.flushed.extend(objects),
            Message::Removing(None) => self.flushed.clear(),
            Message::Removing(Some(image)) => {
                let removed = self.images.get(&image);
                self.flushed.retain(|object| !removed.is_some_and(|removed| removed.contains(object)));
            }
            Message::Ready | Message::Step | Message::Failed(_) => {}
        }
    }

    /// Compares the objects that were sound after the boot with those that had been flushed.
    pub(super) fn compare(&mut self) {
        self.expected += self.flushed.len() as u64;
        let lost: Vec<_> = self.flushed.difference(&self.sound).cloned().collect();
        for object in lost {
            self.lost += 1;
            self.findings.push(format!("cut {}: the flushed object {object}… is lost", self.cuts));
            self.flushed.remove(&object);
        }
    }

    fn damaged(&mut self, count: u64, what: &str) {
        self.damaged += count;
        if count > 0 {
            self.findings.push(format!("cut {}: {count} {what}", self.cuts));
        }
    }

    pub(super) fn is_sound(&self) -> bool {
        self.damaged == 0 && self.lost == 0
    }

    pub(super) fn to_json(&self, seed: u64, seconds: f64) -> Value {
        json!({
            "cuts": self.cuts,
            "seed": seed,
            "seconds": seconds,
            "objects_checked": self.checked,
            "files_read": self.read,
            "torn_objects": self.torn,
            "flushed_objects": self.expected,
            "damaged": self.damaged,
            "lost_after_flush": self.lost,
            "findings": self.findings,
        })
    }
}

impl std::fmt::Display for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} objects checked, {} files read, {} damaged; {} objects expected after a flush, {} lost; \
             {} unflushed objects torn",
            self.checked, self.read, self.damaged, self.expected, self.lost, self.torn
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn account() -> Account {
        let image = |name: &str, list: &[&str]| (name.to_owned(), objects(list).into_iter().collect());
        Account::new([image("a", &["1", "2"]), image("b", &["3"])].into())
    }

    fn after_a_cut(before: Vec<Message>, sound: &[&str]) -> Account {
        let mut account = account();
        before.into_iter().for_each(|message| account.note(message));
        account.note(Message::Boot);
        account.note(Message::Sound(objects(sound)));
        account.compare();
        account
    }

    #[test]
    fn a_flushed_object_that_is_missing_after_the_boot_is_lost_once() {
        let mut account = after_a_cut(vec![Message::Flushed(objects(&["1", "3"]))], &["1", "2"]);
        assert_eq!((account.expected, account.lost), (2, 1));
        account.note(Message::Boot);
        account.note(Message::Sound(objects(&["1"])));
        account.compare();
        assert_eq!((account.expected, account.lost, account.is_sound()), (3, 1, false));
    }

    #[test]
    fn an_object_that_was_removed_after_the_flush_is_not_expected() {
        let flushed = || Message::Flushed(objects(&["1", "3"]));
        let account = after_a_cut(vec![flushed(), Message::Removing(Some("b".into()))], &["1"]);
        assert_eq!((account.expected, account.lost), (1, 0));
        assert_eq!(after_a_cut(vec![flushed(), Message::Removing(None)], &[]).expected, 0);
        assert_eq!(after_a_cut(vec![Message::Removing(None), flushed()], &[]).lost, 2);
    }

    #[test]
    fn an_unflushed_object_that_is_torn_is_no_damage_and_one_that_a_check_leaves_is() {
        let mut account = account();
        account.note(Message::Found { torn: 2 });
        account.note(Message::Verified { objects: 2, damaged: Vec::new() });
        account.note(Message::Hashed { wrong: 0 });
        assert!(account.is_sound());
        account.note(Message::Read { files: 9, wrong: 1 });
        assert_eq!((account.damaged, account.is_sound()), (1, false));
    }
}
