//! `tarpon status`: the mounts, and the data fetched for each.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;
use tarpon_engine::{
    BackfillState, BackfillStatus, Isolation, LayersPart, MountStatus, Stats, Writable, resolve_mountpoint,
};

use super::scrub;
use super::session::Session;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, Table, escape, figures};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon status                              one line for each mount
  tarpon status /mnt                         details of one mount
  tarpon status --json | jq '.[].fetched_bytes'
  tarpon status --json /mnt | jq '.endpoints[] | {endpoint, bytes, rest_millis}'
  tarpon status --json | jq '.[0].scrub.last'     time and result of the last scrub

PREPARED (prepared_bytes in JSON) counts bytes received to prepare the image before it was mounted:
tables of contents, and streamed layers. It is the same for all mounts of the image. FETCHED
(fetched_bytes in JSON) counts bytes received for this mount since. Both include tokens and retries.
All other counters are those of the image since the server loaded it; bytes_fetched is file data
only. `tarpon why` explains them.

The details of a mount list the hosts that serve the image (endpoints in JSON), in the order in which
they are asked: its mirrors, its registry, and the index repository of its boot pack.

\"source lost\" (alive: false with a container in JSON) means that the server died while the container
ran. The container can read local data only: run a new one in its place.";

/// Show mounts and the data fetched for them
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Status {
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Mount point
    #[arg(value_name = "MOUNT")]
    pub(crate) mount: Option<PathBuf>,
}

impl Status {
    pub(crate) fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let mounts = session.engine().mounts().doing(|| "cannot list the mounts")?;
        match &self.mount {
            None if self.json => output::json(&mounts),
            None => {
                let scrub = session.engine().scrub_status().doing(|| "cannot read the state of the scrub")?;
                let scrub = scrub.map(|scrub| format!("scrub: {}\n", scrub::shown(&scrub)));
                let isolation = match session.engine().isolation().doing(|| "cannot read the isolation of the store")? {
                    Isolation::Shared => "",
                    Isolation::Tenant => "isolation of the store: tenant\n",
                };
                output::text(&(overview(&mounts) + &scrub.unwrap_or_default() + isolation))
            }
            Some(dir) => {
                let mount = find(mounts, dir)?;
                if self.json { output::json(&mount) } else { output::text(&details(&mount)) }
            }
        }
    }
}

fn find(mounts: Vec<MountStatus>, dir: &Path) -> Result<MountStatus> {
    let missing = |why: &str| Failure::new(Exit::NotFound, format_args!("cannot show {}: {why}", dir.display()));
    let path = resolve_mountpoint(dir).map_err(|error| missing(&error.to_string()))?;
    mounts.into_iter().find(|mount| mount.mountpoint == path).ok_or_else(|| missing("not a mount of this store"))
}

/// One line per mount.
pub(crate) fn overview(mounts: &[MountStatus]) -> String {
    if mounts.is_empty() {
        return "nothing is mounted\n".to_owned();
    }
    let mut table =
        Table::new(&["MOUNT", "IMAGE", "DIGEST", "MODE", ">PREPARED", ">FETCHED", ">OF", ">REQUESTS", "STATE"]);
    // Images in Podman's layer store are left out; `tarpon podman ls` lists them.
    for mount in mounts.iter().filter(|mount| !matches!(mount.layers, Some(LayersPart::Image { .. }))) {
        let is_store = mount.layers.is_some();
        table.row([
            escape(mount.mountpoint.as_os_str().as_bytes()),
            escape(mount.image.as_bytes()),
            if is_store { String::new() } else { output::short_digest(&mount.manifest) },
            mount.mode.clone(),
            size::human(mount.prepared_bytes),
            size::human(mount.fetched_bytes),
            size::human(mount.image_bytes),
            mount.requests.to_string(),
            state(mount),
        ]);
    }
    table.to_string()
}

fn state(mount: &MountStatus) -> String {
    if mount.alive && mount.backfill.as_ref().is_some_and(|backfill| !backfill.alarms.is_empty()) {
        return "ALARM: the image does not match its index".to_owned();
    }
    if let (false, Some(name)) = (mount.alive, &mount.container) {
        return format!("source lost: replace container {name}");
    }
    if mount.alive && mount.damage.is_some() {
        return "DAMAGED: stop the programs that use it and mount it again".to_owned();
    }
    match (mount.alive, mount.failed_reads) {
        (false, _) if mount.problem.is_some() => "not mounted: run `tarpon recover`".to_owned(),
        (false, _) => "dead: run `tarpon recover`".to_owned(),
        (true, 0) if mount.fallbacks.is_empty() => "ok".to_owned(),
        (true, 0) => "ok, with fallbacks".to_owned(),
        (true, 1) => "1 read failed".to_owned(),
        (true, failed) => format!("{failed} reads failed"),
    }
}

