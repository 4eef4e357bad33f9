//! A host of short functions: one image, prepared once, and a root file system of its own for each call.
//!
//! ```text
//! cargo build --release -p tarpon-engine --example serverless
//! S=target/release/examples/serverless; IMAGE=127.0.0.1:5000/dev/redis:zstdchunked        # as root
//! $S $IMAGE                                 how long prepare + rootfs takes, over 1,000 calls, one after another; and close
//! $S --at-once 64 $IMAGE                    the same with 64 calls under way at any time
//! $S --start 64 $IMAGE                      64 containers started at once, and the same 64 on a plain overlay of the unpacked image
//! $S --hold 64 $IMAGE                       memory of the store's server, by container
//! $S --cold 32 $IMAGE                       32 starts at once on an empty store, in 32 processes, and a single one
//! ```
//!
//! `--mode native|fuse` sets the mount mode, `--store DIR` the store's directory (a new temporary one by default), `--in-process` makes
//! this process serve the mounts, and the arguments after the image are the container's command (`/bin/true`). Figures are wall-clock
//! times: compare them on an otherwise idle machine.
//!
//! An embedder needs only [`calls::call`], ten lines.
#![allow(clippy::print_stdout, reason = "it is a program")]

mod calls;
mod cold;
mod figures;
mod plain;

use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use tarpon_engine::{
    Access, BackgroundOptions, Engine, EngineOptions, ImageRequest, ModeChoice, RootfsRequest, Server,
};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Command-line options.
struct Options {
    store: Option<PathBuf>,
    calls: usize,
    at_once: usize,
    start: Option<usize>,
    hold: Option<usize>,
    cold: Option<usize>,
    mode: ModeChoice,
    in_process: bool,
    image: String,
    command: Vec<OsString>,
}

impl Options {
    fn read(mut arguments: impl Iterator<Item = OsString>) -> Result<Self> {
        let mut options = Self {
            store: None,
            calls: 1000,
            at_once: 1,
            start: None,
            hold: None,
            cold: None,
            mode: ModeChoice::Auto,
            in_process: false,
            image: String::new(),
            command: Vec::new(),
        };
        while let Some(argument) = arguments.next() {
            let name = argument.to_string_lossy().into_owned();
            let mut value = || arguments.next().ok_or_else(|| format!("{name} needs a value"));
            let mut number = || Ok::<usize, Box<dyn Error + Send + Sync>>(value()?.to_string_lossy().parse()?);
            match &*name {
                "--calls" => options.calls = number()?,
                "--at-once" => options.at_once = number()?.max(1),
                "--start" => options.start = Some(number()?),
                "--hold" => options.hold = Some(number()?.max(1)),
                "--cold" => options.cold = Some(number()?),
                "--store" => options.store = Some(value()?.into()),
                "--mode" => options.mode = value()?.to_string_lossy().parse()?,
                "--in-process" => options.in_process = true,
                option if option.starts_with('-') => return Err(format!("unknown option {option}").into()),
                _ => {
                    options.image = name;
                    options.command = arguments.by_ref().collect();
                }
            }
        }
        if options.image.is_empty() {
            return Err("which image?".into());
        }
        if options.command.is_empty() {
            options.command.push("/bin/true".into());
        }
        Ok(options)
    }
}

/// An engine whose servers are processes of this very program.
fn open(store: PathBuf) -> Result<Engine> {
    let program = || std::env::current_exe().map(OsString::from);
    let server_command = vec![program()?, "serve".into(), store.clone().into()];
    let worker_command = vec![program()?, "worker".into()];
    Ok(Engine::open(EngineOptions { store, server_command, worker_command })?)
}

/// An image of a local registry without TLS.
fn request(text: &str) -> Result<ImageRequest> {
    Ok(ImageRequest {
        access: Access { tls_verify: Some(false), ..Access::default() },
        ..ImageRequest::new(text, text.parse()?, tarpon_engine::oci::Platform::host())
    })
}

fn main() -> Result<()> {
    // Before the first thread: a worker confines itself.
    if std::env::args_os().nth(1).is_some_and(|first| first == "worker") {
        return Ok(tarpon_engine::serve_worker()?);
    }
    tokio::runtime::Runtime::new()?.block_on(run())
}

async fn run() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.next_if(|first| first == "serve").is_some() {
        let store = arguments.next().ok_or("serve which store?")?;
        return Ok(tarpon_engine::serve(&open(store.into())?, BackgroundOptions::default(), std::io::stdout()).await?);
    }
    let options = Options::read(arguments)?;
    let scratch = tempfile::Builder::new().prefix("serverless-").tempdir()?;
    if let Some(many) = options.cold {
        return cold::compare(scratch.path(), &options, many);
    }
    let engine = open(options.store.clone().unwrap_or_else(|| scratch.path().join("store")))?;
    let server = if options.in_process { Some(Arc::new(Server::start(&engine).await?)) } else { None };
    let host = calls::Host {
        engine,
        server,
        image: request(&options.image)?,
        wanted: RootfsRequest { mode: options.mode, ..RootfsRequest::default() },
        command: options.command.clone(),
    };
    match (options.start, options.hold) {
        (Some(many), _) => plain::compare(scratch.path(), &host, many).await,
        (None, Some(many)) => calls::hold(&host, many).await,
        (None, None) => calls::measure(&host, options.calls, options.at_once).await,
    }
}
