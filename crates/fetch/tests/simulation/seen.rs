//! What the runs went through: an invariant means nothing if nothing touches it.

use tarpon_fetch::Stats;

/// Mostly numbers of processes in which it occurred.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) deaths: u64,
    pub(crate) slow_disk: u64,
    predicted: u64,
    ahead: u64,
    whole: u64,
    lies: u64,
    poisoned: u64,
    distrusted: u64,
    refused_by_store: u64,
    failed_reads: u64,
    /// Reads that a prefetcher had begun to serve when they came.
    pub(crate) joined: u64,
    reads: u64,
}

impl Seen {
    pub(crate) fn add(&mut self, stats: &Stats) {
        self.predicted += u64::from(stats.bytes_trace > 0);
        self.ahead += u64::from(stats.bytes_ahead > 0);
        self.whole += u64::from(stats.bytes_whole > 0);
        self.lies += u64::from(stats.digest_failures > 0);
        self.poisoned += u64::from(stats.poisoned_objects > 0);
        self.distrusted += u64::from(stats.distrusted_layers > 0);
        self.refused_by_store += u64::from(stats.bypassed_chunks > 0);
        self.failed_reads += stats.failed_reads;
        self.reads += stats.reads;
    }

    /// Each kind of event occurred.
    pub(crate) fn is_complete(&self) -> bool {
        let Self { deaths, slow_disk, predicted, ahead, whole, lies, .. } = self;
        let Self { poisoned, distrusted, refused_by_store, failed_reads, joined, reads, .. } = self;
        [
            deaths,
            slow_disk,
            predicted,
            ahead,
            whole,
            lies,
            poisoned,
            distrusted,
            refused_by_store,
            failed_reads,
            joined,
            reads,
        ]
        .into_iter()
        .all(|count| *count > 0)
    }
}
