//! Operations of an [`Engine`] on the containers of its store.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use tarpon_images::Prepared;
use tarpon_images::progress::Progress;

use crate::{Engine, Result};
use tarpon_client::ContainerName;
use tarpon_containers::{
    ContainerStatus, ExecRequest, LogLine, LogRequest, RecordRequest, Recorded, RunError, RunOutcome, RunRequest,
    Signals,
};

impl Engine {
    /// As [`Containers::run`](crate::Containers::run).
    pub async fn run(
        &self,
        request: &RunRequest,
        signals: &mut Signals,
        progress: &dyn Progress,
    ) -> std::result::Result<RunOutcome, RunError> {
        self.containers.run(request, signals, progress).await
    }

    /// As [`Containers::run_prepared`](crate::Containers::run_prepared).
    pub async fn run_prepared(
        &self,
        request: &RunRequest,
        prepared: Prepared,
        signals: &mut Signals,
    ) -> std::result::Result<RunOutcome, RunError> {
        self.containers.run_prepared(request, prepared, signals).await
    }

    /// As [`Containers::keep`](crate::Containers::keep).
    pub async fn keep(
        &self,
        name: &ContainerName,
        lock: OwnedFd,
        report: impl Write,
        signals: &mut Signals,
    ) -> std::result::Result<(), RunError> {
        self.containers.keep(name, lock, report, signals).await
    }

    /// As [`Containers::exec`](crate::Containers::exec).
    pub async fn exec(
        &self,
        name: &ContainerName,
        request: &ExecRequest,
        signals: &mut Signals,
    ) -> std::result::Result<u8, RunError> {
        self.containers.exec(name, request, signals).await
    }

    /// As [`Containers::list`](crate::Containers::list).
    pub fn containers(&self) -> Result<Vec<ContainerStatus>> {
        self.containers.list()
    }

    /// As [`Containers::named`](crate::Containers::named).
    pub fn container_named(&self, text: &ContainerName) -> Result<ContainerName> {
        self.containers.named(text)
    }

    /// As [`Containers::check_name`](crate::Containers::check_name).
    pub fn check_container_name(&self, name: &ContainerName) -> Result<()> {
        self.containers.check_name(name)
    }

    /// As [`Containers::stop`](crate::Containers::stop).
    pub fn stop_container(&self, name: &ContainerName, patience: Duration) -> Result<()> {
        self.containers.stop(name, patience)
    }

    /// As [`Containers::kill`](crate::Containers::kill).
    pub fn kill_container(&self, name: &ContainerName, signal: &str) -> Result<()> {
        self.containers.kill(name, signal)
    }

    /// As [`Containers::remove`](crate::Containers::remove).
    pub fn remove_container(&self, name: &ContainerName, force: bool) -> Result<()> {
        self.containers.remove(name, force)
    }

    /// As [`Containers::recover_networks`](crate::Containers::recover_networks).
    pub fn recover_networks(&self) -> Result<()> {
        self.containers.recover_networks()
    }

    /// As [`Containers::wait`](crate::Containers::wait).
    pub fn wait_container(&self, name: &ContainerName) -> Result<Option<u8>> {
        self.containers.wait(name)
    }

    /// As [`Containers::logs`](crate::Containers::logs).
    pub fn container_logs(
        &self,
        name: &ContainerName,
        request: &LogRequest,
        follow: Option<&dyn Fn() -> bool>,
        sink: &mut dyn FnMut(&LogLine<'_>) -> io::Result<()>,
    ) -> Result<()> {
        self.containers.logs(name, request, follow, sink)
    }

    /// As [`Containers::record`](crate::Containers::record).
    pub async fn record(
        &self,
        request: &RecordRequest,
        stopped: impl Future<Output = ()>,
        progress: &dyn Progress,
    ) -> Result<Recorded> {
        self.containers.record(request, stopped, progress).await
    }

    /// As [`Containers::record_prepared`](crate::Containers::record_prepared).
    pub async fn record_prepared(
        &self,
        request: &RecordRequest,
        prepared: Prepared,
        stopped: impl Future<Output = ()>,
    ) -> Result<Recorded> {
        self.containers.record_prepared(request, prepared, stopped).await
    }
}
