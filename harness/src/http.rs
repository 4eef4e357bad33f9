//! The few plain HTTP requests to a local registry; too few for a client library.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result};

/// A response of the registry.
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The body, without the header.
    pub body: Vec<u8>,
}

/// Sends a request on a new connection and reads the whole response.
pub fn request(host: &str, method: &str, path: &str, headers: &str, body: &[u8]) -> Result<Answer> {
    let mut stream = connect(host)?;
    // HTTP/1.0: the end of the connection ends the body, so there are no chunks to join.
    let head = format!("{method} {path} HTTP/1.0\r\nHost: {host}\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    parse(&answer).with_context(|| format!("{host} does not speak HTTP"))
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
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, body: answer[end + 4..].to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_and_the_body_of_an_answer_are_read() {
        let answer = parse(b"HTTP/1.1 404 Not Found\r\nA: b\r\n\r\nno such tag").unwrap();
        assert_eq!((answer.status, &answer.body[..]), (404, &b"no such tag"[..]));
    }

    #[test]
    fn something_else_than_http_is_noticed() {
        assert!(parse(b"SSH-2.0-OpenSSH_9.2\r\n\r\n").is_none());
    }
}
