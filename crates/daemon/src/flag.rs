//! Flags that are set once and can be awaited.

use tokio::sync::watch;

/// Resolves when the flag is set or its sender is dropped.
pub(crate) async fn set(flag: &mut watch::Receiver<bool>) {
    let _set_or_gone = flag.wait_for(|is_set| *is_set).await;
}
