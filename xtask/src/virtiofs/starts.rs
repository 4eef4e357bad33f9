//! A start in a virtual machine, compared with the same start on the host.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::json;
use tarpon_harness::workloads::{Ready, Workload};

use super::guest::{Guest, Parts, Task};
use super::host;
use super::message::Message;
use super::mount::{Fetched, Mount};
use super::report::{Report, mib};
use super::shared::Shared;

/// How much more may be fetched for a start in a machine than for one on the host, in percent.
const MORE_PERCENT: u64 = 10;

/// A start and what was fetched until the workload ended.
struct Start {
    fetched: Fetched,
    /// Until the modules of the machine were loaded.
    boot: Duration,
    /// Until the workload ended.
    whole: Duration,
}

/// Starts the workload once on the host and twice in a machine whose root is this mount, which nothing has read yet.
pub(super) fn compare(parts: &Parts, on_host: Mount, mount: &Mount, of: &Workload, report: &mut Report) -> Result<()> {
    let id = &of.id;
    let host = start_on_host(parts, &on_host, of)?;
    on_host.unmount()?;
    let before = mount.fetched()?.bytes;
    let first = start_in_guest(parts, mount, of)?;
    let (bytes, image) = (first.fetched.bytes, first.fetched.image);
    let is_lazy = before < bytes && bytes < image;
    let detail = format!(
        "{} at the mount and {} at the end of the start, of {}; kernel {:.1} s, start {:.1} s",
        mib(before),
        mib(bytes),
        mib(image),
        first.boot.as_secs_f64(),
        (first.whole - first.boot).as_secs_f64()
    );
    let figures = json!({ "mount": before, "start": bytes, "image": image, "seconds": first.whole.as_secs_f64() });
    report.check(
        format!("{id}: it boots from an image that was not pulled and reads lazily"),
        is_lazy,
        detail,
        figures,
    );
    let detail =
        format!("{} and {} on the host, in {:.1} s", mib(bytes), mib(host.fetched.bytes), host.whole.as_secs_f64());
    let is_close = bytes * 100 <= host.fetched.bytes * (100 + MORE_PERCENT);
    let figures = json!({ "guest": bytes, "host": host.fetched.bytes, "host_seconds": host.whole.as_secs_f64() });
    let sentence = format!("{id}: it fetches at most {MORE_PERCENT} % more than the start on the host");
    report.check(sentence, is_close, detail, figures);
    let before = mount.fetched()?.bytes;
    let second = start_in_guest(parts, mount, of)?;
    let more = second.fetched.bytes - before;
    let detail = format!("{} more; start {:.1} s", mib(more), (second.whole - second.boot).as_secs_f64());
    let figures = json!({ "more": more, "seconds": second.whole.as_secs_f64() });
    report.check(format!("{id}: a second machine fetches nothing"), more == 0, detail, figures);
    Ok(())
}

/// Starts the workload in a machine that runs before its root, this mount, is shown to it.
pub(super) fn start_later(parts: &Parts, mount: &Mount, workload: &Workload, report: &mut Report) -> Result<()> {
    let shared = Shared::new(&parts.work.join("pod"))?;
    let began = Instant::now();
    let guest = Guest::boot(parts, &shared.dir, Task::StartLater(workload))?;
    let start = follow(guest, began, mount, workload, || shared.show(&mount.dir))?;
    let Fetched { bytes, image } = start.fetched;
    let detail = format!("{} of {}", mib(bytes), mib(image));
    let sentence = format!("{}: it starts from a root that is mounted while the machine runs", workload.id);
    report.check(sentence, bytes < image, detail, json!({ "start": bytes, "image": image }));
    Ok(())
}

fn start_on_host(parts: &Parts, mount: &Mount, workload: &Workload) -> Result<Start> {
    let began = Instant::now();
    let messages = host::start(&mount.dir, workload, &parts.work)?;
    let (whole, fetched) = (began.elapsed(), mount.fetched()?);
    let mut is_ready = false;
    for message in messages {
        match message {
            Message::Output(line) => is_ready |= workload.ready.is_printed_as(&line),
            Message::Started(0) if is_ready => return Ok(Start { fetched, boot: Duration::ZERO, whole }),
            other => bail!("{} did not start on the host: {other:?}", workload.id),
        }
    }
    bail!("{} did not end on the host", workload.id)
}

fn start_in_guest(parts: &Parts, mount: &Mount, workload: &Workload) -> Result<Start> {
    let began = Instant::now();
    let guest = Guest::boot(parts, &mount.dir, Task::Start(workload))?;
    follow(guest, began, mount, workload, || bail!("the machine waits"))
}

/// Waits for the end of the workload and of the machine. `show` is executed when the machine waits for a mount.
fn follow(guest: Guest, began: Instant, mount: &Mount, of: &Workload, show: impl Fn() -> Result<()>) -> Result<Start> {
    let (mut is_ready, mut boot) = (false, Duration::ZERO);
    loop {
        match guest.expect()? {
            Message::Boot => boot = began.elapsed(),
            Message::Waiting => show()?,
            Message::Output(line) => {
                println!("{}: {line}", of.id);
                is_ready |= of.ready.is_printed_as(&line);
            }
            Message::Started(0) if is_ready => {
                let start = Start { fetched: mount.fetched()?, boot, whole: began.elapsed() };
                guest.wait_for_end()?;
                return Ok(start);
            }
            other => bail!("{} did not start in the machine: {other:?}", of.id),
        }
    }
}

/// Whether it can be recognised that the workload was ready after it has ended.
pub(super) fn is_possible(workload: &Workload) -> bool {
    matches!(workload.ready, Ready::Line { .. }) && !workload.on_host_network
}
