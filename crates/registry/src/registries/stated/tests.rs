use super::super::{Registries, RegistriesError, RegistriesPaths};
use super::*;

/// The endpoints of an image: name, root of the API, and what differs from the usual.
fn found(text: &str, image: &str) -> Vec<String> {
    let all = Registries::default().with_endpoints(text).unwrap();
    all.endpoints(&image.parse().unwrap()).unwrap().iter().map(shown).collect()
}

fn shown(endpoint: &Endpoint) -> String {
    let api = endpoint.address.as_ref().map_or("", |address| &address.api);
    let own = endpoint.address.as_ref().map(|address| address.credentials).unwrap_or_default();
    let own = if own == EndpointCredentials::Own { String::new() } else { format!(" {own:?}") };
    format!("{} {api}{own}", endpoint.reference)
}

fn refusal(text: &str) -> String {
    Registries::default().with_endpoints(text).unwrap_err().to_string()
}

/// The refusal of an endpoint with this line.
fn refusal_of(line: &str) -> String {
    refusal(&format!("[[registry]]\nprefix = 'docker.io'\n[[registry.endpoint]]\nurl = 'https://a.example'\n{line}\n"))
}

const TWO: &str = r#"
    [[registry]]
    prefix = "docker.io"
    [[registry.endpoint]]
    url = "https://cache.example:5000"
    ca = "/etc/tarpon/ca.crt"
    timeout = "3s"
    headers = { X-Tenant = "s3cret", x-other = "1" }
    credentials = "registry"
    [[registry.endpoint]]
    url = "http://cache/hub/"
    timeout = "800ms"
    credentials = "none"
"#;

#[test]
fn endpoints_come_before_the_registry_in_their_order() {
    let expected = [
        "cache.example:5000/library/redis:7 https://cache.example:5000/v2 Registry",
        "cache:80/hub/library/redis:7 http://cache/v2 None",
        "docker.io/library/redis:7 ",
    ];
    assert_eq!(found(TWO, "redis:7"), expected);
    assert_eq!(found(TWO, "quay.io/a"), ["quay.io/a:latest "]);
}

#[test]
fn an_endpoint_has_its_own_authority_time_limit_and_headers() {
    let all = Registries::default().with_endpoints(TWO).unwrap();
    let endpoints = all.endpoints(&"redis".parse().unwrap()).unwrap();
    let [first, second] = [0, 1].map(|number| endpoints[number].address.clone().unwrap());
    assert_eq!(first.authorities, [PathBuf::from("/etc/tarpon/ca.crt")]);
    assert_eq!(first.time_limit, Some(Duration::from_secs(3)));
    assert_eq!(first.headers, [Header::new("X-Tenant", "s3cret"), Header::new("x-other", "1")]);
    assert!(!format!("{all:?} {endpoints:?}").contains("s3cret"));
    assert_eq!(second.time_limit, Some(Duration::from_millis(800)));
    assert!(second.authorities.is_empty() && second.headers.is_empty());
    assert_eq!(endpoints[1].host(), "cache");
}

#[test]
fn the_longest_prefix_counts_and_without_a_path_the_name_stays() {
    let text = r#"
        [[registry]]
        prefix = "a.example"
        endpoint = [{ url = "https://one.example" }]
        [[registry]]
        prefix = "a.example/team"
        endpoint = [{ url = "https://two.example" }, { url = "https://two.example/copies/" }]
        [[registry]]
        prefix = "*.b.example"
        endpoint = [{ url = "https://three.example" }, { url = "https://three.example/b" }]
        [[registry]]
        prefix = "a.example/team/secret"
    "#;
    let first = |image| found(text, image)[0].split(' ').next().unwrap().to_owned();
    assert_eq!(first("a.example/app:1"), "one.example/app:1");
    assert_eq!(first("a.example/teams/app:1"), "one.example/teams/app:1");
    assert_eq!(first("a.example/team/app:1"), "two.example/team/app:1");
    assert!(found(text, "a.example/team/app:1")[1].starts_with("two.example/copies/app:1 "));
    assert_eq!(first("x.b.example/app:1"), "three.example/app:1");
    assert!(found(text, "x.b.example/app:1")[1].starts_with("three.example/b/app:1 "));
    assert_eq!(found(text, "a.example/team/secret"), ["a.example/team/secret:latest "], "an entry without endpoints");
}

