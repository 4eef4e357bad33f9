//! The few plain HTTP requests to a local registry; too few for a client library.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result};

/// A response of the registry.
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The header.
    head: String,
    /// The body, without the header.
    pub body: Vec<u8>,
}

impl Answer {
    /// The value of the first field with this name.
    pub fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }
}

/// Sends a request on a new connection and reads the whole response.
pub fn request(host: &str, method: &str, path: &str, headers: &str, body: &[u8]) -> Result<Answer> {
    let mut stream = connect(host)?;
    // HTTP/1.0: the end of the connection ends the body, so there are no chunks to join.
    let head = format!("{method} {path} HTTP/1.0\r\nHost: {host}\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
    let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let mut answer = Vec::new();
    let received = stream.read_to_end(&mut answer);
    if !is_complete(&answer) {
        sent?;
        received?;
    }
    parse(&answer).with_context(|| format!("{host} does not speak HTTP"))
}

/// Whether a response has all bytes that its header announces. Then an error does not matter: a server may refuse a request before it
/// has read the body, and the kernel breaks a connection that is closed with unread bytes.
fn is_complete(answer: &[u8]) -> bool {
    let length = |head| field(head, "content-length")?.parse::<usize>().ok();
    split(answer).is_some_and(|(head, body)| length(head) == Some(body.len()))
}

/// The value of a field in a header.
fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = head.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

fn connect(host: &str) -> Result<TcpStream> {
    let address = host.to_socket_addrs().ok().and_then(|mut a| a.next());
    let address = address.with_context(|| format!("{host} is not of the form HOST:PORT"))?;
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))
        .with_context(|| format!("no server listens at {host}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    Ok(stream)
}

fn parse(answer: &[u8]) -> Option<Answer> {
    let (head, body) = split(answer)?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, head: head.to_owned(), body: body.to_vec() })
}

/// The head and the body.
fn split(answer: &[u8]) -> Option<(&str, &[u8])> {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n")?;
    Some((std::str::from_utf8(&answer[..end]).ok()?, &answer[end + 4..]))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// The result of a large request that a server answers so, without reading its body.
    fn refused(answer: &'static [u8]) -> Result<Answer> {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = server.local_addr().unwrap().to_string();
        let server = thread::spawn(move || {
            let (mut client, _) = server.accept().unwrap();
            client.read_exact(&mut [0; 4]).unwrap();
            client.write_all(answer).unwrap();
        });
        let answer = request(&host, "PUT", "/", "", &vec![0; 32 << 20]);
        server.join().unwrap();
        answer
    }

    #[test]
    fn a_complete_answer_counts_although_the_connection_breaks_behind_it() {
        let answer = refused(b"HTTP/1.1 412 Precondition Failed\r\ncontent-length: 2\r\n\r\nno").unwrap();
        assert_eq!((answer.status, &answer.body[..]), (412, &b"no"[..]));
    }

    #[test]
    fn an_answer_that_a_broken_connection_cut_is_an_error() {
        assert!(refused(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nno").is_err());
        assert!(refused(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }

    #[test]
    fn the_status_the_fields_and_the_body_of_an_answer_are_read() {
        let answer = parse(b"HTTP/1.1 404 Not Found\r\nA: b:c\r\n\r\nno such tag").unwrap();
        assert_eq!((answer.status, &answer.body[..]), (404, &b"no such tag"[..]));
        assert_eq!((answer.field("a"), answer.field("b")), (Some("b:c"), None));
    }

    #[test]
    fn something_else_than_http_is_noticed() {
        assert!(parse(b"SSH-2.0-OpenSSH_9.2\r\n\r\n").is_none());
    }
}
