//! Measures the link before something is measured over it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::kernel::Inside;

/// How many connections the round trip is measured with.
const CONNECTIONS: usize = 11;
/// Slow start is over after this time on any link that a test would use.
const WARM_UP: Duration = Duration::from_millis(1000);
const MEASURED: Duration = Duration::from_millis(1000);

/// The median time that a connection through the link takes to open.
pub(crate) fn round_trip(host: &str, inside: &Inside) -> Result<Duration> {
    let listener = TcpListener::bind((host, 0))?;
    let address = listener.local_addr()?;
    let server = thread::spawn(move || listener.incoming().take(CONNECTIONS).for_each(drop));
    let mut times = inside.run(move || -> Result<Vec<Duration>> {
        let mut times = Vec::new();
        for _ in 0..CONNECTIONS {
            let start = Instant::now();
            TcpStream::connect_timeout(&address, Duration::from_secs(10)).context("the link carries nothing")?;
            times.push(start.elapsed());
        }
        Ok(times)
    })??;
    server.join().ok();
    times.sort();
    Ok(times[CONNECTIONS / 2])
}

/// Bits of payload per second that one connection brings to the command's end.
pub(crate) fn throughput(host: &str, inside: &Inside) -> Result<f64> {
    let listener = TcpListener::bind((host, 0))?;
    let address = listener.local_addr()?;
    let server = thread::spawn(move || -> std::io::Result<()> {
        let (mut client, _) = listener.accept()?;
        let block = vec![0; 256 * 1024];
        // Ends when the other side has seen enough and closes.
        while client.write_all(&block).is_ok() {}
        Ok(())
    });
    let rate = inside.run(move || -> Result<f64> {
        let mut connection = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
        receive(&mut connection, WARM_UP)?;
        let start = Instant::now();
        let bytes = receive(&mut connection, MEASURED)?;
        Ok(bytes as f64 * 8.0 / start.elapsed().as_secs_f64())
    })??;
    server.join().ok();
    Ok(rate)
}

/// Reads for a while; the number of bytes.
fn receive(connection: &mut TcpStream, time: Duration) -> Result<usize> {
    let mut buffer = vec![0; 256 * 1024];
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < time {
        bytes += connection.read(&mut buffer)?;
    }
    Ok(bytes)
}
