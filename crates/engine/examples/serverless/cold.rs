//! Starts on an empty store: a single one, and many processes at once.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::figures::median;
use crate::{Options, Result};

/// How often both are measured, each time with a new store.
const ROUNDS: usize = 5;

/// Runs `many` processes of this program at once, with one call each.
pub(crate) fn compare(scratch: &Path, options: &Options, many: usize) -> Result<()> {
    let (mut alone, mut crowd) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let one = start(&scratch.join(format!("alone-{round}")), options, 1)?;
        let all = start(&scratch.join(format!("crowd-{round}")), options, many)?;
        println!("one alone: {one:.2?}; {many} at once: {all:.2?}");
        alone.push(one);
        crowd.push(all);
    }
    let (alone, crowd) = (median(&mut alone), median(&mut crowd));
    println!("median {crowd:.2?} to {alone:.2?}: {:.2} times", crowd.as_secs_f64() / alone.as_secs_f64());
    Ok(())
}

/// Time until all have made their call.
fn start(store: &Path, options: &Options, many: usize) -> Result<Duration> {
    let began = Instant::now();
    let spawn = |_| {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--store").arg(store).args(["--calls", "0", "--mode", &options.mode.to_string(), &options.image]);
        command.args(&options.command).stdout(Stdio::null()).spawn()
    };
    let children: Vec<Child> = (0..many).map(spawn).collect::<std::io::Result<_>>()?;
    for mut child in children {
        let ended = child.wait()?;
        if !ended.success() {
            return Err(format!("a start failed: {ended}").into());
        }
    }
    Ok(began.elapsed())
}
