//! [`EndpointLedger`]: what the endpoints of all images were asked for, by host.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tarpon_registry::{EndpointAccount, EndpointCounts};

use crate::endpoints::ImageEndpoints;

/// Most hosts with counters of their own. A host has a few registries; names of images can name any number.
const HOSTS: usize = 200;
/// The name of all other hosts together.
const OTHERS: &str = "other";

/// The account of one host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HostAccount {
    pub(crate) counts: EndpointCounts,
    /// Images that do not ask it now, because it failed.
    pub(crate) resting: u64,
}

/// What the endpoints of all images were asked for.
#[derive(Default)]
pub(crate) struct EndpointLedger(Mutex<State>);

#[derive(Default)]
struct State {
    /// What was counted for images that are not loaded any more, and by earlier servers. It has all hosts that were ever shown, so that a
    /// host keeps its counters when there are many.
    gone: BTreeMap<String, EndpointCounts>,
    images: Vec<Arc<ImageEndpoints>>,
}

impl EndpointLedger {
    /// Continues what an earlier server counted.
    pub(super) fn continuing(hosts: BTreeMap<String, EndpointCounts>) -> Self {
        let mut gone = BTreeMap::new();
        for (host, counts) in hosts {
            add(&mut gone, &host, counts);
        }
        Self(Mutex::new(State { gone, images: Vec::new() }))
    }

    /// Counts what this image requests.
    pub(crate) fn add(&self, image: Arc<ImageEndpoints>) {
        self.0.lock().images.push(image);
    }

    /// All hosts that were asked for something.
    pub(crate) fn by_host(&self) -> BTreeMap<String, HostAccount> {
        let State { gone, images } = &mut *self.0.lock();
        images.retain(|image| {
            // No image has it any more, so its counters do not change.
            let is_gone = Arc::strong_count(image) == 1;
            if is_gone {
                image.accounts().into_iter().for_each(|(_, account)| add(gone, &account.host, account.counts));
            }
            !is_gone
        });
        let accounts = images.iter().flat_map(|image| image.accounts()).map(|(_, account)| account);
        // Mirrors that were never asked take no place among the hosts.
        let is_used = |account: &EndpointAccount| !account.counts.is_zero() || account.rest.is_some();
        let accounts: Vec<_> = accounts.filter(is_used).collect();
        let hosts: Vec<_> = accounts.iter().map(|account| claim_label(gone, &account.host).to_owned()).collect();
        let known =
            |(host, counts): (&String, &EndpointCounts)| (host.clone(), HostAccount { counts: *counts, resting: 0 });
        let mut all: BTreeMap<_, _> = gone.iter().map(known).collect();
        for (host, account) in hosts.into_iter().zip(accounts) {
            let shown = all.entry(host).or_default();
            shown.counts = shown.counts.plus(account.counts);
            shown.resting += u64::from(account.rest.is_some());
        }
        all
    }

    /// What is kept for the next server.
    pub(super) fn counts(&self) -> BTreeMap<String, EndpointCounts> {
        self.by_host().into_iter().map(|(host, account)| (host, account.counts)).collect()
    }
}

fn add(hosts: &mut BTreeMap<String, EndpointCounts>, host: &str, counts: EndpointCounts) {
    let label = claim_label(hosts, host).to_owned();
    let sum = hosts.entry(label).or_default();
    *sum = sum.plus(counts);
}

/// The name under which a host is counted. The first ones keep theirs.
fn claim_label<'a>(hosts: &mut BTreeMap<String, EndpointCounts>, host: &'a str) -> &'a str {
    if hosts.contains_key(host) {
        return host;
    }
    if hosts.len() >= HOSTS {
        return OTHERS;
    }
    hosts.insert(host.to_owned(), EndpointCounts::default());
    host
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::endpoints::tests::{Accounted, account, opened};

    fn requests(ledger: &EndpointLedger) -> Vec<(String, u64)> {
        ledger.by_host().into_iter().map(|(host, account)| (host, account.counts.requests)).collect()
    }

    fn image(accounted: &Arc<Accounted>) -> Arc<ImageEndpoints> {
        Arc::new(ImageEndpoints::new(accounted.clone(), None, Vec::new()))
    }

    #[test]
    fn a_host_has_the_sum_of_all_images_also_of_those_that_are_gone() {
        let ledger = EndpointLedger::default();
        let (one, other) = (opened(vec![account("m", 1), account("r", 2)]), opened(vec![account("r", 4)]));
        let (first, second) = (image(&one), image(&other));
        [&first, &second].into_iter().for_each(|image| ledger.add(image.clone()));
        let expected = [("m".to_owned(), 1), ("r".to_owned(), 6)];
        assert_eq!(requests(&ledger), expected);
        drop(first);
        assert_eq!(requests(&ledger), expected);
        assert_eq!(requests(&ledger), expected, "it is added once");
        *other.0.lock() = vec![account("r", 5)];
        assert_eq!(requests(&ledger)[1].1, 7);
        let next = EndpointLedger::continuing(ledger.counts());
        assert_eq!(requests(&next)[1].1, 7, "the next server goes on");
        drop(second);
    }

    #[test]
    fn images_that_do_not_ask_a_host_are_counted() {
        let ledger = EndpointLedger::default();
        let accounted = opened(vec![account("m", 1), account("r", 1)]);
        let loaded = [image(&accounted), image(&accounted)];
        loaded.iter().for_each(|image| ledger.add(image.clone()));
        assert_eq!(ledger.by_host()["m"].resting, 0);
        accounted.0.lock()[0].rest = Some(Duration::ZERO);
        assert_eq!((ledger.by_host()["m"].resting, ledger.by_host()["r"].resting), (2, 0));
    }

    #[test]
    fn the_first_hosts_keep_their_counters_and_all_others_share_some() {
        let ledger = EndpointLedger::default();
        let first = opened((0..HOSTS).map(|number| account(&format!("m{number}"), 1)).collect());
        let more = opened((0..50).map(|number| account(&format!("a{number}"), 1)).collect());
        let images = [image(&first), image(&more)];
        for image in &images {
            ledger.add(image.clone());
            ledger.by_host();
        }
        for ledger in [&ledger, &EndpointLedger::continuing(ledger.counts())] {
            let shown = ledger.by_host();
            assert_eq!((shown.len(), shown[OTHERS].counts.requests, shown["m7"].counts.requests), (HOSTS + 1, 50, 1));
        }
    }
}
