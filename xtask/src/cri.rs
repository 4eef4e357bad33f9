//! Pulls as the kubelet does, by a request that curl sends: `ctr images pull` of containerd 1.x does not give the snapshotter the name of
//! the image.

use anyhow::{Context, Result};

/// The arguments of curl for a request `PullImage` to the containerd at this socket. `data` is a file with [`pull_request`].
pub(crate) fn curl<'a>(socket: &'a str, data: &'a str) -> Vec<&'a str> {
    let connection = ["--unix-socket", socket, "--http2-prior-knowledge", "--max-time", "60"];
    let headers = ["--header", "Content-Type: application/grpc", "--header", "TE: trailers"];
    let method = ["--data-binary", data, "http://localhost/runtime.v1.ImageService/PullImage"];
    let shown = ["--silent", "--show-error", "--output", "-", "--dump-header", "-"];
    [&shown[..], &connection, &headers, &method].concat()
}

/// `runtime.v1.PullImageRequest { image: ImageSpec { image } }` as gRPC frames it.
pub(crate) fn pull_request(image: &str) -> Result<Vec<u8>> {
    // The field 1 with bytes; lengths are a single byte up to 127.
    let field = |bytes: &[u8]| -> Result<Vec<u8>> {
        let length = u8::try_from(bytes.len()).ok().filter(|length| *length < 0x80);
        Ok([&[0x0a, length.context("the name of the image is too long")?], bytes].concat())
    };
    let message = field(&field(image.as_bytes())?)?;
    let length = u32::try_from(message.len())?.to_be_bytes();
    Ok([&[0][..], &length, &message].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_its_length_and_the_name_in_two_fields() {
        assert_eq!(pull_request("a/b").unwrap(), b"\x00\x00\x00\x00\x07\x0a\x05\x0a\x03a/b");
        assert!(pull_request(&"a".repeat(128)).is_err());
    }
}
