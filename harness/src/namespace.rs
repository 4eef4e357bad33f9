//! [`Namespace`]: a network namespace. It exists as long as the value, or a process in it.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::link::leave_network;
use crate::process;

/// Opened, so that no name of it is left when this program ends for any reason.
pub struct Namespace(File);

impl Namespace {
    /// A new one, in which only loopback is up.
    pub fn new() -> Result<Self> {
        let make = || -> Result<Self> {
            leave_network()?;
            Ok(Self(File::open("/proc/thread-self/ns/net")?))
        };
        let made = thread::spawn(make).join().map_err(|_| anyhow!("a thread panicked"))?;
        let namespace = made.context("cannot make a network namespace")?;
        // What the kernel learns from a connection would change the ones after it.
        let no_memory = || std::fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1");
        namespace.run(no_memory)?.context("cannot set up a network namespace")?;
        namespace.run(|| process::check(Command::new("ip").args(["link", "set", "lo", "up"])))??;
        Ok(namespace)
    }

    /// Runs `job` in a thread inside, and waits for it. Processes that it starts stay there.
    pub fn run<T: Send>(&self, job: impl FnOnce() -> T + Send) -> Result<T> {
        let inside = || -> Result<T> {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(self.0.as_fd(), network).context("cannot enter a network namespace")?;
            Ok(job())
        };
        thread::scope(|scope| scope.spawn(inside).join())
            .map_err(|_| anyhow!("a thread in a network namespace panicked"))?
    }

    /// The path of it for other programs of this user, as long as this value lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::packages;

    #[test]
    fn ports_of_a_namespace_are_its_own_and_the_caller_stays_outside() {
        if !packages::is_root() || process::find("ip").is_none() {
            println!("skipped: a network namespace needs root and the program ip");
            return;
        }
        let outside = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = outside.local_addr().unwrap();
        let namespace = Namespace::new().unwrap();
        let inside = namespace.run(|| TcpListener::bind(address)).unwrap().unwrap();
        assert!(namespace.run(|| TcpStream::connect(address)).unwrap().is_ok());
        inside.set_nonblocking(true).unwrap();
        assert!(inside.accept().is_ok() && TcpStream::connect(address).is_ok());
        assert!(inside.accept().is_err(), "the second connection came from outside");
    }

    #[test]
    fn processes_that_are_started_inside_stay_there() {
        if !packages::is_root() || process::find("ip").is_none() {
            println!("skipped: a network namespace needs root and the program ip");
            return;
        }
        let namespace = Namespace::new().unwrap();
        let mut devices = Command::new("cat");
        let devices = namespace.run(|| process::output(devices.arg("/proc/net/dev"))).unwrap().unwrap();
        assert_eq!(devices.lines().filter(|line| line.contains(": ")).count(), 1, "{devices}");
    }
}
