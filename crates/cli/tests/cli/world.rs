//! A test environment: a store, and a registry with good and bad images.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use tarpon_registry::serve::Contents;
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::{Image, Item, Layer};
use tarpon_testkit::registry::Auth;
use tarpon_testkit::server::TestServer;
use tokio::runtime::Runtime;

/// A store, a folder, and perhaps a registry. Dropping it removes everything.
pub(crate) struct World {
    /// Runs the registry.
    runtime: Option<Runtime>,
    fixture: Fixture,
}

impl World {
    /// A world without a registry.
    pub(crate) fn new() -> Self {
        Self { runtime: None, fixture: Fixture::new() }
    }

    /// A world with a registry that serves `contents`.
    pub(crate) fn serving(contents: Contents, auth: Auth) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let fixture = runtime.block_on(Fixture::with_registry(contents, auth));
        Self { runtime: Some(runtime), fixture }
    }

    /// Its registry.
    pub(crate) fn server(&self) -> &TestServer {
        self.fixture.registry()
    }

    /// A path in its folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.fixture.path(name)
    }

    /// Creates a directory in its folder.
    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir(&path).expect("a new directory");
        path
    }

    /// The command. In its arguments `TMP` stands for the folder and `HOST` for the registry.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tarpon"));
        let host = self.host().unwrap_or_default();
        let real = |argument: &&str| argument.replace("TMP", &self.tmp()).replace("HOST", &host);
        command.args(arguments.iter().map(real)).stdin(Stdio::null());
        command.env("TARPON_STORE", self.path("store")).env("COLUMNS", "100");
        // The tests must not see the settings of the user who runs them.
        for variable in [
            "TARPON_ENDPOINTS",
            "TARPON_INDEX",
            "TARPON_INDEX_REPO",
            "TARPON_ISOLATION",
            "TARPON_LEARN",
            "TARPON_LEARN_AFTER",
            "TARPON_NO_LEARN",
            "TARPON_RUNTIME",
            "TARPON_LOCK",
            "XDG_CONFIG_HOME",
            "TARPON_BACKFILL",
            "TARPON_METRICS",
            "TARPON_SCRUB",
            "TARPON_TIER",
            "REGISTRY_AUTH_FILE",
            "DOCKER_CONFIG",
            "XDG_RUNTIME_DIR",
            "RUST_LOG",
            "HTTP_PROXY",
            "HTTPS_PROXY",
        ] {
            command.env_remove(variable).env_remove(variable.to_lowercase());
        }
        command.env("HOME", self.fixture.folder());
        command
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the command runs")
    }

    /// Output of the command, which must succeed.
    pub(crate) fn stdout(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        self.neutral(&output.stdout)
    }

    /// One run as a user sees it: the command line, the exit code and standard error.
    pub(crate) fn transcript(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let code = output.status.code().expect("it was not killed");
        let stdout = if code == 0 { self.neutral(&output.stdout) } else { String::new() };
        format!("$ tarpon {}\n{stdout}{}exit {code}\n", arguments.join(" "), self.neutral(&output.stderr))
    }

    /// Text without the parts that differ from run to run.
    fn neutral(&self, bytes: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(bytes).replace(&self.tmp(), "TMP");
        if let Some(host) = self.host() {
            text = text.replace(&host, "HOST");
        }
        text
    }

    fn tmp(&self) -> String {
        self.fixture.folder().display().to_string()
    }

    fn host(&self) -> Option<String> {
        self.runtime.as_ref().map(|_| self.server().host())
    }

    /// Checks that nothing is mounted, and that the store has no image or part of one.
    pub(crate) fn assert_untouched(&self) {
        assert_eq!(self.stdout(&["status"]), "nothing is mounted\n");
        let usage: serde_json::Value = serde_json::from_str(&self.stdout(&["cache", "usage", "--json"])).expect("JSON");
        assert_eq!(usage["images"], 0, "an image was left: {usage}");
        assert_eq!(usage["leftover_bytes"], 0, "something was left: {usage}");
    }
}

/// An image of one plain layer.
pub(crate) fn small_image() -> Image {
    Image::of([Layer::gzip(&[Item::directory("etc"), Item::file("etc/hello", "hello\n")])])
}
