//! The commands in README.md and docs/: each `console` block runs unchanged, or states why it cannot.
//!
//! A comment in the line before a block controls this: `<!-- not run: WHY -->`, or `<!-- each line by itself -->` for lines that do not
//! depend on each other. Images come from a registry on loopback, which replaces the registries in the commands.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tarpon_oci::Digest;
use tarpon_registry::serve::Contents;
use tarpon_testkit::kernel::can_mount;
use tarpon_testkit::layers::{Image, ImageBuilder, Item, Layer};
use tarpon_testkit::registry::Auth;

use crate::world::World;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Minimum length of the reason why a block is not run.
const LEAST_REASON: usize = 15;

/// A private place for everything that the commands write, which leaves nothing behind.
const AROUND: &str = r#"
for folder in /mnt /srv /etc/containers; do mkdir -p "$folder" && mount -t tmpfs none "$folder" || exit 99; done
trap 'tarpon --quiet umount --all' EXIT
cd "$HOME" || exit 99
. ./block
"#;

#[derive(Debug)]
struct Block {
    /// File and line.
    place: String,
    /// The comment in the line before the block.
    mark: Option<String>,
    commands: Vec<String>,
}

/// Languages of fenced blocks that hold commands.
const SHELLS: [&str; 5] = ["console", "sh", "bash", "shell", "shell-session"];
/// `tests/tests/daemon.rs` runs the `sh` blocks of this page as one script.
const SCRIPT: &str = "docs/api.md";

/// The pages, by their path in the repository.
fn pages() -> Vec<String> {
    let mut pages = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(str::to_owned).to_vec();
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(Path::new(ROOT).join(&folder)).expect("a readable directory") {
            let path = folder.join(entry.expect("readable").file_name());
            if Path::new(ROOT).join(&path).is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path.display().to_string());
            }
        }
    }
    pages.sort();
    pages
}

/// The opening lines of fenced blocks: line numbers from 0, and the language of the block.
fn fences(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let fences = text.lines().enumerate().filter_map(|(number, line)| Some((number, line.trim().strip_prefix("```")?)));
    // The first of two fences opens a block, the second closes it.
    fences.step_by(2)
}

fn blocks() -> Vec<Block> {
    let mut all = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(Path::new(ROOT).join(&page)).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        for (number, _) in fences(&text).filter(|(_, language)| *language == "console") {
            let mark =
                number.checked_sub(1).and_then(|before| lines[before].strip_prefix("<!-- ")?.strip_suffix(" -->"));
            let inside = lines[number + 1..].iter().take_while(|line| **line != "```");
            let commands = inside.filter(|line| !line.is_empty()).map(|line| command(line, &page, number)).collect();
            all.push(Block { place: format!("{page}:{}", number + 1), mark: mark.map(str::to_owned), commands });
        }
    }
    all
}

/// A line as typed, without the `$` of the shell.
fn command(line: &str, page: &str, block: usize) -> String {
    let typed = line.strip_prefix("# ").or_else(|| line.strip_prefix("$ "));
    typed.unwrap_or_else(|| panic!("{page}:{}: {line:?} begins with neither # nor $", block + 1)).to_owned()
}

/// Adds an image of this name for two architectures, with some lazy layers.
fn add_for_two(contents: &mut Contents, name: (&str, &str)) {
    let items = [
        Item::directory("etc"),
        Item::file("etc/os-release", format!("ID={}\n", name.0)),
        Item::file("etc/motd", "hello\n".repeat(2000)),
    ];
    let layers = [Layer::estargz(&items), Layer::gzip(&items)];
    let image = |architecture: &str| {
        let builder = ImageBuilder::new().layer(layers[0].clone()).layer(layers[1].clone());
        builder.architecture(architecture).build()
    };
    let entry = |architecture: &str, image: &Image| {
        let (digest, size) = (image.digest(), image.manifest.len());
        format!(
            r#"{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"{digest}","size":{size},"platform":{{"os":"linux","architecture":"{architecture}"}}}}"#
        )
    };
    let (host, other) = match std::env::consts::ARCH {
        "aarch64" => ("arm64", "amd64"),
        "x86_64" => ("amd64", "arm64"),
        other => (other, "arm64"),
    };
    let images = [(host, image(host)), (other, image(other))];
    for (_, image) in &images {
        image.add_to(contents, name.0, "one");
    }
    let entries: Vec<String> = images.iter().map(|(architecture, image)| entry(architecture, image)).collect();
    let index = format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{}]}}"#,
        entries.join(",")
    );
    contents.add_manifest(Some(name), tarpon_oci::media_type::OCI_INDEX, index);
}

/// The objects that the commands of a block refer to.
struct Place {
    world: World,
    index: String,
}

impl Place {
    fn new() -> Self {
        let mut contents = Contents::new();
        add_for_two(&mut contents, ("library/alpine", "3.20"));
        add_for_two(&mut contents, ("library/debian", "12"));
        add_for_two(&mut contents, ("app", "v1"));
        let world = World::serving(contents, Auth::Anonymous);
        std::fs::copy(format!("{ROOT}/fixtures/demo/image.tar"), world.path("app.tar")).expect("copied");
        let (manifest, object) = (Digest::of(b"manifest"), Digest::of(b"object"));
        let trace = format!(
            "{{\"tarpon-trace\":1,\"image\":\"debian:12\",\"manifest\":\"{manifest}\",\"profile\":\"default\",\"command\":[\"sh\"]}}\n\
             {{\"object\":\"{object}\",\"size\":4096,\"start\":0,\"end\":4096,\"micros\":900,\"path\":\"/bin/sh\",\"from\":\"demand\"}}\n"
        );
        std::fs::write(world.path("start.trace"), trace).expect("written");
        let made = world.stdout(&["--store", "TMP/other", "index", "--quiet", "--push", "--json", "HOST/app:v1"]);
        let made: serde_json::Value = serde_json::from_str(&made).expect("JSON");
        let index = made["index_digest"].as_str().expect("a digest").to_owned();
        Self { world, index }
    }

