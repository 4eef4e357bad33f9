//! Progress of a preparation, as events between the worker and its user.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use parking_lot::Mutex;
use tarpon_images::index::pack::PackListener;
use tarpon_images::{Cause, Error, ErrorKind, LayerPlan, Progress};
use tarpon_oci::{Blob, Digest, limits};
use tokio::io::AsyncRead;
use tokio::sync::mpsc;

use crate::frames::{Reader, invalid};
use crate::message::{Event, JOB_BYTES, one_line};

/// Received bytes are reported this often: a progress bar moves smoothly.
pub(crate) const REPORT: Duration = Duration::from_millis(50);

/// Reports the events of a worker, and returns the last; `None` if the worker closed the channel before.
pub(crate) async fn listen(from: &mut (impl AsyncRead + Unpin), report: impl Fn(Event)) -> io::Result<Option<Event>> {
    let mut reader = Reader::up_to(JOB_BYTES);
    loop {
        let Some(event) = reader.message::<Event>(from).await? else { return Ok(None) };
        if !is_possible(&event) {
            return Err(invalid("an event of no image"));
        }
        match event {
            last @ (Event::Done { .. } | Event::Documents { .. } | Event::Failed(_)) => return Ok(Some(last)),
            event => report(event),
        }
    }
}

/// Whether an image within its limits can cause the event: numbers of a worker are added up and are places in lists.
fn is_possible(event: &Event) -> bool {
    match event {
        Event::Resolved { layers, .. } => {
            layers.iter().all(|layer| layer.number < limits::LAYERS && layer.size <= limits::BLOB_BYTES)
        }
        Event::Received { layer, .. } | Event::LayerDone { layer } => (*layer as usize) < limits::LAYERS,
        Event::Pack { blob, place } => {
            blob.size <= limits::BLOB_BYTES && place.is_none_or(|place| (place as usize) < limits::INDEX_REPOS)
        }
        Event::Documents { manifest, config, .. } => {
            [manifest, config].iter().all(|document| document.len() as u64 <= limits::MANIFEST_BYTES)
        }
        Event::PackExpected | Event::Note(_) | Event::Done { .. } | Event::Failed(_) => true,
    }
}

/// Passes an event of a worker on.
pub(crate) fn report(event: Event, listener: Option<&dyn PackListener>, progress: &dyn Progress) {
    match event {
        Event::Resolved { manifest, layers } => {
            progress.resolved(&manifest, &layers);
        }
        Event::Received { layer, bytes } => progress.received(layer as usize, bytes),
        Event::LayerDone { layer } => progress.layer_done(layer as usize),
        Event::Note(line) => progress.note(&one_line(&line)),
        Event::PackExpected => {
            if let Some(listener) = listener {
                listener.expected();
            }
        }
        Event::Pack { blob, place } => {
            if let Some(listener) = listener {
                listener.found(blob, place.map(|place| place as usize));
            }
        }
        Event::Done { .. } | Event::Documents { .. } | Event::Failed(_) => {}
    }
}

/// Reports progress as events. Bytes are added up until [`Reporter::flush`].
#[derive(Debug)]
pub(crate) struct Reporter {
    events: mpsc::UnboundedSender<Event>,
    received: Mutex<BTreeMap<usize, u64>>,
}

impl Reporter {
    /// A preparation has few other events: about two for each layer, so that their queue needs no limit.
    pub(crate) fn new(events: mpsc::UnboundedSender<Event>) -> Self {
        Self { events, received: Mutex::default() }
    }

    /// Reports the bytes since the last call.
    pub(crate) fn flush(&self) {
        for (layer, bytes) in std::mem::take(&mut *self.received.lock()) {
            self.send(Event::Received { layer: number(layer), bytes });
        }
    }

    fn send(&self, event: Event) {
        // A user that is gone ends this process.
        let _ = self.events.send(event);
    }
}

impl Progress for Reporter {
    fn resolved(&self, manifest: &Digest, layers: &[LayerPlan]) {
        self.send(Event::Resolved { manifest: *manifest, layers: layers.to_vec() });
    }

    fn received(&self, layer: usize, bytes: u64) {
        *self.received.lock().entry(layer).or_default() += bytes;
    }

    fn layer_done(&self, layer: usize) {
        self.flush();
        self.send(Event::LayerDone { layer: number(layer) });
    }

    fn note(&self, line: &str) {
        self.send(Event::Note(line.to_owned()));
    }
}

impl PackListener for Reporter {
    fn expected(&self) {
        self.send(Event::PackExpected);
    }

    fn found(&self, pack: Blob, place: Option<usize>) {
        self.send(Event::Pack { blob: pack, place: place.map(number) });
    }
}

/// The number of a layer or of an index repository: there are at most 512.
fn number(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

/// The form of an error that is sent.
pub(crate) fn encode_error(error: &Error) -> Vec<u8> {
    serde_json::to_vec(error).unwrap_or_default()
}

/// The error that a worker sent, in lines that can be shown.
pub(crate) fn error_of(bytes: &[u8]) -> Error {
    let Ok(error) = serde_json::from_slice::<Error>(bytes) else {
        return Error::new(ErrorKind::Other, "prepare the image", "the confined process sent no valid error");
    };
    let shown = Error::new(error.kind, one_line(&error.step), Cause::from(one_line(&error.cause().to_string())));
    match &error.hint {
        Some(hint) => shown.hint(one_line(hint)),
        None => shown,
    }
}
