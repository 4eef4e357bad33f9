//! `tarpon record`: runs an image and records what its start reads, so that the next start can prefetch it.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use regex::bytes::Regex;
use serde::Serialize;
use tarpon_engine::trace::{FILE_BYTES, Trace};
use tarpon_engine::{
    BootPack, DEFAULT_PROFILE, Engine, HttpProbe, ImageIndexArtifact, Progress, RecordRequest, Recorded, SigningKey,
    TraceCoverage, Until, index_destination, shown_place,
};

use super::image::{ImageArgs, ImageName, image_name};
use super::session::{Session, command_runtime};
use super::sign::Signing;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, escape};
use crate::signals::Stop;
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon record -o start.trace python:3.12 -- python3 -c 'import json'
  tarpon trace plot start.trace -o start.svg          plot the reads over time

  tarpon record --push --until-http 8080/health registry.example/app:v1
  tarpon mount --index registry registry.example/app:v1 /mnt

  tarpon record --push --trace start.trace registry.example/app:v2
  tarpon record --push --from registry.example/app:v1 registry.example/app:v2

The last two create the packs of a new version without running it.

The container uses the network of this host, and its output goes to this terminal. If it fails,
or ends before it is ready, nothing is published and the command exits with 1; the message
contains the exit code of the container.";

/// Record what the start of an image reads
///
/// Runs the image's command, or COMMAND, on a mount that records every read, until it exits or is ready, and writes a trace of files and
/// times. With --push, the recorded bytes are published next to the image as a boot pack, in the order of first access, together with an
/// index of the image: clients that mount with that index stream them at once. Published packs of other profiles are kept.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("sign_by_key", |key| key.requires("push")))]
pub(crate) struct Record {
    /// Trace file to write
    #[arg(short, long, value_name = "FILE", required_unless_present = "push")]
    output: Option<PathBuf>,
    /// Publish index and boot pack in the first index repository (--index-repo), else in the image's repository, as a referrer of the image
    #[arg(long)]
    push: bool,
    /// Use this trace instead of running the image; may be repeated, one trace per profile
    #[arg(long, value_name = "FILE", conflicts_with_all = ["output", "until_port", "until_http", "until_log", "duration", "command", "env"])]
    trace: Vec<PathBuf>,
    /// Use the boot packs of this image instead of running the image: all of them, or that of --profile
    ///
    /// For a new version of an image: files that did not change are taken over.
    #[arg(long, value_name = "IMAGE", value_parser = image_name, requires = "push", conflicts_with_all = ["trace", "output", "until_port", "until_http", "until_log", "duration", "command", "env"])]
    from: Option<ImageName>,
    /// Stop recording when this port of this host accepts connections
    #[arg(long, value_name = "PORT", group = "end")]
    until_port: Option<u16>,
    /// Stop recording when an HTTP request to this port of this host is answered with success or a redirect
    #[arg(long, value_name = "PORT[/PATH]", group = "end")]
    until_http: Option<HttpProbe>,
    /// Stop recording when a line of output matches
    #[arg(long, value_name = "REGEX", group = "end")]
    until_log: Option<Regex>,
    /// Stop recording after this time
    #[arg(long = "for", value_name = "SECONDS", group = "end")]
    duration: Option<u32>,
    /// Fail if the start takes longer than this
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u32,
    /// Set an environment variable; may be repeated
    #[arg(short, long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// OCI runtime [default: crun or runc, whichever works]
    #[arg(long, value_name = "PROGRAM", env = "TARPON_RUNTIME")]
    runtime: Option<PathBuf>,
    /// Print the result as JSON; the output of the container then goes to standard error
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    signing: Signing,
    #[command(flatten)]
    image: ImageArgs,
    /// Command to run instead of the image's
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Serialize)]
struct Report<'a> {
    image: &'a str,
    profile: Option<&'a str>,
    touched_files: Option<usize>,
    touched_bytes: Option<u64>,
    ready_millis: Option<u128>,
    exit: Option<i32>,
    index: Option<&'a ImageIndexArtifact>,
    published: Option<&'a str>,
}

/// The results.
#[derive(Default)]
struct Done {
    recorded: Vec<Recorded>,
    published: Option<(ImageIndexArtifact, String)>,
}

impl Done {
    /// The exit code of the first container that failed.
    fn failure(&self) -> Option<i32> {
        self.recorded.iter().find_map(Recorded::failure)
    }
}

