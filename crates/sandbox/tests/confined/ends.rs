//! How a confined process ends that fails: alone, and without a trace of its memory.

use std::os::unix::process::ExitStatusExt as _;

use libtest_mimic::Trial;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::child::{self, Confined, Surroundings, User, say, say_confined, users};
use crate::world::World;

const ABORT: &str = "aborts";
const ALLOCATE: &str = "allocates";
const ALLOCATE_AND_RECOVER: &str = "allocates-and-recovers";

/// More than this program needs.
const LIMIT: u64 = 256 << 20;

const SIGABRT: i32 = 6;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (user, name) in users() {
        trials.push(Trial::test(format!("a confined process that aborts leaves no core dump, {name}"), move || {
            let world = World::new();
            ends_by_abort(&world, user, ABORT);
            let left = |folder: std::path::PathBuf| std::fs::read_dir(folder).unwrap().count();
            assert_eq!(left(world.folders.write()), 1);
            Ok(())
        }));
        trials.push(Trial::test(format!("memory beyond the limit ends the process alone, {name}"), move || {
            ends_by_abort(&World::new(), user, ALLOCATE);
            Ok(())
        }));
        trials.push(Trial::test(format!("a process can recover from memory beyond the limit, {name}"), move || {
            let reported = child::run_to_its_end(&World::new(), user, Confined::Computing, ALLOCATE_AND_RECOVER);
            assert_eq!(reported.result, "within: true, beyond: false", "{:?}", reported.output);
            Ok(())
        }));
    }
    trials
}

fn ends_by_abort(world: &World, user: User, role: &str) {
    let status = child::run_to_its_end(world, user, Confined::Computing, role).output.status;
    assert_eq!((status.signal(), status.core_dumped()), (Some(SIGABRT), false));
}

pub(crate) fn role(role: &str, confined: Confined, surroundings: &Surroundings) -> bool {
    match role {
        ABORT => {
            allow_core_dumps();
            std::env::set_current_dir(surroundings.folders.write()).unwrap();
            say_confined(confined.enter(surroundings, None));
            std::process::abort();
        }
        ALLOCATE => {
            say_confined(confined.enter(surroundings, Some(LIMIT)));
            let mut all = Vec::new();
            loop {
                all.push(vec![1_u8; 1 << 20]);
            }
        }
        ALLOCATE_AND_RECOVER => {
            say_confined(confined.enter(surroundings, Some(LIMIT)));
            let can_allocate = |bytes: u64| Vec::<u8>::new().try_reserve_exact(bytes.try_into().unwrap()).is_ok();
            say(format_args!("within: {}, beyond: {}", can_allocate(LIMIT / 2), can_allocate(LIMIT)));
        }
        _ => return false,
    }
    true
}

/// As far as this user may.
fn allow_core_dumps() {
    let maximum = getrlimit(Resource::Core).maximum;
    setrlimit(Resource::Core, Rlimit { current: maximum, maximum }).unwrap();
}
