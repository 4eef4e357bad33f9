//! A start in a virtual machine, compared with the same start on the host.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use tarpon_harness::workloads::{Ready, Workload};

use super::containerd::Containerd;
use super::guest::{Guest, Parts, Task};
use super::host;
use super::message::Message;
use super::mount::{Fetched, Mount};
use super::report::{Report, mib};
use super::shared::Shared;

/// How much more may be fetched for a start in a machine than for one on the host, in percent.
const MORE_PERCENT: u64 = 10;
/// How much a second machine may fetch, in percent of the first: the ranges that the kernel reads ahead vary a little.
const SECOND_PERCENT: u64 = 1;

/// A start and what was fetched until the workload ended.
struct Start {
    fetched: Fetched,
    /// Until the modules of the machine were loaded.
    boot: Duration,
    /// Until the workload ended.
    whole: Duration,
}

impl Start {
    fn times(&self) -> String {
        let [boot, start] = [self.boot, self.whole - self.boot].map(|time| time.as_secs_f64());
        format!("kernel {boot:.1} s, start {start:.1} s")
    }
}

/// The start on the host that others are compared with.
#[derive(Clone, Copy)]
pub(super) struct OnHost {
    bytes: u64,
    seconds: f64,
}

/// Starts the workload once on the host and twice in a machine whose root is this mount, which nothing has read yet.
pub(super) fn compare(
    parts: &Parts,
    on_host: Mount,
    mount: &Mount,
    of: &Workload,
    report: &mut Report,
) -> Result<OnHost> {
    let host = start_on_host(parts, &on_host, of)?;
    on_host.unmount()?;
    let host = OnHost { bytes: host.fetched.bytes, seconds: host.whole.as_secs_f64() };
    let mode = mount.mode()?;
    report.remark(&format!("{}: start on the host {:.1} s, mode {mode}", of.id, host.seconds))?;
    let mounted = mount.fetched()?.bytes;
    let first = start_in_guest(parts, mount, of)?;
    is_lazy(&of.id, mounted, &first, report)?;
    is_close(&of.id, first.fetched.bytes, host.bytes, report)?;
    let before = mount.fetched()?.bytes;
    let second = start_in_guest(parts, mount, of)?;
    let more = second.fetched.bytes - before;
    fetches_little(&of.id, before, more, &second, report)?;
    let mut figures = figures(of, "mount", &mode, &first, host);
    figures["mounted_bytes"] = mounted.into();
    figures["second_bytes"] = more.into();
    report.start(figures)?;
    Ok(host)
}

/// The figures of a start in a machine, with a root of this kind.
fn figures(of: &Workload, root: &str, mode: &str, start: &Start, host: OnHost) -> Value {
    json!({
        "workload": of.id,
        "root": root,
        "mode": mode,
        "machine_bytes": start.fetched.bytes,
        "host_bytes": host.bytes,
        "ratio": share(start.fetched.bytes, host.bytes),
        "image_bytes": start.fetched.image,
        "kernel_seconds": start.boot.as_secs_f64(),
        "start_seconds": (start.whole - start.boot).as_secs_f64(),
        "host_seconds": host.seconds,
    })
}

/// The first number divided by the second. Images have less than 2^52 bytes, so both are exact.
#[allow(clippy::cast_precision_loss)]
fn share(bytes: u64, of: u64) -> f64 {
    bytes as f64 / of as f64
}

fn is_lazy(id: &str, before: u64, start: &Start, report: &mut Report) -> Result<()> {
    let Fetched { bytes, image } = start.fetched;
    let (mounted, read, whole) = (mib(before), mib(bytes), mib(image));
    let detail = format!("{mounted} when mounted, {read} when started, of {whole}; {}", start.times());
    let sentence = format!("{id}: it boots from an image that was not pulled, and reads lazily");
    report.check(&sentence, before < bytes && bytes < image, &detail)
}

fn is_close(id: &str, bytes: u64, on_host: u64, report: &mut Report) -> Result<()> {
    let detail = format!("{} and {} on the host", mib(bytes), mib(on_host));
    let is_close = bytes * 100 <= on_host * (100 + MORE_PERCENT);
    let sentence = format!("{id}: it fetches at most {MORE_PERCENT} % more than the start on the host");
    report.check(&sentence, is_close, &detail)
}

fn fetches_little(id: &str, first: u64, more: u64, start: &Start, report: &mut Report) -> Result<()> {
    let detail = format!("{} more than {}; {}", mib(more), mib(first), start.times());
    let sentence = format!("{id}: a second machine fetches at most {SECOND_PERCENT} % more than the first");
    report.check(&sentence, more * 100 <= first * SECOND_PERCENT, &detail)
}

/// Starts the workload in a machine that runs before containerd's snapshot of the image is mounted and shown to it.
pub(super) fn start_later(
    parts: &Parts,
    containerd: &Containerd,
    of: &Workload,
    on_host: OnHost,
    report: &mut Report,
) -> Result<()> {
    let shared = Shared::new(&parts.work.join("pod"))?;
    let began = Instant::now();
    let guest = Guest::boot(parts, &shared.dir, Task::StartLater(of))?;
    let start = follow(guest, began, of, || shared.show(&containerd.mount()?), || containerd.fetched())?;
    let Fetched { bytes, image } = start.fetched;
    let is_lazy = bytes < image && bytes * 100 <= on_host.bytes * (100 + MORE_PERCENT);
    let detail = format!("{} of {}, and {} on the host; {}", mib(bytes), mib(image), mib(on_host.bytes), start.times());
    let sentence = format!("{}: it starts from containerd's snapshot, mounted while the machine runs", of.id);
    report.check(&sentence, is_lazy, &detail)?;
    report.start(figures(of, "containerd's snapshot", &containerd.mode()?, &start, on_host))
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
    follow(guest, began, workload, || bail!("the machine waits"), || mount.fetched())
}

/// Waits for the end of the workload and of the machine. `show` is called when the machine waits for a root.
fn follow(
    guest: Guest,
    began: Instant,
    of: &Workload,
    show: impl Fn() -> Result<()>,
    fetched: impl Fn() -> Result<Fetched>,
) -> Result<Start> {
    let (mut is_ready, mut boot) = (false, Duration::ZERO);
    loop {
        match guest.expect()? {
            Message::Boot => boot = began.elapsed(),
            Message::Waiting => show()?,
            Message::Output(line) => is_ready |= of.ready.is_printed_as(&line),
            Message::Started(0) if is_ready => {
                let whole = began.elapsed();
                let start = Start { fetched: fetched()?, boot, whole };
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
