//! The text format of Prometheus, version 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write;

use tarpon_client::protocol::ScrubStatus;
use tarpon_fetch::Stats;
use tarpon_oci::Digest;
use tarpon_registry::EndpointCounts;

use crate::counters::HostAccount;

/// The content type of the text.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The labels of an image: `image="…",digest="…"`, escaped.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Label(String);

impl Label {
    pub(super) fn of(name: &str, manifest: &Digest) -> Self {
        Self(format!("image=\"{}\",digest=\"{manifest}\"", escaped(name)))
    }
}

/// Escapes a label's value, so that no character of a name can end it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The metrics to write.
pub(super) struct Exposition<'a> {
    /// Counters of all images, including those that are no longer loaded.
    pub(super) host: Vec<Stats>,
    /// Counters of the loaded images; those of one name are summed.
    pub(super) images: BTreeMap<Label, Vec<Stats>>,
    /// Bytes fetched when these images were prepared.
    pub(super) prepared: BTreeMap<Label, u64>,
    /// Number of mounts by mode.
    pub(super) modes: BTreeMap<&'a str, u64>,
    /// The scrub of the store.
    pub(super) scrub: Option<ScrubStatus>,
    /// Counters of the endpoints of all images, by host.
    pub(super) endpoints: BTreeMap<String, HostAccount>,
}

/// Reads one counter.
type Number = fn(&Stats) -> u64;

/// A metric family: samples that differ in one label, or a single sample without it.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    numbers: &'static [(&'static str, Number)],
}

/// Each is exported for the host as `tarpon_host_NAME` and for each image as `tarpon_NAME`. Two names prevent a sum over both.
const FAMILIES: &[Family] = &[
    Family {
        name: "fetch_bytes_total",
        kind: "counter",
        help: "Bytes that the registry sent: for readers, of boot packs, ahead of readers, of whole downloads, and to complete images in the background.",
        numbers: &[
            ("lane=\"demand\"", |stats| stats.bytes_demand),
            ("lane=\"pack\"", |stats| stats.bytes_trace),
            ("lane=\"read_ahead\"", |stats| stats.bytes_ahead),
            ("lane=\"whole\"", |stats| stats.bytes_whole),
            ("lane=\"backfill\"", |stats| stats.bytes_backfill),
        ],
    },
    Family {
        name: "fetch_requests_total",
        kind: "counter",
        help: "Requests for file data; none of the backfill's.",
        numbers: &[("", |stats| stats.requests)],
    },
    Family {
        name: "fetch_requests_in_flight",
        kind: "gauge",
        help: "Requests for file data that are under way.",
        numbers: &[("", |stats| stats.requests_in_flight)],
    },
    Family {
        name: "fetch_in_flight_bytes",
        kind: "gauge",
        help: "Bytes that requests under way will bring.",
        numbers: &[("", |stats| stats.bytes_in_flight)],
    },
    Family {
        name: "reads_total",
        kind: "counter",
        help: "Reads that came to the server and were answered from what is here (local) or after waiting for a source (waited). Complete files are read by the kernel itself.",
        numbers: &[
            ("answered=\"local\"", |stats| stats.hits),
            ("answered=\"waited\"", |stats| stats.reads.saturating_sub(stats.hits)),
        ],
    },
    Family {
        name: "reads_failed_total",
        kind: "counter",
        help: "Reads that failed; of an image: those that its source could not answer, though another image's may have.",
        numbers: &[("", |stats| stats.failed_reads)],
    },
    Family {
        name: "read_bytes_total",
        kind: "counter",
        help: "Bytes that were answered to readers.",
        numbers: &[("", |stats| stats.bytes_served)],
    },
    Family {
        name: "early_bytes_total",
        kind: "counter",
        help: "Decoded bytes that were fetched before a read needed them.",
        numbers: &[
            ("lane=\"pack\"", |stats| stats.early_trace.brought),
            ("lane=\"read_ahead\"", |stats| stats.early_ahead.brought),
        ],
    },
    Family {
        name: "early_used_bytes_total",
        kind: "counter",
        help: "Those of them that a reader got later, or joined while they came.",
        numbers: &[
            ("lane=\"pack\"", |stats| stats.early_trace.used),
            ("lane=\"read_ahead\"", |stats| stats.early_ahead.used),
        ],
    },
    Family {
        name: "early_unused_bytes",
        kind: "gauge",
        help: "Those of them that were not read so far.",
        numbers: &[
            ("lane=\"pack\"", |stats| stats.early_trace.unused),
            ("lane=\"read_ahead\"", |stats| stats.early_ahead.unused),
        ],
    },
    Family {
        name: "early_unknown_bytes",
        kind: "gauge",
        help: "Those of them in complete files of images in mode native, which the kernel reads without telling.",
        numbers: &[
            ("lane=\"pack\"", |stats| stats.early_trace.unknown),
            ("lane=\"read_ahead\"", |stats| stats.early_ahead.unknown),
        ],
    },
    Family {
        name: "digest_failures_total",
        kind: "counter",
        help: "Pieces whose bytes did not match their digest.",
        numbers: &[("", |stats| stats.digest_failures)],
    },
    Family {
        name: "refuted_objects_total",
        kind: "counter",
        help: "Objects of which every chunk matched and the whole did not.",
        numbers: &[("", |stats| stats.poisoned_objects)],
    },
    Family {
        name: "distrusted_layers_total",
        kind: "counter",
        help: "Layers that are not served any more, because an index was wrong about them.",
        numbers: &[("", |stats| stats.distrusted_layers)],
    },
    Family {
        name: "store_refused_chunks_total",
        kind: "counter",
        help: "Chunks that the store did not take.",
        numbers: &[("", |stats| stats.bypassed_chunks)],
    },
];

