//! `/v1/events`.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use futures::StreamExt as _;

use crate::answer::{LINES, typed};
use crate::failure::Failure;
use crate::feed::Event;
use crate::state::ApiState;

/// Streams events from now on, one JSON object per line. The first line is `listening`. A listener never delays other requests: one that is too slow
/// is disconnected, and its last line is `cut-off` with the number of missed events.
#[utoipa::path(get, path = "/v1/events", tag = "daemon", operation_id = "events", responses(
    (status = 200, description = "Events, until the client disconnects or the daemon stops", body = Event, content_type = "application/x-ndjson"),
    (status = "default", description = "The request failed", body = Failure),
))]
pub(super) async fn listen(State(state): State<ApiState>) -> Result<Response, Failure> {
    let lines = state.feed.lines(state.stopping.subscribe(), state.limits.listen()?);
    Ok(typed(LINES, Body::from_stream(lines.map(Ok::<_, Infallible>))))
}
