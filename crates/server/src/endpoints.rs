//! [`ImageEndpoints`]: which hosts serve an image, and what they were asked for.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tarpon_client::protocol::{EndpointKind, EndpointStatus};
use tarpon_images::sources::OpenedImage;
use tarpon_registry::{EndpointAccount, EndpointCounts};

/// Most endpoints of earlier servers that are kept for an image, of those that it has no more.
const FORMER: usize = 32;

/// What was counted for an endpoint of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndpointSum {
    pub(crate) endpoint: String,
    pub(crate) kind: EndpointKind,
    pub(crate) counts: EndpointCounts,
}

/// The endpoints of a loaded image.
pub(crate) struct ImageEndpoints {
    repository: Arc<dyn OpenedImage>,
    /// The index repository that has its boot pack.
    pack_repository: Option<Arc<dyn OpenedImage>>,
    /// What earlier servers counted.
    earlier: Vec<EndpointSum>,
}

impl ImageEndpoints {
    pub(crate) fn new(
        repository: Arc<dyn OpenedImage>,
        pack_repository: Option<Arc<dyn OpenedImage>>,
        earlier: Vec<EndpointSum>,
    ) -> Self {
        Self { repository, pack_repository, earlier }
    }

    /// Each endpoint, in the order in which they are asked, with what this server counted.
    pub(crate) fn accounts(&self) -> Vec<(EndpointKind, EndpointAccount)> {
        let mut accounts = with_kinds(&*self.repository, EndpointKind::Mirror, EndpointKind::Registry);
        if let Some(repository) = &self.pack_repository {
            accounts.extend(with_kinds(&**repository, EndpointKind::IndexMirror, EndpointKind::Index));
        }
        accounts
    }

    /// As [`ImageEndpoints::accounts`], with what earlier servers counted. Endpoints of theirs that the image has no more are last.
    pub(crate) fn status(&self) -> Vec<EndpointStatus> {
        let mut earlier = self.earlier.clone();
        let mut take = |host: &str, kind: EndpointKind| {
            let place = earlier.iter().position(|sum| sum.endpoint == host && sum.kind == kind)?;
            Some(earlier.remove(place).counts)
        };
        let status = |(kind, account): (EndpointKind, EndpointAccount)| {
            let EndpointAccount { host, counts, rest, last_failure } = account;
            let counts = take(&host, kind).map_or(counts, |earlier| earlier.plus(counts));
            let rest_millis = rest.map(|rest| u64::try_from(rest.as_millis()).unwrap_or(u64::MAX));
            EndpointStatus { rest_millis, last_failure, ..shown(host, kind, counts) }
        };
        let mut all: Vec<_> = self.accounts().into_iter().map(status).collect();
        all.extend(earlier.into_iter().map(|EndpointSum { endpoint, kind, counts }| shown(endpoint, kind, counts)));
        all
    }

    /// What is kept for the next server.
    pub(crate) fn sums(&self) -> Vec<EndpointSum> {
        let accounts = self.accounts().into_iter();
        let now = accounts.map(|(kind, EndpointAccount { host: endpoint, counts, .. })| EndpointSum {
            endpoint,
            kind,
            counts,
        });
        added_up(now.chain(self.earlier.iter().cloned()))
    }
}

/// The sum of each endpoint. Those without requests are left out.
pub(crate) fn added_up(sums: impl Iterator<Item = EndpointSum>) -> Vec<EndpointSum> {
    let mut all: Vec<EndpointSum> = Vec::new();
    for sum in sums.filter(|sum| !sum.counts.is_zero()) {
        if let Some(known) = all.iter_mut().find(|known| known.endpoint == sum.endpoint && known.kind == sum.kind) {
            known.counts = known.counts.plus(sum.counts);
        } else if all.len() < FORMER {
            all.push(sum);
        }
    }
    all
}

fn with_kinds(
    image: &dyn OpenedImage,
    mirror: EndpointKind,
    registry: EndpointKind,
) -> Vec<(EndpointKind, EndpointAccount)> {
    let accounts = image.accounts();
    let last = accounts.len().saturating_sub(1);
    let kind = |number| match number {
        0 if image.has_tier() => EndpointKind::Tier,
        number if number == last => registry,
        _ => mirror,
    };
    accounts.into_iter().enumerate().map(|(number, account)| (kind(number), account)).collect()
}

