//! Publishes the boot packs of learned starts, in the background.
//!
//! Another process does it, for one image at a time: this one talks to no registry and parses nothing that one sends. What the other process
//! found is asked again after a day, so that hosts of a fleet do not ask the registries of all their images all the time.

use std::collections::HashMap;
use std::ffi::OsString;
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tarpon_engine::LearnedImage;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

use crate::feed::{EventKind, LearnedOutcome};
use crate::flag;
use crate::state::ApiState;

/// Time between two looks for images that started often enough. A pack helps the starts of other hosts, which can wait for minutes.
const INTERVAL: Duration = Duration::from_secs(10 * 60);
/// Images that are published, or looked for in registries, after one look: a host that learned hundreds asks for them over hours.
const PER_LOOK: usize = 8;
/// How long an image is left alone whose pack is published or must not be.
const SETTLED: Duration = Duration::from_secs(24 * 60 * 60);
/// How long an image is left alone for which that failed: an outage of a registry takes minutes to hours.
const FAILED: Duration = Duration::from_secs(60 * 60);
/// How long one image may take. The contents of a start have at most a few hundred megabytes; an image whose layers were never read whole
/// is read once.
const LIMIT: Duration = Duration::from_secs(60 * 60);
/// What is read of the output of the process. A report on one image has a kilobyte.
const OUTPUT_BYTES: u64 = 64 << 10;

/// How learned starts are published.
#[derive(Debug, Clone)]
pub struct Learning {
    /// The command line that publishes the image whose name follows, and prints the result as JSON.
    pub command: Vec<OsString>,
    /// Equal starts in a row after which an image is published.
    pub after: u32,
}

/// The report of the process.
#[derive(Debug, Deserialize)]
struct Report {
    images: Vec<ReportedImage>,
}

/// What it did for an image.
#[derive(Debug, Deserialize)]
struct ReportedImage {
    state: ReportedState,
    place: Option<String>,
    error: Option<String>,
}

/// As `LearnedState` of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ReportedState {
    Published,
    Known,
    TooFew,
    Refused,
    Failed,
}

/// Publishes until the daemon ends.
pub(crate) async fn publish(state: ApiState, learning: Learning) {
    let mut stopping = state.stopping.subscribe();
    let mut publisher = Publisher { state: state.clone(), learning, asked: HashMap::new() };
    let work = async {
        loop {
            publisher.look().await;
            sleep(INTERVAL).await;
        }
    };
    // A process that runs is killed with the future.
    tokio::select! {
        () = work => {}
        () = flag::set(&mut stopping) => {}
    }
}

struct Publisher {
    state: ApiState,
    learning: Learning,
    /// The images that were asked for, and until when they are left alone.
    asked: HashMap<String, Instant>,
}

impl Publisher {
    /// Publishes the images that started often enough and are not left alone.
    async fn look(&mut self) {
        let engine = self.state.engine.clone();
        let learned = match tokio::task::spawn_blocking(move || engine.learned_images()).await {
            Ok(Ok(learned)) => learned,
            Ok(Err(error)) => return tracing::warn!(%error, "learned starts are not published"),
            Err(error) => return tracing::warn!(%error, "learned starts are not published"),
        };
        let due = self.due(&learned);
        // Publishing takes minutes, and traces take megabytes.
        drop(learned);
        for image in due {
            let outcome = self.publish(&image.pinned).await;
            let rest = match outcome {
                LearnedOutcome::Failed { .. } => FAILED,
                _ => SETTLED,
            };
            self.asked.insert(image.pinned.clone(), Instant::now() + rest);
            self.tell(image, outcome);
        }
    }

    /// The next images, at most [`PER_LOOK`]. Forgets those whose traces are gone.
    fn due(&mut self, learned: &[LearnedImage]) -> Vec<DueImage> {
        let enough: Vec<DueImage> =
            learned.iter().filter(|image| image.starts >= self.learning.after).map(DueImage::of).collect();
        self.asked.retain(|name, _| enough.iter().any(|image| image.pinned == *name));
        let now = Instant::now();
        let is_due = |image: &DueImage| self.asked.get(&image.pinned).is_none_or(|until| *until <= now);
        enough.into_iter().filter(is_due).take(PER_LOOK).collect()
    }

