//! containers-registries.conf(5): which hosts are asked for an image is what Skopeo and Podman do, and mirrors may fail or lie during
//! reads.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use tarpon_tests::mirrored::{IMAGE, MirroredHost, Mount};
use tarpon_tests::real::{self, have};
use tarpon_tests::tarpon::Tarpon;
use tarpon_tests::wire::{Behaviour, Wire};

/// Registries that have nothing, on loopback addresses, and what they were asked for.
struct EmptyRegistries {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

/// Their names in the tables below are `A` to `E`.
const NAMES: [char; 5] = ['A', 'B', 'C', 'D', 'E'];

impl EmptyRegistries {
    fn new() -> Self {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let listener = |number: usize, port| {
            let last = u8::try_from(number + 2).unwrap();
            TcpListener::bind((Ipv4Addr::new(127, 0, 0, last), port))
        };
        // A port that is free at one of the addresses may be in use at another.
        let listeners = (0..20).find_map(|_| {
            let first = listener(0, 0).unwrap();
            let port = first.local_addr().unwrap().port();
            let others = (1..NAMES.len()).map(|number| listener(number, port)).collect::<Result<Vec<_>, _>>();
            Some(std::iter::once(first).chain(others.ok()?).collect::<Vec<_>>())
        });
        let listeners = listeners.expect("a free port");
        let port = listeners[0].local_addr().unwrap().port();
        for (listener, name) in listeners.into_iter().zip(NAMES) {
            let asked = asked.clone();
            thread::spawn(move || {
                for client in listener.incoming().flatten() {
                    let asked = asked.clone();
                    thread::spawn(move || answer(&client, name, &asked));
                }
            });
        }
        Self { port, asked }
    }

    /// A text of a table, with addresses instead of `<A>` and so on.
    fn text(&self, text: &str) -> String {
        NAMES.iter().zip(2..).fold(text.to_owned(), |text, (name, last)| {
            text.replace(&format!("<{name}>"), &format!("127.0.0.{last}:{}", self.port))
        })
    }

