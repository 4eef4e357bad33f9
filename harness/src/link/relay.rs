//! Makes a port of loopback reachable at this end of the link.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};
use rustix::net::sockopt::set_socket_send_buffer_size_force;

use super::log::{Log, SENDING};

/// Forwards connections from `host`:`port` to 127.0.0.1:`port`, as long as this program runs.
pub(super) fn start(host: &str, port: u16, log: &Arc<Log>) -> Result<()> {
    let listener = TcpListener::bind((host, port)).with_context(|| format!("cannot listen at {host}:{port}"))?;
    let log = log.clone();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // If nothing listens there, the client sees its connection closed, as it would without a relay.
            if let Ok(server) = TcpStream::connect(("127.0.0.1", port)) {
                join(client, server, &log).ok();
            }
        }
    });
    Ok(())
}

/// Copies in both directions between two connections, in separate threads.
fn join(client: TcpStream, server: TcpStream, log: &Arc<Log>) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    // If this is not permitted, the log may be early.
    set_socket_send_buffer_size_force(&client, SENDING).ok();
    let (client_reader, server_reader) = (client.try_clone()?, server.try_clone()?);
    let connection = log.connection();
    let (asked, answered) = (log.clone(), log.clone());
    thread::spawn(move || copy(client_reader, server, |bytes| asked.asked(connection, bytes), |_| {}));
    thread::spawn(move || copy(server_reader, client, |_| {}, |bytes| answered.answered(connection, bytes.len())));
    Ok(())
}

fn copy(mut from: TcpStream, mut to: TcpStream, before: impl Fn(&[u8]), after: impl Fn(&[u8])) {
    let mut buffer = vec![0; 256 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        before(&buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            // The sender learns that the reader is gone.
            from.shutdown(Shutdown::Read).ok();
            break;
        }
        after(&buffer[..length]);
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
        // Another loopback address represents this end of the link.
        start("127.0.0.2", port, &Arc::new(Log::new().unwrap())).unwrap();
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
