//! The images of `cargo xtask bench papers`: Debian with the packages of one program, as HelloBench (Slacker, FAST'16) has one image
//! for each program. `fixtures/corpus/hello.tsv` has what each of them starts.

/// Name of an image and its packages.
pub(super) const HELLO: &[(&str, &str)] = &[
    ("hello-perl", "perl"),
    ("hello-gcc", "gcc libc6-dev"),
    ("hello-sqlite", "sqlite3"),
    ("hello-ruby", "ruby"),
    ("hello-lua", "lua5.4"),
    ("hello-php", "php-cli"),
    ("hello-tcl", "tcl"),
    ("hello-erlang", "erlang-base"),
    ("hello-node", "nodejs"),
    ("hello-python", "python3-minimal"),
    ("hello-gxx", "g++"),
    ("hello-tcc", "tcc libc6-dev"),
    ("hello-prolog", "swi-prolog-nox"),
    ("hello-gforth", "gforth"),
    ("hello-memcached", "memcached"),
    ("hello-mosquitto", "mosquitto"),
    ("hello-apache", "apache2"),
    ("hello-lighttpd", "lighttpd"),
    ("hello-haproxy", "haproxy"),
    ("hello-git", "git"),
    ("hello-django", "python3-django"),
    ("hello-guile", "guile-3.0"),
    ("hello-postgres", "postgresql"),
    ("hello-mariadb", "mariadb-server"),
    ("hello-java", "openjdk-17-jre-headless"),
];
