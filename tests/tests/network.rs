//! Networks of containers: published ports answer, containers reach this host, and nothing of a network is left.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tarpon_tests::containers::ContainerFixture;
use tarpon_tests::ordinary::{self, Ordinary};
use tarpon_tests::real::{self, run};
use tarpon_tests::wait::wait_for;

const IMAGE: &str = "dev/debian-base:zstdchunked";

/// How long work in the background may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Answers one HTTP request after the other on port 80.
const SERVER: &str = r#"use IO::Socket::INET;
    my $server = IO::Socket::INET->new(LocalAddr => "0.0.0.0", LocalPort => 80, Listen => 5) or die;
    while (my $client = $server->accept) {
        my $request = <$client>;
        print $client "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        close $client;
    }"#;

/// Returns datagrams of port 53.
const ECHO: &str = r#"use IO::Socket::INET;
    my $server = IO::Socket::INET->new(LocalAddr => "0.0.0.0", LocalPort => 53, Proto => "udp") or die;
    while ($server->recv(my $text, 100)) { $server->send("echo $text") }"#;

/// Prints the answer of the server at an address and a port.
const CLIENT: &str = r#"use IO::Socket::INET; my $server = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => $ARGV[1], Timeout => 20)
    or die $@; print <$server>;"#;

/// The bridge and its firewall rules are those of the whole machine.
static BRIDGE: Mutex<()> = Mutex::new(());

/// Who runs containers.
enum User {
    Root(ContainerFixture),
    Anna(Ordinary),
}

/// A store of a user, on a network.
struct NetworkFixture {
    user: User,
    network: &'static str,
    image: String,
    _alone: MutexGuard<'static, ()>,
}

impl NetworkFixture {
    /// The store of its user, once that exists.
    fn store(&self) -> PathBuf {
        let store = match &self.user {
            User::Root(root) => root.tarpon.store(),
            User::Anna(anna) => anna.home().join(".local/share/tarpon"),
        };
        store.canonicalize().unwrap()
    }

    /// Kills the processes of its store that run this command.
    fn kill(&self, command: &str) {
        kill(&processes_with(&format!("{}\0{command}", self.store().display())));
    }

    fn root(network: &'static str) -> Option<Self> {
        let program = if network == "bridge" { "/usr/lib/podman/netavark" } else { "/usr/bin/pasta" };
        if !Path::new(program).exists() {
            println!("skipped: {program} is not installed");
            return None;
        }
        Some(Self::of(User::Root(ContainerFixture::new()?), network))
    }

    fn anna() -> Option<Self> {
        if let Some(reason) = ordinary::missing() {
            println!("skipped: {reason}");
            return None;
        }
        if !real::have(&["pasta"]) {
            println!("skipped: pasta is not installed");
            return None;
        }
        Some(Self::of(User::Anna(Ordinary::new().unwrap()), "pasta"))
    }

    fn of(user: User, network: &'static str) -> Self {
        let _alone = BRIDGE.lock().unwrap_or_else(PoisonError::into_inner);
        Self { user, network, image: format!("{}/{IMAGE}", real::registry().unwrap()), _alone }
    }

    fn output(&self, arguments: &[&str]) -> Output {
        match &self.user {
            User::Root(root) => root.tarpon.output(arguments[0], &arguments[1..]).unwrap(),
            User::Anna(anna) => anna.output(arguments).unwrap(),
        }
    }

    /// Runs `tarpon`, which must succeed.
    fn tarpon(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The message of a run that must fail: its lines.
    fn refused(&self, options: &[&str]) -> Vec<String> {
        let output = self.output(&[&["run", "--rm"], options, &[&self.image, "true"]].concat());
        assert_eq!(output.status.code(), Some(125));
        String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect()
    }

    /// Starts a server with these ports.
    fn serve(&self, name: &str, ports: &[&str], script: &str) {
        let ports: Vec<&str> = ports.iter().flat_map(|port| ["-p", port]).collect();
        let options = [&["run", "-d", "--name", name, "--network", self.network], &ports[..]].concat();
        self.tarpon(&[&options[..], &[&self.image, "perl", "-e", script]].concat());
    }

    fn listed(&self, name: &str) -> Value {
        let listed: Value = serde_json::from_str(&self.tarpon(&["ps", "-a", "--json"])).unwrap();
        listed.as_array().unwrap().iter().find(|one| one["name"] == name).cloned().unwrap_or_default()
    }

    fn network_of(&self, name: &str) -> Value {
        self.listed(name)["record"]["network"].clone()
    }

    fn port(&self, name: &str, at: usize) -> u16 {
        u16::try_from(self.network_of(name)["ports"][at]["host_port"].as_u64().unwrap()).unwrap()
    }

    /// Checks that nothing is left of a network: no process, no name, no rule, no port in use.
    fn assert_nothing_is_left(&self, network: &Value) {
        let namespace = PathBuf::from(network["namespace"].as_str().unwrap());
        let port = u16::try_from(network["ports"][0]["host_port"].as_u64().unwrap()).unwrap();
        assert!(!namespace.exists() && !namespace.with_extension("pid").exists());
        wait_for(PATIENCE, "pasta ends", || processes_with(namespace.to_str().unwrap()).is_empty().then_some(()));
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(namespace.to_str().unwrap()), "{mounts}");
        let rules = run(Command::new("iptables-save").args(["-t", "nat"])).unwrap_or_default();
        assert!(!rules.contains(&format!("--dport {port} ")), "{rules}");
        assert!(!Path::new("/sys/class/net/tarpon0").exists(), "the bridge ends with its last container");
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
    }
}

