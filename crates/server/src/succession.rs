//! What a server does for its successor, and with what its predecessor left.

use std::path::Path;
use std::sync::Arc;

use tarpon_client::mount_record::SavedMount;
use tarpon_client::protocol::{MountRequest, Response};
use tarpon_images::Access;
use tarpon_mount::KernelMount;

use super::give_way::{GiveWay, starts};
use super::holding::credentials_of;
use super::host::cannot_mount;
use super::mount_table::{Baseline, MountTable, Served, spec};
use super::recording::Recording;
use crate::{Error, ErrorKind, Result, ResultExt};

impl MountTable {
    /// Serves a mount that a dead server left, without a change for its users. Its image, and those of all other mounts of that server,
    /// are loaded. `false`: it must be mounted again.
    pub(super) fn adopt(self: &Arc<Self>, request: MountRequest, was: &KernelMount) -> Result<bool> {
        let domain = self.domains.of(&request.image, &request.access)?;
        let image = domain.images.load(&request)?;
        let fetcher = domain.images.fetcher();
        let recording =
            request.record.then(|| Recording::continued(fetcher.clone(), &request.mountpoint, &self.holding));
        let place = self.reserve(&request.mountpoint)?;
        let before = Baseline::continuing(&image, domain.counters.take_mount(&request.mountpoint));
        let adopted = domain.host.adopt(&spec(&domain.store, &request, &image, recording.as_ref()), was);
        let Some(mounted) = adopted.map_err(cannot_mount)? else { return Ok(false) };
        SavedMount::new(&request).write_mounted(&mounted, &domain.store);
        self.keep_credentials(&request);
        if !request.record {
            self.runtime().spawn_blocking(image.continue_start(&request.command, request.learn));
        }
        self.settle(place, Served { request, domain, image, mounted, before, recording });
        Ok(true)
    }

    /// Keeps credentials of the command line for the next server; no record has them.
    pub(super) fn keep_credentials(&self, request: &MountRequest) {
        if let Some(creds) = &request.access.creds {
            self.holding.keep_state(&credentials_of(&request.mountpoint), creds.as_bytes());
        }
    }

    /// Uses the credentials of `access` for the image at `mountpoint` from now on.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if nothing is mounted there.
    pub(super) fn renew_credentials(&self, mountpoint: &Path, access: &Access) -> Result<()> {
        let step = "renew the credentials of a mount";
        let gone = || Error::new(ErrorKind::NotFound, step, format!("nothing is mounted at {}", mountpoint.display()));
        let served = self.places.mounted_at(mountpoint).ok_or_else(gone)?;
        let Some(creds) = &access.creds else { return Ok(()) };
        served.domain.images.renew_credentials(&served.image, access)?;
        self.holding.keep_state(&credentials_of(mountpoint), creds.as_bytes());
        if self.places.mounted_at(mountpoint).is_none() {
            // It was unmounted meanwhile, which has released the earlier ones.
            self.holding.release_state(&credentials_of(mountpoint));
        }
        Ok(())
    }

    /// Makes way for another server.
    ///
    /// # Errors
    /// [`ErrorKind::Other`] if this process is not a server in the background.
    pub(super) fn hand_over(&self, successor: Option<u32>) -> Result<()> {
        if self.succession.way() != Some(&GiveWay::End) || !self.holding.is_held() {
            return Err(stays("hand the mounts over"));
        }
        if !self.holding.hand_over(successor) {
            return Err(stays("hand the mounts over"));
        }
        self.succession.request();
        Ok(())
    }

    /// Names the way in which this server gives way to the program on disk. After [`Response::Upgrading`] it does so once that is sent.
    ///
    /// # Errors
    /// [`ErrorKind::Other`] if this process serves in the foreground, or the program does not start.
    pub(super) fn upgrade(&self) -> Result<Response> {
        let step = "upgrade the server";
        match self.succession.way().filter(|_| self.holding.is_complete()) {
            Some(GiveWay::End) => Ok(Response::Replaceable),
            Some(GiveWay::Execute(program)) => {
                let started = starts(program).map_err(|error| format!("{} does not start: {error}", program.display()));
                started.context(ErrorKind::Other, step)?;
                Ok(Response::Upgrading)
            }
            None => Err(stays(step)),
        }
    }
}

fn stays(step: &'static str) -> Error {
    let cause = format!(
        "process {} serves permanently or in the foreground, or has no holder that answers",
        std::process::id()
    );
    Error::new(ErrorKind::Other, step, cause).hint("stop and start it the way it was started")
}
