//! Carries packets from one TUN device to the other at a bit rate and with a delay.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum size of a packet from a device; its MTU is 1500.
const PACKET: usize = 2048;

/// Properties of one direction of the link.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Bits per second.
    pub(super) rate: u64,
    /// The travel time of a packet, after its last bit was sent.
    pub(super) delay: Duration,
    /// The maximum time that a packet waits in the queue.
    pub(super) queue: Duration,
}

/// The sending end of one direction: determines when a packet arrives, or that it is lost.
struct Line {
    shape: Shape,
    /// Time at which the last bit of all packets so far will have been sent.
    free_at: Instant,
}

impl Line {
    /// The time at which a packet of `bytes` bytes, sent at `now`, arrives at the other end; `None` if the queue is full.
    fn arrival(&mut self, now: Instant, bytes: usize) -> Option<Instant> {
        let start = self.free_at.max(now);
        if start - now > self.shape.queue {
            return None;
        }
        let bits = bytes as u64 * 8;
        self.free_at = start + Duration::from_nanos(bits * 1_000_000_000 / self.shape.rate);
        Some(self.free_at + self.shape.delay)
    }
}

/// Traffic of one direction.
#[derive(Default)]
pub(super) struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    dropped: AtomicU64,
}

/// The counters at one moment; bytes include the IP and TCP headers.
pub(super) struct Count {
    packets: u64,
    bytes: u64,
    dropped: u64,
}

impl Counters {
    fn count(&self, bytes: usize, arrives: bool) {
        let (packets, bytes) = if arrives { (1, bytes as u64) } else { (0, 0) };
        self.packets.fetch_add(packets, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.dropped.fetch_add(u64::from(!arrives), Ordering::Relaxed);
    }

    pub(super) fn reset(&self) {
        for counter in [&self.packets, &self.bytes, &self.dropped] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self) -> Count {
        Count {
            packets: self.packets.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
        }
    }
}

impl Count {
    pub(super) fn json(&self) -> String {
        format!(r#"{{"bytes":{},"packets":{},"dropped":{}}}"#, self.bytes, self.packets, self.dropped)
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes in {} packets, {} dropped", self.bytes, self.packets, self.dropped)
    }
}

/// Starts to carry packets from `from` to `to`, as long as this program runs.
pub(super) fn carry(from: Arc<File>, to: Arc<File>, shape: Shape) -> Arc<Counters> {
    let counters = Arc::new(Counters::default());
    let counted = counters.clone();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || send(&from, shape, &counted, &sender));
    thread::spawn(move || deliver(&to, &receiver));
    counters
}

type Packet = (Instant, Box<[u8]>);

fn send(mut from: &File, shape: Shape, counters: &Counters, sender: &Sender<Packet>) {
    let mut line = Line { shape, free_at: Instant::now() };
    let mut buffer = [0; PACKET];
    while let Ok(length) = from.read(&mut buffer) {
        let arrival = line.arrival(Instant::now(), length);
        counters.count(length, arrival.is_some());
        let Some(arrival) = arrival else { continue };
        if sender.send((arrival, buffer[..length].into())).is_err() {
            return;
        }
    }
}

fn deliver(mut to: &File, receiver: &Receiver<Packet>) {
    // The kernel may be 50 µs late by default; on a link of 1 ms that would show.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).ok();
    for (arrival, packet) in receiver {
        let wait = arrival.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            thread::sleep(wait);
        }
        // A device that is not up yet, or has no space, loses the packet, as a network does.
        to.write_all(&packet).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A line with a rate of 1000 bytes per millisecond, a delay of 5 ms, and a queue of 2 ms.
    fn line(now: Instant) -> Line {
        Line { shape: Shape { rate: 8_000_000, delay: 5 * MS, queue: 2 * MS }, free_at: now }
    }

    #[test]
    fn a_packet_takes_the_time_of_its_bits_and_the_delay() {
        let now = Instant::now();
        assert_eq!(line(now).arrival(now, 1000), Some(now + 6 * MS));
    }

    #[test]
    fn packets_wait_for_the_ones_before_them() {
        let now = Instant::now();
        let mut line = line(now);
        let arrivals = [(); 2].map(|()| line.arrival(now, 1000));
        assert_eq!(arrivals, [Some(now + 6 * MS), Some(now + 7 * MS)]);
    }

    #[test]
    fn a_full_queue_drops_what_comes_and_recovers() {
        let now = Instant::now();
        let mut line = line(now);
        let arrivals = [(); 4].map(|()| line.arrival(now, 1000).is_some());
        assert_eq!(arrivals, [true, true, true, false]);
        assert_eq!(line.arrival(now + 2 * MS, 1000), Some(now + 9 * MS));
    }

    #[test]
    fn an_idle_line_saves_no_time_up() {
        let now = Instant::now();
        let mut line = line(now);
        line.arrival(now, 1000);
        assert_eq!(line.arrival(now + 100 * MS, 1000), Some(now + 106 * MS));
    }
}