    /// The command with names of the reader's environment replaced by names of the test's.
    fn here(&self, command: &str) -> String {
        let host = self.world.server().host();
        // Only whole names are replaced.
        let words = command.split(' ').map(|word| match word {
            word if word.starts_with("docker.io/library/alpine") => word.replacen("docker.io", &host, 1),
            word if word.starts_with("alpine:3.20") || word.starts_with("debian:12") => {
                format!("{host}/library/{word}")
            }
            word => word.replace("registry.example/", &format!("{host}/")),
        });
        let words: Vec<String> = words.collect();
        let store = self.world.path("store").display().to_string();
        words
            .join(" ")
            .replace("sha256:…", &self.index)
            // Any port that is free.
            .replace("--metrics 9464", "--metrics 0")
            .replace("/var/lib/tarpon", &store)
    }

    /// Runs the commands in order, as root in a mount namespace of their own.
    fn run(&self, commands: &[String]) -> Result<(), String> {
        let program = Path::new(env!("CARGO_BIN_EXE_tarpon"));
        let path =
            format!("{}:{}", program.parent().expect("a folder").display(), std::env::var("PATH").unwrap_or_default());
        let script: Vec<String> = commands.iter().map(|command| self.here(command)).collect();
        std::fs::write(self.world.path("block"), script.join("\n") + "\n").expect("written");
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "sh", "-ec", AROUND]).stdin(Stdio::null());
        let environment = self.world.command(&[]);
        for (name, value) in environment.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let output = shell.env("PATH", path).output().map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(()),
            false => {
                Err(format!("{}\n{}\n{}", script.join("\n"), output.status, String::from_utf8_lossy(&output.stderr)))
            }
        }
    }
}

#[test]
fn every_block_names_its_language_and_commands_are_in_console_blocks() {
    for page in pages() {
        let text = std::fs::read_to_string(Path::new(ROOT).join(&page)).expect("text");
        for (number, language) in fences(&text) {
            let place = format!("{page}:{}", number + 1);
            assert!(!language.is_empty(), "{place}: name the language of the block, `text` for a drawing");
            let runs = language == "console" || (language == "sh" && page == SCRIPT);
            assert!(runs || !SHELLS.contains(&language), "{place}: write commands as a `console` block, which runs");
        }
    }
}

/// The help of the command, and all pages in one.
fn help_and_pages() -> (String, String) {
    let read = |page: String| std::fs::read_to_string(Path::new(ROOT).join(page)).expect("text");
    (World::new().stdout(&["--help"]), pages().into_iter().map(read).collect())
}

#[test]
fn every_command_is_on_some_page() {
    let (help, pages) = help_and_pages();
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands: Vec<&str> = commands.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.len() > 20, "{commands:?}");
    for command in commands {
        assert!(pages.contains(&format!("tarpon {command}")), "no page has `tarpon {command}`");
    }
}

#[test]
fn every_exit_code_of_the_help_is_on_its_page() {
    let page = std::fs::read_to_string(format!("{ROOT}/docs/exit-codes.md")).expect("text");
    let (help, _) = help_and_pages();
    let lines = help.lines().skip_while(|line| *line != "Exit codes:");
    let codes: Vec<u8> = lines.filter_map(|line| line.trim().split("  ").next()?.parse().ok()).collect();
    assert!(codes.len() > 10, "{codes:?}");
    for code in codes {
        assert!(page.contains(&format!("| {code} |")), "docs/exit-codes.md has no code {code}");
    }
}

#[test]
fn each_block_of_commands_runs_or_states_a_reason() {
    const HOW: [&str; 1] = ["each line by itself"];
    for Block { place, mark, commands } in blocks() {
        assert!(!commands.is_empty(), "{place} is empty");
        match mark.as_deref() {
            None => {}
            Some(mark) if HOW.contains(&mark) => {}
            Some(mark) => {
                let why = mark.strip_prefix("not run: ").unwrap_or_else(|| panic!("{place}: what does {mark:?} mean?"));
                assert!(why.len() >= LEAST_REASON, "{place}: {why:?} is no reason");
                let tests = why.split([' ', ',', ';']).filter(|word| word.starts_with("tests/"));
                tests.for_each(|test| assert!(Path::new(ROOT).join(test).is_file(), "{place}: there is no {test}"));
            }
        }
    }
}

#[test]
fn the_blocks_of_commands_work_unchanged() {
    if !can_mount() {
        return;
    }
    let mut ran = 0;
    for Block { place, mark, commands } in blocks() {
        let runs: Vec<&[String]> = match mark.as_deref() {
            None => vec![&commands],
            Some("each line by itself") => commands.chunks(1).collect(),
            Some(_) => continue,
        };
        for run in runs {
            let done = Place::new().run(run);
            assert!(done.is_ok(), "{place}: {}", done.unwrap_err());
            ran += run.len();
        }
    }
    assert!(ran > 20, "only {ran} commands were run");
}
