//! The socket that containerd connects to, and telling systemd that it is there.

use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::Path;

use tokio::net::UnixListener;

/// Listens at `address`, for root alone. What a dead process left there goes.
///
/// # Errors
/// Somebody answers there, or something else than a socket is there.
pub(crate) fn listen(address: &Path) -> io::Result<UnixListener> {
    let folder = address.parent().ok_or(io::ErrorKind::InvalidInput)?;
    // Others may look into it, as into `/run`, and the daemon's socket is there too; the sockets are closed to them.
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    match std::fs::symlink_metadata(address) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::other("something else than a socket is there"));
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(address).is_ok() => {
            return Err(io::Error::other("somebody else answers there"));
        }
        _ => {}
    }
    // Nobody may connect before the mode is right: it has its name only then.
    let name = address.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let new = folder.join(format!(".{name}.{}", std::process::id()));
    let listener = UnixListener::bind(&new)?;
    let placed = std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600))
        .and_then(|()| std::fs::rename(&new, address));
    if let Err(error) = placed {
        let _gone = std::fs::remove_file(&new);
        return Err(error);
    }
    Ok(listener)
}

/// Tells systemd, if it started this process as `Type=notify`.
pub(crate) fn notify_ready() {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let told = std::os::unix::net::UnixDatagram::unbound().and_then(|socket| socket.send_to(b"READY=1", &address));
    if let Err(error) = told {
        tracing::warn!(%error, "systemd is not told that the snapshotter is ready");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dead_socket_is_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let address = folder.path().join("made/tarpon.sock");
        let first = listen(&address).unwrap();
        assert_eq!(std::fs::metadata(&address).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(address.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o755);
        assert!(listen(&address).unwrap_err().to_string().contains("somebody else"));
        drop(first);
        let _second = listen(&address).unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert!(listen(&folder.path().join("file")).is_err());
        let left: Vec<_> =
            address.parent().unwrap().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["tarpon.sock"]);
    }
}
