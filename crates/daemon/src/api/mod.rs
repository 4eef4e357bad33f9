//! The requests of the API. The routes and the API description are generated from the same handlers, so they cannot disagree.

mod about;
mod answer;
mod containers;
mod events;
mod failure;
mod image;
mod images;
mod jobs;
mod mounts;
mod recordings;
mod said;

use axum::Router;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) use failure::Failure;
pub(crate) use image::ImageWish;

use crate::state::State;

/// Metadata of the API description.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "tarpon daemon",
        description = "Container images, mounted lazily: the engine of tarpon over HTTP on a Unix socket.\n\n\
            Whoever may connect to the socket may do what the daemon's user may. Bodies are JSON, whatever Content-Type says. \
            Failures have one shape, `Failure`. Work that takes long is answered when it is done, within `timeout_seconds`; how far \
            it is, `GET /v1/events` tells. Preparing an image ends when nobody waits for it any more.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    servers((url = "http://localhost", description = "over the Unix socket")),
    tags(
        (name = "images", description = "What is in the store"),
        (name = "mounts", description = "Images at directories"),
        (name = "containers", description = "Images that run"),
        (name = "recordings", description = "What a start of an image touches"),
        (name = "jobs", description = "Work that goes on when its request was answered"),
        (name = "daemon", description = "The daemon itself"),
    )
)]
struct Base;

/// The routes and their description.
fn routed() -> (Router<State>, OpenApi) {
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
pub(crate) fn router(state: State) -> Router {
    let (router, _) = routed();
    router
        .route(about::DESCRIPTION, axum::routing::get(about::described))
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
