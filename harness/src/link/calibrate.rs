//! Measures the link before it is used.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::device::device_bytes;
use super::kernel::Inside;

/// Number of connections used to measure the round trip.
const CONNECTIONS: usize = 11;
/// Time after which slow start is over on any link in use.
const WARM_UP: Duration = Duration::from_millis(1000);
/// Bytes over which the rate is measured: enough that a burst delayed by a lost packet has little effect. This takes five seconds at
/// 25 Mbit/s; [`AT_LEAST`] and [`AT_MOST`] limit the time on a fast and on a very slow link.
const MEASURED: u64 = 16 << 20;
const AT_LEAST: Duration = Duration::from_millis(1000);
const AT_MOST: Duration = Duration::from_secs(8);

/// The median time to open a connection through the link.
pub(super) fn round_trip(host: &str, inside: &Inside) -> Result<Duration> {
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

/// Bits per second that arrive at the command's end while one connection sends as much as it can. Counted at the device with all
/// headers, as the benchmarks count the bytes of a run.
pub(super) fn throughput(host: &str, inside: &Inside) -> Result<f64> {
    let listener = TcpListener::bind((host, 0))?;
    let address = listener.local_addr()?;
    let server = thread::spawn(move || -> std::io::Result<()> {
        let (mut client, _) = listener.accept()?;
        let block = vec![0; 256 * 1024];
        // Ends when the other side has read enough and closes.
        while client.write_all(&block).is_ok() {}
        Ok(())
    });
    let rate = inside.run(move || -> Result<f64> {
        let mut connection = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
        receive(&mut connection, |elapsed, _| elapsed >= WARM_UP)?;
        let (start, before) = (Instant::now(), received()?);
        receive(&mut connection, is_enough)?;
        let (bytes, took) = (received()? - before, start.elapsed());
        Ok(bytes as f64 * 8.0 / took.as_secs_f64())
    })??;
    server.join().ok();
    Ok(rate)
}

fn is_enough(elapsed: Duration, bytes: u64) -> bool {
    elapsed >= AT_LEAST && bytes >= MEASURED || elapsed >= AT_MOST
}

/// Reads until `is_enough` returns true for the elapsed time and the bytes so far.
fn receive(connection: &mut TcpStream, is_enough: impl Fn(Duration, u64) -> bool) -> Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    let (start, mut bytes) = (Instant::now(), 0);
    while !is_enough(start.elapsed(), bytes) {
        bytes += connection.read(&mut buffer)? as u64;
    }
    Ok(())
}

/// Bytes received by the device in the calling thread's namespace, which differs from that of the process.
fn received() -> Result<u64> {
    let devices = fs::read_to_string("/proc/thread-self/net/dev").context("cannot see the devices")?;
    device_bytes(&devices).context("the link has no device here")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_link_is_measured_for_a_while_and_a_slow_one_for_long_enough() {
        let seconds = Duration::from_secs;
        assert!(!is_enough(Duration::from_millis(200), 2 * MEASURED) && is_enough(seconds(1), MEASURED));
        assert!(!is_enough(seconds(5), MEASURED - 1) && is_enough(seconds(6), MEASURED) && is_enough(seconds(8), 1));
    }
}
