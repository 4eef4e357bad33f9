//! What a subcommand works with: the store, its engine, the client of its server, and a runtime to wait on.

use std::ffi::OsString;
use std::path::Path;

use tarpon_engine::store::Mount;
use tarpon_engine::{Client, Engine, EngineOptions, Error, ErrorKind, ModeChoice, MountRequest, MountStatus};
use tokio::runtime::Runtime;

use crate::cli::Global;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::store_dir;

/// An open store.
pub(crate) struct Session {
    engine: Engine,
}

impl Session {
    /// The store that the options name, of its default size.
    pub(crate) fn open(global: &Global) -> Result<Self> {
        Self::open_with_size(global, None)
    }

    /// The store that the options name, which may hold `store_size` bytes.
    pub(crate) fn open_with_size(global: &Global, store_size: Option<u64>) -> Result<Self> {
        let store = store_dir::resolve(global.store.clone())?;
        let server_command = server_command(&store, store_size)?;
        let options = EngineOptions { store, store_size, server_command };
        let engine = Engine::open(options).map_err(Failure::from)?;
        Ok(Self { engine })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn client(&self) -> Client {
        self.engine.client()
    }

    /// All mounts of this store: those that a server answers for, else those that a dead server left.
    pub(crate) fn mounts(&self) -> tarpon_engine::Result<Vec<MountStatus>> {
        if let Some(mounts) = self.client().status()? {
            return Ok(mounts);
        }
        let store = self.engine.store();
        let failed = |error| Error::new(ErrorKind::Store, "read the records of mounts", error);
        let mounts = store.mounts().map_err(failed)?;
        Ok(mounts.into_iter().map(|mount| self.dead(mount)).collect())
    }

    /// What can be said of a mount whose server is gone.
    fn dead(&self, Mount { record, .. }: Mount) -> MountStatus {
        // A record that cannot be read leaves gaps in the description, which is no reason not to give it.
        let image = self.engine.store().image(&record.image).ok().flatten();
        let request = serde_json::from_str::<MountRequest>(&record.request).ok();
        let mode = match request.as_ref().map(|request| request.mode) {
            Some(ModeChoice::Native) => "native",
            Some(ModeChoice::Fuse) => "fuse",
            Some(ModeChoice::Auto) | None => "auto",
        };
        MountStatus {
            image: record.reference,
            manifest: record.image,
            mountpoint: record.mountpoint,
            mode: mode.to_owned(),
            writable: request.map(|request| request.writable).unwrap_or_default(),
            verification: Vec::new(),
            fallbacks: Vec::new(),
            alive: false,
            server: 0,
            image_bytes: image.map_or(0, |image| image.compressed_size()),
            fetched_bytes: 0,
            requests: 0,
            counters: serde_json::Value::Null,
        }
    }
}

/// The command line that starts the server of a store: this very program.
fn server_command(store: &Path, store_size: Option<u64>) -> Result<Vec<OsString>> {
    let program = std::env::current_exe().doing(|| "cannot find this program's own file")?;
    let mut command: Vec<OsString> = vec![program.into(), "--store".into(), store.into(), "serve".into()];
    if let Some(size) = store_size {
        command.extend(["--store-size".into(), size.to_string().into()]);
    }
    Ok(command)
}

/// A runtime for one subcommand. Importing layers works in threads of its own, so few are needed here.
pub(crate) fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("tarpon")
        .build()
        .map_err(|error| Failure::new(Exit::Failure, format_args!("cannot start threads: {error}")))
}
