//! `/v1/events`.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::State as With;
use axum::response::Response;
use futures::StreamExt as _;

use super::Failure;
use super::answer::{LINES, typed};
use crate::feed::Event;
use crate::state::State;

/// Tells what happens from now on, one JSON object a line. The first line says `listening`. Nobody waits for a listener: one that is too slow is cut off,
/// and its last line says `cut-off`, with how many events it missed.
#[utoipa::path(get, path = "/v1/events", tag = "daemon", operation_id = "events", responses(
    (status = 200, description = "Events, until the client goes away or the daemon ends", body = Event, content_type = "application/x-ndjson"),
    (status = "default", description = "It failed", body = Failure),
))]
pub(super) async fn listen(With(state): With<State>) -> Result<Response, Failure> {
    let lines = state.feed.lines(state.stopping.subscribe(), state.gates.listen()?);
    Ok(typed(LINES, Body::from_stream(lines.map(Ok::<_, Infallible>))))
}
