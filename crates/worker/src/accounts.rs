//! [`Accounts`]: what was counted for the endpoints of an image, in all processes that were asked for it.

use std::time::{Duration, Instant};

use tarpon_registry::{EndpointAccount, EndpointCounts};

use crate::message::{EndpointTotals, one_line};

/// Longest rest that is believed: those of endpoints last a minute at most.
const LONGEST_REST: Duration = Duration::from_secs(300);

/// What was counted for the endpoints of an image, by their number.
#[derive(Debug)]
pub(crate) struct Accounts(Vec<Account>);

#[derive(Debug)]
struct Account {
    host: String,
    /// In earlier processes.
    before: EndpointCounts,
    /// In the current one.
    now: EndpointCounts,
    rests_until: Option<Instant>,
    last_failure: Option<String>,
}

impl Accounts {
    pub(crate) fn new(hosts: Vec<String>) -> Self {
        let account = |host| {
            let (before, now) = Default::default();
            Account { host, before, now, rests_until: None, last_failure: None }
        };
        Self(hosts.into_iter().map(account).collect())
    }

    /// Another process counts from now on. It begins at zero, and knows of no failure.
    pub(crate) fn begin_process(&mut self) {
        for account in &mut self.0 {
            account.before = account.before.plus(account.now);
            (account.now, account.rests_until) = Default::default();
        }
    }

    /// Takes over what the current process reported. Of numbers that no endpoint has there is no account.
    pub(crate) fn report(&mut self, totals: Vec<EndpointTotals>) {
        for EndpointTotals { number, counts, rest_millis, last_failure } in totals {
            let Some(account) = usize::try_from(number).ok().and_then(|number| self.0.get_mut(number)) else {
                continue;
            };
            let most = account.now.most(counts);
            // Reports of requests at the same time arrive in any order: one with lower counts is older.
            if most == counts {
                let rest = rest_millis.map(|millis| Duration::from_millis(millis).min(LONGEST_REST));
                account.rests_until = rest.map(|rest| Instant::now() + rest);
                account.last_failure = last_failure.as_deref().map(shown).or(account.last_failure.take());
            }
            account.now = most;
        }
    }

    pub(crate) fn shown(&self) -> Vec<EndpointAccount> {
        let shown = |account: &Account| EndpointAccount {
            host: account.host.clone(),
            counts: account.before.plus(account.now),
            rest: account.rests_until.map(|until| until.saturating_duration_since(Instant::now())),
            last_failure: account.last_failure.clone(),
        };
        self.0.iter().map(shown).collect()
    }
}

fn shown(failure: &str) -> String {
    one_line(failure).chars().take(EndpointAccount::FAILURE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(requests: u64) -> EndpointCounts {
        EndpointCounts { requests, bytes: 10 * requests, wait_millis: requests, failures: 0 }
    }

    fn totals(number: u32, counts: EndpointCounts) -> EndpointTotals {
        EndpointTotals { number, counts, rest_millis: None, last_failure: None }
    }

    fn two() -> Accounts {
        Accounts::new(vec!["mirror.test".into(), "registry.test".into()])
    }

    fn requests(accounts: &Accounts) -> Vec<u64> {
        accounts.shown().iter().map(|account| account.counts.requests).collect()
    }

    #[test]
    fn counts_of_all_processes_are_added_up() {
        let mut accounts = two();
        accounts.report(vec![totals(0, counts(2)), totals(1, counts(5))]);
        accounts.report(vec![totals(1, counts(4))]);
        assert_eq!(requests(&accounts), [2, 5], "an older report");
        accounts.begin_process();
        assert_eq!(requests(&accounts), [2, 5], "nothing is lost with a process");
        accounts.report(vec![totals(0, counts(1))]);
        assert_eq!(requests(&accounts), [3, 5]);
        assert_eq!(accounts.shown()[0].counts, counts(3));
        assert_eq!(accounts.shown()[1].host, "registry.test");
    }

    #[test]
    fn a_rest_ends_with_its_process_and_the_last_failure_stays() {
        let mut accounts = two();
        let failed = EndpointCounts { failures: 1, ..counts(1) };
        let rests = EndpointTotals {
            rest_millis: Some(60_000),
            last_failure: Some("502\n\u{1b}[31m".into()),
            ..totals(0, failed)
        };
        accounts.report(vec![rests]);
        accounts.report(vec![totals(0, counts(1))]);
        let mirror = &accounts.shown()[0];
        assert!(mirror.rest.is_some_and(|rest| rest > Duration::from_secs(30)), "{mirror:?}");
        assert_eq!(mirror.last_failure.as_deref(), Some("502  [31m"));
        accounts.begin_process();
        let mirror = &accounts.shown()[0];
        assert_eq!((mirror.rest, mirror.last_failure.is_some(), mirror.counts.failures), (None, true, 1));
    }

    #[test]
    fn a_hostile_report_has_no_effect_beyond_its_own_numbers() {
        let mut accounts = two();
        let highest = EndpointCounts { requests: u64::MAX, bytes: u64::MAX, wait_millis: u64::MAX, failures: u64::MAX };
        let report = |number| EndpointTotals {
            rest_millis: Some(u64::MAX),
            last_failure: Some("ü".repeat(5_000)),
            ..totals(number, highest)
        };
        for _ in 0..3 {
            accounts.report([0, 2, u32::MAX].map(report).into());
            accounts.begin_process();
        }
        accounts.report(vec![report(0)]);
        let shown = accounts.shown();
        assert_eq!((shown.len(), shown[0].counts, shown[1].counts), (2, highest, EndpointCounts::default()));
        assert!(shown[0].rest <= Some(LONGEST_REST));
        assert!(shown[0].last_failure.as_ref().is_some_and(|text| text.chars().count() <= 300));
    }
}
