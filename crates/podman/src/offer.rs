//! Preparing an image whose layers Podman requests, in a separate process that the server starts, to keep that memory and time out of the
//! server. It reads one line of JSON and writes one.

use std::ffi::OsString;
use std::io::{self, BufRead, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tarpon_client::child::read_line;
use tarpon_images::Access;
use tarpon_images::progress::Silent;
use tarpon_images::{ImageRequest, Images, IndexChoice, PolicyChoice, Pull};
use tarpon_oci::{Digest, Platform, Reference, Source};

use super::forms::keep_forms;
use crate::{ErrorKind, Result, ResultExt};

/// Maximum length of an input line.
const LINE_BYTES: u64 = 1 << 20;

/// The request.
#[derive(Debug, Serialize, Deserialize)]
struct Ask {
    image: String,
    access: Access,
    /// The policy of `access`, which does not serialise it.
    #[serde(default)]
    policy: PolicyChoice,
}

impl Ask {
    fn new(image: &Reference, access: &Access) -> Self {
        Self { image: image.to_string(), access: access.clone(), policy: access.policy.clone() }
    }

    fn access(self) -> Access {
        Access { policy: self.policy, ..self.access }
    }
}

/// The response.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Offer {
    /// All layers can be shown.
    Ready {
        /// Digest of the image's manifest.
        manifest: Digest,
        /// Fallbacks to something slower.
        fallbacks: Vec<String>,
    },
    /// Podman has to pull it.
    Refused(String),
}

/// Prepares the image that `input` names, and writes the result.
pub async fn offer(images: &Images, input: impl Read, mut output: impl Write) -> Result<()> {
    let step = "answer the server";
    let mut line = String::new();
    io::BufReader::new(input.take(LINE_BYTES)).read_line(&mut line).context(ErrorKind::Other, step)?;
    let ask: Ask = serde_json::from_str(&line).map_err(io::Error::from).context(ErrorKind::Other, step)?;
    let offer = prepare(images, ask).await.unwrap_or_else(|error| Offer::Refused(error.to_string()));
    let mut line = serde_json::to_vec(&offer).map_err(io::Error::from).context(ErrorKind::Other, step)?;
    line.push(b'\n');
    output.write_all(&line).and_then(|()| output.flush()).context(ErrorKind::Other, step)
}

async fn prepare(images: &Images, ask: Ask) -> Result<Offer> {
    let source: Source = ask.image.parse().context(ErrorKind::NotFound, "read the name")?;
    let request = ImageRequest {
        // Resolved again: Podman has just requested it.
        pull: Pull::Always,
        // The content of a layer that Podman keeps must come from what the manifest pins.
        index: IndexChoice::None,
        ..ImageRequest::new(ask.image.clone(), source, Platform::host())
    };
    let request = ImageRequest { access: ask.access(), ..request };
    let prepared = images.prepare_without_streaming(&request, &Silent).await?;
    keep_forms(images, &request, &prepared.record, true, &Silent).await?;
    Ok(Offer::Ready { manifest: *prepared.manifest(), fallbacks: prepared.fallbacks })
}

/// Has another process prepare the image, until the deadline `until`.
pub(crate) fn ask(
    server_command: &[OsString],
    image: &Reference,
    access: &Access,
    until: Instant,
) -> io::Result<Offer> {
    let (program, arguments) = server_command.split_first().ok_or_else(|| io::Error::other("no program for it"))?;
    let mut command = Command::new(program);
    command.args(arguments).arg("--offer").current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = Ended(command.spawn()?);
    let mut line = serde_json::to_vec(&Ask::new(image, access))?;
    line.push(b'\n');
    // Shorter than a pipe's buffer, but for absurd paths.
    child.0.stdin.take().map_or(Ok(()), |mut input| input.write_all(&line))?;
    let output = child.0.stdout.take().ok_or_else(|| io::Error::other("no answer"))?;
    let line = read_line(output, until)?;
    if line.is_empty() {
        return Err(io::Error::other("the process that prepares it exited without output"));
    }
    Ok(serde_json::from_str(&line)?)
}

/// A child process that does not outlive the request.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _killed = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_process_that_prepares_an_image_applies_the_policy_of_the_settings() {
        let folder = tempfile::tempdir().unwrap();
        let policy = folder.path().join("strict.json");
        std::fs::write(&policy, r#"{"default":[{"type":"reject"}]}"#).unwrap();
        let access = Access { policy: PolicyChoice::File(policy.clone()), ..Access::default() };
        let images = Images::open(&folder.path().join("store")).unwrap();
        // A host that does not exist: the policy is checked before anything is requested.
        let image: Reference = "registry.invalid/app:1".parse().unwrap();
        let line = serde_json::to_vec(&Ask::new(&image, &access)).unwrap();
        let mut output = Vec::new();
        offer(&images, line.as_slice(), &mut output).await.unwrap();
        let Offer::Refused(why) = serde_json::from_slice(&output).unwrap() else { panic!("it is offered") };
        assert!(why.contains(policy.to_str().unwrap()) && why.contains("rejects"), "{why}");
    }
}
