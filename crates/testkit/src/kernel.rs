//! Requirements of tests on the machine that runs them.

use std::path::Path;

/// Whether FUSE file systems can be mounted here. If not, prints the line that the test runner counts.
#[expect(clippy::print_stdout, reason = "the test runner counts such lines")]
pub fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !can {
        println!("skipped: needs root and /dev/fuse");
    }
    can
}
