//! The S3 servers that `.ci/s3-server` installs.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::{http, paths};

/// The bucket.
pub(super) const NAME: &str = "tarpon";

pub(super) const ACCESS_KEY: &str = "tarpon";
pub(super) const SECRET_KEY: &str = "tarpon-secret";
pub(super) const REGION: &str = "us-east-1";

/// Serves moto. Standard input controls it.
const MOTO: &str = include_str!("moto.py");

/// Bytes that versitygw reads from a file at once: what the client of tarpon asks for mostly. With its default, a megabyte, it
/// answers half as many requests for 64 KiB per second.
const READ_SIZE: &str = "65536";

/// A program that speaks the protocol of S3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// versitygw, whose installation needs Go. It is fast and keeps its objects on the disk. If it refuses a request of which it has
    /// more than 256 KiB to read, it closes the connection, and the client may get an error instead of the answer. It cannot have an
    /// object whose key is also a folder of another key.
    Versitygw,
    /// moto, whose installation and run need Python. It is slow, keeps its objects in memory, checks no signatures, and reads a whole
    /// object for each range of it: about 20 times per second if the object has 64 MiB.
    Moto,
}

impl Server {
    /// The servers that are installed, the fastest first.
    pub fn installed() -> Vec<Self> {
        [Self::Versitygw, Self::Moto].into_iter().filter(|server| server.program().exists()).collect()
    }

    /// Whether a stop ends the process. Otherwise the process closes its port, and keeps what it has in memory.
    pub(super) fn keeps_objects_on_disk(self) -> bool {
        self == Self::Versitygw
    }

    /// Starts it with all its files in the folder. It does not listen yet.
    pub(super) fn spawn(self, address: SocketAddr, folder: &Path) -> Result<Child> {
        let program = self.program();
        let mut server = Command::new(&program);
        match self {
            Self::Versitygw => {
                // Real S3 keeps connections open, versitygw only if it is asked to.
                server.args(["--quiet", "--keep-alive", "--region", REGION, "--port", &address.to_string()]);
                server.args(["posix", "--io-buffer-size", READ_SIZE]).arg(data(folder));
                server.env_clear().env("ROOT_ACCESS_KEY", ACCESS_KEY).env("ROOT_SECRET_KEY", SECRET_KEY);
                server.stdin(Stdio::null());
            }
            Self::Moto => {
                // Without the libraries of the machine, which may have other versions.
                server.args(["-I", "-S", "-c", MOTO]).arg(installation().join("moto"));
                server.args([address.ip().to_string(), address.port().to_string()]);
                server.env_clear().env("TMPDIR", folder);
                server.stdin(Stdio::piped());
            }
        }
        let log = File::options().create(true).append(true).open(log(folder));
        let log = log.with_context(|| format!("cannot write a log in {}", folder.display()))?;
        server.stdout(log.try_clone()?).stderr(log);
        server.spawn().with_context(|| format!("cannot start {}", program.display()))
    }

    /// What the bucket needs before the first start.
    pub(super) fn before_first_start(self, folder: &Path) -> Result<()> {
        if self == Self::Versitygw {
            // Its buckets are folders.
            let bucket = data(folder).join(NAME);
            fs::create_dir_all(&bucket).with_context(|| format!("cannot create {}", bucket.display()))?;
        }
        Ok(())
    }

    /// What the bucket needs after the first start.
    pub(super) fn after_first_start(self, address: SocketAddr) -> Result<()> {
        if self == Self::Moto {
            // It accepts requests without a signature.
            let status = http::request(&address.to_string(), "PUT", &format!("/{NAME}"), "", b"")?.status;
            ensure!(status == 200, "moto at {address} does not create a bucket: status {status}");
        }
        Ok(())
    }

    /// The program to start. It exists if the server is installed completely.
    fn program(self) -> PathBuf {
        installation().join(match self {
            Self::Versitygw => "versitygw",
            // A link to the Python that it was installed for.
            Self::Moto => "moto/python",
        })
    }
}

/// The file with what a server prints.
pub(super) fn log(folder: &Path) -> PathBuf {
    folder.join("server.log")
}

fn data(folder: &Path) -> PathBuf {
    folder.join("objects")
}

/// Where `.ci/s3-server` installs.
fn installation() -> PathBuf {
    paths::target().join("s3-server")
}
