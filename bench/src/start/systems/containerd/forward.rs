//! A port on loopback that forwards to another address: for programs that use plain HTTP only with this host.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use anyhow::{Context, Result};

/// Forwards connections to a new port on loopback; returns its address. It works as long as this program runs.
pub(super) fn start(to: &str) -> Result<String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen on loopback")?;
    let address = listener.local_addr()?.to_string();
    let to = to.to_owned();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let to = to.clone();
            // If the target cannot be reached, the client sees its connection closed.
            thread::spawn(move || connect(&client, &to));
        }
    });
    Ok(address)
}

fn connect(client: &TcpStream, to: &str) -> io::Result<()> {
    let server = TcpStream::connect(to)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    thread::scope(|scope| {
        scope.spawn(|| copy(client, &server));
        copy(&server, client);
    });
    Ok(())
}

/// Copies until the end of the input, and closes the output.
fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    // A broken connection is treated like a closed one.
    let _broken = io::copy(&mut from, &mut to);
    let _gone = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn both_sides_receive_what_the_other_sends_to_its_end() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = start(&server.local_addr().unwrap().to_string()).unwrap();
        let answer = thread::spawn(move || {
            let (mut client, _) = server.accept().unwrap();
            let mut asked = String::new();
            client.read_to_string(&mut asked).unwrap();
            client.write_all(format!("{asked}, yes").as_bytes()).unwrap();
        });
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"there").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut heard = String::new();
        client.read_to_string(&mut heard).unwrap();
        answer.join().unwrap();
        assert_eq!(heard, "there, yes");
    }
}
