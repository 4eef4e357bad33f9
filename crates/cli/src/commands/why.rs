//! `tarpon why`: what the readers of a mount waited for, and how to avoid it.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use tarpon_engine::{Event, Explanation, Noted, SlowRead, WaitSum, resolve_mountpoint};
use tarpon_oci::Digest;

use super::session::Session;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, Table, escape, figures};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon why /mnt                            causes of waits, and advice
  tarpon why --json /mnt | jq -r '.advice[].text'

The figures are those of the image since the server loaded it. Reads wait only for data that is not
local: for a complete image there is nothing to explain.";

/// Number of slow reads in the text; the JSON has all of them.
const LISTED: usize = 10;

/// Explain what reads of a mounted image waited for
///
/// Shows the slowest reads and what they waited for; the bytes fetched on demand, by boot packs, read-ahead and backfill, and how many of
/// them were not used; what each mirror and the registry were asked for; failures and changes of strategy; and advice.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Why {
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Mount point
    #[arg(value_name = "MOUNT")]
    pub(crate) mount: PathBuf,
}

impl Why {
    pub(crate) fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let doing = || format!("cannot explain {}", self.mount.display());
        let path = resolve_mountpoint(&self.mount)
            .map_err(|error| Failure::new(Exit::NotFound, format_args!("{}: {error}", doing())))?;
        let explained = session.engine().why(&path).doing(doing)?;
        if self.json { output::json(&explained) } else { output::text(&text(&explained)) }
    }
}

/// The whole explanation as text for users.
fn text(explained: &Explanation) -> String {
    let sections = [
        ("", facts(explained)),
        ("Waited for", waits(&explained.waits)),
        ("Slowest reads", slowest(&explained.slowest)),
        ("Endpoints", endpoints(explained)),
        ("Events", events(explained)),
        ("Advice", advice(explained)),
    ];
    let mut text = String::new();
    for (title, lines) in sections.iter().filter(|(_, lines)| !lines.is_empty()) {
        if !title.is_empty() {
            text += &format!("\n{title}:\n");
        }
        text += lines;
    }
    text
}

fn facts(explained: &Explanation) -> String {
    let Explanation { mount, bytes, pack, read_ahead, .. } = explained;
    let mut table = Table::new(&["", ""]);
    let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
    row("mount", escape(mount.mountpoint.as_os_str().as_bytes()));
    row("image", format!("{} ({})", escape(mount.image.as_bytes()), output::short_digest(&mount.manifest)));
    row("mode", mount.mode.clone());
    row("waited", figures::stalls(explained.stalls, explained.stall_millis, explained.slowest_stall_millis));
    row("fetched", figures::lanes(bytes.demand, bytes.pack, bytes.read_ahead, bytes.whole, bytes.backfill));
    for (name, early) in [("boot pack", pack), ("read ahead", read_ahead)] {
        if early.brought > 0 {
            row(name, figures::early(early));
        }
    }
    for fallback in &mount.fallbacks {
        row("fallback", escape(fallback.as_bytes()));
    }
    table.to_string()
}

fn waits(waits: &[WaitSum]) -> String {
    let all: u64 = waits.iter().map(|wait| wait.millis).sum();
    let mut table = Table::new(&[">", ">", ">", "", ""]);
    for wait in waits {
        table.row([
            format!("  {}", figures::duration(wait.millis)),
            size::percent(wait.millis, all),
            figures::reads(wait.stalls),
            figures::waited_for(wait.waited_for).to_owned(),
            wait.layer.as_ref().map(layer).unwrap_or_default(),
        ]);
    }
    table.to_string()
}

fn slowest(slowest: &[SlowRead]) -> String {
    let mut table = Table::new(&[">", ">", "", "", ""]);
    for read in slowest.iter().take(LISTED) {
        let stall = &read.stall;
        let name = read
            .path
            .as_ref()
            .map_or_else(|| format!("object {}", output::short_digest(&stall.object)), |path| escape(path.as_bytes()));
        let failed = if stall.failed { ", failed" } else { "" };
        table.row([
            format!("  {}", figures::duration(stall.waited_millis)),
            format!("+{}", figures::duration(stall.at_millis)),
            format!("{name}, {} at {}", size::human(stall.length), stall.offset),
            format!("for {}{failed}", figures::waited_for(stall.waited_for)),
            read.file_layer.as_ref().map(layer).unwrap_or_default(),
        ]);
    }
    table.to_string()
}

/// The hosts that serve the image, if there are several or one has failed: which of them a wait was for.
fn endpoints(explained: &Explanation) -> String {
    let endpoints = &explained.mount.endpoints;
    if endpoints.len() < 2 && endpoints.iter().all(|endpoint| endpoint.failures == 0) {
        return String::new();
    }
    let mut table = Table::new(&["", ""]);
    for endpoint in endpoints {
        let (kind, text) = figures::endpoint(endpoint);
        table.row([format!("  {kind}"), escape(text.as_bytes())]);
    }
    table.to_string()
}

fn layer(digest: &Digest) -> String {
    format!("layer {}", output::short_digest(digest))
}

fn events(explained: &Explanation) -> String {
    let mut table = Table::new(&[">", ""]);
    if explained.events_dropped > 0 {
        table.row(["  …".to_owned(), format!("{} earlier events were dropped", explained.events_dropped)]);
    }
    for noted in &explained.events {
        table.row([format!("  +{}", figures::duration(noted.at_millis)), event(noted)]);
    }
    table.to_string()
}

