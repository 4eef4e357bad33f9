//! A registry whose certificate no authority has signed.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::world::World;

/// Answers every connection with a handshake and nothing else, until the process ends. Returns its port.
fn serve_handshakes() -> u16 {
    let fixture = |name| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tls/server").join(name);
    let certificate = CertificateDer::from_pem_file(fixture("server.crt")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(fixture("server.key")).expect("its key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider can")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("key and certificate fit");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut connection = rustls::ServerConnection::new(config.clone()).expect("a connection");
            while connection.is_handshaking() && connection.complete_io(&mut stream).is_ok() {}
        }
    });
    port
}

#[test]
fn an_untrusted_certificate_is_final_and_exits_with_6() {
    let world = World::new();
    world.directory("mnt");
    let registry = format!("127.0.0.1:{}", serve_handshakes());
    let image = format!("{registry}/app:v1");
    let transcript = world.transcript(&["mount", &image, "TMP/mnt"]).replace(&registry, "HOST");
    assert!(transcript.ends_with("exit 6\n"), "{transcript}");
    insta::assert_snapshot!(transcript);
    world.assert_untouched();
}
