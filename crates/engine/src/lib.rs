//! Container images for programs that run containers or functions: prepare an image, mount it while its bytes are still in the
//! registry, run it, and explain why it was slow.
//!
//! An [`Engine`] is an open store. A root file system of an image takes three calls:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::path::PathBuf;
//! use tarpon_engine::{Engine, EngineOptions, ImageRequest, RootfsRequest, Silent, oci};
//!
//! let store = PathBuf::from("/var/lib/runner");
//! let server_command = vec!["/usr/libexec/runner".into(), "serve".into(), store.clone().into()];
//! let worker_command = vec!["/usr/libexec/runner".into(), "worker".into()];
//! let engine = Engine::open(EngineOptions { store, server_command, worker_command })?; // no scan, no network
//!
//! let name = "docker.io/library/alpine:3.20";
//! let image = ImageRequest::new(name, name.parse()?, oci::Platform::host());
//! let prepared = engine.prepare(&image, &Silent).await?; // tables of contents, or an index; then a record in the store
//! let rootfs = engine.rootfs(&prepared, &RootfsRequest::default()).await?; // milliseconds; any number at once
//! println!("a process can use {} as its root", rootfs.path().display());
//! rootfs.close().await?; // unmounts; dropping it does the same in the background
//! # Ok(())
//! # }
//! ```
//!
//! The mounts belong to the server of the store, one process for all of them, which fetches what they read. The engine starts it
//! with `server_command` when it is needed; that program calls [`serve`] on the same store, and
//! [`keep_mount_privileges`] before it starts a thread. With `worker_command` the server starts
//! the confined process that receives and decodes bytes for it; that program calls [`serve_worker`]. A program can also serve in its own
//! process: [`Server::start`], then [`Server::rootfs`]. `crates/engine/examples/serverless` is a complete program that does both.
//!
//! | to | use |
//! |---|---|
//! | make an image mountable | [`Engine::prepare`]: [`ImageRequest`] → [`Prepared`]; [`Engine::pull`] fetches all of it |
//! | make its next start fast | [`Engine::prefetch`]: [`PrefetchExtent`] → [`Prefetched`] |
//! | mount it while a value lives | [`Engine::rootfs`]: [`RootfsRequest`] → [`Rootfs`] |
//! | mount it on a directory | [`Engine::client`], then [`Client::mount`]: [`MountRequest::for_image`] → [`MountStatus`]; [`Client::unmount`], [`Client::recover`] |
//! | serve mounts in this process | [`Server`]: ends with its last mount; [`PermanentServer`]: permanent, restores the mounts of its predecessor |
//! | run containers with crun or runc | [`Engine::run`]: [`RunRequest`] → [`RunOutcome`]; [`Engine::containers`], [`Engine::stop_container`], [`Engine::remove_container`] |
//! | make an image of what was written | [`Engine::commit`]: [`CommitRequest`]; [`Engine::push`]: [`PushRequest`] |
//! | make an image lazy | [`Engine::record`] and [`Engine::make_index`], then [`Engine::publish_index`]; or [`convert()`], which needs no store |
//! | look into an image without a mount | [`Engine::inspect`], [`Engine::open_tree`] |
//! | compare the files of many images | [`Engine::survey`] → [`Survey`] |
//! | find out why a mount was slow | [`Engine::why`] → [`Explanation`] |
//! | show images to Podman | [`Engine::podman`] → [`Podman`] |
//! | list, check or empty the store | [`Engine::store`] |
//! | list, clean or check a tier | [`ManagedTier`] |
//!
//! # Errors
//!
//! An operation fails with an [`Error`]: one line that names the failed step and its cause, and a hint if the user can do
//! something. Its [`ErrorKind`] is for programs: [`ErrorKind::Unavailable`] may succeed later, [`ErrorKind::Refused`] will not.
//! Running a container fails with a [`RunError`], which adds the exit code that Podman would use.
//!
//! # Threads
//!
//! Asynchronous functions need a Tokio runtime and do not block it. All others, those of [`Client`] in particular, block until they
//! are done: call them on a thread that may block.

mod containers;
mod engine;
mod mounts;
mod prefetch;
mod publish;
mod tier;
mod why;

