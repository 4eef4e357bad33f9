//! Programs that read from a mount without a pause, in one process of many threads, and what they noticed.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::ops::Deref;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::Advice;
use tarpon_oci::Digest;

use crate::mapped;

/// Steps of operations that take longer are recorded one by one. A server that lives answers from its store or a registry on this machine in less.
const SLOW: Duration = Duration::from_millis(20);
/// Maximum number of readers: each has a byte.
const MOST_READERS: u8 = 128;
/// The byte of the first reader.
const FIRST_BYTE: u8 = 128;
/// Nice level of the readers' session for the scheduler (`sched(7)`, "The autogroup feature"). The registry of a user is on another machine;
/// here it has to compete with programs that are never idle, and would answer within seconds.
const GIVE_WAY: &str = "10";
/// Files that a reader keeps open over several deaths of the server.
const KEPT_OPEN: usize = 16;
/// Largest part of a file that is read at once.
const PART: u64 = 128 << 10;

/// What the readers do.
#[derive(Clone)]
pub struct Load {
    /// The root of the mount.
    pub root: PathBuf,
    /// Its files and the digests of their contents.
    pub files: Arc<Vec<(PathBuf, Digest)>>,
    /// A program below the root that does nothing.
    pub program: PathBuf,
}

/// A slow step of an operation: nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy)]
pub struct Slow {
    /// When it began.
    pub began: u64,
    /// When it ended.
    pub ended: u64,
}

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes share.
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

/// A pseudo-random number that is the same in every run.
pub fn scatter(seed: u64) -> u64 {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03;
    x ^= x >> 29;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^ (x >> 32)
}

impl Load {
    /// Runs readers until standard input ends. Standard output gets one byte for each operation, which is that of the reader; standard error
    /// a line for each slow step. Ends the process with status 1 at the first error.
    pub fn run(&self, readers: u8) {
        assert!(readers <= MOST_READERS, "{MOST_READERS} readers are the most");
        let _is_leader_already = rustix::process::setsid();
        let _no_autogroups = std::fs::write("/proc/self/autogroup", GIVE_WAY);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for reader in 0..readers {
                let stop = &stop;
                scope.spawn(move || self.read_on(reader, stop));
            }
            let _end = std::io::stdin().read(&mut [0; 1]);
            stop.store(true, Ordering::Release);
        });
    }

    fn read_on(&self, byte: u8, stop: &AtomicBool) {
        let reader = u64::from(byte);
        let mut open = VecDeque::new();
        for turn in (0_u64..).take_while(|_| !stop.load(Ordering::Acquire)) {
            let index = usize::try_from(scatter(reader << 32 | turn) % self.files.len() as u64).unwrap();
            let (path, digest) = &self.files[index];
            let mut clock = Clock { began: now() };
            let outcome = self.operation(reader, turn, &self.root.join(path), &mut open, &mut clock);
            clock.step();
            let problem = match outcome {
                Err(problem) => Some(problem),
                // Not counted: this program needs longer for it than the server for the bytes.
                Ok(Some(bytes)) if Digest::of(&bytes) != *digest => Some("wrong bytes".to_owned()),
                Ok(_) => None,
            };
            if let Some(problem) = problem {
                eprintln!("error: reader {reader}, {}: {problem}", path.display());
                std::process::exit(1);
            }
            // The parent may have ended.
            let _closed = std::io::stdout().write_all(&[FIRST_BYTE + byte]).and_then(|()| std::io::stdout().flush());
        }
    }

    /// One of seven kinds of operations. Returns the bytes of the whole file if it read that.
    fn operation(
        &self,
        reader: u64,
        turn: u64,
        place: &Path,
        open: &mut VecDeque<File>,
        clock: &mut Clock,
    ) -> Result<Option<Box<dyn Deref<Target = [u8]>>>, String> {
        let failed = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
        match reader % 7 {
            0 | 1 => return Ok(Some(Box::new(whole(place, clock).map_err(failed("read"))?))),
            2 => return Ok(Some(Box::new(mapped::map(place, || clock.step()).map_err(failed("map"))?))),
            3 => {
                let status = Command::new(self.root.join(&self.program)).status().map_err(failed("execute"))?;
                if !status.success() {
                    return Err(format!("executed: {status}"));
                }
            }
            4 => walk(place, clock).map_err(failed("walk"))?,
            5 => part(place, turn).map_err(failed("read a part"))?,
            _ => {
                open.push_back(File::open(place).map_err(failed("open"))?);
                let file = &open[usize::try_from(scatter(turn)).unwrap_or_default() % open.len()];
                file.read_at(&mut [0; 4096], 0).map_err(failed("read an open file"))?;
                if open.len() > KEPT_OPEN {
                    open.pop_front();
                }
            }
        }
        Ok(None)
    }
}

