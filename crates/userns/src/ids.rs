//! The subordinate IDs of a user: `/etc/subuid` and `/etc/subgid` (subuid(5)).

use std::path::Path;

/// Most ranges of one kind: the kernel takes 340 lines in a map, one of them for the user itself.
const MOST_RANGES: usize = 339;

/// Consecutive IDs of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// The first.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// The IDs that a user has besides its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ids {
    /// User IDs.
    pub users: Vec<IdRange>,
    /// Group IDs.
    pub groups: Vec<IdRange>,
}

impl Ids {
    /// Those of the user who runs this process.
    pub fn of_this_user() -> Self {
        let names = names(&read("/etc/passwd"), rustix::process::getuid().as_raw());
        Self { users: ranges(&read("/etc/subuid"), &names), groups: ranges(&read("/etc/subgid"), &names) }
    }

    /// Whether there are users and groups.
    pub fn are_enough(&self) -> bool {
        !self.users.is_empty() && !self.groups.is_empty()
    }
}

/// A file that is missing or unreadable has no ranges.
fn read(path: impl AsRef<Path>) -> String {
    std::fs::read(path).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
}

/// By what the files may name the user: the ID, the name in `/etc/passwd`, and for users of a directory service the one of the
/// environment. `newuidmap` checks what it is given.
fn names(passwd: &str, user: u32) -> Vec<String> {
    let id = user.to_string();
    let entry = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let local = entry.filter(|fields| fields.get(2) == Some(&id.as_str())).map(|fields| fields[0].to_owned());
    let mut names: Vec<String> = local.chain(std::env::var("USER").ok()).collect();
    names.push(id);
    names
}

/// The ranges of the lines `NAME:FIRST:COUNT` for one of these names.
fn ranges(text: &str, names: &[String]) -> Vec<IdRange> {
    let lines = text.lines().map(|line| line.trim().split(':').collect::<Vec<_>>());
    let ours = lines.filter(|fields| fields.len() == 3 && names.iter().any(|name| name == fields[0]));
    let ranges =
        ours.filter_map(|fields| Some(IdRange { first: fields[1].parse().ok()?, count: fields[2].parse().ok()? }));
    let mut found: Vec<IdRange> = Vec::new();
    for range in ranges.filter(|range| range.count > 0 && range.first.checked_add(range.count).is_some()) {
        if found.len() < MOST_RANGES && !found.contains(&range) {
            found.push(range);
        }
    }
    found
}

/// The arguments of `newuidmap` or `newgidmap` after the process: root is the user, and the ranges follow from 1.
pub(crate) fn arguments(own: u32, ranges: &[IdRange]) -> Vec<String> {
    let mut arguments = vec!["0".to_owned(), own.to_string(), "1".to_owned()];
    let mut inside = 1_u32;
    for range in ranges {
        let count = range.count.min(u32::MAX - inside);
        if count > 0 {
            arguments.extend([inside, range.first, count].map(|number| number.to_string()));
        }
        inside = inside.saturating_add(count);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBUID: &str = "root:1:1\nanna:100000:65536\n1000:200000:10\n# note\nberta:300000:5\nanna:400000:x\nanna:1:0\nanna:4294967295:2\n";

    fn named(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn ranges_are_found_by_name_and_by_number_and_bad_lines_are_ignored() {
        let found = ranges(SUBUID, &named(&["anna", "1000"]));
        assert_eq!(found, [IdRange { first: 100_000, count: 65_536 }, IdRange { first: 200_000, count: 10 }]);
        assert_eq!(ranges(SUBUID, &named(&["carla"])), []);
        assert_eq!(ranges("", &named(&["anna"])), []);
    }

    #[test]
    fn a_range_that_is_listed_twice_counts_once() {
        let found = ranges("anna:10:5\n1000:10:5\n", &named(&["anna", "1000"]));
        assert_eq!(found, [IdRange { first: 10, count: 5 }]);
    }

    #[test]
    fn the_name_of_the_user_is_that_of_its_id() {
        let passwd = "root:x:0:0::/root:/bin/sh\nanna:x:1000:1000::/home/anna:/bin/sh\n";
        assert_eq!(names(passwd, 1000)[0], "anna");
        assert_eq!(names(passwd, 1001).last().map(String::as_str), Some("1001"));
    }

    #[test]
    fn root_is_the_user_and_the_ranges_follow() {
        let ranges = [IdRange { first: 100_000, count: 65_536 }, IdRange { first: 300_000, count: 10 }];
        assert_eq!(arguments(1000, &ranges).join(" "), "0 1000 1 1 100000 65536 65537 300000 10");
        assert_eq!(arguments(7, &[]).join(" "), "0 7 1");
        let whole = [IdRange { first: 1, count: u32::MAX - 1 }, IdRange { first: 5, count: 9 }];
        assert_eq!(arguments(7, &whole).join(" "), format!("0 7 1 1 1 {}", u32::MAX - 1));
    }
}