#[test]
fn endpoints_come_before_mirrors_and_what_is_blocked_stays_blocked() {
    let conf = "[[registry]]\nlocation='docker.io'\n[[registry.mirror]]\nlocation='mirror.example'";
    let all = Registries::parse(conf).unwrap().with_endpoints(TWO).unwrap();
    let hosts = |image: &str| {
        let endpoints = all.endpoints(&image.parse().unwrap());
        endpoints.map(|endpoints| endpoints.iter().map(Endpoint::host).collect::<Vec<_>>())
    };
    assert_eq!(hosts("redis").unwrap(), ["cache.example:5000", "cache", "mirror.example", "docker.io"]);
    let blocked = format!("{conf}\n[[registry]]\nlocation='cache:80'\nblocked=true");
    let all = Registries::parse(&blocked).unwrap().with_endpoints(TWO).unwrap();
    assert_eq!(all.endpoints(&"redis".parse().unwrap()).unwrap().len(), 3, "a blocked endpoint is not asked");
    let blocked = "[[registry]]\nlocation='docker.io'\nblocked=true";
    let all = Registries::parse(blocked).unwrap().with_endpoints(TWO).unwrap();
    let refused = all.endpoints(&"redis".parse().unwrap());
    assert!(matches!(refused, Err(RegistriesError::Blocked { .. })), "endpoints unblock nothing");
}

#[test]
fn the_registry_itself_over_plain_http_gets_no_credentials() {
    let text = "[[registry]]\nprefix='a.example'\nendpoint=[{url='http://a.example'},{url='https://a.example'}]";
    let expected = ["a.example/x:1 http://a.example/v2 None", "a.example/x:1 https://a.example/v2", "a.example/x:1 "];
    assert_eq!(found(text, "a.example/x:1"), expected);
    let moved = Registries::parse("[[registry]]\nprefix='c.example'\nlocation='a.example'").unwrap();
    let moved = moved.with_endpoints(&text.replace("prefix='a.example'", "prefix='c.example'")).unwrap();
    let endpoints = moved.endpoints(&"c.example/x:1".parse().unwrap()).unwrap();
    assert_eq!(endpoints.iter().map(shown).collect::<Vec<_>>(), expected, "where its location leads");
}

#[test]
fn an_invalid_file_is_an_error_with_its_name_and_the_line() {
    for (line, why) in [
        ("colour = 'red'", "line 5: unknown field `colour`"),
        ("timeout = '6s'", "line 5: the timeout \"6s\" is not a time such as 800ms or 3s, from 100ms to 5s"),
        ("timeout = '99ms'", "line 5: the timeout"),
        ("timeout = '3'", "line 5: the timeout"),
        ("timeout = '99999999999999999999s'", "line 5: the timeout"),
        ("timeout = 3", "line 5: invalid type"),
        ("ca = 'ca.crt'", "line 5: ca is no absolute path: ca.crt"),
        ("credentials = 'all'", "line 5: unknown variant `all`"),
        ("headers = { Authorization = 'x' }", "line 5: the header authorization is tarpon's own"),
        ("headers = { 'a b' = 'x' }", "line 5: \"a b\" is not the name of a header"),
        ("headers = 'x'", "line 5: "),
        ("a = ", "line 5: "),
    ] {
        let refused = refusal_of(line);
        assert!(refused.starts_with(&format!("endpoints.toml: {why}")), "{line}: {refused}");
        assert!(!refused.contains('\n'), "{refused}");
    }
    for (text, why) in [
        ("\n\n[[registry]]\nendpoint = []", "line 3: missing field `prefix`"),
        ("[[registry]]\nprefix = 'redis'", "line 2: the prefix redis begins with no registry"),
        ("[[registry]]\nprefix = 'https://a.example'", "line 2: \"https://a.example\" is not HOST[:PORT][/PATH]"),
        ("[[registry]]\nprefix = '*.a.example/x'", "line 2: the prefix *.a.example/x is not of the form"),
        ("registries = []", "line 1: unknown field `registries`"),
        ("[[registry]]\nprefix='a.example'\n[[registry.endpoint]]\n", "line 3: missing field `url`"),
    ] {
        let refused = refusal(text);
        assert!(refused.starts_with(&format!("endpoints.toml: {why}")), "{text}: {refused}");
    }
}

#[test]
fn a_url_is_a_host_with_a_path_and_nothing_else() {
    for url in ["cache.example", "ftp://a.example", "https://", "https://a.example?x", "https://a.example#x", ""] {
        let refused = refusal(&format!("[[registry]]\nprefix='a.example'\nendpoint=[{{url='{url}'}}]"));
        assert!(refused.contains("is not of the form https://HOST[:PORT][/PATH]"), "{url}: {refused}");
    }
    let refused = refusal("[[registry]]\nprefix='a.example'\nendpoint=[{url='https://me:s3cret@a.example'}]");
    assert!(refused.contains("has a user name") && !refused.contains("s3cret"), "{refused}");
    let upper = "[[registry]]\nprefix='a.example'\nendpoint=[{url='https://b.example/UPPER'}]";
    let all = Registries::default().with_endpoints(upper).unwrap();
    let refused = all.endpoints(&"a.example/x".parse().unwrap()).unwrap_err().to_string();
    assert!(refused.contains("endpoints.toml: the location https://b.example/UPPER leads to"), "{refused}");
}

