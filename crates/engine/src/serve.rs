//! The background server's own life, from being spawned to its end.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit};

use crate::server::{READY, Server, connect};
use crate::{Engine, Error, Result};

/// How long a server that finds another one in its place waits for that one to listen or to go, which takes as long
/// as running requests take to drain.
const RACE: Duration = Duration::from_secs(15);

/// How long whoever wants the place for good waits for a server that has nothing mounted: it ends within milliseconds if it was started
/// on demand, and not at all otherwise.
const HANDOVER: Duration = Duration::from_secs(5);

/// Pause between two looks at the other one.
const LOOK: Duration = Duration::from_millis(5);

/// Runs the server of the engine's store until its last mount is gone. `said` is the standard output: it gets one
/// line, [`READY`] or why not.
pub async fn serve(engine: &Engine, mut said: impl Write) -> Result<()> {
    // The terminal of whoever started us is not ours: its hang-up must not end the mounts.
    let _is_leader_already = rustix::process::setsid();
    allow_open_files();
    match start(engine).await {
        Ok(Some(server)) => {
            say(&mut said, READY);
            drop(said);
            let _ended = server.run().await;
            Ok(())
        }
        Ok(None) => {
            say(&mut said, READY);
            Ok(())
        }
        Err(error) => {
            say(&mut said, &error.to_string());
            Err(error)
        }
    }
}

/// Becomes the server of the engine's store, to serve until it is told to stop. One that was started on demand and has nothing mounted
/// ends as soon as it has answered, and is waited for.
///
/// # Errors
/// Another process serves mounts of the store, and goes on doing so: nobody could take these over without failing their readers.
pub async fn start_for_good(engine: &Engine) -> Result<Server> {
    allow_open_files();
    let began = Instant::now();
    loop {
        let error = match Server::start(engine).await {
            Ok(server) => return Ok(server),
            Err(error) => error,
        };
        let client = engine.client();
        let asked = tokio::task::spawn_blocking(move || client.status()).await;
        let mounts = asked.ok().and_then(|status| status.ok().flatten()).unwrap_or_default().len();
        if mounts > 0 {
            let s = if mounts == 1 { "" } else { "s" };
            return Err(Error { cause: format!("{}, with {mounts} mount{s}", error.cause), ..error }.hint(
                "`tarpon status` lists them; a server that was started on demand ends with `tarpon umount --all`",
            ));
        }
        if began.elapsed() > HANDOVER {
            return Err(error.hint("one daemon serves a store: stop that process, or name another store with --store"));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// As many open files as this process may have: each image that is shown to Podman takes four.
pub fn allow_open_files() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "no more open files than before");
    }
}

/// The server; `None` if another process has become it meanwhile and answers.
async fn start(engine: &Engine) -> Result<Option<Server>> {
    let began = Instant::now();
    loop {
        let error: Error = match Server::start(engine).await {
            Ok(server) => return Ok(Some(server)),
            Err(error) => error,
        };
        if connect(&engine.store().run_folder()).is_ok() {
            return Ok(None);
        }
        if began.elapsed() > RACE {
            return Err(error);
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn say(said: &mut impl Write, line: &str) {
    // Whoever started us may be gone; the server is there all the same.
    let _gone: io::Result<()> = writeln!(said, "{}", line.replace('\n', " ")).and_then(|()| said.flush());
}