    /// The manifests that a program requests, as `A:PATH`, in order.
    fn asked_by(&self, command: &mut Command) -> Vec<String> {
        self.asked.lock().unwrap().clear();
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{command:?} found an image");
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

fn answer(client: &TcpStream, name: char, asked: &Mutex<Vec<String>>) {
    let mut lines = BufReader::new(client).lines();
    loop {
        // A TLS handshake is no line, and closes the connection.
        let Some(Ok(first)) = lines.next() else { return };
        let mut words = first.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        while let Some(Ok(line)) = lines.next() {
            if line.is_empty() {
                break;
            }
        }
        let status = if path == "/v2/" { "200 OK" } else { "404 Not Found" };
        if method == "GET" && path.contains("/manifests/") {
            asked.lock().unwrap().push(format!("{name}:{path}"));
        }
        let mut to = client;
        if to.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes()).is_err() {
            return;
        }
    }
}

const DIGEST: &str = "@sha256:0123456789012345678901234567890123456789012345678901234567890123";

/// Contents of the file, each with images.
const CASES: &[(&str, &[&str])] = &[
    // A registry that is only known not to have certificates.
    ("[[registry]]\nlocation='<A>'\ninsecure=true", &["<A>/x:1", "<A>/team/x", "<A>/x@", "<A>/a/b/c/d:v1.2"]),
    // Mirrors, in their order.
    (
        "[[registry]]\nlocation='<A>'\ninsecure=true\n[[registry.mirror]]\nlocation='<B>'\ninsecure=true\n[[registry.mirror]]\nlocation='<C>/cache/a'\ninsecure=true",
        &["<A>/x:1", "<A>/team/x:2", "<A>/x@", "<A>/x"],
    ),
    // Mirrors for digests or tags only.
    (
        "[[registry]]\nlocation='<A>'\ninsecure=true\nmirror-by-digest-only=true\n[[registry.mirror]]\nlocation='<B>'\ninsecure=true",
        &["<A>/x:1", "<A>/x@", "<A>/team/x"],
    ),
    (
        "[[registry]]\nlocation='<A>'\ninsecure=true\n[[registry.mirror]]\nlocation='<B>'\ninsecure=true\npull-from-mirror='digest-only'\n[[registry.mirror]]\nlocation='<C>'\ninsecure=true\npull-from-mirror='tag-only'\n[[registry.mirror]]\nlocation='<D>'\ninsecure=true\npull-from-mirror='all'",
        &["<A>/x:1", "<A>/x@", "<A>/x"],
    ),
    // Other locations.
    ("[[registry]]\nprefix='<A>'\nlocation='<B>'\ninsecure=true", &["<A>/x:1", "<A>/team/x@"]),
    (
        "[[registry]]\nprefix='<A>/old'\nlocation='<B>/new/home'\ninsecure=true\n[[registry]]\nlocation='<A>'\ninsecure=true",
        &["<A>/old/x:1", "<A>/older/x:1", "<A>/x:1", "<A>/old:1", "<A>/old/a/b:1"],
    ),
    (
        "[[registry]]\nprefix='<A>/x'\nlocation='<B>/y'\ninsecure=true\n[[registry]]\nlocation='<A>'\ninsecure=true",
        &["<A>/x:1", "<A>/x@", "<A>/x/z:1", "<A>/xx:1"],
    ),
    (
        "[[registry]]\nprefix='<A>/x:1'\nlocation='<B>/y:2'\ninsecure=true\n[[registry]]\nlocation='<A>'\ninsecure=true",
        &["<A>/x:1", "<A>/x:10", "<A>/x:2"],
    ),
    ("[[registry]]\nprefix='<A>/'\nlocation='<B>/team/'\ninsecure=true", &["<A>/x:1"]),
    // The longest prefix counts, wherever it is in the file.
    (
        "[[registry]]\nprefix='<A>/a/b'\nlocation='<B>'\ninsecure=true\n[[registry]]\nprefix='<A>/a'\nlocation='<C>'\ninsecure=true\n[[registry]]\nprefix='<A>'\nlocation='<D>'\ninsecure=true",
        &["<A>/a/b/x:1", "<A>/a/x:1", "<A>/x:1", "<A>/a/bb/x:1", "<A>/a/b:1"],
    ),
    // All hosts of a domain.
    ("[[registry]]\nprefix='*.0.0.2'\ninsecure=true", &["<A>/x:1", "<A>/team/x@"]),
    ("[[registry]]\nprefix='*.0.2'\ninsecure=true\n[[registry.mirror]]\nlocation='<B>'\ninsecure=true", &["<A>/x:1"]),
    ("[[registry]]\nprefix='*.0.0.2/team'\nlocation='<B>'\ninsecure=true", &["<A>/team/x:1"]),
    (
        "[[registry]]\nprefix='*.example.com'\nlocation='<B>/all'\ninsecure=true",
        &["x.example.com/a:1", "y.x.example.com/a/b@"],
    ),
    // Blocked registries, namespaces and images, and exceptions.
    ("[[registry]]\nlocation='<A>'\ninsecure=true\nblocked=true", &["<A>/x:1", "<A>/x@"]),
    (
        "[[registry]]\nlocation='<A>'\ninsecure=true\n[[registry]]\nlocation='<A>/bad'\ninsecure=true\nblocked=true\n[[registry]]\nlocation='<A>/bad/good'\ninsecure=true",
        &["<A>/x:1", "<A>/bad/x:1", "<A>/bad/good/x:1", "<A>/bad:1", "<A>/badge:1"],
    ),
    // An entry of its own blocks a mirror, or a location.
    (
        "[[registry]]\nlocation='<A>'\ninsecure=true\n[[registry.mirror]]\nlocation='<B>/m'\ninsecure=true\n[[registry.mirror]]\nlocation='<C>'\ninsecure=true\n[[registry]]\nlocation='<B>/m'\ninsecure=true\nblocked=true",
        &["<A>/x:1"],
    ),
    (
        "[[registry]]\nprefix='<A>'\nlocation='<B>'\ninsecure=true\n[[registry]]\nlocation='<B>/x'\ninsecure=true\nblocked=true",
        &["<A>/x:1", "<A>/y:1"],
    ),
    // Version 1 of the format.
    ("[registries.insecure]\nregistries=['<A>']\n[registries.block]\nregistries=['<B>']", &["<A>/x:1", "<B>/x:1"]),
    // Files that are not valid.
    ("[[registry]]\nlocation='http://<A>'", &["<A>/x:1"]),
    ("[[registry]]\nprefix='<A>'", &["<A>/x:1"]),
    ("[[registry]]\ninsecure=true", &["<A>/x:1"]),
    ("[[registry]]\nlocation=7", &["<A>/x:1"]),
    ("[[registry]\nlocation='<A>'", &["<A>/x:1"]),
    ("[[registry]]\nlocation='<A>'\ninsecure=true\n[[registry.mirror]]\ninsecure=true", &["<A>/x:1"]),
    (
        "[[registry]]\nlocation='<A>'\ninsecure=true\n[[registry]]\nprefix='<A>/a'\nlocation='<A>'\nblocked=true\ninsecure=true",
        &["<A>/x:1"],
    ),
    ("[[registry]]\nlocation='<A>'\ninsecure=true\n[[registry]]\nprefix='<A>/a'\nlocation='<A>'", &["<A>/x:1"]),
    ("unqualified-search-registries=['<A>/path']\n[[registry]]\nlocation='<A>'\ninsecure=true", &["<A>/x:1"]),
    ("[[registry]]\nprefix='<A>'\nlocation='<B>/UPPER'\ninsecure=true", &["<A>/x:1"]),
    ("[registries.insecure]\nregistries=['<A>']\n[[registry]]\nlocation='<A>'\ninsecure=true", &["<A>/x:1"]),
];

#[test]
fn the_hosts_that_are_asked_are_those_that_skopeo_asks() {
    if !have(&["skopeo"]) {
        println!("skipped: skopeo is not installed");
        return;
    }
    let registries = EmptyRegistries::new();
    let tarpon = Tarpon::new().unwrap();
    let file = tarpon.store().with_file_name("registries.conf");
    let mut differences = Vec::new();
    let mut compared = 0;
    for (config, images) in CASES {
        let config = registries.text(config).replace("<PORT>", &registries.port.to_string());
        fs::write(&file, &config).unwrap();
        for image in *images {
            let pinned = image.strip_suffix('@').map(|name| format!("{name}{DIGEST}"));
            let image = registries.text(pinned.as_deref().unwrap_or(image));
            let mut skopeo = Command::new("skopeo");
            skopeo.arg("--registries-conf").arg(&file).args(["inspect", "--raw", &format!("docker://{image}")]);
            let mut own = tarpon.command("inspect");
            own.env("CONTAINERS_REGISTRIES_CONF", &file).arg(&image);
            let (expected, asked) = (registries.asked_by(&mut skopeo), registries.asked_by(&mut own));
            compared += 1;
            if expected != asked {
                differences.push(format!("{config}\n{image}: Skopeo asks {expected:?}, and tarpon {asked:?}"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
    println!("{compared} pairs of a file and an image");
    assert!(compared >= 60);
}

/// Contents of the file, each with short names.
const SHORT_NAMES: &[(&str, &[&str])] = &[
    ("unqualified-search-registries=['<A>']", &["x", "x:1", "team/x:2", "a/b/c", "x@"]),
    ("[aliases]\n'x'='<B>/y'\n'team/x'='<C>/z'", &["x", "x:1", "x@", "team/x:3"]),
    ("unqualified-search-registries=['<A>']\n[aliases]\n'x'='<B>/y'", &["x:1", "y:1"]),
    (
        "unqualified-search-registries=['<A>','<B>']\nshort-name-mode='enforcing'\n[aliases]\n'x'='<B>/y'",
        &["y:1", "x:1"],
    ),
    ("unqualified-search-registries=['<A>']\nshort-name-mode='enforcing'", &["y:1"]),
    ("unqualified-search-registries=['<A>']\nshort-name-mode='odd'", &["y:1"]),
    (
        "unqualified-search-registries=['<A>']\n[[registry]]\nprefix='<A>'\nlocation='<D>/moved'\ninsecure=true",
        &["x:1"],
    ),
    ("[aliases]\n'x:1'='<B>/y'\n", &["x:1"]),
    ("[aliases]\n'x'='<B>/y:1'\n", &["x:1"]),
    ("[aliases]\n'x'='y'\n", &["x:1"]),
];

#[test]
fn short_names_lead_where_podman_leads_them() {
    if !have(&["podman"]) || !rustix::process::geteuid().is_root() {
        println!("skipped: podman is not installed, or not root");
        return;
    }
    let registries = EmptyRegistries::new();
    let tarpon = Tarpon::new().unwrap();
    let folder = tarpon.store().with_file_name("podman");
    let file = tarpon.store().with_file_name("registries.conf");
    let insecure = |letter: &char| registries.text(&format!("[[registry]]\nlocation='<{letter}>'\ninsecure=true\n"));
    for (config, names) in SHORT_NAMES {
        let config = registries.text(config);
        let known = if config.contains("prefix=") { &NAMES[1..] } else { &NAMES[..] };
        // Registries are tables of their own, and come behind the aliases.
        let config = format!("{config}\n{}", known.iter().map(insecure).collect::<String>());
        fs::write(&file, &config).unwrap();
        for name in *names {
            let pinned = name.strip_suffix('@').map(|name| format!("{name}{DIGEST}"));
            let name = pinned.as_deref().unwrap_or(name);
            let mut podman = Command::new("podman");
            podman.arg("--root").arg(folder.join("root")).arg("--runroot").arg(folder.join("run"));
            podman.args(["--storage-driver", "vfs", "pull", name]).env("CONTAINERS_REGISTRIES_CONF", &file);
            let mut own = tarpon.command("inspect");
            own.env("CONTAINERS_REGISTRIES_CONF", &file).arg(name);
            let distinct = |asked: Vec<String>| asked.into_iter().collect::<BTreeSet<_>>();
            let (expected, asked) = (registries.asked_by(&mut podman), registries.asked_by(&mut own));
            // Podman repeats its requests.
            assert_eq!(distinct(asked), distinct(expected), "{config}\n{name}");
        }
    }
}

#[test]
fn a_short_name_with_several_meanings_is_refused_with_all_of_them() {
    let registries = EmptyRegistries::new();
    let tarpon = Tarpon::new().unwrap();
    let file = tarpon.store().with_file_name("registries.conf");
    fs::write(&file, "unqualified-search-registries=['a.example','b.example']").unwrap();
    let output = tarpon.command("inspect").env("CONTAINERS_REGISTRIES_CONF", &file).arg("team/x:1").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("is a short name that may mean a.example/team/x:1 or b.example/team/x:1"), "{text}");
    assert!(text.contains("hint: write the full name"), "{text}");
    assert!(registries.asked.lock().unwrap().is_empty());
}

/// A host whose image has a mirror, and both ends of the wire.
struct Mirrored {
    /// Dropped first: its store is in a folder of the host.
    expected: Mount,
    host: MirroredHost,
    mirror: Wire,
    origin: Wire,
}

impl Mirrored {
    fn new() -> Self {
        let registry = real::registry().unwrap();
        let (mirror, origin) = (Wire::to(&registry).unwrap(), Wire::to(&registry).unwrap());
        let host = MirroredHost::new(&origin.address(), &mirror.address());
        let expected = host.mount_plain(&registry);
        Self { expected, host, mirror, origin }
    }
}

fn is_skipped() -> bool {
    if let Some(reason) = real::missing() {
        eprintln!("skipped: {reason}");
        return true;
    }
    false
}

#[test]
fn a_mount_outlives_its_mirror_and_a_mirror_its_registry() {
    if is_skipped() {
        return;
    }
    for mode in ["native", "fuse"] {
        let mirrored = Mirrored::new();
        let mount = mirrored.host.mount("base:zstdchunked", &["--mode", mode]);
        mount.check("usr/bin", &mirrored.expected);
        assert!(mirrored.mirror.bytes() > 100_000, "the mirror sent it");
        assert_eq!(mirrored.origin.bytes(), 0, "while it answers, the registry is not asked");
        mirrored.mirror.behave(Behaviour::Dead);
        mount.check("usr/sbin", &mirrored.expected);
        assert!(mirrored.origin.bytes() > 100_000, "the registry sent the rest");
        mirrored.mirror.behave(Behaviour::Honest);
        mirrored.origin.behave(Behaviour::Dead);
        mount.check("usr/lib/x86_64-linux-gnu", &mirrored.expected);
        let status = mirrored.host.tarpon.status().unwrap();
        assert_eq!(status[0]["image"], format!("images.example/{IMAGE}:zstdchunked"), "{status}");
    }
}

/// The status of the endpoints of the only mount: the mirror, and the registry.
fn endpoints(mirrored: &Mirrored) -> [serde_json::Value; 2] {
    let status = mirrored.host.tarpon.status().unwrap();
    let endpoints = status[0]["endpoints"].as_array().unwrap_or_else(|| panic!("{status}")).clone();
    let [mirror, registry] = <[_; 2]>::try_from(endpoints).unwrap();
    assert_eq!([&mirror["kind"], &registry["kind"]], ["mirror", "registry"], "{status}");
    assert_eq!(mirror["endpoint"], mirrored.mirror.address(), "{status}");
    assert_eq!(registry["endpoint"], mirrored.origin.address(), "{status}");
    [mirror, registry]
}

#[test]
fn the_status_shows_which_endpoint_served_and_why_a_mirror_rests() {
    if is_skipped() {
        return;
    }
    let mirrored = Mirrored::new();
    let mount = mirrored.host.mount("base:zstdchunked", &["--metrics", "0"]);
    mount.check("usr/bin", &mirrored.expected);
    let [mirror, registry] = endpoints(&mirrored);
    assert!(mirror["bytes"].as_u64().unwrap() > 100_000 && mirror["requests"].as_u64().unwrap() > 0, "{mirror}");
    assert!(mirror["rest_millis"].is_null() && mirror["failures"] == 0, "{mirror}");
    assert_eq!((&registry["bytes"], &registry["requests"]), (&0.into(), &0.into()), "{registry}");

    mirrored.mirror.behave(Behaviour::Dead);
    mount.check("usr/sbin", &mirrored.expected);
    let [dead, registry] = endpoints(&mirrored);
    assert!(dead["failures"].as_u64().unwrap() > 0 && dead["rest_millis"].is_u64(), "{dead}");
    assert!(dead["last_failure"].as_str().is_some_and(|why| why.contains("/blobs/")), "{dead}");
    assert!(dead["bytes"].as_u64() >= mirror["bytes"].as_u64(), "{dead}");
    assert!(registry["bytes"].as_u64().unwrap() > 100_000 && registry["rest_millis"].is_null(), "{registry}");

    let (mirror, origin) = (mirrored.mirror.address(), mirrored.origin.address());
    for command in ["status", "why"] {
        let text = real::run(mirrored.host.command(command).arg(mount.path())).unwrap();
        let line = |kind: &str, host: &str| {
            let shown = format!(" {host}: ");
            let found = text.lines().find(|line| line.trim_start().starts_with(kind) && line.contains(&shown));
            found.unwrap_or_else(|| panic!("{command}: {text}"))
        };
        assert!(line("mirror", &mirror).contains("; last failure: "), "{command}: {text}");
        assert!(!line("registry", &origin).contains("failure"), "{command}: {text}");
    }
    let status = mirrored.host.tarpon.status().unwrap();
    let page = real::run(
        Command::new("curl").arg("-s").arg(format!("http://{}/metrics", status[0]["metrics"].as_str().unwrap())),
    );
    let page = page.unwrap();
    let value = |name: &str, host: &str| {
        let line = format!("tarpon_endpoint_{name}{{endpoint=\"{host}\"}} ");
        let value = page.lines().find_map(|found| found.strip_prefix(&line)?.parse::<u64>().ok());
        value.unwrap_or_else(|| panic!("{line} is not in {page}"))
    };
    assert!(Some(value("bytes_total", &origin)) >= registry["bytes"].as_u64(), "{page}");
    assert_eq!(value("resting_images", &mirror), 1, "{page}");
}

#[test]
fn doctor_contacts_the_mirrors_of_a_registry() {
    if is_skipped() {
        return;
    }
    let mirrored = Mirrored::new();
    let checks = |name: &str| {
        let mut doctor = mirrored.host.command("doctor");
        let output = doctor.args(["--json", "--registry", "images.example"]).output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let checks = report["checks"].as_array().unwrap().clone();
        checks.into_iter().find(|check| check["name"] == name).unwrap()
    };
    let mirror = checks("mirror");
    assert!(mirror["works"] == true && mirror["needed_for"] == "images of images.example", "{mirror}");
    mirrored.mirror.behave(Behaviour::Dead);
    let (mirror, registry) = (checks("mirror"), checks("registry access"));
    assert!(mirror["works"] == false && mirror["mend"].as_str().unwrap().contains("registries.conf"), "{mirror}");
    assert_eq!(registry["found"], "images.example responds", "the registry itself does");
}

#[test]
fn a_lying_mirror_costs_time_and_no_byte() {
    if is_skipped() {
        return;
    }
    // By a table of contents, and as a stream.
    for tag in ["zstdchunked", "gzip"] {
        let mirrored = Mirrored::new();
        mirrored.mirror.behave(Behaviour::Lying);
        let mount = mirrored.host.mount(&format!("images.example/{IMAGE}:{tag}"), &[]);
        for folder in ["usr/bin", "usr/lib/x86_64-linux-gnu"] {
            mount.check(folder, &mirrored.expected);
        }
        assert!(mirrored.mirror.bytes() > 10_000, "it was asked");
        assert!(mirrored.origin.bytes() > 10_000, "and then the registry");
    }
}

#[test]
fn a_blocked_registry_is_an_error_that_names_the_file() {
    let tarpon = Tarpon::new().unwrap();
    let file = tarpon.store().with_file_name("registries.conf");
    fs::write(&file, "[[registry]]\nlocation='images.example'\nblocked=true").unwrap();
    let mut inspect = tarpon.command("inspect");
    let output = inspect.env("CONTAINERS_REGISTRIES_CONF", &file).arg("images.example/x").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains(&format!("{} blocks images.example", file.display())), "{text}");
    assert_eq!(output.status.code(), Some(6), "as for images that the policy refuses");
}
