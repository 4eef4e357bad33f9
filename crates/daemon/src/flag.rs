//! Flags that are set once, and waited for.

use tokio::sync::watch;

/// Resolves when it is set, or nobody can set it any more.
pub(crate) async fn set(flag: &mut watch::Receiver<bool>) {
    let _set_or_gone = flag.wait_for(|is_set| *is_set).await;
}
