//! The life of an image on this host: resolve → index → mount → read → unmount.
//!
//! The API in the order of that life:
//!
//! ```text
//! let engine = Engine::open(EngineOptions { store, store_size, server_command })?;   // cheap: no scan, no network
//! let prepared = engine.prepare(&ImageRequest { … }, &progress).await?;             // → a record in the store
//!
//! let rootfs = engine.rootfs(&prepared, &RootfsRequest::default()).await?;          // milliseconds; many at once
//! run_something_in(rootfs.path());  rootfs.close().await?;                          // or drop it
//!
//! let client = engine.client();                                                    // the store's server process
//! let status = client.mount(MountRequest::for_image(&prepared, dir))?;                              // usable when it returns
//! client.status()?;  engine.why(&dir)?;  client.unmount(&dir)?;  client.recover()?;
//!
//! let server = Server::start(&engine).await?;                                      // a server in this process
//! server.mount(MountRequest::for_image(&prepared, dir)).await?;  server.rootfs(…).await?;  server.run().await;
//! let mut server = ForGood::start(&engine, Equipment::default()).await?;            // a permanent one, which restores its mounts
//! server.until_signal().await;  server.suspend().await;
//!
//! engine.run(&RunRequest { … }, &mut signals, &progress).await?;                   // containers: run, list, stop, remove
//! engine.containers()?;  engine.stop_container(&name, patience)?;  engine.remove_container(&name, force)?;
//!
//! engine.commit(&CommitRequest { … }, &progress).await?;                           // an image of what a container wrote
//! engine.push(&PushRequest { … }, progress).await?;                                // … to its registry
//!
//! engine.open_tree(&prepared)?;                                                    // `ls`: names and attributes
//! engine.inspect(&request).await?;                                                 // manifest, config, layer formats
//! convert(&ConvertRequest { … }, progress).await?;                                // needs no store
//! engine.store()                                                                   // cache: list, check, empty
//! ```

mod containers;
mod engine;
mod mounts;
mod publish;
mod why;

pub use engine::{Engine, EngineOptions};
pub use tarpon_blob::LogLimit;
pub use tarpon_client::protocol::{
    Backfill, BackfillState, BackfillStatus, DiffIds, LayerVerification, LayersPart, Mended, MountAccount,
    MountRequest, MountStatus, PodmanImage, PodmanNames, Request, Response, ScrubStatus, UnmendedMount,
};
pub use tarpon_client::rootfs::{Rootfs, RootfsRequest};
pub use tarpon_client::{
    Client, ContainerName, Namespaces, is_directory, resolve_mountpoint, resolve_upper, server_log, store_of_mount,
};
pub use tarpon_containers::{
    AppArmor, CapabilityChanges, ContainerOptions, ContainerRecord, ContainerState, ContainerStatus, Containers,
    ExecRequest, HostEntry, Limits, LogLine, LogTime, LogWish, MountOption, Network, Output, ProcessLimit,
    RecordRequest, Recorded, RunError, RunOutcome, RunRequest, Signals, Standing, Tmpfs, Ulimit, Until, Volume,
    oci_runtime, signal_name,
};
pub use tarpon_fetch::{Early, Event, Noted, PROFILE_BYTES, Stall, Stats, WaitSum, WaitedFor};
pub use tarpon_images::{
    Access, Cause, Commits, Committed, DEFAULT_PROFILE, Error, ErrorKind, Flights, ImageRequest, Images, IndexChoice,
    Inspection, Item, LayerInspection, LayerPlan, LayerWay, LockFile, Prepared, Progress, Pull, Pulled, Result,
    ResultExt, Silent, TreeView, auth_files, open_store,
};
pub use tarpon_layer::toc::Format as LayerFormat;
pub use tarpon_mount::{Capability, Mode, ModeChoice, Unmounted, Writable, probe};
pub use tarpon_oci as oci;
pub use tarpon_podman::{Podman, PodmanVersion, PodmanWish, Setup, guard, offer};
pub use tarpon_publish::{
    BootPack, Change, CommitReport, CommitRequest, CommitSource, Conversion, ConvertRequest, ConvertedImage,
    ConvertedLayer, Fit, ImageIndexArtifact, IndexCheck, IndexedLayer, MAX_CONVERT_JOBS, Outcome, Platforms,
    PushRequest, Pushed, PushedLayer, PushedOutcome, TocImage, check_index, commit, convert, make_index,
    make_index_from, publish_index, push,
};
pub use tarpon_registry::serve as registry;
pub use tarpon_server::{
    Ended, Equipment, ForGood, MountChange, Observer, Server, ServerSetup, allow_open_files, serve, service,
};
pub use tarpon_store as store;
pub use tarpon_store::Isolation;
pub use tarpon_store::private::{create_dir as create_private_dir, write as write_private};
pub use tarpon_trace as trace;
pub use why::{Advice, Bytes, Explanation, SlowRead, Topic};