fn shown(endpoint: String, kind: EndpointKind, counts: EndpointCounts) -> EndpointStatus {
    let EndpointCounts { requests, bytes, wait_millis, failures } = counts;
    EndpointStatus { endpoint, kind, requests, bytes, wait_millis, failures, rest_millis: None, last_failure: None }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use futures::future::BoxFuture;
    use parking_lot::Mutex;
    use tarpon_blob::BlobSource;
    use tarpon_registry::{Credentials, Stats};

    use super::*;

    /// An image whose endpoints have these accounts.
    #[derive(Default)]
    pub(crate) struct Accounted(pub(crate) Mutex<Vec<EndpointAccount>>);

    impl OpenedImage for Accounted {
        fn get_ready(&self) -> BoxFuture<'static, ()> {
            Box::pin(std::future::ready(()))
        }

        fn blobs(&self) -> Arc<dyn BlobSource> {
            unreachable!("nothing is read")
        }

        fn stats(&self) -> Stats {
            Stats::default()
        }

        fn accounts(&self) -> Vec<EndpointAccount> {
            self.0.lock().clone()
        }

        fn ignores_ranges(&self) -> bool {
            false
        }

        fn replace_credentials(&self, _: Credentials) {}
    }

    pub(crate) fn account(host: &str, requests: u64) -> EndpointAccount {
        let counts = EndpointCounts { requests, bytes: requests.saturating_mul(100), ..EndpointCounts::default() };
        EndpointAccount { host: host.to_owned(), counts, ..EndpointAccount::default() }
    }

    pub(crate) fn opened(accounts: Vec<EndpointAccount>) -> Arc<Accounted> {
        Arc::new(Accounted(accounts.into()))
    }

    fn shown_of(endpoints: &ImageEndpoints) -> Vec<(String, EndpointKind, u64)> {
        endpoints.status().into_iter().map(|shown| (shown.endpoint, shown.kind, shown.requests)).collect()
    }

    #[test]
    fn the_registry_is_the_last_endpoint_of_an_image_and_those_of_its_pack_are_others() {
        let rests = EndpointAccount { rest: Some(Duration::from_millis(7)), ..account("m", 1) };
        let image = opened(vec![rests, account("r", 2)]);
        let pack = opened(vec![account("r", 5)]);
        let endpoints = ImageEndpoints::new(image, Some(pack), Vec::new());
        let expected =
            [("m", EndpointKind::Mirror, 1), ("r", EndpointKind::Registry, 2), ("r", EndpointKind::Index, 5)];
        assert_eq!(shown_of(&endpoints), expected.map(|(host, kind, requests)| (host.to_owned(), kind, requests)));
        assert_eq!(endpoints.status()[0].rest_millis, Some(7));
    }

    #[test]
    fn counts_of_earlier_servers_are_added_also_for_endpoints_that_the_image_has_no_more() {
        let before = ImageEndpoints::new(opened(vec![account("old", 3), account("r", 4)]), None, Vec::new());
        let image = opened(vec![account("new", 0), account("r", 1)]);
        let endpoints = ImageEndpoints::new(image, None, before.sums());
        let expected =
            [("new", EndpointKind::Mirror, 0), ("r", EndpointKind::Registry, 5), ("old", EndpointKind::Mirror, 3)];
        assert_eq!(shown_of(&endpoints), expected.map(|(host, kind, requests)| (host.to_owned(), kind, requests)));
        let next = ImageEndpoints::new(opened(vec![account("r", 1)]), None, endpoints.sums());
        assert_eq!(shown_of(&next)[0].2, 6);
    }

    #[test]
    fn what_is_kept_of_an_image_is_bounded() {
        let sum = |number: u64| EndpointSum {
            endpoint: number.to_string(),
            kind: EndpointKind::Mirror,
            counts: account("", u64::MAX / 2).counts,
        };
        let sums = added_up((0..1_000).chain(0..1_000).chain(0..1_000).map(sum));
        assert_eq!(sums.len(), FORMER);
        assert!(sums.iter().all(|sum| sum.counts.requests == u64::MAX));
    }
}