/// Processes that have this word in their command lines. One that has ended has none.
fn processes_with(word: &str) -> Vec<u32> {
    let all =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has = |process: &u32| {
        let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(word)
    };
    all.filter(has).collect()
}

/// The answer to an HTTP request. The server may not listen yet.
fn requested(address: impl Into<SocketAddr>) -> String {
    let address = address.into();
    wait_for(PATIENCE, "an answer", || {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer).filter(|answer| !answer.is_empty())
    })
}

/// The address by which a container reaches this host.
fn own_address() -> Ipv4Addr {
    let text = run(Command::new("ip").args(["-4", "route", "get", "192.0.2.1"])).unwrap();
    let mut words = text.split_whitespace().skip_while(|word| *word != "src");
    words.nth(1).unwrap().parse().unwrap()
}

fn ports_answer_and_a_conflict_is_one_line(fixture: &NetworkFixture) {
    fixture.serve("web", &["127.0.0.1::80", "0:80"], SERVER);
    let network = fixture.network_of("web");
    let (local, any) = (fixture.port("web", 0), fixture.port("web", 1));
    assert!(requested((Ipv4Addr::LOCALHOST, local)).ends_with("hello"));
    assert!(requested((Ipv4Addr::LOCALHOST, any)).ends_with("hello"));
    assert!(requested((own_address(), any)).ends_with("hello"));
    assert!(TcpStream::connect((own_address(), local)).is_err(), "it is published for the loopback interface only");
    let shown = format!("127.0.0.1:{local}->80/tcp, 0.0.0.0:{any}->80/tcp");
    assert!(fixture.tarpon(&["ps"]).contains(&shown));
    assert_eq!(network["network"], fixture.network);
    for port in [format!("{local}:80"), format!("127.0.0.1:{any}:80")] {
        let lines = fixture.refused(&["-p", &port, "--network", fixture.network]);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].ends_with("of this host: it is in use") && lines[1].starts_with("hint: "), "{lines:?}");
    }
    fixture.tarpon(&["rm", "-f", "web"]);
    fixture.assert_nothing_is_left(&network);
}

#[test]
fn a_published_port_of_root_answers_by_the_bridge() {
    let Some(fixture) = NetworkFixture::root("bridge") else { return };
    ports_answer_and_a_conflict_is_one_line(&fixture);
}

#[test]
fn a_published_port_of_root_answers_by_pasta() {
    let Some(fixture) = NetworkFixture::root("pasta") else { return };
    ports_answer_and_a_conflict_is_one_line(&fixture);
}

#[test]
fn a_published_port_of_an_ordinary_user_answers() {
    let Some(fixture) = NetworkFixture::anna() else { return };
    ports_answer_and_a_conflict_is_one_line(&fixture);
}

fn datagrams_are_published(fixture: &NetworkFixture) {
    fixture.serve("echo", &["0:53/udp"], ECHO);
    // pasta of 2023 returns no answers to datagrams of the loopback interface.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    socket.connect((own_address(), fixture.port("echo", 0))).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let answer = wait_for(PATIENCE, "an answer", || {
        let mut bytes = [0; 100];
        socket.send(b"word").ok()?;
        socket.recv(&mut bytes).ok().map(|count| bytes[..count].to_vec())
    });
    assert_eq!(answer, b"echo word");
    fixture.tarpon(&["rm", "-f", "echo"]);
}

#[test]
fn datagrams_of_root_are_published() {
    for network in ["bridge", "pasta"] {
        let Some(fixture) = NetworkFixture::root(network) else { return };
        datagrams_are_published(&fixture);
    }
}

