//! Layers of a tier, as they are printed.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use tarpon_engine::LayerUse;
use tarpon_oci::Digest;

use crate::output::{self, Table};
use crate::size;

/// The precision of the last use.
pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);

/// A layer in a tier, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct Layer {
    digest: Digest,
    /// Null if only its index is there.
    blob_bytes: Option<u64>,
    index_bytes: u64,
    /// Seconds since 1970, within a day.
    last_used: u64,
}

impl From<&LayerUse> for Layer {
    fn from(layer: &LayerUse) -> Self {
        let since = layer.last_use.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            digest: layer.layer,
            blob_bytes: layer.blob_bytes,
            index_bytes: layer.index_bytes,
            last_used: since.as_secs(),
        }
    }
}

impl Layer {
    fn time(&self) -> String {
        output::listing::time(i64::try_from(self.last_used).unwrap_or(i64::MAX))
    }
}

/// Layers, one a line.
pub(super) fn list(layers: &[Layer]) -> String {
    let mut table = Table::new(&["LAYER", ">BLOB", ">INDEX", "LAST USED"]);
    for layer in layers {
        let blob = layer.blob_bytes.map_or_else(|| "-".to_owned(), size::human);
        let index = if layer.index_bytes == 0 { "-".to_owned() } else { size::human(layer.index_bytes) };
        table.row([layer.digest.to_string(), blob, index, layer.time()]);
    }
    table.to_string()
}

/// `1 copy`, `3 copies`.
pub(super) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