    async fn publish(&self, image: &str) -> LearnedOutcome {
        let failed = |reason: String| LearnedOutcome::Failed { reason };
        match timeout(LIMIT, run(&self.learning.command, image)).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(reason)) => failed(reason),
            Err(_) => failed(format!("it takes longer than {} minutes", LIMIT.as_secs() / 60)),
        }
    }

    fn tell(&self, image: DueImage, outcome: LearnedOutcome) {
        let DueImage { text: image, manifest, .. } = image;
        match &outcome {
            LearnedOutcome::Published { place } => tracing::info!(image, place, "the learned start is published"),
            LearnedOutcome::Known { place } => tracing::debug!(image, place, "the image has a boot pack"),
            LearnedOutcome::Refused { reason } => tracing::info!(image, reason, "the learned start is not published"),
            LearnedOutcome::Failed { reason } => tracing::warn!(image, reason, "the learned start is not published"),
        }
        self.state.feed.publish(EventKind::LearnedStart { image, manifest, outcome });
    }
}

/// An image that started often enough.
#[derive(Debug)]
struct DueImage {
    text: String,
    pinned: String,
    manifest: String,
}

impl DueImage {
    fn of(image: &LearnedImage) -> Self {
        let (pinned, manifest) = (image.pinned.to_string(), image.manifest.to_string());
        Self { text: image.text.clone(), pinned, manifest }
    }
}

/// Runs the process for an image. `Err`: why there is no report.
async fn run(command: &[OsString], image: &str) -> Result<LearnedOutcome, String> {
    let failed = |error: std::io::Error| format!("the process that publishes it: {error}");
    let (program, arguments) = command.split_first().ok_or("this program cannot start one")?;
    let mut process = Command::new(program);
    process.args(arguments).arg(image).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = process.kill_on_drop(true).spawn().map_err(failed)?;
    let (output, errors) = (process.stdout.take(), process.stderr.take());
    let (output, errors, status) = futures::join!(text(output), text(errors), process.wait());
    let status = status.map_err(failed)?;
    if let Ok(report) = serde_json::from_str::<Report>(&output)
        && let Some(image) = report.images.into_iter().next()
    {
        return Ok(outcome(image));
    }
    match errors.lines().find(|line| !line.is_empty()) {
        Some(line) => Err(line.trim_start_matches("tarpon: ").to_owned()),
        None => Err(format!("the process that publishes it ended without a report: {status}")),
    }
}

/// The beginning of what the process writes. The rest is read too, so that it does not wait for a reader.
async fn text(pipe: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut pipe) = pipe else { return String::new() };
    let mut bytes = Vec::new();
    let _what_there_is = (&mut pipe).take(OUTPUT_BYTES).read_to_end(&mut bytes).await;
    let _the_rest = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

fn outcome(image: ReportedImage) -> LearnedOutcome {
    let place = image.place.unwrap_or_default();
    let reason = image.error.unwrap_or_default();
    match image.state {
        ReportedState::Published => LearnedOutcome::Published { place },
        ReportedState::Known => LearnedOutcome::Known { place },
        ReportedState::Refused => LearnedOutcome::Refused { reason },
        ReportedState::Failed => LearnedOutcome::Failed { reason },
        // It started differently meanwhile.
        ReportedState::TooFew => LearnedOutcome::Failed { reason: "the last start was different".to_owned() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn run_script(script: &str) -> Result<LearnedOutcome, String> {
        run(&["sh", "-c", script, "sh"].map(OsString::from), "registry.example/app@sha256:1").await
    }

    #[tokio::test]
    async fn the_report_of_the_process_is_read() {
        let report = |fields: &str| format!(r#"echo '{{"images":[{{"image":"a",{fields}}}]}}'"#);
        for (fields, expected) in [
            (r#""state":"published","place":"p""#, LearnedOutcome::Published { place: "p".to_owned() }),
            (r#""state":"known","place":"p""#, LearnedOutcome::Known { place: "p".to_owned() }),
            (r#""state":"refused","error":"e""#, LearnedOutcome::Refused { reason: "e".to_owned() }),
            (r#""state":"failed","error":"e""#, LearnedOutcome::Failed { reason: "e".to_owned() }),
        ] {
            assert_eq!(run_script(&report(fields)).await, Ok(expected), "{fields}");
        }
    }

    #[tokio::test]
    async fn a_process_without_a_report_has_failed() {
        let error = run_script("echo 'tarpon: cannot do it: no' >&2; exit 6").await;
        assert_eq!(error, Err("cannot do it: no".to_owned()));
        let error = run_script("exit 6").await.unwrap_err();
        assert!(error.contains("exit status: 6"), "{error}");
        assert!(run(&["/does/not/exist".into()], "a").await.is_err());
        assert!(run(&[], "a").await.is_err());
    }

    #[tokio::test]
    async fn endless_output_is_read_in_part() {
        let error = run_script("head -c 300000 /dev/zero | tr '\\0' x; head -c 300000 /dev/zero >&2").await;
        assert!(error.is_err_and(|error| error.len() <= usize::try_from(OUTPUT_BYTES).unwrap()));
    }
}
