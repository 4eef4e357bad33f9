//! Waiting until a container is ready.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::workloads::{Ready, Workload};

/// What the container's shell prints before it does what it is there for.
pub(super) const FIRST_EXEC: &str = "tarpon-bench-exec";

/// How often a port is tried. An attempt on loopback takes a tenth of a millisecond.
const LOOK: Duration = Duration::from_millis(2);

/// How long a command may take to end after its container.
const STOPPING: Duration = Duration::from_secs(15);

/// When what happened, counted from the start of the command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// The container's first process ran.
    pub(super) exec: Option<Duration>,
    pub(super) ready: Duration,
}

/// A container under way. Dropped, it is ended.
pub(super) struct Running {
    child: Child,
    began: Instant,
    lines: Receiver<(Instant, String)>,
    said: Vec<String>,
}

impl Running {
    pub(super) fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let began = Instant::now();
        let mut child = command.spawn().with_context(|| format!("cannot start {}", crate::process::name(&command)))?;
        let (sender, lines) = mpsc::channel();
        let outputs: [Option<Box<dyn Read + Send>>; 2] =
            [child.stdout.take().map(|out| Box::new(out) as _), child.stderr.take().map(|err| Box::new(err) as _)];
        for output in outputs.into_iter().flatten() {
            let sender = sender.clone();
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(std::io::Result::ok) {
                    // Nobody listens any more when it is ready, but the container goes on talking.
                    let _gone = sender.send((Instant::now(), line));
                }
            });
        }
        Ok(Self { child, began, lines, said: Vec::new() })
    }

    /// Waits until the workload is ready.
    pub(super) fn wait(&mut self, workload: &Workload) -> Result<Times> {
        let (until, mut exec) = (self.began + workload.patience * 4, None);
        loop {
            match self.lines.recv_timeout(LOOK) {
                Ok((at, line)) if line == FIRST_EXEC => exec = Some(at - self.began),
                Ok((at, line)) if workload.ready.is_said_by(&line) => {
                    return Ok(Times { exec, ready: at - self.began });
                }
                Ok((_, line)) => self.said.push(line),
                Err(RecvTimeoutError::Timeout) if Instant::now() > until => bail!("not ready in time: {}", self.said()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("it ended before it was ready: {}", self.said()),
            }
            if let Ready::Port(port) = workload.ready
                && exec.is_some()
                && answers(port)
            {
                return Ok(Times { exec, ready: self.began.elapsed() });
            }
        }
    }

    fn said(&self) -> String {
        self.said[self.said.len().saturating_sub(5)..].join(" | ")
    }

    /// Waits until the command has noticed that its container is gone.
    pub(super) fn wait_for_end(mut self) -> Result<()> {
        let until = Instant::now() + STOPPING;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > until {
                bail!("process {} does not end with its container", self.child.id());
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _gone = self.child.kill();
            let _gone = self.child.wait();
        }
    }
}

/// Whether somebody on this host answers HTTP at the port.
fn answers(port: u16) -> bool {
    let ask = || -> std::io::Result<bool> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut connection = TcpStream::connect_timeout(&address, Duration::from_millis(100))?;
        connection.set_read_timeout(Some(Duration::from_secs(5)))?;
        connection.write_all(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut beginning = [0; 5];
        connection.read_exact(&mut beginning)?;
        Ok(beginning == *b"HTTP/")
    };
    ask().unwrap_or(false)
}