/// Reads one counter of an endpoint, as text.
type EndpointNumber = fn(EndpointCounts) -> String;

/// Each is exported for each host as `tarpon_endpoint_NAME`.
const ENDPOINT_FAMILIES: &[(&str, &str, EndpointNumber)] = &[
    ("requests_total", "Requests, tokens and redirects included.", |counts| counts.requests.to_string()),
    ("bytes_total", "Bytes of bodies received.", |counts| counts.bytes.to_string()),
    (
        "wait_seconds_total",
        "How long all requests waited for the head of their response, or for their failure.",
        |counts| seconds(counts.wait_millis),
    ),
    (
        "failures_total",
        "Requests that failed with all their attempts, or found nothing, and responses that broke off.",
        |counts| counts.failures.to_string(),
    ),
];

const STALLS: &str = "read_stall_seconds";
const STALLS_HELP: &str = "How long readers waited for a source.";

impl Exposition<'_> {
    /// The text of all metrics.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        let build = concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"");
        head(&mut out, "tarpon_build_info", "gauge", "The version of the server.");
        sample(&mut out, "tarpon_build_info", &[build], 1);
        head(&mut out, "tarpon_mounts", "gauge", "What is mounted.");
        for (mode, count) in &self.modes {
            sample(&mut out, "tarpon_mounts", &[&format!("mode=\"{}\"", escaped(mode))], *count);
        }
        self.scrub.iter().for_each(|status| scrub(&mut out, status));
        let name = "tarpon_prepare_bytes_total";
        head(
            &mut out,
            name,
            "counter",
            "Bytes that came when the image was prepared: before it was mounted, and by pulls.",
        );
        self.prepared.iter().for_each(|(label, bytes)| sample(&mut out, name, &[&label.0], *bytes));
        self.endpoints(&mut out);
        for family in FAMILIES {
            let name = format!("tarpon_host_{}", family.name);
            let help = format!("All images, unloaded ones included. {}", family.help);
            head(&mut out, &name, family.kind, &help);
            numbers(&mut out, &name, family, "", &self.host);
            let name = format!("tarpon_{}", family.name);
            head(&mut out, &name, family.kind, family.help);
            self.images.iter().for_each(|(label, stats)| numbers(&mut out, &name, family, &label.0, stats));
        }
        let name = format!("tarpon_host_{STALLS}");
        head(&mut out, &name, "histogram", &format!("All images, unloaded ones included. {STALLS_HELP}"));
        histogram(&mut out, &name, "", &self.host);
        let name = format!("tarpon_{STALLS}");
        head(&mut out, &name, "histogram", STALLS_HELP);
        self.images.iter().for_each(|(label, stats)| histogram(&mut out, &name, &label.0, stats));
        out
    }

    fn endpoints(&self, out: &mut String) {
        let label = |host: &str| format!("endpoint=\"{}\"", escaped(host));
        for (name, help, number) in ENDPOINT_FAMILIES {
            let name = format!("tarpon_endpoint_{name}");
            head(out, &name, "counter", &format!("All images, unloaded ones included. {help}"));
            for (host, account) in &self.endpoints {
                sample(out, &name, &[&label(host)], number(account.counts));
            }
        }
        let name = "tarpon_endpoint_resting_images";
        head(out, name, "gauge", "Images that do not ask the endpoint now, because it failed.");
        for (host, account) in &self.endpoints {
            sample(out, name, &[&label(host)], account.resting);
        }
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn sample(out: &mut String, name: &str, labels: &[&str], value: impl std::fmt::Display) {
    let labels: Vec<&str> = labels.iter().copied().filter(|label| !label.is_empty()).collect();
    // As above.
    let _ = match labels[..] {
        [] => writeln!(out, "{name} {value}"),
        _ => writeln!(out, "{name}{{{}}} {value}", labels.join(",")),
    };
}

/// The status of the scrub and the result of its last run.
fn scrub(out: &mut String, status: &ScrubStatus) {
    let mut gauge = |name: &str, help: &str, value: u64| {
        let name = format!("tarpon_scrub_{name}");
        head(out, &name, "gauge", help);
        sample(out, &name, &[], value);
    };
    gauge("running", "Whether the store is being scrubbed just now.", status.running.into());
    if let Some(run) = status.under_way {
        gauge("progress_bytes", "Bytes that the scrub has hashed that has not ended.", run.bytes);
    }
    if let Some(run) = status.last {
        gauge("last_end_timestamp_seconds", "When the last whole scrub ended.", run.ended.unwrap_or_default());
        gauge("last_objects", "Objects that it hashed.", run.objects);
        gauge("last_bytes", "Their bytes.", run.bytes);
        gauge("last_damaged_objects", "Objects that were not what their names say.", run.damaged);
        gauge("last_unreadable_objects", "Objects that the disk did not give back.", run.unreadable);
        gauge("last_skipped_objects", "Objects that it could not look at for other reasons.", run.skipped);
    }
}

fn numbers(out: &mut String, name: &str, family: &Family, image: &str, stats: &[Stats]) {
    for (label, number) in family.numbers {
        sample(out, name, &[image, label], stats.iter().map(number).sum::<u64>());
    }
}

fn histogram(out: &mut String, name: &str, image: &str, stats: &[Stats]) {
    let mut below = 0;
    for (place, end) in tarpon_fetch::STALL_MILLIS.iter().enumerate() {
        let in_place = |stats: &Stats| stats.stall_histogram.buckets.get(place).map_or(0, |bucket| bucket.count);
        below += stats.iter().map(in_place).sum::<u64>();
        sample(out, &format!("{name}_bucket"), &[image, &format!("le=\"{}\"", seconds(*end))], below);
    }
    // The same number for both, so that they agree despite concurrent counting.
    let all: u64 = stats.iter().flat_map(|stats| &stats.stall_histogram.buckets).map(|bucket| bucket.count).sum();
    sample(out, &format!("{name}_bucket"), &[image, "le=\"+Inf\""], all);
    sample(out, &format!("{name}_sum"), &[image], seconds(stats.iter().map(|stats| stats.stall_millis).sum()));
    sample(out, &format!("{name}_count"), &[image], all);
}

/// Formats milliseconds as seconds: `0.05` for 50.
fn seconds(millis: u64) -> String {
    let text = format!("{}.{:03}", millis / 1000, millis % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use tarpon_fetch::{Bucket, Early, Histogram, STALL_MILLIS};
    use tarpon_store::{SCRUB_RATE, ScrubRun};

    use super::*;

    fn stats(bytes_demand: u64, waits: &[(usize, u64)]) -> Stats {
        let ends = STALL_MILLIS.iter().map(|end| Some(*end)).chain([None]);
        let mut buckets: Vec<Bucket> = ends.map(|up_to_millis| Bucket { up_to_millis, count: 0 }).collect();
        waits.iter().for_each(|(place, count)| buckets[*place].count = *count);
        let early_trace = Early { brought: 10, used: 6, unused: 3, unknown: 1 };
        let stall_histogram = Histogram { buckets };
        Stats { bytes_demand, early_trace, stall_millis: 1250, stall_histogram, ..Stats::default() }
    }

    fn scrubbed() -> Option<ScrubStatus> {
        let run = ScrubRun { objects: 3, bytes: 4096, damaged: 1, ..ScrubRun::default() };
        let last = Some(ScrubRun { ended: Some(1_700_000_000), ..run });
        Some(ScrubStatus { rate: Some(SCRUB_RATE), running: true, under_way: Some(run), last })
    }

    fn page() -> String {
        let digest = Digest::of(b"manifest");
        let one = (Label::of("localhost:5000/app:v1", &digest), vec![stats(7, &[(0, 2)]), stats(5, &[(13, 1)])]);
        let hostile = (Label::of("a\"} 1\n#\\", &digest), vec![Stats::default()]);
        let host = vec![stats(100, &[(0, 2), (13, 1)])];
        let prepared = [(one.0.clone(), 42_000_000)].into();
        let counts = EndpointCounts { requests: 12, bytes: 4_096, wait_millis: 1_250, failures: 2 };
        let account = HostAccount { counts, resting: 1 };
        let endpoints = [("cache.test:5000", account), ("a\"} 1\n#\\", account)];
        Exposition {
            host,
            images: [one, hostile].into(),
            prepared,
            modes: [("fuse", 2)].into(),
            scrub: scrubbed(),
            endpoints: endpoints.map(|(host, account)| (host.to_owned(), account)).into(),
        }
        .text()
    }

    #[test]
    fn the_page_has_a_stable_shape() {
        insta::assert_snapshot!(page().replace(env!("CARGO_PKG_VERSION"), "VERSION"));
    }

    #[test]
    fn a_name_cannot_make_up_lines_or_labels() {
        let page = page();
        let hostile: Vec<&str> = page.lines().filter(|line| line.contains("a\\\"} 1\\n#\\\\")).collect();
        assert!(
            hostile.iter().all(|line| {
                line.contains("{image=\"a\\\"} 1\\n#\\\\\",digest=\"sha256:")
                    || line.contains("{endpoint=\"a\\\"} 1\\n#\\\\\"} ")
            }),
            "{hostile:?}"
        );
        assert!(page.lines().all(|line| line.starts_with("tarpon_") || line.starts_with("# ")), "{page}");
    }

    #[test]
    fn buckets_hold_all_that_is_shorter_and_sources_of_one_image_are_added_up() {
        let page = page();
        for line in [
            "tarpon_prepare_bytes_total{IMAGE} 42000000",
            "tarpon_fetch_bytes_total{IMAGE,lane=\"demand\"} 12",
            "tarpon_read_stall_seconds_bucket{IMAGE,le=\"0.001\"} 2",
            "tarpon_read_stall_seconds_bucket{IMAGE,le=\"10\"} 2",
            "tarpon_read_stall_seconds_bucket{IMAGE,le=\"+Inf\"} 3",
            "tarpon_read_stall_seconds_sum{IMAGE} 2.5",
            "tarpon_read_stall_seconds_count{IMAGE} 3",
        ] {
            let line = line.replace("IMAGE", &Label::of("localhost:5000/app:v1", &Digest::of(b"manifest")).0);
            assert!(page.lines().any(|page| page == line), "{line} is missing");
        }
    }
}
