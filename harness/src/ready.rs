//! Waits until a container is ready.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::workloads::{Ready, Workload};

/// The line that the container's shell prints before it starts the workload.
pub const FIRST_EXEC: &str = "tarpon-bench-exec";

/// How often the port and the mounts are polled. Either check takes a tenth of a millisecond.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// How long a command may take to end after its container.
const STOPPING: Duration = Duration::from_secs(15);

/// Times of events, from the start of the command.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// The container's root file system was mounted.
    pub mounted: Option<Duration>,
    /// The container's first process ran.
    pub exec: Option<Duration>,
    /// The workload was ready.
    pub ready: Duration,
}

/// A line that the container printed.
struct Line {
    at: Instant,
    on_stdout: bool,
    text: String,
}

/// A running container. Dropping it ends the container.
pub struct Running {
    child: Child,
    began: Instant,
    lines: Receiver<Line>,
    printed: Vec<String>,
    /// Hash of all standard output.
    output: Sha256,
}

impl Running {
    /// Starts a command.
    pub fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let began = Instant::now();
        let mut child = command.spawn().with_context(|| format!("cannot start {}", crate::process::name(&command)))?;
        let (sender, lines) = mpsc::channel();
        let outputs: [Option<Box<dyn Read + Send>>; 2] =
            [child.stdout.take().map(|out| Box::new(out) as _), child.stderr.take().map(|err| Box::new(err) as _)];
        for (output, on_stdout) in outputs.into_iter().zip([true, false]) {
            let Some(output) = output else { continue };
            let sender = sender.clone();
            thread::spawn(move || {
                for text in BufReader::new(output).lines().map_while(std::io::Result::ok) {
                    // The receiver is gone once the workload is ready, but the container continues to print.
                    let _gone = sender.send(Line { at: Instant::now(), on_stdout, text });
                }
            });
        }
        Ok(Self { child, began, lines, printed: Vec::new(), output: Sha256::new() })
    }

    /// Waits until the workload is ready; `is_root` recognises the mount point of its root file system.
    pub fn wait(&mut self, workload: &Workload, is_root: impl Fn(&Path) -> bool) -> Result<Times> {
        let until = self.began + workload.patience * 4;
        let (mut mounted, mut exec) = (None, None);
        let ready = loop {
            if mounted.is_none() && mountpoints(self.child.id()).iter().any(|at| is_root(Path::new(at))) {
                mounted = Some(self.began.elapsed());
            }
            match self.lines.recv_timeout(POLL_INTERVAL) {
                Ok(line) if line.text == FIRST_EXEC => exec = Some(line.at - self.began),
                Ok(line) if workload.ready.is_printed_as(&line.text) => break line.at - self.began,
                Ok(line) => self.hear(line),
                Err(RecvTimeoutError::Timeout) if Instant::now() > until => {
                    bail!("not ready in time: {}", self.last_lines())
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break self.ended(&workload.ready)?,
            }
            if exec.is_some() && workload.ready.answers(&answers) {
                break self.began.elapsed();
            }
        };
        Ok(Times { mounted, exec, ready })
    }

    fn hear(&mut self, line: Line) {
        if line.on_stdout {
            self.output.update(line.text.as_bytes());
            self.output.update(b"\n");
        }
        self.printed.push(line.text);
    }

    /// The end time of a workload that is ready when it has ended.
    fn ended(&mut self, ready: &Ready) -> Result<Duration> {
        let Ready::Exit { sha256 } = ready else { bail!("it ended before it was ready: {}", self.last_lines()) };
        let status = self.wait_for_status()?;
        let took = self.began.elapsed();
        if !status.success() {
            bail!("it ended with {status}: {}", self.last_lines());
        }
        let printed: String = self.output.finalize_reset().iter().map(|byte| format!("{byte:02x}")).collect();
        if *sha256 != printed {
            bail!("it printed something else, with the sha256 {printed}: {}", self.last_lines());
        }
        Ok(took)
    }

    fn last_lines(&self) -> String {
        self.printed[self.printed.len().saturating_sub(5)..].join(" | ")
    }

    /// Waits until the command ends after its container.
    pub fn wait_for_end(mut self) -> Result<()> {
        self.wait_for_status().map(drop)
    }

    fn wait_for_status(&mut self) -> Result<ExitStatus> {
        let until = Instant::now() + STOPPING;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > until {
                bail!("process {} does not end with its container", self.child.id());
            }
            thread::sleep(POLL_INTERVAL);
        }
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

/// The mount points in a process's mount namespace.
fn mountpoints(pid: u32) -> Vec<String> {
    let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    table.lines().filter_map(|line| line.split(' ').nth(4)).map(str::to_owned).collect()
}

/// Whether a process on this host listens at the port, and answers HTTP if a path is given.
pub fn answers(port: u16, path: Option<&str>) -> bool {
    let ask = || -> std::io::Result<bool> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut connection = TcpStream::connect_timeout(&address, Duration::from_millis(100))?;
        let Some(path) = path else { return Ok(true) };
        connection.set_read_timeout(Some(Duration::from_secs(5)))?;
        connection.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())?;
        let mut beginning = [0; 5];
        connection.read_exact(&mut beginning)?;
        Ok(beginning == *b"HTTP/")
    };
    ask().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn run(script: &str, ready: Ready) -> Result<Times> {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo {FIRST_EXEC}; {script}")]);
        let patience = Duration::from_secs(30);
        let workload = Workload {
            id: String::new(),
            image: String::new(),
            command: String::new(),
            ready,
            patience,
            on_host_network: false,
        };
        Running::start(command).unwrap().wait(&workload, |_| true)
    }

    #[test]
    fn an_exit_counts_if_it_is_orderly_and_the_output_is_the_right_one() {
        // sha256 of "a\nb\n"
        let ready =
            || Ready::Exit { sha256: "911169ddaaf146aff539f58c26c489af3b892dff0fe283c1c264c65ae5aa59a2".into() };
        let times = run("echo a; echo noise >&2; echo b", ready()).unwrap();
        assert!(times.exec.unwrap() <= times.ready);
        assert!(run("echo a", ready()).unwrap_err().to_string().contains("something else"));
        assert!(run("echo a; echo b; exit 3", ready()).unwrap_err().to_string().contains("exit status: 3"));
    }

    #[test]
    fn a_line_counts_and_an_end_before_it_does_not() {
        let ready = || Ready::Line { text: "up".into(), at_start: true };
        assert!(run("echo up; exec sleep 60", ready()).is_ok());
        assert!(run("echo not up", ready()).unwrap_err().to_string().contains("ended before"));
    }

    #[test]
    fn a_port_that_listens_need_not_speak_http() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(answers(port, None));
        thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                // The first connection was closed without a request.
                if matches!(client.read(&mut [0; 100]), Ok(1..)) {
                    client.write_all(b"HTTP/1.0 200 OK").unwrap();
                }
            }
        });
        assert!(answers(port, Some("/")));
    }
}
