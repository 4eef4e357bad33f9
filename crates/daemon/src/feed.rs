//! The event feed: any number of listeners, none of which can delay the sender.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use parking_lot::Mutex;
use serde::Serialize;
use tarpon_engine::oci::Digest;
use tarpon_engine::{LayerPlan, Progress};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{Receiver, Sender};
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::failure::Failure;
use crate::flag;
use crate::limits::Permit;

/// Events that a listener may lag behind before it is cut off: a few hundred bytes each, stored once for all listeners.
const MAX_LAG: usize = 1024;

/// Idle time after which a listener gets a sign of life, which also detects closed connections.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// A line of `GET /v1/events`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Event {
    /// Sequence number, without gaps. 0 in lines that only this listener gets.
    sequence: u64,
    /// Time, in milliseconds since 1970.
    time_millis: u64,
    #[serde(flatten)]
    kind: EventKind,
}

/// The kind of an event, and its data.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub(crate) enum EventKind {
    /// The first line: the listener gets all events from now on.
    Listening,
    /// Keep-alive: no event has happened for some time.
    Alive,
    /// The last line for a listener that was too slow.
    CutOff {
        /// Number of missed events.
        missed: u64,
    },
    /// The last line: the daemon stops.
    Stopping,
    /// An image was mounted, by any client.
    Mounted {
        /// The mount point.
        mountpoint: String,
        /// The image, as named in the request.
        image: String,
        /// Digest of its manifest.
        manifest: String,
    },
    /// An image was unmounted, by any client.
    Unmounted {
        /// The mount point.
        mountpoint: String,
        /// The image, as named in the request.
        image: String,
        /// Digest of its manifest.
        manifest: String,
    },
    /// Preparing or pulling an image has started.
    Preparing {
        /// The image, as named in the request.
        image: String,
    },
    /// The manifest of the image has been read.
    Resolved {
        /// The image, as named in the request.
        image: String,
        /// Digest of its manifest.
        manifest: String,
        /// Number of layers.
        layers: usize,
        /// Bytes of the layers that are fetched completely.
        to_fetch: u64,
    },
    /// More data of the image has arrived.
    Fetched {
        /// The image, as named in the request.
        image: String,
        /// Bytes of layers that have arrived so far.
        bytes: u64,
    },
    /// A layer is ready.
    LayerDone {
        /// The image, as named in the request.
        image: String,
        /// Index of the layer in the manifest, from 0.
        layer: usize,
    },
    /// A feature fell back to a slower form.
    Note {
        /// The image, as named in the request.
        image: String,
        /// The feature, and why.
        text: String,
    },
    /// The image is prepared.
    Prepared {
        /// The image, as named in the request.
        image: String,
        /// Digest of its manifest.
        manifest: String,
    },
    /// Preparing the image has failed.
    NotPrepared {
        /// The image, as named in the request.
        image: String,
        /// The reason.
        failure: Failure,
    },
    /// A container that was requested here runs.
    ContainerStarted {
        /// Its name.
        name: String,
        /// The image, as named in the request.
        image: String,
    },
    /// A container has exited, started by any client.
    ContainerEnded {
        /// Its name.
        name: String,
        /// Its exit code, if still recorded: a container that is removed at its exit has none.
        exit_code: Option<u8>,
    },
    /// The boot pack of an image that started often enough was looked for, and perhaps published.
    LearnedStart {
        /// The image, as named by its user.
        image: String,
        /// Digest of its manifest.
        manifest: String,
        /// What was done.
        #[serde(flatten)]
        outcome: LearnedOutcome,
    },
    /// A job has ended.
    JobEnded {
        /// ID of the job.
        id: String,
        /// Its state.
        state: crate::jobs::JobState,
    },
}

/// What was done for an image that started often enough.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub(crate) enum LearnedOutcome {
    /// Its boot pack was published.
    Published {
        /// The repository that has it.
        place: String,
    },
    /// It had one.
    Known {
        /// The repository that has it.
        place: String,
    },
    /// It must not be published.
    Refused {
        /// The reason.
        reason: String,
    },
    /// That failed, and is tried again.
    Failed {
        /// The reason.
        reason: String,
    },
}

/// Publishes events.
pub(crate) struct Feed {
    sender: Sender<Bytes>,
    /// The number of the next event. Locked while an event is sent, so that events arrive in order.
    next: Mutex<u64>,
}

impl Default for Feed {
    fn default() -> Self {
        Self { sender: Sender::new(MAX_LAG), next: Mutex::new(1) }
    }
}

impl Feed {
    /// Sends an event to all listeners.
    pub(crate) fn publish(&self, kind: EventKind) {
        let mut next = self.next.lock();
        if self.sender.receiver_count() > 0 {
            let _no_receiver = self.sender.send(line(*next, kind));
        }
        *next += 1;
    }

    /// All events from now on, one JSON object per line. `permit` is held until the stream ends.
    pub(crate) fn lines(
        &self,
        stopping: watch::Receiver<bool>,
        permit: Permit,
    ) -> impl Stream<Item = Bytes> + Send + use<> {
        let listener = Listener { events: self.sender.subscribe(), stopping, stage: Stage::First, _permit: permit };
        futures::stream::unfold(listener, |mut listener| async { Some((listener.next().await?, listener)) })
    }
}

