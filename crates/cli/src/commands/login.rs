//! `tarpon login` and `tarpon logout`.

use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use tarpon_engine::{Credentials, Login as Request, StoredIn, log_out, log_out_of_all, logged_in};

use super::options::path;
use super::session::command_runtime;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, escape};
use crate::signals::end_on_termination;
use crate::terminal::Silent;

/// Maximum size of a password in bytes: a token of a registry has a few KiB.
const PASSWORD_BYTES: u64 = 64 << 10;

const LOGIN_EXAMPLES: &str = "\
Examples:
  tarpon login registry.example                                 ask for user and password
  tarpon login -u alice --password-stdin registry.example < file
  tarpon login --get-login registry.example";

/// Store a user name and password for a registry, after a check at the registry
///
/// They are stored in the file that Podman, Buildah and Skopeo use, or in the credential helper that this file names.
#[derive(Debug, Args)]
#[command(after_help = LOGIN_EXAMPLES)]
pub(crate) struct Login {
    /// User name [default: from the terminal]
    #[arg(short, long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    username: Option<String>,
    /// Read the password from standard input instead of the terminal
    #[arg(long, requires = "username")]
    password_stdin: bool,
    /// Print the user that is logged in, and exit with 3 if none is
    #[arg(long, conflicts_with_all = ["username", "password_stdin"])]
    get_login: bool,
    /// Auth file [default: $REGISTRY_AUTH_FILE, else containers/auth.json in $XDG_RUNTIME_DIR or /run]
    #[arg(long, value_name = "FILE", value_parser = path())]
    authfile: Option<PathBuf>,
    /// Directory with *.crt, *.cert and *.key files for the registry
    #[arg(long, value_name = "DIR", value_parser = path())]
    cert_dir: Option<PathBuf>,
    /// Whether to check the registry's certificate; false also allows plain HTTP
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1)]
    #[arg(require_equals = true, action = clap::ArgAction::Set)]
    tls_verify: bool,
    /// Registry, for example registry.example:5000 or docker.io
    registry: String,
}

const LOGOUT_EXAMPLES: &str = "\
Examples:
  tarpon logout registry.example
  tarpon logout --all";

/// Remove the stored user name and password of a registry
#[derive(Debug, Args)]
#[command(after_help = LOGOUT_EXAMPLES)]
pub(crate) struct Logout {
    /// Remove those of all registries
    #[arg(short, long, conflicts_with = "registry", required_unless_present = "registry")]
    all: bool,
    /// Auth file [default: $REGISTRY_AUTH_FILE, else containers/auth.json in $XDG_RUNTIME_DIR or /run]
    #[arg(long, value_name = "FILE", value_parser = path())]
    authfile: Option<PathBuf>,
    /// Registry
    registry: Option<String>,
}

impl Login {
    pub(crate) fn run(self, global: &Global) -> Result {
        let registry = escape(self.registry.as_bytes());
        let runtime = command_runtime()?;
        if self.get_login {
            let found = runtime.block_on(logged_in(&self.registry, self.authfile.as_deref()));
            return match found.doing(|| format!("cannot look for a login to {registry}"))? {
                Some((user, _)) => output::text(&format!("{}\n", escape(user.as_bytes()))),
                None => Err(Failure::new(Exit::NotFound, format_args!("not logged in to {registry}"))),
            };
        }
        let doing = || format!("cannot log in to {registry}");
        let user = match &self.username {
            Some(user) => user.clone(),
            None => ask("Username: ", Echo::On).doing(doing)?,
        };
        let password = match self.password_stdin {
            true => from_stdin().doing(doing)?,
            false => ask("Password: ", Echo::Off).doing(doing)?,
        };
        if user.contains(':') {
            return Err(Failure::new(Exit::Usage, format_args!("{}: a user name contains no colon", doing())));
        }
        let request = Request {
            registry: self.registry.clone(),
            credentials: Credentials::from_pair(&user, &password),
            authfile: self.authfile,
            cert_dir: self.cert_dir,
            tls_verify: self.tls_verify,
        };
        let (file, stored) = runtime.block_on(request.log_in()).doing(doing)?;
        if !global.quiet {
            let place = match stored {
                StoredIn::File => escape(file.as_os_str().as_encoded_bytes()),
                StoredIn::Helper(name) => format!("docker-credential-{}", escape(name.as_bytes())),
            };
            output::note(&format!("logged in to {registry}; the password is in {place}"));
        }
        Ok(())
    }
}

impl Logout {
    pub(crate) fn run(self, global: &Global) -> Result {
        let (runtime, authfile) = (command_runtime()?, self.authfile.as_deref());
        let Some(registry) = self.registry.as_deref() else {
            let file = runtime.block_on(log_out_of_all(authfile)).doing(|| "cannot log out")?;
            if !global.quiet {
                let file = escape(file.as_os_str().as_encoded_bytes());
                output::note(&format!("removed the passwords of all registries from {file}"));
            }
            return Ok(());
        };
        let shown = escape(registry.as_bytes());
        let removed = runtime.block_on(log_out(registry, authfile));
        let removed = removed.doing(|| format!("cannot log out of {shown}"))?;
        let other = runtime.block_on(logged_in(registry, authfile)).ok().flatten();
        match (removed, other) {
            (_, Some((_, file))) => {
                let file = escape(file.as_os_str().as_encoded_bytes());
                let why = format!("{file} still has a password for {shown}");
                Err(Failure::new(Exit::Failure, why).hint(format!("tarpon logout --authfile {file} {shown}")))
            }
            (None, None) => Err(Failure::new(Exit::NotFound, format_args!("not logged in to {shown}"))),
            (Some(_), None) => {
                if !global.quiet {
                    output::note(&format!("logged out of {shown}"));
                }
                Ok(())
            }
        }
    }
}

/// Whether the terminal shows what the user types.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Echo {
    On,
    Off,
}

/// A line from the terminal.
fn ask(prompt: &str, echo: Echo) -> io::Result<String> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        let why = "standard input is no terminal: use --username and --password-stdin";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    if echo == Echo::Off {
        end_on_termination();
    }
    let silent = (echo == Echo::Off).then(Silent::new).transpose()?;
    io::stderr().write_all(prompt.as_bytes())?;
    let mut line = String::new();
    let read = stdin.read_line(&mut line);
    if let Some(silent) = silent {
        drop(silent);
        // The terminal did not show the end of the line either.
        io::stderr().write_all(b"\n")?;
    }
    if read? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// The password: the first line of standard input.
fn from_stdin() -> io::Result<String> {
    let mut text = String::new();
    io::stdin().lock().take(PASSWORD_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > PASSWORD_BYTES {
        return Err(io::Error::other(format!("the password has more than {PASSWORD_BYTES} bytes")));
    }
    let password = text.trim_end_matches(['\r', '\n']);
    match password.contains(['\r', '\n', '\0']) {
        true => Err(io::Error::other("the password has several lines")),
        false => Ok(password.to_owned()),
    }
}
