//! Many commands started at once, each of which reports that it is up and then waits for the end of its standard input.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tarpon_harness::namespace::Namespace;
use tarpon_harness::process;

/// How long all of them may take to be up, and to end.
const TIMEOUT: Duration = Duration::from_secs(300);

/// How long they may take to end after a failure.
const PARTING: Duration = Duration::from_secs(20);

/// For `/bin/sh -c` in a container, after its actual work.
pub(crate) const WAIT: &str = "echo tarpon-bench-up; read end || true";
const UP: &str = "tarpon-bench-up";

/// The running commands. Dropping it ends them.
pub(crate) struct Together {
    children: Vec<Child>,
    /// Time from the first start until each command was up, in ascending order.
    pub(crate) ups: Vec<Duration>,
}

impl Together {
    /// Starts all commands and waits until they are up.
    pub(crate) fn start(commands: Vec<Command>) -> Result<Self> {
        Self::start_in(commands.into_iter().map(|command| (command, None)))
    }

    /// The same, each in a network namespace if one is named.
    pub(crate) fn start_in<'a>(commands: impl Iterator<Item = (Command, Option<&'a Namespace>)>) -> Result<Self> {
        let (sender, events) = mpsc::channel();
        let began = Instant::now();
        let mut together = Self { children: Vec::new(), ups: Vec::new() };
        for (mut command, namespace) in commands {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let child = match namespace {
                Some(namespace) => namespace.run(|| command.spawn())?,
                None => command.spawn(),
            };
            let mut child = child.with_context(|| format!("cannot start {}", process::name(&command)))?;
            let (output, errors) = (child.stdout.take(), child.stderr.take());
            together.children.push(child);
            let sender = sender.clone();
            thread::spawn(move || {
                let mut lines = output.map(BufReader::new).into_iter().flat_map(BufRead::lines).map_while(Result::ok);
                let is_up = lines.any(|line| line == UP);
                let mut message = String::new();
                if !is_up && let Some(mut errors) = errors {
                    errors.read_to_string(&mut message).ok();
                }
                // The receiver may be gone because another command failed.
                sender.send((is_up, message)).ok();
            });
        }
        for _ in 0..together.children.len() {
            match events.recv_timeout(TIMEOUT.saturating_sub(began.elapsed())) {
                Ok((true, _)) => together.ups.push(began.elapsed()),
                Ok((false, message)) => bail!("one of {} did not come up: {message}", together.children.len()),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => bail!("not all came up in time"),
            }
        }
        Ok(together)
    }

    /// Time from the first start until the last command was up.
    pub(crate) fn up(&self) -> Duration {
        self.ups.last().copied().unwrap_or_default()
    }

    /// Ends all commands; returns how long that took.
    pub(crate) fn end(mut self) -> Result<Duration> {
        self.wait(TIMEOUT)
    }

    fn wait(&mut self, patience: Duration) -> Result<Duration> {
        let began = Instant::now();
        for child in &mut self.children {
            drop(child.stdin.take());
        }
        for child in &mut self.children {
            while child.try_wait()?.is_none() {
                if began.elapsed() > patience {
                    bail!("process {} does not end", child.id());
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(began.elapsed())
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        // Commands that are up end by themselves, and remove their containers.
        if self.wait(PARTING).is_err() {
            for child in &mut self.children {
                child.kill().ok();
                child.wait().ok();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        command
    }

    #[test]
    fn all_are_up_before_they_may_end() {
        let together = Together::start(vec![shell(WAIT), shell(WAIT)]).unwrap();
        assert!(together.ups.len() == 2 && together.ups.is_sorted() && together.up() > Duration::ZERO);
        together.end().unwrap();
    }

    #[test]
    fn one_that_does_not_come_up_is_an_error_with_its_output() {
        let error = Together::start(vec![shell(WAIT), shell("echo broken >&2")]).err().unwrap();
        assert!(error.to_string().contains("broken"), "{error}");
    }
}