/// All details of one mount.
pub(crate) fn details(mount: &MountStatus) -> String {
    let mut table = Table::new(&["", ""]);
    let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
    row("mount", escape(mount.mountpoint.as_os_str().as_bytes()));
    row("image", escape(mount.image.as_bytes()));
    row("digest", mount.manifest.to_string());
    row("mode", mount.mode.clone());
    row(
        "writable",
        match &mount.writable {
            Writable::No => "no".to_owned(),
            Writable::Temporary => "yes, changes are discarded at unmount".to_owned(),
            Writable::Upper(dir) => format!("yes, changes are kept in {}", escape(dir.as_os_str().as_bytes())),
            Writable::Discarded(dir) => {
                format!("yes, changes in {} are removed with the container", escape(dir.as_os_str().as_bytes()))
            }
        },
    );
    if let Some(name) = &mount.container {
        row("container", name.clone());
    }
    row("state", state(mount));
    for (name, text) in [("problem", &mount.problem), ("damage", &mount.damage), ("last failure", &mount.last_error)] {
        if let Some(text) = text {
            row(name, escape(text.as_bytes()));
        }
    }
    if mount.alive {
        row("server", format!("process {}", mount.server));
    }
    row("prepared", format!("{} before it was mounted", size::human(mount.prepared_bytes)));
    row("fetched", fetched(mount));
    for endpoint in &mount.endpoints {
        let (kind, text) = figures::endpoint(endpoint);
        row(kind, escape(text.as_bytes()));
    }
    if let Ok(stats) = Stats::deserialize(&mount.counters) {
        row(
            "file data",
            figures::lanes(
                stats.bytes_demand,
                stats.bytes_trace,
                stats.bytes_ahead,
                stats.bytes_whole,
                stats.bytes_backfill,
            ),
        );
        for (name, early) in [("boot pack", &stats.early_trace), ("read ahead", &stats.early_ahead)] {
            if early.brought > 0 {
                row(name, figures::early(early));
            }
        }
        row("waits", figures::stalls(stats.stalls, stats.stall_millis, stats.slowest_stall_millis));
    }
    if let Some(scrub) = &mount.scrub {
        row("scrub", scrub::shown(scrub));
    }
    if let Some(address) = mount.metrics {
        row("metrics", format!("http://{address}/metrics"));
    }
    for (number, layer) in mount.verification.iter().enumerate() {
        row(
            &format!("layer {}", number + 1),
            format!("{}  {}, {}", output::short_digest(&layer.digest), layer.format, layer.state),
        );
    }
    if let Some(backfill) = &mount.backfill {
        row("backfill", escape(progress(backfill).as_bytes()));
        for alarm in &backfill.alarms {
            row("ALARM", escape(alarm.as_bytes()));
        }
    }
    for fallback in &mount.fallbacks {
        row("fallback", escape(fallback.as_bytes()));
    }
    table.to_string()
}

/// `3 of 5 layers, trying again after 4 s: …`.
fn progress(backfill: &BackfillStatus) -> String {
    let s = if backfill.layers == 1 { "" } else { "s" };
    let layers = format!("{} of {} layer{s}", backfill.layers_done, backfill.layers);
    let problem = backfill.problem.as_ref().map(|problem| format!(": {problem}")).unwrap_or_default();
    match backfill.state {
        BackfillState::Complete => format!("complete, {layers}{problem}"),
        BackfillState::Stopped | BackfillState::Alarm => format!("{layers}, ended{problem}"),
        BackfillState::Running => format!("{layers}{problem}"),
    }
}