fn event(noted: &Noted) -> String {
    let text = match &noted.event {
        Event::PackBegan { bytes } => format!("boot pack started, {}", size::human(*bytes)),
        Event::PackEnded => "boot pack complete".to_owned(),
        Event::PackGivenUp { reason } => format!("boot pack abandoned, layers are read instead: {reason}"),
        Event::SourceFailed { reason } => format!("source failed: {reason}"),
        Event::SourceRests { reason } => format!("source does not respond, reads wait: {reason}"),
        Event::SourceAnswers => "source responds again".to_owned(),
        Event::Corrupt { reason } => format!("corrupt data: {reason}"),
        Event::Refuted { object } => format!("object {object} does not match the index"),
        Event::Distrusted { layer, reason } => format!("layer {layer} is no longer served: {reason}"),
        Event::StoreRefused { reason } => format!("store rejected data: {reason}"),
        Event::Switched { to, reason } => format!("{to}, because {reason}"),
    };
    let times = if noted.times > 1 { format!(" ({} times)", noted.times) } else { String::new() };
    format!("{}{times}", escape(text.as_bytes()))
}

fn advice(explained: &Explanation) -> String {
    explained.advice.iter().map(|advice| format!("  {}\n", escape(advice.text.as_bytes()))).collect()
}

#[cfg(test)]
mod tests {
    use tarpon_engine::{
        Advice, Bytes, Early, EndpointKind, EndpointStatus, MountStatus, Stall, Topic, WaitedFor, Writable,
    };

    use super::*;

    fn explained() -> Explanation {
        let layer = Digest::of(b"layer");
        let read = |path: Option<&str>, waited_millis, waited_for, failed| SlowRead {
            stall: Stall {
                object: Digest::of(b"object"),
                offset: 1_048_576,
                length: 131_072,
                waited_millis,
                at_millis: 1_234,
                waited_for,
                layer: Some(layer),
                failed,
            },
            path: path.map(ToOwned::to_owned),
            file_layer: Some(layer),
        };
        let noted = |at_millis, times, event| Noted { at_millis, times, event };
        Explanation {
            mount: MountStatus {
                image: "localhost:5000/app:v1".into(),
                manifest: Digest::of(b"manifest"),
                mountpoint: "/mnt/app".into(),
                mode: "fuse".into(),
                writable: Writable::No,
                verification: Vec::new(),
                podman: None,
                layers: None,
                backfill: None,
                fallbacks: vec!["mode fuse, not native: no root".into()],
                problem: None,
                damage: None,
                container: None,
                credentials_lost: false,
                alive: true,
                server: 4711,
                image_bytes: 50 << 20,
                prepared_bytes: 0,
                fetched_bytes: 6 << 20,
                requests: 9,
                failed_reads: 1,
                last_error: None,
                endpoints: vec![
                    EndpointStatus {
                        endpoint: "cache.test:5000".into(),
                        kind: EndpointKind::Mirror,
                        requests: 7,
                        bytes: 5 << 20,
                        wait_millis: 5_210,
                        failures: 2,
                        rest_millis: Some(12_400),
                        last_failure: Some("GET /v2/app: cannot connect\u{1b}".into()),
                    },
                    EndpointStatus {
                        endpoint: "localhost:5000".into(),
                        kind: EndpointKind::Registry,
                        requests: 1,
                        bytes: 1 << 20,
                        wait_millis: 40,
                        failures: 0,
                        rest_millis: None,
                        last_failure: None,
                    },
                ],
                metrics: None,
                scrub: None,
                counters: serde_json::json!({}),
            },
            has_pack: true,
            loaded_unix_millis: 1_700_000_000_000,
            stalls: 12,
            stall_millis: 31_330,
            slowest_stall_millis: 30_000,
            waits: vec![
                WaitSum {
                    waited_for: WaitedFor::OwnRequest,
                    layer: Some(layer),
                    stalls: 9,
                    millis: 30_900,
                    start_stalls: 1,
                    start_millis: 900,
                },
                WaitSum {
                    waited_for: WaitedFor::Pack,
                    layer: None,
                    stalls: 3,
                    millis: 430,
                    start_stalls: 3,
                    start_millis: 430,
                },
            ],
            slowest: vec![
                read(Some("/usr/lib/\u{1b}[31mlib.so"), 30_000, WaitedFor::OwnRequest, true),
                read(None, 310, WaitedFor::Pack, false),
            ],
            bytes: Bytes { demand: 2 << 20, pack: 3 << 20, read_ahead: 0, whole: 0, backfill: 1 << 20 },
            pack: Early { brought: 5 << 20, used: 4 << 20, unused: 1 << 20, unknown: 0 },
            read_ahead: Early::default(),
            events: vec![
                noted(2, 1, Event::PackBegan { bytes: 3 << 20 }),
                noted(61_000, 3, Event::SourceFailed { reason: "503".into() }),
            ],
            events_dropped: 2,
            advice: vec![Advice { about: Topic::Source, text: "the source failed 3 times".into() }],
        }
    }

    #[test]
    fn an_explanation_is_complete_and_escaped() {
        let text = text(&explained());
        assert!(!text.contains('\u{1b}'));
        insta::assert_snapshot!(text);
    }

    #[test]
    fn an_empty_section_is_left_out() {
        let quiet = Explanation {
            stalls: 0,
            waits: Vec::new(),
            slowest: Vec::new(),
            mount: MountStatus { endpoints: Vec::new(), ..explained().mount },
            pack: Early::default(),
            events: Vec::new(),
            events_dropped: 0,
            advice: Vec::new(),
            ..explained()
        };
        let text = text(&quiet);
        assert!(text.contains("no read waited\n"), "{text}");
        assert!(!text.contains(":\n"), "an empty section: {text}");
    }

    #[test]
    fn the_json_of_an_explanation_has_a_stable_shape() {
        insta::assert_snapshot!(serde_json::to_string_pretty(&explained()).expect("serialisable"));
    }
}
