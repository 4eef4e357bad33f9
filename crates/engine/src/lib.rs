//! The life of an image on this host: resolve → index → mount → read → unmount.
//!
//! The API in the order of that life:
//!
//! ```text
//! let engine = Engine::open(EngineOptions { store, store_size })?;          // cheap: no scan, no network
//! let prepared = engine.prepare(&image, &progress).await?;                  // ImageRequest → Prepared: local record, network only if it must
//! let entries  = engine.list(&prepared, path)?;                             // `ls` and `inspect` need no mount
//! let report   = engine.inspect(&image).await?;
//!
//! let client = engine.server(Spawn::IfAbsent)?;                             // the store's server process (Unix socket)
//! let mounted = client.mount(&MountRequest { … })?;                         // blocks until the mount is usable
//! client.unmount(dir)?;  client.status()?;                                  // → Vec<MountStatus>, serde::Serialize
//!
//! Server::start(engine, …)                                                  // the same in this process (`--foreground`, `serve`, demo)
//! engine.store()                                                            // cache ls/usage/gc/verify/clear are the store's own API
//! ```

mod error;
mod progress;
mod protocol;

pub use error::{Error, ErrorKind, Result};
pub use progress::{LayerPlan, LayerWay, Progress, Silent};
pub use protocol::{
    Access, LayerVerification, ModeChoice, MountRequest, MountStatus, Request, Response, Unmounted, Writable,
};
