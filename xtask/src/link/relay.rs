//! Makes a port of loopback reachable at this end of the link.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use anyhow::{Context, Result};

/// Passes connections to `host`:`port` on to 127.0.0.1:`port`, for as long as this program runs.
pub(crate) fn start(host: &str, port: u16) -> Result<()> {
    let listener = TcpListener::bind((host, port)).with_context(|| format!("cannot listen at {host}:{port}"))?;
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // Nobody listens there: the client sees its connection closed, as it would without a relay.
            if let Ok(server) = TcpStream::connect(("127.0.0.1", port)) {
                join(client, server).ok();
            }
        }
    });
    Ok(())
}

/// Copies both ways between two connections, in threads of their own.
fn join(client: TcpStream, server: TcpStream) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client_reader, server_reader) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || copy(client_reader, server));
    thread::spawn(move || copy(server_reader, client));
    Ok(())
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 256 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..length]).is_err() {
            // Tell the sender that nobody listens any more.
            from.shutdown(Shutdown::Read).ok();
            break;
        }
    }
    to.shutdown(Shutdown::Write).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_the_end_of_a_connection_pass_both_ways() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        // Another loopback address stands for this end of the link.
        start("127.0.0.2", port).unwrap();
        let mut client = TcpStream::connect(("127.0.0.2", port)).unwrap();
        let (mut accepted, _) = server.accept().unwrap();
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut text = String::new();
        accepted.read_to_string(&mut text).unwrap();
        assert_eq!(text, "question");
        accepted.write_all(b"answer").unwrap();
        drop(accepted);
        text.clear();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "answer");
    }
}