/// Times what can be interrupted by one death: a system call, or a few page faults.
struct Clock {
    began: u64,
}

impl Clock {
    /// Reports the time since the last step, if it is slow.
    fn step(&mut self) {
        let ended = now();
        if ended - self.began > u64::try_from(SLOW.as_nanos()).unwrap_or_default() {
            eprintln!("slow {} {ended}", self.began);
        }
        self.began = now();
    }
}

/// Reads in parts of the size of one request.
fn whole(place: &Path, clock: &mut Clock) -> std::io::Result<Vec<u8>> {
    let (mut parts, mut bytes) = (File::open(place)?.take(PART), Vec::new());
    clock.step();
    while parts.read_to_end(&mut bytes)? > 0 {
        clock.step();
        parts.set_limit(PART);
    }
    Ok(bytes)
}

/// Looks up, lists, opens and reads one byte.
fn walk(place: &Path, clock: &mut Clock) -> std::io::Result<()> {
    for entry in std::fs::read_dir(place.parent().unwrap_or(place))? {
        entry?.path().symlink_metadata()?;
        clock.step();
    }
    File::open(place)?.read_exact(&mut [0; 1])
}

/// Reads one part, which the page cache does not keep.
fn part(place: &Path, turn: u64) -> std::io::Result<()> {
    let file = File::open(place)?;
    let size = file.metadata()?.len();
    let start = scatter(turn) % size.max(1);
    let mut part = vec![0; usize::try_from(PART.min(size - start)).unwrap_or_default()];
    file.read_exact_at(&mut part, start)?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok(())
}

/// A running process of readers, seen from the test.
pub struct Readers {
    child: std::process::Child,
    operations: Arc<Vec<AtomicUsize>>,
    lines: Arc<Mutex<Vec<String>>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

/// What the readers noticed.
#[derive(Debug, Default)]
pub struct Noticed {
    /// Number of operations.
    pub operations: usize,
    /// Errors and wrong bytes.
    pub errors: Vec<String>,
    /// Slow steps.
    pub slow: Vec<Slow>,
}

impl Readers {
    /// Starts a command that calls [`Load::run`].
    pub fn start(command: &mut Command) -> Self {
        use std::process::Stdio;
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start readers");
        let counted: Arc<Vec<_>> = Arc::new((0..MOST_READERS).map(|_| AtomicUsize::new(0)).collect());
        let noted: Arc<Mutex<Vec<String>>> = Arc::default();
        let (mut stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (count, lines) = (counted.clone(), noted.clone());
        let counter = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = stdout.read(&mut bytes) {
                // The test runner prints ASCII characters.
                for reader in bytes[..read].iter().filter_map(|byte| byte.checked_sub(FIRST_BYTE)) {
                    count[usize::from(reader)].fetch_add(1, Ordering::AcqRel);
                }
            }
        });
        let reporter = std::thread::spawn(move || {
            for line in std::io::BufRead::lines(std::io::BufReader::new(stderr)).map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        });
        Self { child, operations: counted, lines: noted, threads: vec![counter, reporter] }
    }

    /// The number of operations of each reader that have ended.
    pub fn operations(&self) -> Vec<usize> {
        self.operations.iter().map(|count| count.load(Ordering::Acquire)).collect()
    }

    /// Whether the process has ended, which it does at the first error.
    pub fn have_failed(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends the readers after their current operations, and returns what they noticed. Operations that do not end within `limit` are errors.
    pub fn stop(mut self, limit: Duration) -> Noticed {
        drop(self.child.stdin.take());
        let began = Instant::now();
        let mut errors = Vec::new();
        while matches!(self.child.try_wait(), Ok(None)) {
            if began.elapsed() > limit {
                errors.push(format!("error: an operation does not end within {limit:?}"));
                let _has_ended = self.child.kill();
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if errors.is_empty() {
            self.threads.drain(..).for_each(|thread| thread.join().unwrap());
        }
        let lines = std::mem::take(&mut *self.lines.lock().unwrap());
        let slow = lines.iter().filter_map(|line| {
            let (began, ended) = line.strip_prefix("slow ")?.split_once(' ')?;
            Some(Slow { began: began.parse().ok()?, ended: ended.parse().ok()? })
        });
        let slow = slow.collect();
        errors.extend(lines.into_iter().filter(|line| !line.starts_with("slow ")));
        let status = self.child.try_wait().ok().flatten();
        if errors.is_empty() && !status.is_some_and(|status| status.success()) {
            errors.push(format!("the process of the readers ended: {status:?}"));
        }
        Noticed { operations: self.operations().iter().sum(), errors, slow }
    }
}