#[test]
fn datagrams_of_an_ordinary_user_are_published() {
    let Some(fixture) = NetworkFixture::anna() else { return };
    datagrams_are_published(&fixture);
}

fn this_host_is_reached_and_names_are_right(fixture: &NetworkFixture) {
    let service = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = service.local_addr().unwrap().port().to_string();
    // It ends with the test if nothing connects.
    std::thread::spawn(move || service.incoming().for_each(|stream| stream.unwrap().write_all(b"welcome").unwrap()));
    let options = ["run", "--rm", "--network", fixture.network, &fixture.image];
    let printed = fixture.tarpon(&[&options[..], &["perl", "-e", CLIENT, "host.containers.internal", &port]].concat());
    assert_eq!(printed, "welcome");
    let show = "cat /etc/hosts; echo; cat /etc/resolv.conf; cat /etc/hostname; perl -e 'print join(\".\", unpack(\"C4\", scalar gethostbyname(\"box\")))'";
    let options = ["run", "--rm", "--name", "box", "--network", fixture.network, "--add-host", "db:10.0.0.7"];
    let shown = fixture.tarpon(&[&options[..], &[&fixture.image, "sh", "-c", show]].concat());
    let own = shown.lines().last().unwrap();
    assert!(shown.starts_with("10.0.0.7 db\n127.0.0.1 localhost\n") && own.starts_with("10.89."), "{shown}");
    assert!(shown.contains(&format!("\n{own} box ")), "{shown}");
    let host = std::fs::read_to_string("/etc/resolv.conf").unwrap();
    for line in host.lines().filter(|line| line.starts_with("nameserver") && !line.contains("127.0.0.")) {
        assert!(shown.contains(line), "{shown}");
    }
    let loopback = fixture.output(
        &[
            &["run", "--rm", "--network", fixture.network, &fixture.image][..],
            &["perl", "-e", CLIENT, "127.0.0.1", &port],
        ]
        .concat(),
    );
    assert!(!loopback.status.success(), "the loopback interface is not that of the host");
}

#[test]
fn a_container_of_root_reaches_this_host() {
    for network in ["bridge", "pasta"] {
        let Some(fixture) = NetworkFixture::root(network) else { return };
        this_host_is_reached_and_names_are_right(&fixture);
    }
}

#[test]
fn a_container_of_an_ordinary_user_reaches_this_host() {
    let Some(fixture) = NetworkFixture::anna() else { return };
    this_host_is_reached_and_names_are_right(&fixture);
}

#[test]
fn containers_on_the_bridge_reach_each_other() {
    let Some(fixture) = NetworkFixture::root("bridge") else { return };
    fixture.serve("web", &[], SERVER);
    let address = fixture.network_of("web")["address"].as_str().unwrap().to_owned();
    assert!(requested((address.parse::<Ipv4Addr>().unwrap(), 80)).ends_with("hello"));
    let client = CLIENT.replace("print <$server>", "print $server \"GET /\\n\"; print <$server>");
    let options = ["run", "--rm", "--network", "bridge", &fixture.image];
    let printed = fixture.tarpon(&[&options[..], &["perl", "-e", &client, &address, "80"]].concat());
    assert!(printed.ends_with("hello"), "{printed}");
    fixture.tarpon(&["rm", "-f", "web"]);
    assert!(!Path::new("/sys/class/net/tarpon0").exists());
}

/// Kills the server of the store, and then the keeper of the container.
fn a_network_outlives_its_processes_and_is_removed(fixture: &NetworkFixture) {
    fixture.serve("web", &["127.0.0.1::80"], SERVER);
    let (network, port) = (fixture.network_of("web"), fixture.port("web", 0));
    assert!(requested((Ipv4Addr::LOCALHOST, port)).ends_with("hello"));
    fixture.kill("serve");
    assert!(requested((Ipv4Addr::LOCALHOST, port)).ends_with("hello"));
    fixture.kill("keep\0web\0");
    wait_for(PATIENCE, "the loss of the keeper", || (fixture.listed("web")["status"] == "lost").then_some(()));
    assert!(requested((Ipv4Addr::LOCALHOST, port)).ends_with("hello"));
    fixture.tarpon(&["rm", "-f", "web"]);
    fixture.assert_nothing_is_left(&network);
}

fn kill(processes: &[u32]) {
    assert!(!processes.is_empty());
    for process in processes {
        run(Command::new("kill").args(["-KILL", &process.to_string()])).unwrap();
    }
}

#[test]
fn a_network_of_root_outlives_its_processes_and_is_removed() {
    for network in ["bridge", "pasta"] {
        let Some(fixture) = NetworkFixture::root(network) else { return };
        a_network_outlives_its_processes_and_is_removed(&fixture);
    }
}

