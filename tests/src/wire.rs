//! A proxy in front of a registry that counts the bytes and notes the requests of all clients, and fails or lies on request.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::Result;

/// A port that forwards everything to a registry. Dropping it closes the port.
pub struct Wire {
    here: SocketAddr,
    count: Arc<Count>,
}

#[derive(Default)]
struct Count {
    bytes: AtomicU64,
    /// Paths of requests.
    asked: Mutex<Vec<String>>,
    is_closed: AtomicBool,
    behaviour: Mutex<Behaviour>,
    changed: Condvar,
}

/// What a proxy does with its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Behaviour {
    /// It forwards everything.
    #[default]
    Honest,
    /// It closes all connections.
    Dead,
    /// It changes a byte of each large part of a response.
    Lying,
    /// It accepts connections and requests, and sends nothing.
    Silent,
    /// It forwards about this many bytes of responses in all, and is silent then.
    SilentAfter(u64),
}

/// Parts of a response from this size on are changed by a lying proxy. Heads and manifests are shorter.
const LARGE: usize = 16 << 10;

impl Wire {
    /// Starts a proxy to a registry.
    pub fn to(registry: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (wire, registry) = (Self { here: listener.local_addr()?, count: Arc::default() }, registry.to_owned());
        let count = Arc::clone(&wire.count);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if count.is_closed.load(Ordering::Acquire) {
                    return;
                }
                // A client whose connection fails gets a closed socket.
                let _ = TcpStream::connect(&registry).and_then(|server| join(&client, &server, &count));
            }
        });
        Ok(wire)
    }

    /// The registry's address behind the proxy.
    pub fn address(&self) -> String {
        self.here.to_string()
    }

    /// From now on it does this, also with open connections.
    pub fn behave(&self, behaviour: Behaviour) {
        *self.count.behaviour() = behaviour;
        self.count.changed.notify_all();
    }

    /// Paths of all `GET` requests so far, in their order.
    pub fn asked(&self) -> Vec<String> {
        self.count.asked().clone()
    }

    /// Bytes received from the registry, including response heads.
    pub fn bytes(&self) -> u64 {
        self.count.bytes.load(Ordering::Relaxed)
    }
}

/// Copies data in both directions until one side closes.
fn join(client: &TcpStream, server: &TcpStream, count: &Arc<Count>) -> std::io::Result<()> {
    let (asking, asked) = (client.try_clone()?, server.try_clone()?);
    let (answering, answered) = (server.try_clone()?, client.try_clone()?);
    let count = Arc::clone(count);
    let asker = count.clone();
    thread::spawn(move || {
        pass(asking, asked, |part| {
            asker.note_requests(part);
            !asker.is(Behaviour::Dead)
        });
    });
    thread::spawn(move || {
        pass(answering, answered, |part| {
            if count.is(Behaviour::Lying) && part.len() >= LARGE {
                part[LARGE - 1] ^= 1;
            }
            count.bytes.fetch_add(part.len() as u64, Ordering::Relaxed);
            count.wait_while_silent();
            !count.is(Behaviour::Dead)
        });
    });
    Ok(())
}

impl Count {
    fn is(&self, behaviour: Behaviour) -> bool {
        *self.behaviour() == behaviour
    }

    fn behaviour(&self) -> MutexGuard<'_, Behaviour> {
        self.behaviour.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self) -> MutexGuard<'_, Vec<String>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Clients write the head of a request at once.
    fn note_requests(&self, part: &[u8]) {
        let lines = part.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"GET "));
        let paths = lines.filter_map(|line| line.split(|byte| *byte == b' ').next());
        self.asked().extend(paths.map(|path| String::from_utf8_lossy(path).into_owned()));
    }

    /// Keeps what was received until the proxy does something else.
    fn wait_while_silent(&self) {
        let is_silent = |behaviour: &mut Behaviour| match behaviour {
            Behaviour::Silent => true,
            Behaviour::SilentAfter(bytes) => self.bytes.load(Ordering::Relaxed) >= *bytes,
            _ => false,
        };
        drop(self.changed.wait_while(self.behaviour(), is_silent));
    }
}

/// Copies data while `change` allows it.
fn pass(mut from: TcpStream, mut to: TcpStream, change: impl Fn(&mut [u8]) -> bool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let part = &mut buffer[..length];
        if !change(part) || to.write_all(part).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.count.is_closed.store(true, Ordering::Release);
        // Ends the threads of a silent one.
        self.behave(Behaviour::Dead);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.here);
    }
}
