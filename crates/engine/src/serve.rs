//! The background server's own life, from being spawned to its end.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit};

use crate::server::{READY, Server, connect};
use crate::{Engine, Error, Result};

/// How long a server that finds another one in its place waits for that one to listen or to go, which takes as long
/// as running requests take to drain.
const RACE: Duration = Duration::from_secs(15);

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

/// As many open files as this process may have: each image that is shown to Podman takes four.
fn allow_open_files() {
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
