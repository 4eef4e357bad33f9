//! What a confined process tries and may not do.
//!
//! Each offence is tried without the sandbox as well, by root: where it fails in the same way there, the sandbox shows
//! nothing.

mod calls;
mod network;
mod offence;
mod paths;

use std::io;

use libtest_mimic::{Completion, Failed, Trial};

use crate::child::{self, Confined, Surroundings, User, say, say_confined, users};
use crate::world::World;
use offence::Offence;

fn all() -> impl Iterator<Item = Offence> {
    paths::OFFENCES.iter().chain(network::OFFENCES).chain(calls::OFFENCES).map(|offence| Offence { ..*offence })
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (user, name) in users() {
        for offence in all() {
            let trial = format!("a confined process cannot {}, {name}", offence.what);
            trials.push(Trial::ignorable_test(trial, move || is_refused(user, &offence)));
        }
    }
    if rustix::process::geteuid().is_root() {
        for offence in all().filter(|offence| offence.is_harmless) {
            let trial = format!("without a sandbox nothing refuses to {}", offence.what);
            trials.push(Trial::test(trial, move || {
                let reported = child::run_to_its_end(&World::new(), User::Same, Confined::Not, offence.what);
                assert!(!reported.result.is_empty(), "{:?}", reported.output);
                assert_ne!(reported.result, outcome(&Err(offence.error.into())));
                Ok(())
            }));
        }
    }
    trials
}

fn is_refused(user: User, offence: &Offence) -> Result<Completion, Failed> {
    let reported = child::run_to_its_end(&World::new(), user, offence.confined, offence.what);
    if reported.landlock < offence.landlock {
        let reason = format!("this kernel has no Landlock of version {}", offence.landlock);
        return Ok(Completion::ignored_with(reason));
    }
    assert_eq!(reported.result, outcome(&Err(offence.error.into())), "{:?}", reported.output);
    Ok(Completion::Completed)
}

/// A result as a line.
fn outcome(result: &io::Result<()>) -> String {
    match result {
        Ok(()) => "done".to_owned(),
        Err(error) => format!("{error}"),
    }
}

pub(crate) fn role(role: &str, confined: Confined, surroundings: &Surroundings) -> bool {
    let Some(offence) = all().find(|offence| offence.what == role) else { return false };
    let act = (offence.prepare)(surroundings);
    say_confined(confined.enter(surroundings, None));
    say(outcome(&act()));
    true
}