/// `41 KiB of 2.9 MiB (1.4 %) in 9 requests`.
pub(crate) fn fetched(mount: &MountStatus) -> String {
    let (bytes, whole) = (mount.fetched_bytes, mount.image_bytes);
    let share = if bytes > whole {
        // The total includes tables of contents, tokens and retries.
        format!("{}, more than the image's {}", size::human(bytes), size::human(whole))
    } else {
        format!("{} of {} ({})", size::human(bytes), size::human(whole), size::percent(bytes, whole))
    };
    format!("{share} in {} request{}", mount.requests, if mount.requests == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use tarpon_engine::store::{LayerKind, Verification};
    use tarpon_engine::{Backfill, LayerVerification, ScrubStatus};
    use tarpon_oci::Digest;

    use super::*;

    fn mount() -> MountStatus {
        MountStatus {
            image: "localhost:5000/app:v1".into(),
            manifest: Digest::of(b"manifest"),
            mountpoint: "/mnt/app".into(),
            mode: "native".into(),
            writable: Writable::Upper("/srv/changes".into()),
            verification: vec![LayerVerification {
                digest: Digest::of(b"layer"),
                format: LayerKind::ZstdChunked,
                state: Verification::Toc,
            }],
            backfill: None,
            podman: None,
            layers: None,
            fallbacks: vec!["layer 2 has no table of contents: streamed once".into()],
            alive: true,
            problem: None,
            damage: None,
            container: None,
            credentials_lost: false,
            server: 4711,
            image_bytes: 3_040_870,
            prepared_bytes: 2_101_000,
            fetched_bytes: 42_343,
            requests: 9,
            failed_reads: 0,
            last_error: None,
            endpoints: vec![tarpon_engine::EndpointStatus {
                endpoint: "localhost:5000".into(),
                kind: tarpon_engine::EndpointKind::Registry,
                requests: 9,
                bytes: 42_343,
                wait_millis: 297,
                failures: 0,
                rest_millis: None,
                last_failure: None,
            }],
            metrics: Some(([127, 0, 0, 1], 9464).into()),
            scrub: None,
            counters: serde_json::json!({
                "bytes_demand": 30_000, "bytes_trace": 12_000,
                "early_trace": {"brought": 40_000, "used": 30_000, "unused": 10_000, "unknown": 0},
                "stalls": 12, "stall_millis": 1_330, "slowest_stall_millis": 310,
            }),
        }
    }

    #[test]
    fn the_overview_has_a_line_for_each_mount() {
        let dead = MountStatus { alive: false, mode: "fuse".into(), mountpoint: "/m".into(), ..mount() };
        insta::assert_snapshot!(overview(&[mount(), dead]));
        assert_eq!(overview(&[]), "nothing is mounted\n");
    }

    #[test]
    fn the_details_show_fallbacks_and_verification_of_layers() {
        insta::assert_snapshot!(details(&mount()));
    }

    #[test]
    fn failures_are_shown() {
        let failing = MountStatus { failed_reads: 3, last_error: Some("401 Unauthorized".into()), ..mount() };
        assert_eq!(state(&failing), "3 reads failed");
        assert!(details(&failing).contains("last failure  401 Unauthorized\n"));
        let lost = MountStatus { alive: false, problem: Some("no such directory".into()), ..mount() };
        assert_eq!(state(&lost), "not mounted: run `tarpon recover`");
        assert!(details(&lost).contains("problem    no such directory\n"), "{}", details(&lost));
    }

    #[test]
    fn a_damaged_mount_is_shown_as_such() {
        let damaged = MountStatus { damage: Some("not fetched within 30 s".into()), ..mount() };
        assert_eq!(state(&damaged), "DAMAGED: stop the programs that use it and mount it again");
        assert!(details(&damaged).contains("damage     not fetched within 30 s\n"), "{}", details(&damaged));
    }

    #[test]
    fn the_scrub_of_the_store_is_shown_of_each_mount() {
        let scrub = ScrubStatus { running: true, ..ScrubStatus::default() };
        let shown = details(&MountStatus { scrub: Some(scrub), ..mount() });
        assert!(shown.contains("scrub      off\n"), "{shown}");
    }

    #[test]
    fn a_container_that_lost_its_source_is_named() {
        let served = MountStatus { container: Some("web".into()), ..mount() };
        assert_eq!(state(&served), "ok, with fallbacks");
        let lost = MountStatus { alive: false, problem: Some("it runs without".into()), ..served };
        assert_eq!(state(&lost), "source lost: replace container web");
        assert!(details(&lost).contains("container  web\n"), "{}", details(&lost));
        assert!(overview(&[lost]).contains("container web"));
    }

    #[test]
    fn backfill_is_shown_and_an_alarm_comes_first() {
        let running = BackfillStatus {
            how: Backfill::Idle,
            state: BackfillState::Running,
            layers_done: 3,
            layers: 5,
            problem: None,
            alarms: Vec::new(),
        };
        let shown = |backfill: &BackfillStatus| {
            let mount = MountStatus { backfill: Some(backfill.clone()), ..mount() };
            (state(&mount), details(&mount))
        };
        assert!(shown(&running).1.contains("  3 of 5 layers\n"), "{}", shown(&running).1);
        let waiting = BackfillStatus { problem: Some("trying again after 4 s: no answer".into()), ..running.clone() };
        assert!(shown(&waiting).1.contains("3 of 5 layers: trying again after 4 s: no answer\n"));
        let complete = BackfillStatus { state: BackfillState::Complete, layers_done: 5, ..running.clone() };
        assert!(shown(&complete).1.contains("complete, 5 of 5 layers\n"));
        let stopped =
            BackfillStatus { state: BackfillState::Stopped, problem: Some("no room".into()), ..running.clone() };
        assert!(shown(&stopped).1.contains("3 of 5 layers, ended: no room\n"));
        let alarm = BackfillStatus { alarms: vec!["layer sha256:… is wrong".into()], ..running };
        let (state, details) = shown(&alarm);
        assert!(
            state.starts_with("ALARM") && details.contains("ALARM") && details.contains("  layer sha256:… is wrong\n"),
            "{details}"
        );
    }

    #[test]
    fn fetching_more_than_the_image_has_no_percentage() {
        let whole = |fetched_bytes| fetched(&MountStatus { image_bytes: 1 << 20, fetched_bytes, ..mount() });
        assert_eq!(whole(1 << 20), "1.0 MiB of 1.0 MiB (100 %) in 9 requests");
        assert_eq!(whole(3 << 19), "1.5 MiB, more than the image's 1.0 MiB in 9 requests");
    }

    #[test]
    fn the_json_of_a_mount_has_a_stable_shape() {
        insta::assert_snapshot!(serde_json::to_string_pretty(&mount()).expect("serialisable"));
    }
}
