//! `tarpon tier` over the protocol of S3, with a server that answers as a test demands.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use tarpon_oci::Digest;

use crate::world::World;

/// A response: the status and the body.
type Answer = (u16, Vec<u8>);

/// A server that answers each request by a function of its first line. It ends with the process of the test.
struct Bucket {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Bucket {
    fn answering(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (address, requests) = (listener.local_addr().expect("an address"), Arc::<Mutex<Vec<String>>>::default());
        let (answer, seen) = (Arc::new(answer), requests.clone());
        std::thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let (answer, seen) = (answer.clone(), seen.clone());
                // A client may end before it has the whole answer.
                std::thread::spawn(move || serve(connection, &*answer, &seen).unwrap_or_default());
            }
        });
        Self { address, requests }
    }

    /// Runs a command on the tier `s3://bucket/team`; exit code, standard output and standard error.
    fn run(&self, world: &World, arguments: &[&str]) -> (i32, String, String) {
        let mut command = world.command(&[&["tier"], arguments, &["--tier", "s3://bucket/team"]].concat());
        let endpoint = format!("http://{}", self.address);
        let environment = [
            ("AWS_ENDPOINT", endpoint.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "here"),
            ("AWS_ACCESS_KEY_ID", "known"),
            ("AWS_SECRET_ACCESS_KEY", "hidden"),
        ];
        let output = command.envs(environment).output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&endpoint, "SERVER");
        (output.status.code().expect("it was not killed"), text(&output.stdout), text(&output.stderr))
    }

    /// How many requests began with this.
    fn count(&self, begin: &str) -> usize {
        self.requests.lock().expect("no panic").iter().filter(|line| line.starts_with(begin)).count()
    }
}

/// Answers one request, and closes the connection.
fn serve(connection: TcpStream, answer: &dyn Fn(&str) -> Answer, seen: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(&connection);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let header = header.trim().to_lowercase();
        if header.is_empty() {
            break;
        }
        length = header.strip_prefix("content-length: ").and_then(|text| text.parse().ok()).unwrap_or(length);
    }
    reader.take(length).read_to_end(&mut Vec::new())?;
    seen.lock().expect("no panic").push(line.clone());
    let (status, body) = answer(&line);
    let head = format!(
        "HTTP/1.1 {status} Answer\r\nContent-Length: {}\r\nETag: \"1\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    (&connection).write_all(head.as_bytes())?;
    (&connection).write_all(&body)
}

/// A listing with these blobs.
fn listing(blobs: &[&[u8]]) -> Answer {
    let entry = |blob: &&[u8]| {
        let (hex, size) = (Digest::of(blob).hex(), blob.len());
        format!(
            "<Contents><Key>team/v1/layers/{hex}/blob</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
             <ETag>\"1\"</ETag><Size>{size}</Size></Contents>"
        )
    };
    let entries: String = blobs.iter().map(entry).collect();
    let text = format!("<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>");
    (200, text.into_bytes())
}

fn is_listing(line: &str) -> bool {
    line.contains("list-type=2")
}

#[test]
fn a_bucket_is_listed_and_verified_below_its_prefix() {
    let (one, other) = (b"a blob".as_slice(), b"another blob".as_slice());
    let bucket = Bucket::answering(move |line| match line {
        line if is_listing(line) => listing(&[one, other]),
        line if line.contains(&Digest::of(one).hex()) => (200, one.to_vec()),
        _ => (200, b"aNother blob".to_vec()),
    });
    let world = World::new();
    let (code, text, _) = bucket.run(&world, &["usage"]);
    assert!(code == 0 && text.starts_with("tier s3://bucket/team\nblobs    2  18 B\n"), "{text}");
    assert_eq!(bucket.count("GET /bucket?list-type=2&prefix=team%2Fv1%2Flayers%2F "), 1);

    let (code, text, _) = bucket.run(&world, &["verify", "--quiet"]);
    let wrong = format!("verified 2 objects, 18 B\nwrong blob of layer {}\n", Digest::of(other));
    assert_eq!((code, text), (8, wrong));
}

#[test]
fn credentials_that_are_refused_exit_with_4_and_are_not_shown() {
    let bucket = Bucket::answering(|_| (403, b"<Error><Code>AccessDenied</Code></Error>".to_vec()));
    for command in ["usage", "gc", "verify"] {
        let (code, text, error) = bucket.run(&World::new(), &[command]);
        assert_eq!((code, &*text, error.lines().count()), (4, "", 1), "{error}");
        assert!(error.contains("the tier s3://bucket/team: list the tier: ") && !error.contains("hidden"), "{error}");
    }
}

#[test]
fn a_bucket_that_does_not_exist_exits_with_3() {
    let bucket = Bucket::answering(|_| (404, b"<Error><Code>NoSuchBucket</Code></Error>".to_vec()));
    let (code, _, error) = bucket.run(&World::new(), &["usage"]);
    assert_eq!(code, 3, "{error}");
}

#[test]
fn a_server_that_is_away_exits_with_5() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let bucket = Bucket { address: free, requests: Arc::default() };
    let (code, _, error) = bucket.run(&World::new(), &["usage"]);
    assert_eq!((code, error.lines().count()), (5, 1), "{error}");
}

#[test]
fn objects_that_cannot_be_read_are_not_called_wrong_and_exit_with_5() {
    let (one, other) = (b"a blob".as_slice(), b"another blob".as_slice());
    let bucket = Bucket::answering(move |line| match line {
        line if is_listing(line) => listing(&[one, other]),
        line if line.contains(&Digest::of(one).hex()) => (200, one.to_vec()),
        _ => (500, b"the disk\nfailed".to_vec()),
    });
    let (code, text, error) = bucket.run(&World::new(), &["verify", "--repair", "--quiet"]);
    let other = Digest::of(other);
    assert!(
        text.starts_with(&format!("verified 1 object, 6 B\nunreadable blob of layer {other}: cannot verify ")),
        "{text}"
    );
    assert_eq!((code, text.lines().count(), bucket.count("DELETE"), bucket.count("POST")), (5, 2, 0, 0), "{text}");
    assert!(error.starts_with("tarpon: 1 object of the tier s3://bucket/team could not be read"), "{error}");
}

#[test]
fn after_16_objects_in_a_row_that_cannot_be_read_verify_gives_up() {
    let blobs: Vec<Vec<u8>> = (0..100).map(|number| vec![number]).collect();
    let bucket = Bucket::answering(move |line| match line {
        line if is_listing(line) => listing(&blobs.iter().map(Vec::as_slice).collect::<Vec<_>>()),
        _ => (400, Vec::new()),
    });
    let (code, text, error) = bucket.run(&World::new(), &["verify"]);
    assert_eq!((code, &*text), (5, ""), "{error}");
    let asked = bucket.count("GET") - 1;
    assert!((16..=20).contains(&asked), "{asked} objects were requested");
}

#[test]
fn gc_removes_each_object_by_the_request_that_every_server_knows() {
    let blobs: Vec<Vec<u8>> = (0..100).map(|number| vec![number]).collect();
    let bucket = Bucket::answering(move |line| match line {
        line if is_listing(line) => listing(&blobs.iter().map(Vec::as_slice).collect::<Vec<_>>()),
        line if line.starts_with("DELETE") => (204, Vec::new()),
        _ => (400, Vec::new()),
    });
    let (code, text, error) = bucket.run(&World::new(), &["gc", "--unused", "1d"]);
    assert!(code == 0 && text.ends_with("removed 100 layers, 100 B\n"), "{text}{error}");
    assert_eq!((bucket.count("POST"), bucket.count("DELETE")), (0, 100));
}
