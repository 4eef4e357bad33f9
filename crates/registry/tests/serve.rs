//! The HTTP server keeps to its limits.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use tarpon_registry::serve::{Contents, Limits, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn answer(server: &Server, request: &str) -> String {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // One that is refused in the middle of its request may be reset.
    let _end = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn a_silent_client_is_disconnected_and_each_connection_serves_one_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let limits = Limits { connections: 1, head_bytes: 8 << 10, lifetime: Some(Duration::from_millis(500)) };
    let server = Server::on(listener, Arc::new(Contents::new()), limits).unwrap();
    let silent = TcpStream::connect(server.address()).await.unwrap();
    // Waits until the silent connection, whose place it takes, has ended. Ends because the connection is closed after the answer.
    let answered = answer(&server, "GET /v2/ HTTP/1.1\r\nhost: here\r\n\r\n").await;
    assert!(answered.starts_with("HTTP/1.1 200 OK\r\n"), "{answered}");
    drop(silent);
    let endless = format!("GET /v2/ HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(64 << 10));
    let refused = answer(&server, &endless).await;
    assert!(refused.is_empty() || refused.starts_with("HTTP/1.1 431 "), "{refused}");
}
