//! A slow relay in front of the registry.
//!
//! Because it is slow, most operations of the readers are under way when an event happens, and no prefetcher can make the image
//! local before the last event.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Bytes that are forwarded at once: small, so that connections share the rate evenly.
const PIECE: usize = 16 << 10;

/// The rate that all answers share.
struct Rate {
    bytes_per_second: u32,
    /// When what was forwarded until now is paid for.
    free: Mutex<Instant>,
}

impl Rate {
    /// Waits until these bytes may be forwarded.
    fn wait(&self, bytes: usize) {
        let needed = Duration::from_secs(1) * u32::try_from(bytes).unwrap_or(u32::MAX) / self.bytes_per_second;
        let turn = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            *free = (*free).max(Instant::now()) + needed;
            *free
        };
        thread::sleep(turn.saturating_duration_since(Instant::now()));
    }
}

/// Forwards connections to this address as long as this program runs. Returns the address where it listens.
pub(super) fn start(registry: &str, bytes_per_second: u32) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on loopback")?;
    let (address, registry) = (listener.local_addr()?, registry.to_owned());
    let rate = Arc::new(Rate { bytes_per_second, free: Mutex::new(Instant::now()) });
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // If nothing listens there, the client sees its connection closed, as it would without a relay.
            if let Ok(server) = TcpStream::connect(&registry) {
                join(client, server, rate.clone()).ok();
            }
        }
    });
    Ok(address)
}

/// Copies in both directions between two connections, in separate threads.
fn join(client: TcpStream, server: TcpStream, rate: Arc<Rate>) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (requests, answers) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || copy(requests, server, |_| {}));
    thread::spawn(move || copy(answers, client, |bytes| rate.wait(bytes)));
    Ok(())
}

fn copy(mut from: TcpStream, mut to: TcpStream, wait: impl Fn(usize)) {
    let mut buffer = [0; PIECE];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        wait(length);
        if to.write_all(&buffer[..length]).is_err() {
            // The sender learns that the reader is gone.
            from.shutdown(Shutdown::Read).ok();
            break;
        }
    }
    to.shutdown(Shutdown::Write).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_back_no_faster_than_the_rate() {
        let echo = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = start(&echo.local_addr().unwrap().to_string(), 1 << 20).unwrap();
        thread::spawn(move || {
            let (mut connection, _) = echo.accept().unwrap();
            let mut request = [0; 4];
            connection.read_exact(&mut request).unwrap();
            connection.write_all(&vec![7; 1 << 17]).unwrap();
        });
        let began = Instant::now();
        let mut client = TcpStream::connect(relay).unwrap();
        client.write_all(b"ping").unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, vec![7; 1 << 17]);
        assert!(began.elapsed() >= Duration::from_millis(125));
    }
}
