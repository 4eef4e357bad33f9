//! The routes of the API. The routes and the API description are generated from the same handlers, so they cannot disagree.

use axum::Router;
use axum::body::Body;
use axum::http::HeaderValue;
use axum::response::Response;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{about, containers, events, images, jobs, mounts, recordings};
use crate::answer::typed;
use crate::failure;
use crate::state::ApiState;

/// Path of the API description.
const DESCRIPTION: &str = "/openapi.json";

/// Metadata of the API description.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "tarpon daemon",
        description = "Container images, mounted lazily: the engine of tarpon over HTTP on a Unix socket.\n\n\
            A client that can connect to the socket has the rights of the daemon's user. Bodies are JSON, regardless of Content-Type. \
            All failures have the form `Failure`. The response to a long request is sent when the work is done, within `timeout_seconds`; \
            `GET /v1/events` reports progress. Preparing an image is cancelled when no client waits for it.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    servers((url = "http://localhost", description = "over the Unix socket")),
    tags(
        (name = "images", description = "Images in the store"),
        (name = "mounts", description = "Mounted images"),
        (name = "containers", description = "Running images"),
        (name = "recordings", description = "Recorded accesses of a start of an image"),
        (name = "jobs", description = "Work that continues after its request was answered"),
        (name = "daemon", description = "The daemon itself"),
    )
)]
struct Base;

/// The routes and their description.
fn routed() -> (Router<ApiState>, OpenApi) {
    OpenApiRouter::with_openapi(Base::openapi())
        .routes(routes!(images::list))
        .routes(routes!(images::prepare))
        .routes(routes!(images::prefetch))
        .routes(routes!(mounts::list, mounts::mount))
        .routes(routes!(mounts::show, mounts::unmount))
        .routes(routes!(containers::list, containers::run))
        .routes(routes!(containers::show, containers::remove))
        .routes(routes!(containers::stop))
        .routes(routes!(containers::kill))
        .routes(routes!(containers::logs))
        .routes(routes!(recordings::record))
        .routes(routes!(recordings::stop))
        .routes(routes!(recordings::trace))
        .routes(routes!(jobs::list))
        .routes(routes!(jobs::show, jobs::cancel))
        .routes(routes!(events::listen))
        .routes(routes!(about::stats))
        .routes(routes!(about::health))
        .routes(routes!(about::version))
        .split_for_parts()
}

/// The service that answers all requests.
pub(crate) fn router(state: ApiState) -> Router {
    let (router, _) = routed();
    router
        .route(DESCRIPTION, axum::routing::get(serve_description))
        .fallback(failure::no_such_path)
        .method_not_allowed_fallback(failure::no_such_method)
        .with_state(state)
}

/// The OpenAPI description of the API, as served at `/openapi.json`.
pub fn description() -> String {
    let (_, description) = routed();
    // It contains only strings and numbers, which always serialize.
    let mut text = description.to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

/// Serves the API description.
async fn serve_description() -> Response {
    typed(HeaderValue::from_static("application/json"), Body::from(description()))
}
