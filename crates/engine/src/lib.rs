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
//! server.until_told().await;  server.suspend().await;
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

mod child;
mod client;
mod commit;
mod container;
mod container_name;
mod convert;
mod early_server;
mod edit;
mod engine;
mod index;
mod mount_record;
mod mountpoint;
mod mounts;
mod namespaces;
mod podman;
mod protocol;
mod record;
mod rootfs;
mod run;
mod serve;
mod server;
pub mod server_log;
pub mod service;
mod upload;
mod why;
mod wire;

pub use client::Client;
pub use commit::{Change, CommitReport, CommitRequest, CommitSource, PushRequest, Pushed, PushedLayer, PushedOutcome};
pub use container::{
    AppArmor, CapabilityChanges, ContainerOptions, HostEntry, Limits, MountOption, Network, ProcessLimit, Tmpfs,
    Ulimit, Volume, oci_runtime,
};
pub use container_name::ContainerName;
pub use convert::{
    Conversion, ConvertRequest, ConvertedImage, ConvertedLayer, MAX_CONVERT_JOBS, Outcome, Platforms, TocImage, convert,
};
pub use engine::{Engine, EngineOptions};
pub use index::{BootPack, Fit, ImageIndexArtifact, IndexCheck, IndexedLayer};
pub use mountpoint::{is_directory, resolve_mountpoint, resolve_upper, store_of_mount};
pub use namespaces::Namespaces;
pub use podman::{PodmanVersion, PodmanWish, Setup, guard, offer};
pub use protocol::{
    Backfill, BackfillState, BackfillStatus, DiffIds, LayerVerification, LayersPart, Mended, MountAccount,
    MountRequest, MountStatus, PodmanImage, PodmanNames, Request, Response, ScrubStatus, UnmendedMount,
};
pub use record::{RecordRequest, Recorded, Until};
pub use rootfs::{Rootfs, RootfsRequest};
pub use run::{
    ContainerRecord, ContainerState, ContainerStatus, ExecRequest, LogLine, LogTime, LogWish, Output, RunError,
    RunOutcome, RunRequest, Signals, Standing, signal_name,
};
pub use serve::{Equipment, ForGood, allow_open_files, serve};
pub use server::{Ended, MountChange, Observer, Server, ServerSetup};
pub use tarpon_blob::LogLimit;
pub use tarpon_fetch::{Early, Event, Noted, PROFILE_BYTES, Stall, Stats, WaitSum, WaitedFor};
pub use tarpon_images::{
    Access, Commits, Committed, DEFAULT_PROFILE, Error, ErrorKind, Flights, ImageRequest, Images, IndexChoice,
    Inspection, Item, LayerInspection, LayerPlan, LayerWay, LockFile, Prepared, Progress, Pull, Pulled, Result, Silent,
    TreeView, auth_files, open_store,
};
pub use tarpon_layer::toc::Format as LayerFormat;
pub use tarpon_mount::{Capability, Mode, ModeChoice, Unmounted, Writable, probe};
pub use tarpon_oci as oci;
pub use tarpon_registry::serve as registry;
pub use tarpon_store as store;
pub use tarpon_store::Isolation;
pub use tarpon_store::private::{create_dir as create_private_dir, write as write_private};
pub use tarpon_trace as trace;
pub use why::{Advice, Bytes, Explanation, SlowRead, Topic};
