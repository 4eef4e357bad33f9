//! Trace files.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use tarpon_engine::trace::{FILE_BYTES, Trace};

use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, escape};

pub(in crate::commands) fn read(file: &Path) -> Result<Trace> {
    let doing = || format!("cannot read the trace {}", file.display());
    let opened = File::open(file).map_err(|error| {
        let exit = if error.kind() == ErrorKind::NotFound { Exit::NotFound } else { Exit::Failure };
        Failure::new(exit, format_args!("{}: {error}", doing()))
    })?;
    let mut bytes = Vec::new();
    // One byte more, to detect a file that is too large.
    opened.take(FILE_BYTES as u64 + 1).read_to_end(&mut bytes).doing(doing)?;
    Trace::read(&bytes).map_err(|error| Failure::new(Exit::Refused, format_args!("{}: {error}", doing())))
}

/// Replaces the file atomically: a concurrent reader sees the old or the new content.
pub(super) fn write(global: &Global, file: Option<&Path>, bytes: &[u8]) -> Result {
    let Some(file) = file else { return output::bytes(bytes) };
    let doing = || format!("cannot write {}", file.display());
    if std::fs::metadata(file).is_ok_and(|there| !there.is_file()) {
        // A pipe or a terminal must not be replaced.
        return std::fs::write(file, bytes).doing(doing);
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let new = tempfile::Builder::new().permissions(readable()).tempfile_in(folder);
    // The error's own text names the temporary file, which means nothing to the user.
    let mut new = new.map_err(|error| io::Error::from(error.kind())).doing(doing)?;
    new.write_all(bytes).doing(doing)?;
    new.persist(file).map_err(|error| error.error).doing(doing)?;
    if !global.quiet {
        output::note(&format!("wrote {}", escape(file.as_os_str().as_encoded_bytes())));
    }
    Ok(())
}

/// Read and write permission for all, reduced by the umask.
fn readable() -> std::fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    std::fs::Permissions::from_mode(0o666)
}
