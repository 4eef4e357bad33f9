//! The system's roots of trust, parsed once for all clients of this process: a server has several for each image.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

/// How long the roots are used for new clients before the files are read again: a distribution's update of its bundle is noticed soon, and
/// a server that opens hundreds of images reads it once. Existing clients keep what they have.
const FRESH: Duration = Duration::from_secs(60);

/// What was read of the system's files.
struct Bundle {
    certificates: Vec<CertificateDer<'static>>,
    /// No file was unreadable.
    is_whole: bool,
}

static CACHE: Mutex<Cache> = Mutex::new(Cache(None));

/// The roots, and when they were read.
struct Cache(Option<(Instant, Arc<RootCertStore>)>);

/// The system's roots.
pub(super) fn get() -> Arc<RootCertStore> {
    // Held while they are read: clients that are made at the same time read them once.
    CACHE.lock().get(Instant::now(), read)
}

impl Cache {
    fn get(&mut self, now: Instant, read: impl FnOnce() -> Bundle) -> Arc<RootCertStore> {
        if let Some((at, roots)) = &self.0
            && now.saturating_duration_since(*at) < FRESH
        {
            return roots.clone();
        }
        let bundle = read();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(bundle.certificates);
        // The files may just be replaced: then the next client reads them, and this one gets what is known.
        if !bundle.is_whole || roots.is_empty() {
            return self.0.as_ref().map_or_else(|| Arc::new(roots), |(_, known)| known.clone());
        }
        // Roots that did not change stay in memory once.
        let kept = self.0.take().filter(|(_, kept)| kept.roots == roots.roots);
        let roots = kept.map_or_else(|| Arc::new(roots), |(_, kept)| kept);
        self.0 = Some((now, roots.clone()));
        roots
    }
}

fn read() -> Bundle {
    let system = rustls_native_certs::load_native_certs();
    for error in &system.errors {
        tracing::debug!("system certificates: {error}");
    }
    Bundle { is_whole: system.errors.is_empty(), certificates: system.certs }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    /// A certificate of an authority.
    fn certificates() -> Vec<CertificateDer<'static>> {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tls/certs/ca.crt");
        vec![CertificateDer::from_pem_file(file).unwrap()]
    }

    fn whole(certificates: Vec<CertificateDer<'static>>) -> Bundle {
        Bundle { certificates, is_whole: true }
    }

    fn authority() -> Bundle {
        whole(certificates())
    }

    fn never() -> Bundle {
        panic!("they are read again")
    }

    #[test]
    fn roots_are_parsed_once_and_shared_until_the_system_has_others() {
        let (mut cache, now) = (Cache(None), Instant::now());
        let first = cache.get(now, authority);
        assert_eq!(first.len(), 1);
        assert!(Arc::ptr_eq(&first, &cache.get(now + FRESH / 2, never)));
        assert!(Arc::ptr_eq(&first, &cache.get(now + FRESH, authority)), "they did not change");
        let twice = || whole(certificates().into_iter().chain(certificates()).collect());
        assert!(Arc::ptr_eq(&first, &cache.get(now + FRESH, never)));
        assert_eq!(cache.get(now + FRESH * 2, twice).len(), 2, "a changed bundle is noticed");
    }

    #[test]
    fn a_bundle_that_is_just_being_replaced_is_read_again() {
        let (mut cache, now) = (Cache(None), Instant::now());
        assert!(cache.get(now, || whole(Vec::new())).is_empty());
        assert_eq!(cache.get(now, authority).len(), 1);
        let half = || Bundle { certificates: Vec::new(), is_whole: false };
        assert_eq!(cache.get(now + FRESH, half).len(), 1, "what is known is used meanwhile");
        assert_eq!(cache.get(now + FRESH, || whole(Vec::new())).len(), 1);
    }
}
