//! A proxy in front of a registry that counts the bytes of all clients.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    is_closed: AtomicBool,
}

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
    thread::spawn(move || pass(asking, asked, |_| ()));
    thread::spawn(move || {
        pass(answering, answered, |bytes| {
            count.bytes.fetch_add(bytes, Ordering::Relaxed);
        });
    });
    Ok(())
}

fn pass(mut from: TcpStream, mut to: TcpStream, tell: impl Fn(u64)) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
        tell(length as u64);
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.count.is_closed.store(true, Ordering::Release);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.here);
    }
}