#[test]
fn a_network_of_an_ordinary_user_outlives_its_processes_and_is_removed() {
    let Some(fixture) = NetworkFixture::anna() else { return };
    a_network_outlives_its_processes_and_is_removed(&fixture);
}

#[test]
fn recover_removes_what_a_killed_keeper_and_a_removed_store_left() {
    let Some(fixture) = NetworkFixture::root("bridge") else { return };
    fixture.serve("web", &["127.0.0.1::80"], SERVER);
    let ended = fixture.network_of("web");
    fixture.kill("keep\0web\0");
    let first = fixture.listed("web")["record"]["state"]["pid"].as_u64().unwrap();
    kill(&[u32::try_from(first).unwrap()]);
    wait_for(PATIENCE, "the end of the container", || {
        (!Path::new(&format!("/proc/{first}/exe")).exists()).then_some(())
    });
    fixture.serve("gone", &["127.0.0.1::80"], SERVER);
    let gone = fixture.network_of("gone");
    // As if the namespace had ended, and its directory had been removed without tarpon.
    run(Command::new("umount").args(["--lazy", gone["namespace"].as_str().unwrap()])).unwrap();
    fixture.kill("keep\0gone\0");
    fixture.tarpon(&["kill", "gone"]);
    let folder = fixture.store().join("containers/gone");
    let aside = folder.with_file_name("aside");
    std::fs::rename(&folder, &aside).unwrap();
    fixture.tarpon(&["recover"]);
    fixture.assert_nothing_is_left(&ended);
    fixture.assert_nothing_is_left(&gone);
    std::fs::rename(&aside, &folder).unwrap();
    fixture.tarpon(&["rm", "-f", "web", "gone"]);
}

#[test]
fn a_container_that_does_not_start_leaves_no_network() {
    for network in ["bridge", "pasta"] {
        let Some(fixture) = NetworkFixture::root(network) else { return };
        for detach in ["--rm", "--detach"] {
            let options = ["run", detach, "--network", network, "-p", "127.0.0.1::80", &fixture.image, "/nonexistent"];
            assert_eq!(fixture.output(&options).status.code(), Some(127));
        }
        assert_eq!(fixture.tarpon(&["ps", "-aq"]), "");
        assert!(!Path::new("/sys/class/net/tarpon0").exists());
        assert!(processes_with("netns/tarpon-").is_empty());
    }
}

#[test]
fn a_network_that_this_user_cannot_have_is_one_line_with_a_hint() {
    let Some(fixture) = NetworkFixture::anna() else { return };
    let lines = fixture.refused(&["--network", "bridge"]);
    assert!(lines[0].ends_with("a bridge needs root of the host"), "{lines:?}");
    assert_eq!((lines.len(), &*lines[1]), (2, "hint: --network pasta works without root"));
    let lines = fixture.refused(&["-p", "80:80"]);
    let lowest = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    if lowest.trim().parse::<u16>().unwrap() > 80 {
        assert!(lines[0].contains("publish port 80/tcp of this host: this user may not"), "{lines:?}");
        assert!(lines.len() == 2 && lines[1].contains("-p 8080:80"), "{lines:?}");
    }
}

#[test]
fn without_pasta_a_published_port_is_one_line_that_names_its_package() {
    let Some(fixture) = NetworkFixture::anna() else { return };
    let User::Anna(anna) = &fixture.user else { unreachable!() };
    let programs = anna.home().join("programs");
    std::fs::create_dir(&programs).unwrap();
    for program in ["crun", "newuidmap", "newgidmap"] {
        std::os::unix::fs::symlink(real_path(program), programs.join(program)).unwrap();
    }
    let path = format!("PATH={}", programs.display());
    let tarpon = tarpon_tests::tarpon::binary();
    let options = ["run", "--rm", "-p", "8080:80", &fixture.image, "true"];
    let output = anna.command("env").arg(path).arg(tarpon).args(options).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125));
    assert!(printed.contains("pasta is not installed\nhint: install the package passt"), "{printed}");
    assert_eq!(printed.lines().count(), 2, "{printed}");
}

fn real_path(program: &str) -> PathBuf {
    run(Command::new("sh").args(["-c", &format!("command -v {program}")])).unwrap().trim().into()
}

#[test]
fn ports_have_no_effect_on_the_network_of_the_host() {
    let Some(fixture) = NetworkFixture::root("bridge") else { return };
    for network in ["host", "none"] {
        let output = fixture.output(&["run", "--rm", "--network", network, "-p", "1:1", &fixture.image, "true"]);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success() && printed.contains(&format!("-p has no effect with --network {network}")),
            "{printed}"
        );
    }
}
