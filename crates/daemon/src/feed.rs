//! The event feed: any number of listeners, none of which can delay the sender.

use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{Receiver, Sender};
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::api::Failure;
use crate::flag;
use crate::gates::Place;

/// Events that a listener may lag behind before it is cut off: a few hundred bytes each, stored once for all listeners.
const BEHIND: usize = 1024;

/// Idle time after which a listener gets a sign of life, which also detects closed connections.
const SILENCE: Duration = Duration::from_secs(15);

/// A line of `GET /v1/events`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Event {
    /// One more than that of the event before. 0 in lines that are for this listener alone.
    sequence: u64,
    /// When, in milliseconds since 1970.
    time_millis: u64,
    #[serde(flatten)]
    what: What,
}

/// What happened.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case", tag = "event")]
#[schema(as = EventKind)]
pub(crate) enum What {
    /// The first line: what happens from now on is told.
    Listening,
    /// Nothing has happened for some time.
    Alive,
    /// The last line for a listener that was too slow: so many events were not told.
    CutOff {
        /// How many.
        missed: u64,
    },
    /// The last line: the daemon ends.
    Stopping,
    /// An image was mounted, whoever asked for it.
    Mounted {
        /// Where.
        mountpoint: String,
        /// The image, as it was asked for.
        image: String,
        /// Digest of its manifest.
        manifest: String,
    },
    /// An image was unmounted, whoever did it.
    Unmounted {
        /// Where.
        mountpoint: String,
        /// The image, as it was asked for.
        image: String,
        /// Digest of its manifest.
        manifest: String,
    },
    /// An image begins to be prepared or pulled.
    Preparing {
        /// The image, as it was asked for.
        image: String,
    },
    /// It is known what it consists of.
    Resolved {
        /// The image, as it was asked for.
        image: String,
        /// Digest of its manifest.
        manifest: String,
        /// Its layers.
        layers: usize,
        /// Bytes of those that are fetched whole.
        to_fetch: u64,
    },
    /// Some more of it has arrived.
    Fetched {
        /// The image, as it was asked for.
        image: String,
        /// Bytes of layers that have arrived since it began.
        bytes: u64,
    },
    /// One of its layers is ready.
    LayerDone {
        /// The image, as it was asked for.
        image: String,
        /// The layer's place in the manifest, from 0.
        layer: usize,
    },
    /// Something fell back to a slower way.
    Note {
        /// The image, as it was asked for.
        image: String,
        /// What, and why.
        text: String,
    },
    /// It is ready.
    Prepared {
        /// The image, as it was asked for.
        image: String,
        /// Digest of its manifest.
        manifest: String,
    },
    /// It is not.
    NotPrepared {
        /// The image, as it was asked for.
        image: String,
        /// Why.
        failure: Failure,
    },
    /// A container that was asked for here runs.
    ContainerStarted {
        /// Its name.
        name: String,
        /// The image, as it was asked for.
        image: String,
    },
    /// A container has ended, whoever started it.
    ContainerEnded {
        /// Its name.
        name: String,
        /// Its exit code, if that is still known: one that is removed at its end takes it along.
        exit_code: Option<u8>,
    },
    /// A job has ended.
    JobEnded {
        /// Which.
        id: String,
        /// How.
        state: crate::jobs::Standing,
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
        Self { sender: Sender::new(BEHIND), next: Mutex::new(1) }
    }
}

impl Feed {
    /// Sends an event to all listeners.
    pub(crate) fn tell(&self, what: What) {
        let mut next = self.next.lock();
        if self.sender.receiver_count() > 0 {
            let _nobody_any_more = self.sender.send(line(*next, what));
        }
        *next += 1;
    }

    /// All events from now on, one JSON object per line. `place` is held until the stream ends.
    pub(crate) fn lines(
        &self,
        stopping: watch::Receiver<bool>,
        place: Place,
    ) -> impl Stream<Item = Bytes> + Send + use<> {
        let listener = Listener { events: self.sender.subscribe(), stopping, stage: Stage::First, _place: place };
        futures::stream::unfold(listener, |mut listener| async { Some((listener.next().await?, listener)) })
    }
}

struct Listener {
    events: Receiver<Bytes>,
    stopping: watch::Receiver<bool>,
    stage: Stage,
    _place: Place,
}

enum Stage {
    First,
    Listening,
    Over,
}

impl Listener {
    async fn next(&mut self) -> Option<Bytes> {
        match self.stage {
            Stage::First => {
                self.stage = Stage::Listening;
                return Some(line(0, What::Listening));
            }
            Stage::Listening => {}
            Stage::Over => return None,
        }
        let last = tokio::select! {
            biased;
            event = self.events.recv() => match event {
                Ok(event) => return Some(event),
                Err(RecvError::Lagged(missed)) => What::CutOff { missed },
                Err(RecvError::Closed) => What::Stopping,
            },
            () = flag::set(&mut self.stopping) => What::Stopping,
            () = tokio::time::sleep(SILENCE) => return Some(line(0, What::Alive)),
        };
        self.stage = Stage::Over;
        Some(line(0, last))
    }
}

fn line(sequence: u64, what: What) -> Bytes {
    let time = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis();
    let event = Event { sequence, time_millis: u64::try_from(time).unwrap_or(u64::MAX), what };
    // Events always serialize to JSON.
    let mut text = serde_json::to_vec(&event).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, StreamExt as _};

    use super::*;
    use crate::gates::Gates;

    fn note(number: usize) -> What {
        What::Note { image: "app".to_owned(), text: number.to_string() }
    }

    fn parsed(line: &Bytes) -> serde_json::Value {
        assert!(line.ends_with(b"\n"));
        serde_json::from_slice(line).unwrap()
    }

    #[tokio::test]
    async fn a_listener_hears_what_happens_from_now_on_in_its_order() {
        let (feed, gates, stopping) = (Feed::default(), Gates::default(), watch::Sender::new(false));
        feed.tell(note(0));
        let mut lines = Box::pin(feed.lines(stopping.subscribe(), gates.listen().unwrap()));
        assert_eq!(parsed(&lines.next().await.unwrap())["event"], "listening");
        assert!(lines.next().now_or_never().is_none());
        feed.tell(note(1));
        feed.tell(note(2));
        for number in [1, 2] {
            let event = parsed(&lines.next().await.unwrap());
            assert_eq!((&event["sequence"], &event["event"]), (&(number + 1).into(), &"note".into()));
        }
        stopping.send_replace(true);
        assert_eq!(parsed(&lines.next().await.unwrap())["event"], "stopping");
        assert!(lines.next().await.is_none());
    }

    #[tokio::test]
    async fn a_slow_listener_is_cut_off_and_told_so() {
        let (feed, gates, stopping) = (Feed::default(), Gates::default(), watch::Sender::new(false));
        let mut lines = Box::pin(feed.lines(stopping.subscribe(), gates.listen().unwrap()));
        lines.next().await.unwrap();
        (0..BEHIND + 7).for_each(|number| feed.tell(note(number)));
        let last = parsed(&lines.next().await.unwrap());
        assert_eq!((&last["event"], &last["missed"]), (&"cut-off".into(), &7.into()));
        assert!(lines.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_told() {
        let (feed, gates, stopping) = (Feed::default(), Gates::default(), watch::Sender::new(false));
        let mut lines = Box::pin(feed.lines(stopping.subscribe(), gates.listen().unwrap()));
        lines.next().await.unwrap();
        assert_eq!(parsed(&lines.next().await.unwrap())["event"], "alive");
    }
}