pub use engine::{Engine, EngineOptions};
pub use prefetch::{PrefetchExtent, Prefetched};
pub use tarpon_blob::LogLimit;
pub use tarpon_client::protocol::{
    Backfill, BackfillState, BackfillStatus, BroughtStart, DiffIds, EndpointKind, EndpointStatus, LayerVerification,
    LayersPart, Mended, MountAccount, MountRequest, MountStatus, PodmanImage, PodmanNames, Request, Response,
    ScrubStatus, StartKind, UnmendedMount,
};
pub use tarpon_client::rootfs::{Rootfs, RootfsRequest};
pub use tarpon_client::{
    Client, ContainerName, Hold, Namespaces, is_directory, resolve_mountpoint, resolve_upper, server_log,
    store_of_mount,
};
pub use tarpon_containers::{
    AppArmor, CapabilityChanges, ContainerOptions, ContainerRecord, ContainerState, ContainerStatus, Containers,
    ExecRequest, HostEntry, HttpProbe, Lifecycle, Limits, LogLine, LogRequest, LogTime, MountOption, Network, Output,
    Port, ProcessLimit, Publish, RecordRequest, Recorded, RunError, RunOutcome, RunRequest, Signals, Tmpfs, Ulimit,
    Until, Volume, oci_runtime, parse_duration, program_output, signal_name,
};
pub use tarpon_fetch::{Early, Event, Noted, PROFILE_BYTES, Stall, Stats, WaitSum, WaitedFor};
pub use tarpon_images::index::places::shown as shown_place;
pub use tarpon_images::{
    Access, Admission, Cause, Commits, Committed, ContainerdHosts, Credentials, DEFAULT_PROFILE, Error, ErrorKind,
    Flights, ImageRequest, Images, IndexChoice, Inspection, Item, LayerInspection, LayerLimits, LayerPlan, LayerWay,
    LockFile, Login, PREDICTED_PROFILE, PolicyChoice, Prepared, Progress, Pull, Pulled, Quantiles, RegistriesChoice,
    RegistriesPaths, Result, ResultExt, Silent, StatedEndpoints, StoredIn, Survey, SurveyTotals, SurveyedImage,
    TreeView, auth_files, images_in, log_out, log_out_of_all, logged_in, open_store,
};
pub use tarpon_layer::toc::Format as LayerFormat;
pub use tarpon_mount::{Capability, Feature, Mode, ModeChoice, Unmounted, Writable, probe};
pub use tarpon_oci as oci;
pub use tarpon_podman::{Podman, PodmanRequest, PodmanVersion, Setup, offer};
pub use tarpon_policy::{InvalidKey, SigningKey};
pub use tarpon_publish::{
    BootPack, Change, CommitReport, CommitRequest, CommitSource, Conversion, ConvertRequest, ConvertedImage,
    ConvertedLayer, DEFAULT_STARTS, Failed, ImageIndexArtifact, IndexCheck, IndexSignature, IndexedLayer, KnownIndex,
    KnownIndexes, KnownPack, LearnedImage, LearnedRequest, LearnedStart, LearnedState, MAX_CONVERT_JOBS, MAX_SYNC_JOBS,
    Outcome, Platforms, PushRequest, Pushed, PushedLayer, PushedOutcome, RemovedIndexes, SYNC_LIST_BYTES, SyncEntry,
    SyncOptions, SyncState, Synced, TocImage, TraceCoverage, Unwanted, check_index, commit, convert, index_destination,
    known_indexes, make_index, make_index_from, make_plain_index, make_predicted_index, publish_index, push,
    remove_indexes, sync_indexes,
};
pub use tarpon_registry::serve as registry;
pub use tarpon_server::{
    BackgroundOptions, Ended, MountChange, Observer, PermanentServer, Server, ServerOptions, ServerSetup,
    allow_open_files, hold, keep_mount_privileges, lower_priority, serve, service,
};
pub use tarpon_store as store;
pub use tarpon_store::Isolation;
pub use tarpon_store::private::{create_dir as create_private_dir, write as write_private};
pub use tarpon_tier::{LayerUse, Leftovers, TierLocation, Usage as TierUsage};
pub use tarpon_trace as trace;
pub use tarpon_worker::serve as serve_worker;
pub use tier::{ManagedTier, TierCheck, TierGarbage, UnreadableTierObject, WrongObject};
pub use why::{Advice, Bytes, Explanation, SlowRead, Topic};
