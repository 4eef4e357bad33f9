//! Certificates: checked by default, final when not trusted, and the client's own shown to the registry only.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use common::contents;
use futures::StreamExt as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tarpon_blob::Fault as Class;
use tarpon_oci::{Platform, Source};
use tarpon_registry::serve::Contents;
use tarpon_registry::{AccessOptions, Error, Registries, open, open_anonymously};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tls").join(name)
}

/// An HTTPS registry on loopback. `client`: it requires a client certificate.
async fn serve(client: bool) -> SocketAddr {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = if client {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(fixture("certs/ca.crt")).unwrap()).unwrap();
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        builder.with_client_cert_verifier(verifier.build().unwrap())
    } else {
        builder.with_no_client_auth()
    };
    let chain = vec![CertificateDer::from_pem_file(fixture("server/server.crt")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(fixture("server/server.key")).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let contents = Arc::new(contents());
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, contents) = (acceptor.clone(), contents.clone());
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    respond(stream, &contents).await;
                }
            });
        }
    });
    address
}

/// Answers one request and closes.
async fn respond(mut stream: impl AsyncRead + AsyncWrite + Unpin, contents: &Contents) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let path = head.split(' ').nth(1).unwrap();
    let request = http::Request::get(path).body(Bytes::new()).unwrap();
    let (head, mut body) = contents.answer(&request).await.into_parts();
    let mut answer = format!("HTTP/1.1 {}\r\nconnection: close\r\n", head.status);
    for (name, value) in &head.headers {
        answer += &format!("{name}: {}\r\n", value.to_str().unwrap());
    }
    stream.write_all(format!("{answer}\r\n").as_bytes()).await.unwrap();
    while let Some(piece) = body.next().await {
        stream.write_all(&piece.unwrap()).await.unwrap();
    }
    stream.shutdown().await.ok();
}

async fn resolve(host: &str, options: AccessOptions) -> Result<(), Error> {
    let source: Source = format!("{host}/app:1").parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let options = AccessOptions { authfiles: vec![folder.path().join("auth.json")], ..options };
    open(&source, &options).await?.resolve(&Platform::host()).await.map(drop)
}

fn certs(folder: &str) -> AccessOptions {
    AccessOptions { cert_dir: Some(fixture(folder)), ..AccessOptions::default() }
}

#[tokio::test]
async fn an_untrusted_certificate_is_final_and_reported_in_one_line() {
    let address = serve(false).await;
    let started = std::time::Instant::now();
    let error = resolve(&address.to_string(), AccessOptions::default()).await.unwrap_err();
    assert!(started.elapsed().as_secs() < 4, "it was tried again");
    assert_eq!(error.fault(), Class::Refused, "{error}");
    let text = error.to_string();
    assert!(text.contains("TLS") && text.contains("certificate") && !text.contains('\n'), "{text}");
}

#[tokio::test]
async fn a_root_in_the_certificate_folder_is_trusted() {
    let address = serve(false).await;
    resolve(&address.to_string(), certs("certs")).await.unwrap();
    resolve(&format!("localhost:{}", address.port()), certs("certs")).await.unwrap();
}

#[tokio::test]
async fn without_verification_any_certificate_will_do() {
    let address = serve(false).await;
    let options = AccessOptions { tls_verify: Some(false), ..AccessOptions::default() };
    resolve(&address.to_string(), options).await.unwrap();
}

#[tokio::test]
async fn a_registry_that_requires_a_client_certificate_gets_the_one_in_the_folder() {
    let address = serve(true).await;
    resolve(&address.to_string(), certs("certs")).await.unwrap();
    let without = AccessOptions { tls_verify: Some(false), ..AccessOptions::default() };
    assert!(resolve(&address.to_string(), without).await.is_err());
}

#[tokio::test]
async fn an_anonymous_request_shows_no_client_certificate() {
    let resolve = async |address: SocketAddr| {
        let reference = format!("{address}/app:1").parse().unwrap();
        open_anonymously(&reference, &certs("certs")).unwrap().resolve(&Platform::host()).await
    };
    resolve(serve(false).await).await.unwrap();
    let error = resolve(serve(true).await).await.unwrap_err();
    assert!(error.to_string().contains("ertificate"), "{error}");
}

#[tokio::test]
async fn an_endpoint_is_trusted_by_the_authority_that_its_entry_names() {
    let (address, image) = (serve(false).await, "registry.invalid/app:1");
    let resolve = async |ca: &str| {
        let text = format!("[[registry]]\nprefix='registry.invalid'\nendpoint=[{{url='https://{address}'{ca}}}]");
        let all = Registries::default().with_endpoints(&text).unwrap();
        let mut endpoints = all.endpoints(&image.parse().unwrap()).unwrap();
        // The registry does not exist.
        endpoints.pop();
        let options = AccessOptions { endpoints, ..AccessOptions::default() };
        open(&image.parse().unwrap(), &options).await.unwrap().resolve(&Platform::host()).await
    };
    resolve(&format!(", ca='{}'", fixture("certs/ca.crt").canonicalize().unwrap().display())).await.unwrap();
    let error = resolve("").await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}
