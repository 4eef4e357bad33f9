//! A start that is over when its service answers HTTP requests.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use crate::{ErrorKind, Result, ResultExt};

/// Interval between requests.
const INTERVAL: Duration = Duration::from_millis(20);
/// How long the port may take to accept a connection from this host.
const CONNECT: Duration = Duration::from_millis(250);
/// How long an answer may pause. The first one is the slowest: it loads what the service reads.
const SILENCE: Duration = Duration::from_secs(30);
/// Bytes of an answer that are read: more than a page, and not a download without an end.
const ANSWER_BYTES: u64 = 4 << 20;
/// The status codes of success and redirection, as for HTTP probes of Kubernetes.
const GOOD: std::ops::Range<u16> = 200..400;

/// A GET request to a port of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpProbe {
    port: u16,
    /// Path and query, with the leading slash.
    path: String,
}

impl HttpProbe {
    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Repeats the request in a thread of its own until it succeeds; the receiver then gets the time. The thread also ends soon after
    /// `user` is dropped.
    pub(super) fn repeat(&self, user: &Arc<()>) -> Result<Receiver<Instant>> {
        let (sender, receiver) = sync_channel(1);
        let (probe, user) = (self.clone(), Arc::downgrade(user));
        let repeat = move || {
            while user.strong_count() > 0 {
                if probe.succeeds().is_ok_and(|good| good) {
                    let _not_awaited = sender.send(Instant::now());
                    return;
                }
                std::thread::sleep(INTERVAL);
            }
        };
        let spawned = std::thread::Builder::new().name("http-probe".to_owned()).spawn(repeat);
        spawned.context(ErrorKind::Other, "send HTTP requests to the container")?;
        Ok(receiver)
    }

    /// Sends one request. Reads the whole answer, because making it is part of the start.
    fn succeeds(&self) -> io::Result<bool> {
        let mut stream = connect(self.port)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        // HTTP/1.0: the end of the connection ends the answer.
        let Self { port, path } = self;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost:{port}\r\nUser-Agent: tarpon\r\n\r\n")?;
        let mut answer = Vec::new();
        let read = stream.take(ANSWER_BYTES).read_to_end(&mut answer);
        let is_good = status(&answer).is_some_and(|status| GOOD.contains(&status));
        // A server that keeps the connection open has answered nevertheless.
        if is_good { Ok(true) } else { read.map(|_| false) }
    }
}

/// Connects to a port of this host.
pub(super) fn connect(port: u16) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), CONNECT)
}

/// The status code of an answer: `HTTP/1.1 200 OK`.
fn status(answer: &[u8]) -> Option<u16> {
    let rest = answer.strip_prefix(b"HTTP/1.")?;
    let digits = rest.get(2..5).filter(|_| rest.get(1) == Some(&b' '))?;
    str::from_utf8(digits).ok()?.parse().ok()
}

impl FromStr for HttpProbe {
    type Err = String;

    /// `PORT` or `PORT/PATH`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (port, path) = text.split_once('/').unwrap_or((text, ""));
        let port = port.parse().ok().filter(|port| *port != 0);
        let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic());
        match port {
            Some(port) if is_plain => Ok(Self { port, path: format!("/{path}") }),
            Some(_) => Err("the path has characters that must be encoded in a URL".to_owned()),
            None => Err("it is not of the form PORT or PORT/PATH".to_owned()),
        }
    }
}

impl fmt::Display for HttpProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.port, self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A server that gives these answers, one for each connection, and returns the first line of each request.
    fn serve(answers: &'static [&'static str]) -> (u16, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let serve = |answer: &&str| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    request.extend(byte);
                }
                stream.write_all(answer.as_bytes()).unwrap();
                String::from_utf8(request).unwrap().lines().next().unwrap().to_owned()
            };
            answers.iter().map(serve).collect()
        });
        (port, server)
    }

    #[test]
    fn the_request_is_repeated_until_the_answer_is_good() {
        let answers = &["HTTP/1.1 503 Busy\r\n\r\n", "", "HTTP/1.0 404 None\r\n\r\n", "HTTP/1.1 302 Found\r\n\r\n"];
        let (port, server) = serve(answers);
        let probe: HttpProbe = format!("{port}/health?full=1").parse().unwrap();
        let user = Arc::default();
        probe.repeat(&user).unwrap().recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(server.join().unwrap(), ["GET /health?full=1 HTTP/1.0"; 4]);
    }

    #[test]
    fn the_thread_ends_without_a_user() {
        let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let probe: HttpProbe = closed.to_string().parse().unwrap();
        let user = Arc::default();
        let answered = probe.repeat(&user).unwrap();
        drop(user);
        assert!(
            answered
                .recv_timeout(Duration::from_secs(60))
                .is_err_and(|error| error != std::sync::mpsc::RecvTimeoutError::Timeout)
        );
    }

    #[test]
    fn a_probe_is_a_port_and_a_path() {
        let shown = |text: &str| text.parse::<HttpProbe>().map(|probe| probe.to_string());
        assert_eq!(shown("80").unwrap(), "80/");
        assert_eq!(shown("8080/a/b?c=d").unwrap(), "8080/a/b?c=d");
        for bad in ["", "/", "0", "70000/", "http://localhost", "80/a b", "80/\r\nX: y"] {
            assert!(shown(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_a_status_line_has_a_status() {
        assert_eq!(status(b"HTTP/1.1 204 No Content\r\n"), Some(204));
        for other in [&b""[..], b"HTTP/1.1", b"HTTP/1.1 20", b"HTTP/2 200", b"SSH-2.0-OpenSSH", b"HTTP/1.1 2x0 OK"] {
            assert_eq!(status(other), None);
        }
    }
}