impl Record {
    pub(crate) fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let (runtime, progress) = (command_runtime()?, output::progress(global.quiet));
        let done = runtime.block_on(async {
            let mut stop = Stop::new().doing(|| "cannot listen for signals")?;
            let stopped = Cell::new(false);
            let asked = async {
                stop.asked().await;
                stopped.set(true);
            };
            let done = self.done(&session, asked, &*progress).await;
            if stopped.get() {
                Err(Failure::new(Exit::Interrupted, format_args!("{}: interrupted", self.doing())))
            } else {
                done
            }
        });
        // Unfinished computations are not needed any more.
        runtime.shutdown_background();
        drop(progress);
        let done = done?;
        self.report(global, &done)?;
        match done.failure() {
            None => Ok(()),
            Some(code) => {
                let cause = format!("the container failed with exit code {code}");
                Err(Failure::new(Exit::Failure, format_args!("{}: {cause}", self.doing())))
            }
        }
    }

    fn doing(&self) -> String {
        format!("cannot record {}", self.image.text())
    }

    async fn done(&self, session: &Session, asked: impl Future<Output = ()>, progress: &dyn Progress) -> Result<Done> {
        tokio::pin!(asked);
        let key = self.signing.key()?;
        if self.push {
            // Checked before minutes of work.
            index_destination(&self.image.request().doing(|| self.doing())?).doing(|| self.doing())?;
        }
        let recorded = match &self.from {
            Some(_) => Vec::new(),
            None if !self.trace.is_empty() => self.read_traces()?,
            None => {
                let request = self.recording().doing(|| self.doing())?;
                let recorded = session.engine().record(&request, &mut asked, progress).await.doing(|| self.doing())?;
                self.write(&recorded.trace)?;
                vec![recorded]
            }
        };
        let mut done = Done { recorded, published: None };
        if self.push && done.failure().is_none() {
            let traces: Vec<Trace> = done.recorded.iter().map(|recorded| recorded.trace.clone()).collect();
            tokio::select! {
                published = self.publish(session.engine(), &traces, key.as_ref(), progress) => {
                    done.published = Some(published.doing(|| self.doing())?);
                }
                () = asked => {}
            }
        }
        Ok(done)
    }

    async fn publish(
        &self,
        engine: &Engine,
        traces: &[Trace],
        key: Option<&SigningKey>,
        progress: &dyn Progress,
    ) -> tarpon_engine::Result<(ImageIndexArtifact, String)> {
        let request = self.image.request()?;
        let (place, _) = index_destination(&request)?;
        let made = match &self.from {
            Some(old) => {
                let old = old.clone().completed(&request.access.registries)?;
                engine.make_index_from(&request, &old.text, self.image.named_profile(), progress).await?
            }
            None => engine.make_index(&request, traces, progress).await?,
        };
        engine.publish_index(&made, &place, &request.access, key).await?;
        Ok((made, place.to_string()))
    }

    fn recording(&self) -> tarpon_engine::Result<RecordRequest> {
        let until = match (self.until_port, &self.until_http, &self.until_log, self.duration) {
            (Some(port), ..) => Until::Port(port),
            (_, Some(probe), ..) => Until::Http(probe.clone()),
            (_, _, Some(pattern), _) => Until::Log(pattern.clone()),
            (.., Some(seconds)) => Until::Elapsed(Duration::from_secs(seconds.into())),
            _ => Until::Exit,
        };
        let image = self.image.request()?;
        Ok(RecordRequest {
            profile: image.profile.clone().unwrap_or_else(|| DEFAULT_PROFILE.to_owned()),
            image,
            command: self.command.clone(),
            env: self.env.clone(),
            until,
            enough: Arc::default(),
            patience: Duration::from_secs(self.timeout.into()),
            runtime: self.runtime.clone(),
            to_stderr: self.json,
        })
    }

    fn read_traces(&self) -> Result<Vec<Recorded>> {
        let read = |file: &PathBuf| {
            let doing = || format!("cannot read the trace {}", file.display());
            let size = std::fs::metadata(file).doing(doing)?.len();
            if size > FILE_BYTES as u64 {
                return Err(Failure::new(
                    Exit::Refused,
                    format_args!("{}: the file has {size} bytes, more than {FILE_BYTES}", doing()),
                ));
            }
            let trace = Trace::read(&std::fs::read(file).doing(doing)?)
                .map_err(|error| Failure::new(Exit::Refused, format_args!("{}: {error}", doing())))?;
            Ok(Recorded { trace, exit: None })
        };
        self.trace.iter().map(read).collect()
    }

    fn write(&self, trace: &Trace) -> Result {
        let Some(file) = &self.output else { return Ok(()) };
        std::fs::write(file, trace.write()).doing(|| format!("cannot write {}", file.display()))
    }

    fn report(&self, global: &Global, done: &Done) -> Result {
        let (first, index) = (done.recorded.first(), done.published.as_ref().map(|(index, _)| index));
        let totals = first.map(|recorded| recorded.trace.totals());
        if self.json {
            return output::json(&Report {
                image: self.image.text(),
                profile: first.map(|recorded| recorded.trace.header.profile.as_str()),
                touched_files: totals.map(|totals| totals.files),
                touched_bytes: totals.map(|totals| totals.touched),
                ready_millis: first.and_then(|recorded| Some(recorded.trace.header.ready?.as_millis())),
                exit: first.and_then(|recorded| recorded.exit),
                index,
                published: done.published.as_ref().map(|(_, place)| place.as_str()),
            });
        }
        if global.quiet {
            return Ok(());
        }
        if let Some(totals) = totals {
            let (image, touched) = (escape(self.image.text().as_bytes()), size::human(totals.touched));
            output::note(&format!("the start of {image} reads {touched} in {} files", totals.files));
        }
        index.iter().flat_map(|index| &index.boots).for_each(|pack| output::note(&described(pack)));
        if let Some((_, place)) = &done.published {
            output::note(&format!("published to {}", escape(shown_place(place).as_bytes())));
        }
        Ok(())
    }
}

fn described(pack: &BootPack) -> String {
    let BootPack { profile, size, pieces, fit, .. } = pack;
    let (profile, size) = (escape(profile.as_bytes()), size::human(*size));
    let Some(TraceCoverage { files, bytes, kept_files, kept_bytes }) = fit else {
        return format!("kept boot pack {profile}: {size}");
    };
    let published = format!("published boot pack {profile}: {size} in {pieces} pieces");
    if kept_bytes == bytes {
        return published;
    }
    let (kept, all) = (size::human(*kept_bytes), size::human(*bytes));
    format!("{published}; this image contains {kept_files} of {files} recorded files, {kept} of {all}")
}
