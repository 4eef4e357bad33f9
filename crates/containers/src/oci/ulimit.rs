//! [`Ulimit`]: a kernel limit for each process of a container.

use std::str::FromStr;

use oci_spec::runtime::{PosixRlimit, PosixRlimitBuilder, PosixRlimitType};

/// The kernel's value for no limit.
const UNLIMITED: u64 = u64::MAX;

/// Every limit, by its name in `ulimit` options.
const NAMES: [(&str, PosixRlimitType); 16] = [
    ("as", PosixRlimitType::RlimitAs),
    ("core", PosixRlimitType::RlimitCore),
    ("cpu", PosixRlimitType::RlimitCpu),
    ("data", PosixRlimitType::RlimitData),
    ("fsize", PosixRlimitType::RlimitFsize),
    ("locks", PosixRlimitType::RlimitLocks),
    ("memlock", PosixRlimitType::RlimitMemlock),
    ("msgqueue", PosixRlimitType::RlimitMsgqueue),
    ("nice", PosixRlimitType::RlimitNice),
    ("nofile", PosixRlimitType::RlimitNofile),
    ("nproc", PosixRlimitType::RlimitNproc),
    ("rss", PosixRlimitType::RlimitRss),
    ("rtprio", PosixRlimitType::RlimitRtprio),
    ("rttime", PosixRlimitType::RlimitRttime),
    ("sigpending", PosixRlimitType::RlimitSigpending),
    ("stack", PosixRlimitType::RlimitStack),
];

/// A limit for each process: `NAME=SOFT[:HARD]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ulimit {
    kind: PosixRlimitType,
    soft: u64,
    hard: u64,
}

impl FromStr for Ulimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, values) = text.split_once('=').ok_or("expected NAME=SOFT[:HARD]")?;
        let name = name.to_ascii_lowercase();
        let known = NAMES.into_iter().find(|(known, _)| *known == name);
        let (_, kind) = known.ok_or_else(|| {
            let names = NAMES.map(|(name, _)| name).join(", ");
            format!("there is no limit {name:?}: expected one of {names}")
        })?;
        let (soft, hard) = values.split_once(':').unwrap_or((values, values));
        let (soft, hard) = (number(soft)?, number(hard)?);
        if soft > hard {
            return Err(format!("the soft limit of {name} is above the hard one"));
        }
        Ok(Self { kind, soft, hard })
    }
}

fn number(text: &str) -> Result<u64, String> {
    match text {
        "-1" | "unlimited" => Ok(UNLIMITED),
        number => number.parse().map_err(|_| format!("{number:?} is no limit: expected a number, or -1 for none")),
    }
}

/// The limits in the form that a runtime takes; the last one of each kind counts. `None`: the limits of the calling process.
///
/// # Errors
/// One line: the description is invalid.
pub(super) fn rlimits(all: &[Ulimit]) -> Result<Option<Vec<PosixRlimit>>, String> {
    let mut limits: Vec<PosixRlimit> = Vec::new();
    for Ulimit { kind, soft, hard } in all {
        limits.retain(|limit| limit.typ() != *kind);
        let limit = PosixRlimitBuilder::default().typ(*kind).soft(*soft).hard(*hard).build();
        limits.push(limit.map_err(|error| error.to_string())?);
    }
    Ok(Some(limits).filter(|limits| !limits.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Ulimit {
        text.parse().unwrap()
    }

    #[test]
    fn a_limit_has_a_name_and_one_or_two_numbers() {
        assert_eq!(parsed("nofile=1024:4096"), Ulimit { kind: PosixRlimitType::RlimitNofile, soft: 1024, hard: 4096 });
        assert_eq!(parsed("NPROC=7"), Ulimit { kind: PosixRlimitType::RlimitNproc, soft: 7, hard: 7 });
        assert_eq!(parsed("core=0:-1"), Ulimit { kind: PosixRlimitType::RlimitCore, soft: 0, hard: UNLIMITED });
        for (text, why) in [
            ("nofile", "expected NAME=SOFT"),
            ("files=1", "expected one of as, core"),
            ("nofile=many", "no limit"),
            ("nofile=", "no limit"),
            ("nofile=2:1", "above the hard one"),
        ] {
            let error = text.parse::<Ulimit>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn each_limit_is_passed_to_the_runtime_once() {
        assert_eq!(rlimits(&[]), Ok(None));
        let limits = rlimits(&[parsed("nofile=1"), parsed("core=0"), parsed("nofile=2")]).unwrap().unwrap();
        let found: Vec<_> = limits.iter().map(|limit| (limit.typ(), limit.soft())).collect();
        assert_eq!(found, [(PosixRlimitType::RlimitCore, 0), (PosixRlimitType::RlimitNofile, 2)]);
    }
}