struct Listener {
    events: Receiver<Bytes>,
    stopping: watch::Receiver<bool>,
    stage: Stage,
    _permit: Permit,
}

enum Stage {
    First,
    Listening,
    Ended,
}

impl Listener {
    async fn next(&mut self) -> Option<Bytes> {
        match self.stage {
            Stage::First => {
                self.stage = Stage::Listening;
                return Some(line(0, EventKind::Listening));
            }
            Stage::Listening => {}
            Stage::Ended => return None,
        }
        let last = tokio::select! {
            biased;
            event = self.events.recv() => match event {
                Ok(event) => return Some(event),
                Err(RecvError::Lagged(missed)) => EventKind::CutOff { missed },
                Err(RecvError::Closed) => EventKind::Stopping,
            },
            () = flag::set(&mut self.stopping) => EventKind::Stopping,
            () = tokio::time::sleep(KEEP_ALIVE_INTERVAL) => return Some(line(0, EventKind::Alive)),
        };
        self.stage = Stage::Ended;
        Some(line(0, last))
    }
}

fn line(sequence: u64, kind: EventKind) -> Bytes {
    let time = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis();
    let event = Event { sequence, time_millis: u64::try_from(time).unwrap_or(u64::MAX), kind };
    // Events always serialize to JSON.
    let mut text = serde_json::to_vec(&event).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

/// Bytes that arrive between two progress events: a few events a second on a fast link.
const PROGRESS_STEP: u64 = 8 << 20;

/// Sends the progress of an image to the feed.
pub(crate) struct FeedProgress {
    feed: Arc<Feed>,
    image: String,
    received: AtomicU64,
}

impl FeedProgress {
    pub(crate) fn new(feed: Arc<Feed>, image: String) -> Self {
        Self { feed, image, received: AtomicU64::new(0) }
    }
}

impl Progress for FeedProgress {
    fn resolved(&self, manifest: &Digest, layers: &[LayerPlan]) {
        let streamed = layers.iter().filter(|layer| layer.way.is_streamed());
        self.feed.publish(EventKind::Resolved {
            image: self.image.clone(),
            manifest: manifest.to_string(),
            layers: layers.len(),
            to_fetch: streamed.map(|layer| layer.size).sum(),
        });
    }

    fn received(&self, _layer: usize, bytes: u64) {
        let before = self.received.fetch_add(bytes, Ordering::Relaxed);
        let now = before.saturating_add(bytes);
        if before / PROGRESS_STEP != now / PROGRESS_STEP {
            self.feed.publish(EventKind::Fetched { image: self.image.clone(), bytes: now });
        }
    }

    fn layer_done(&self, layer: usize) {
        self.feed.publish(EventKind::LayerDone { image: self.image.clone(), layer });
    }

    fn note(&self, line: &str) {
        self.feed.publish(EventKind::Note { image: self.image.clone(), text: line.to_owned() });
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, StreamExt as _};

    use super::*;
    use crate::limits::RequestLimits;

    fn note(number: usize) -> EventKind {
        EventKind::Note { image: "app".to_owned(), text: number.to_string() }
    }

    fn parsed(line: &Bytes) -> serde_json::Value {
        assert!(line.ends_with(b"\n"));
        serde_json::from_slice(line).unwrap()
    }

    #[tokio::test]
    async fn a_listener_gets_new_events_in_order() {
        let (feed, limits, stopping) = (Feed::default(), RequestLimits::default(), watch::Sender::new(false));
        feed.publish(note(0));
        let mut lines = Box::pin(feed.lines(stopping.subscribe(), limits.listen().unwrap()));
        assert_eq!(parsed(&lines.next().await.unwrap())["event"], "listening");
        assert!(lines.next().now_or_never().is_none());
        feed.publish(note(1));
        feed.publish(note(2));
        for number in [1, 2] {
            let event = parsed(&lines.next().await.unwrap());
            assert_eq!((&event["sequence"], &event["event"]), (&(number + 1).into(), &"note".into()));
        }
        stopping.send_replace(true);
        assert_eq!(parsed(&lines.next().await.unwrap())["event"], "stopping");
        assert!(lines.next().await.is_none());
    }

    #[tokio::test]
    async fn a_slow_listener_is_disconnected_with_the_number_of_missed_events() {
        let (feed, limits, stopping) = (Feed::default(), RequestLimits::default(), watch::Sender::new(false));
        let mut lines = Box::pin(feed.lines(stopping.subscribe(), limits.listen().unwrap()));
        lines.next().await.unwrap();
        (0..MAX_LAG + 7).for_each(|number| feed.publish(note(number)));
        let last = parsed(&lines.next().await.unwrap());
        assert_eq!((&last["event"], &last["missed"]), (&"cut-off".into(), &7.into()));
        assert!(lines.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_listener_gets_keep_alive_lines() {
        let (feed, limits, stopping) = (Feed::default(), RequestLimits::default(), watch::Sender::new(false));
        let mut lines = Box::pin(feed.lines(stopping.subscribe(), limits.listen().unwrap()));
        lines.next().await.unwrap();
        assert_eq!(parsed(&lines.next().await.unwrap())["event"], "alive");
    }
}
