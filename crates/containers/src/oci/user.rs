//! The user of a container's process: `USER[:GROUP]` of an image config, looked up in the image's own `/etc/passwd` and `/etc/group`.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

/// Bytes of `/etc/passwd` or `/etc/group` that are read: enough for ten thousand users.
const DATABASE_BYTES: u64 = 1 << 20;

/// The numeric ids that a runtime takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Supplementary groups of the user.
    pub(crate) groups: Vec<u32>,
    /// The home directory, if the image has one for the user.
    pub(crate) home: Option<String>,
}

/// A line of `/etc/passwd`.
struct Account {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
}

/// Resolves `asked` in the image whose root is `root`. Empty means root.
///
/// # Errors
/// One line: the image has no such name.
pub(crate) fn find(root: &Path, asked: &str) -> Result<User, String> {
    let (user, group) = asked.split_once(':').map_or((asked, None), |(user, group)| (user, Some(group)));
    let user = if user.is_empty() { "0" } else { user };
    let accounts = accounts(&read(root, "etc/passwd"));
    let groups = read(root, "etc/group");
    let account = accounts.iter().find(|account| account.name == user);
    let account = account.or_else(|| accounts.iter().find(|account| user.parse() == Ok(account.uid)));
    let uid = match (account, user.parse()) {
        (Some(account), _) => account.uid,
        (None, Ok(uid)) => uid,
        (None, Err(_)) => return Err(format!("the image knows no user {user:?}")),
    };
    let gid = match group.filter(|group| !group.is_empty()) {
        None => account.map_or(0, |account| account.gid),
        Some(group) => named_group(&groups, group).ok_or_else(|| format!("the image knows no group {group:?}"))?,
    };
    // An explicit group is the only group, as with other tools.
    let further = match account.filter(|_| group.is_none()) {
        Some(account) => groups_of(&groups, &account.name).filter(|other| *other != gid).collect(),
        None => Vec::new(),
    };
    Ok(User { uid, gid, groups: further, home: account.map(|account| account.home.clone()) })
}

fn accounts(text: &str) -> Vec<Account> {
    let account = |line: &str| {
        let mut fields = line.split(':');
        let (name, _password) = (fields.next()?.to_owned(), fields.next()?);
        let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let home = fields.nth(1)?.to_owned();
        Some(Account { name, uid, gid, home })
    };
    text.lines().filter_map(account).collect()
}

fn groups(text: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _password) = (fields.next()?, fields.next()?);
        Some((name, fields.next()?.parse().ok()?, fields.next().unwrap_or_default()))
    })
}

fn named_group(text: &str, group: &str) -> Option<u32> {
    let known = groups(text).find(|(name, ..)| *name == group).map(|(_, gid, _)| gid);
    known.or_else(|| group.parse().ok())
}

fn groups_of<'a>(text: &'a str, user: &'a str) -> impl Iterator<Item = u32> + 'a {
    groups(text).filter(move |(_, _, members)| members.split(',').any(|member| member == user)).map(|(_, gid, _)| gid)
}

/// Reads a file of the image, as far as possible. Symbolic links cannot lead outside of the image.
fn read(root: &Path, file: &str) -> String {
    let open = || -> rustix::io::Result<OwnedFd> {
        let root = rustix::fs::openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::openat2(&root, file, flags, Mode::empty(), ResolveFlags::IN_ROOT)
    };
    let mut text = Vec::new();
    if let Ok(file) = open() {
        let _partly = File::from(file).take(DATABASE_BYTES).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        let passwd = "root:x:0:0:root:/root:/bin/sh\n# a comment\nredis:x:999:998::/data:/bin/false\n12:x:7:8::/n:\n";
        std::fs::write(root.path().join("etc/passwd"), passwd).unwrap();
        let group = "root:x:0:\nredis:x:998:\ntape:x:26:redis,root\nbroken\n";
        std::fs::write(root.path().join("etc/group"), group).unwrap();
        root
    }

    fn ids(asked: &str) -> Result<(u32, u32, Vec<u32>), String> {
        find(image().path(), asked).map(|user| (user.uid, user.gid, user.groups))
    }

    #[test]
    fn users_and_groups_are_names_or_numbers() {
        assert_eq!(ids(""), Ok((0, 0, vec![26])));
        assert_eq!(ids("redis"), Ok((999, 998, vec![26])));
        assert_eq!(ids("999"), Ok((999, 998, vec![26])));
        assert_eq!(ids("redis:tape"), Ok((999, 26, vec![])));
        assert_eq!(ids("1234"), Ok((1234, 0, vec![])));
        assert_eq!(ids("1234:99"), Ok((1234, 99, vec![])));
        assert_eq!(ids("12"), Ok((7, 8, vec![])), "a name that looks like a number is a name");
        assert!(ids("nobody").unwrap_err().contains("nobody") && ids("redis:none").is_err());
        assert_eq!(find(image().path(), "redis").unwrap().home.as_deref(), Some("/data"));
    }

    #[test]
    fn an_image_without_users_has_root_and_numbers() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(find(root.path(), "").unwrap().uid, 0);
        assert_eq!(find(root.path(), "5:6").map(|user| (user.uid, user.gid)), Ok((5, 6)));
    }

    #[test]
    fn links_do_not_lead_out_of_the_image() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        let outside = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(outside.path(), "host:x:1:1::/:\n").unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("etc/passwd")).unwrap();
        assert!(find(root.path(), "host").is_err());
    }
}
