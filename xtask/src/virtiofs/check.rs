//! All that is read and written in a virtual machine, compared with the host's view.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::guest::{Guest, Parts, Task};
use super::host;
use super::message::{Entry, Message};
use super::mount::Mount;
use super::report::Report;

/// Reads all of an image in a machine, while the server of its store is killed, and compares it with another mount of it.
pub(super) fn read_all(parts: &Parts, mount: &Mount, on_host: &Mount, report: &mut Report) -> Result<()> {
    let killed = mount.server()?;
    let guest = Guest::boot(parts, &mount.dir, Task::List)?;
    let mut entries = Vec::new();
    loop {
        match guest.expect()? {
            Message::Boot => {}
            Message::Dax(refusal) => report.remark(&match refusal {
                Some(reason) => format!("DAX cannot be used: {reason}"),
                None => "DAX can be used".to_owned(),
            })?,
            Message::Reading => kill(killed)?,
            Message::Listed(entry) => entries.push(entry),
            Message::Errors(errors) => report.remark(&format!("the machine could not read all: {errors}"))?,
            Message::Done => break,
            other => bail!("the machine did not list the image: {other:?}"),
        }
    }
    guest.wait_for_end()?;
    compare(&entries, &host::list(&on_host.dir, &parts.work)?, report)?;
    let server = mount.server()?;
    let detail = format!("process {killed} was killed, {server} serves");
    report.check("it reads on when the server is killed", server != killed, &detail)
}

fn kill(process: i32) -> Result<()> {
    let process = Pid::from_raw(process).context("the server has no process")?;
    Ok(kill_process(process, Signal::KILL)?)
}

fn compare(entries: &[Entry], on_host: &[Entry], report: &mut Report) -> Result<()> {
    let files: u64 = entries.iter().map(|entry| entry.files).sum();
    let mut differ = |sentence: &str, is_same: fn(&Entry, &Entry) -> bool| {
        let other = |entry: &&Entry| !on_host.iter().any(|host| host.name == entry.name && is_same(host, entry));
        let names: Vec<_> = entries.iter().filter(other).map(|entry| entry.name.as_str()).collect();
        let is_equal = names.is_empty() && entries.len() == on_host.len() && files > 0;
        let detail = if names.is_empty() { format!("{files} files") } else { format!("not in {}", names.join(", ")) };
        report.check(sentence, is_equal, &detail)
    };
    differ("it reads the contents that the host reads", |a, b| a.contents == b.contents && a.files == b.files)?;
    differ("it shows the attributes that the host shows", |a, b| a.attributes == b.attributes)
}

/// Writes in a machine to a mount that is writable on the host.
pub(super) fn write(parts: &Parts, mount: &Mount, upper: &Path, report: &mut Report) -> Result<()> {
    let guest = Guest::boot(parts, &mount.dir, Task::Write)?;
    let mut is_done = false;
    while let Some(message) = guest.next()? {
        is_done |= message == Message::Done;
    }
    let wrong = if is_done { wrong_changes(mount, upper) } else { vec!["the end of the machine"] };
    let detail =
        if wrong.is_empty() { "all changes are there".to_owned() } else { format!("not {}", wrong.join(", ")) };
    report.check("it writes to a writable mount of the host", wrong.is_empty(), &detail)
}

/// Which changes of `write.sh` the host does not see.
fn wrong_changes(mount: &Mount, upper: &Path) -> Vec<&'static str> {
    let etc = mount.dir.join("etc");
    let text = |path: &str| fs::read_to_string(etc.join(path)).unwrap_or_default();
    let mode = || {
        use std::os::unix::fs::PermissionsExt;
        fs::metadata(etc.join("shells")).is_ok_and(|file| file.permissions().mode() & 0o777 == 0o600)
    };
    let changes = [
        ("a new file", text("new") == "written\n"),
        ("a file behind a symbolic link", text("folder/link") == "written\n"),
        ("a hard link", text("linked") == "written\n"),
        (
            "an appended line",
            text("debian_version").ends_with("appended\n") && text("debian_version").lines().count() == 2,
        ),
        ("a removed file", !etc.join("issue").exists()),
        ("a renamed file", !text("renamed").is_empty() && !etc.join("issue.net").exists()),
        ("a mode", mode()),
        ("a file in the upper directory", upper.join("etc/new").exists()),
    ];
    changes.into_iter().filter(|(_, is_there)| !is_there).map(|(name, _)| name).collect()
}