#[test]
fn credentials_of_the_registry_need_https_or_this_machine() {
    let with = |url: &str, more: &str| {
        Registries::default()
            .with_endpoints(&format!("[[registry]]\nprefix='a.example'\nendpoint=[{{url='{url}',{more}}}]"))
            .map(drop)
            .map_err(|error| error.to_string())
    };
    for url in ["https://b.example", "http://127.0.0.1:5001", "http://localhost:5001", "http://[::1]:5001"] {
        assert_eq!(with(url, "credentials='registry'"), Ok(()), "{url}");
    }
    let refused = with("http://b.example", "credentials='registry'").unwrap_err();
    assert!(refused.contains("line 3: the credentials of the registry are not sent over plain HTTP"), "{refused}");
    assert!(with("http://b.example", "credentials='own'").is_ok());
    assert!(with("http://b.example", "ca='/a'").unwrap_err().contains("ca is for https://"));
}

#[test]
fn no_error_shows_the_value_of_a_header() {
    for value in ["7041776", "70417.76", "[7041776]", "{ a = 7041776 }", "\"7041776\\u0007\"", "2026-07-04"] {
        let refused = refusal_of(&format!("headers = {{ x = {value} }}"));
        assert!(!refused.contains("70417") && !refused.contains("2026"), "{value}: {refused}");
        assert!(refused.contains("line 5: "), "{refused}");
    }
    let broken = refusal_of("headers = { x = 's3cret");
    assert!(!broken.contains("s3cret"), "{broken}");
    let doubled = refusal_of("headers = { x = 's3cret', x = 's3cret' }");
    assert!(!doubled.contains("s3cret"), "{doubled}");
}

#[test]
fn there_are_limits_of_endpoints_headers_and_their_bytes() {
    let endpoints = |count: usize| {
        let all = "{url='https://b.example'},".repeat(count);
        Registries::default().with_endpoints(&format!("[[registry]]\nprefix='a.example'\nendpoint=[{all}]"))
    };
    assert!(endpoints(ENDPOINTS).is_ok());
    assert!(endpoints(ENDPOINTS + 1).unwrap_err().to_string().contains("more than 16 endpoints"));
    let headers = |count: usize, length: usize| {
        let all: Vec<_> = (0..count).map(|at| format!("x-{at} = '{}'", "v".repeat(length))).collect();
        let all = all.join(", ");
        let text =
            format!("[[registry]]\nprefix='a.example'\nendpoint=[{{url='https://b.example',headers={{{all}}}}}]");
        Registries::default().with_endpoints(&text)
    };
    assert!(headers(HEADERS, 10).is_ok());
    assert!(headers(HEADERS + 1, 10).is_err());
    assert!(headers(1, HEADER_BYTES - 3).is_ok());
    assert!(headers(1, HEADER_BYTES).unwrap_err().to_string().contains("4096 bytes"));
}

#[test]
fn a_path_of_a_certificate_has_a_limit() {
    let path = format!("/{}", "a".repeat(PATH_BYTES));
    assert!(refusal_of(&format!("ca = '{path}'")).contains("longer than 1024 bytes"));
}

#[test]
fn files_are_read_in_their_order_and_later_ones_replace_registries() {
    let folder = tempfile::tempdir().unwrap();
    let paths = RegistriesPaths::none().with_endpoints(folder.path().to_owned());
    let write = |name: &str, host: &str| {
        let text = format!("[[registry]]\nprefix='a.example'\nendpoint=[{{url='https://{host}'}}]");
        std::fs::write(folder.path().join(name), text).unwrap();
    };
    let first = || {
        let endpoints = Registries::load(&paths).unwrap().endpoints(&"a.example/x".parse().unwrap()).unwrap();
        (endpoints[0].host(), endpoints.len())
    };
    assert_eq!(first(), ("a.example".to_owned(), 1));
    write("20-b.toml", "b.example");
    write("10-a.toml", "c.example");
    write("30-c.conf", "d.example");
    assert_eq!(first(), ("b.example".to_owned(), 2));
    std::fs::write(folder.path().join("30-d.toml"), "[[registry]]").unwrap();
    let invalid = Registries::load(&paths).unwrap_err().to_string();
    assert_eq!(invalid, format!("{}/30-d.toml: line 1: missing field `prefix`", folder.path().display()));
}

#[test]
fn a_file_is_summarised_for_its_user() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cache.toml");
    std::fs::write(&file, TWO).unwrap();
    let summary = Registries::check_endpoints(&file).unwrap();
    assert_eq!(summary, StatedEndpoints { endpoints: 2, has_headers: true });
    assert!(Registries::check_endpoints(Path::new("/missing/cache.toml")).is_err());
}
