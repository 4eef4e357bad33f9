//! Breaks each rule once, in a repository that keeps all the others.

use super::repository::{File, Repository};
use super::*;

/// A small repository that keeps every rule.
const KEPT: &[(&str, &str)] = &[
    ("ARCHITECTURE.md", "The crates are `crates/oci`, crates/fs and crates/mount.\n"),
    ("crates/oci/Cargo.toml", "[package]\nname = \"tarpon-oci\"\n"),
    ("crates/oci/src/lib.rs", "//! Digests.\nuse std::io::Read;\n"),
    ("crates/fs/Cargo.toml", "[package]\nname = \"tarpon-fs\"\n[dependencies]\ntarpon-oci.workspace = true\n"),
    ("crates/fs/src/lib.rs", "//! Inodes.\n"),
    ("crates/mount/Cargo.toml", "[package]\nname = \"tarpon-mount\"\n[dependencies]\nfuser.workspace = true\n"),
    ("crates/mount/src/lib.rs", "//! The kernel.\nuse fuser::Session;\n"),
];

/// The problems of the small repository after files were added or replaced.
fn problems(changes: &[(&str, &str)]) -> Vec<String> {
    let kept = KEPT.iter().filter(|(path, _)| !changes.iter().any(|(changed, _)| changed == path));
    let files = kept.chain(changes).map(|(path, text)| File { path: (*path).into(), text: (*text).into() });
    check(&Repository::new(files.collect(), Vec::new())).iter().map(Problem::to_string).collect()
}

/// Asserts that there is exactly one problem, with this beginning.
#[track_caller]
fn one(changes: &[(&str, &str)], place: &str) {
    let problems = problems(changes);
    assert!(problems.len() == 1 && problems[0].starts_with(place), "want {place}, found {problems:#?}");
    assert!(problems[0].contains("please"), "{}", problems[0]);
}

fn manifest(name: &str, dependencies: &str) -> String {
    format!("[package]\nname = \"tarpon-{name}\"\n{dependencies}")
}

#[test]
fn a_repository_that_keeps_the_rules_has_no_problem() {
    assert_eq!(problems(&[]), [""; 0]);
}

#[test]
fn a_pure_crate_that_opens_files_is_named() {
    one(&[("crates/oci/src/a.rs", "fn f() {\n    std::fs::read(x);\n}\n")], "crates/oci/src/a.rs:2:");
    one(&[("crates/oci/src/a.rs", "use std::{io, net::TcpStream};\n")], "crates/oci/src/a.rs:1:");
}

#[test]
fn a_pure_crate_may_know_what_an_address_is() {
    assert_eq!(problems(&[("crates/oci/src/a.rs", "use std::net::Ipv6Addr;\n")]), [""; 0]);
}

#[test]
fn the_tests_of_a_pure_crate_may_open_files() {
    let inline = "#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
    let file = "use std::fs;\n";
    let declared = "//! Digests.\n#[cfg(test)]\nmod fakes;\n";
    assert_eq!(
        problems(&[
            ("crates/oci/src/a.rs", inline),
            ("crates/oci/tests/b.rs", file),
            ("crates/oci/src/lib.rs", declared),
            ("crates/oci/src/fakes.rs", file),
        ]),
        [""; 0]
    );
}

#[test]
fn a_pure_crate_that_depends_on_an_io_crate_is_named() {
    one(&[("crates/oci/Cargo.toml", &manifest("oci", "[dependencies]\ntokio = \"1\"\n"))], "crates/oci/Cargo.toml:4:");
    assert_eq!(
        problems(&[("crates/oci/Cargo.toml", &manifest("oci", "[dev-dependencies]\ntokio = \"1\"\n"))]),
        [""; 0]
    );
}

#[test]
fn unsafe_code_in_a_pure_crate_is_named() {
    one(&[("crates/oci/src/a.rs", "\nunsafe fn f() {}\n")], "crates/oci/src/a.rs:2:");
}

#[test]
fn unsafe_code_needs_a_place_on_the_list_and_a_reason() {
    let code = ("crates/fs/src/a.rs", "unsafe fn f() {}\n");
    one(&[code], "crates/fs/src/a.rs:1:");
    one(&[code, ("xtask/unsafe-modules.txt", "crates/fs/src/a.rs\n")], "xtask/unsafe-modules.txt:1:");
    assert_eq!(problems(&[code, ("xtask/unsafe-modules.txt", "# why\ncrates/fs/src/a.rs a syscall\n")]), [""; 0]);
}

#[test]
fn a_module_that_no_longer_needs_the_list_is_named() {
    one(&[("xtask/unsafe-modules.txt", "crates/fs/src/lib.rs a syscall\n")], "xtask/unsafe-modules.txt:1:");
}

#[test]
fn the_word_in_a_comment_is_not_unsafe_code() {
    assert_eq!(problems(&[("crates/fs/src/a.rs", "// unsafe\n#![deny(unsafe_code)]\n")]), [""; 0]);
}

#[test]
fn fuser_and_reqwest_have_one_home_each() {
    one(&[("crates/fs/src/a.rs", "use fuser::Request;\n")], "crates/fs/src/a.rs:1:");
    one(&[("crates/fs/Cargo.toml", &manifest("fs", "[dependencies]\nreqwest = \"1\"\n"))], "crates/fs/Cargo.toml:4:");
}

#[test]
fn a_dependency_against_the_direction_is_named() {
    one(
        &[("crates/fs/Cargo.toml", &manifest("fs", "[dependencies]\ntarpon-mount = \"1\"\n"))],
        "crates/fs/Cargo.toml:4:",
    );
}

#[test]
fn no_package_depends_on_the_command_line_not_even_tests() {
    one(
        &[("crates/fs/Cargo.toml", &manifest("fs", "[dev-dependencies]\ntarpon = \"1\"\n"))],
        "crates/fs/Cargo.toml:4:",
    );
    one(&[("tests/Cargo.toml", &manifest("tests", "[dependencies]\ntarpon = \"1\"\n"))], "tests/Cargo.toml:4:");
}

#[test]
fn the_testkit_is_for_tests() {
    let (normal, dev) = ("[dependencies]\ntarpon-testkit = \"1\"\n", "[dev-dependencies]\ntarpon-testkit = \"1\"\n");
    one(&[("crates/fs/Cargo.toml", &manifest("fs", normal))], "crates/fs/Cargo.toml:4:");
    assert_eq!(problems(&[("crates/fs/Cargo.toml", &manifest("fs", dev))]), [""; 0]);
    assert_eq!(problems(&[("tests/Cargo.toml", &manifest("tests", normal))]), [""; 0]);
}

#[test]
fn a_new_crate_needs_its_place_in_the_table() {
    one(
        &[
            ("crates/new/Cargo.toml", &manifest("new", "")),
            ("ARCHITECTURE.md", "crates/oci crates/fs crates/mount crates/new\n"),
        ],
        "crates/new/Cargo.toml:1:",
    );
}

#[test]
fn a_file_of_more_than_800_lines_is_named() {
    let long = "fn f() {}\n".repeat(801);
    one(&[("crates/fs/src/a.rs", &long)], "crates/fs/src/a.rs:801:");
}

#[test]
fn tests_do_not_make_a_file_long() {
    let long = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", "fn f() {}\n".repeat(700), "fn t() {}\n".repeat(700));
    assert_eq!(problems(&[("crates/fs/src/a.rs", &long), ("crates/fs/tests/b.rs", &long)]), [""; 0]);
}

#[test]
fn an_open_end_needs_the_number_of_an_issue() {
    let word = concat!("TO", "DO");
    one(&[("README.md", &format!("\n{word}: later\n"))], "README.md:2:");
    assert_eq!(problems(&[("README.md", &format!("{word}(#12): later\n"))]), [""; 0]);
}

#[test]
fn the_page_on_the_architecture_names_every_crate_and_no_other() {
    one(&[("ARCHITECTURE.md", "crates/oci and crates/fs\n")], "ARCHITECTURE.md:1: crates/mount");
    one(&[("ARCHITECTURE.md", "crates/oci crates/fs crates/mount\ncrates/old\n")], "ARCHITECTURE.md:2:");
}

#[test]
fn a_crate_without_a_header_is_named() {
    one(&[("crates/fs/src/lib.rs", "mod a;\n")], "crates/fs/src/lib.rs:1:");
}

#[test]
fn places_on_one_machine_are_named() {
    one(&[("README.md", concat!("see /", "work/it\n"))], "README.md:1:");
    assert_eq!(problems(&[("README.md", concat!("upper/", "work/it\n"))]), [""; 0]);
}

#[test]
fn temporary_files_have_no_fixed_place() {
    let line = concat!("const A: &str = \"/", "tmp/a\";\n");
    one(&[("crates/fs/src/a.rs", line)], "crates/fs/src/a.rs:1:");
    assert_eq!(problems(&[("crates/fs/src/a.rs", &format!("#[cfg(test)]\nmod tests {{\n{line}}}\n"))]), [""; 0]);
}

#[test]
fn words_of_how_it_was_made_are_named() {
    one(&[("README.md", concat!("written by an age", "nt\n"))], "README.md:1:");
    one(&[("crates/fs/src/a.rs", concat!("// as the pro", "mpt wants\n"))], "crates/fs/src/a.rs:1:");
    assert_eq!(
        problems(&[
            ("README.md", concat!("the User-Age", "nt header, a FUSE sess", "ion\n")),
            ("crates/mount/src/a.rs", concat!("let sess", "ion = 1;\n")),
        ]),
        [""; 0]
    );
}

#[test]
fn every_fuzz_function_has_a_target_and_seeds() {
    let (body, target) = ("crates/testkit/src/fuzz/tar.rs", "tests/fuzz/fuzz_targets/tar.rs");
    let seeds = ("fixtures/fuzz/tar/01", "x");
    let testkit = ("crates/testkit/src/fuzz/mod.rs", "");
    one(&[testkit, (body, ""), seeds], "crates/testkit/src/fuzz/tar.rs:1:");
    one(&[testkit, (body, ""), (target, "")], "crates/testkit/src/fuzz/tar.rs:1:");
    assert_eq!(problems(&[testkit, (body, ""), (target, ""), seeds]), [""; 0]);
}

#[test]
fn files_that_import_each_other_are_named_with_the_file_that_defines_the_item() {
    // The face `b/mod.rs` passes on what `b/d.rs` defines, and is itself in no circle.
    let face = ("crates/fs/src/b/mod.rs", "mod d;\npub(crate) use d::Deep;\n");
    let deep = ("crates/fs/src/b/d.rs", "use crate::a;\npub(crate) struct Deep(a::Wide);\n");
    let wide = ("crates/fs/src/a.rs", "use crate::b::Deep;\npub(crate) enum Wide { Of(Deep) }\n");
    one(&[face, deep, wide], "crates/fs/src/a.rs:1: please break this circle of 2 files");
    let apart = ("crates/fs/src/b/d.rs", "pub(crate) struct Deep;\n");
    assert_eq!(problems(&[face, apart, wide]), [""; 0]);
}

#[test]
fn a_path_in_the_code_is_an_import_and_a_declaration_or_a_test_is_none() {
    let root = "//! Inodes.\nmod a;\nmod b;\npub struct Root;\n";
    let first = "pub(crate) fn f() {\n    super::b::g();\n}\n";
    let called = "pub(crate) fn g() {\n    crate::a::f();\n}\n";
    let tested = "pub(crate) fn g() {}\n#[cfg(test)]\nmod tests {\n    use crate::a::f;\n}\n";
    let files = |b| [("crates/fs/src/lib.rs", root), ("crates/fs/src/a.rs", first), ("crates/fs/src/b.rs", b)];
    one(&files(called), "crates/fs/src/a.rs:1:");
    assert_eq!(problems(&files(tested)), [""; 0]);
    // An item of the parent: only a circle if the parent uses the child.
    assert_eq!(problems(&files("pub(crate) fn g() -> crate::Root {\n    todo()\n}\n")), [""; 0]);
    let user = "//! Inodes.\nmod a;\nmod b;\npub struct Root;\npub fn all() {\n    b::g();\n}\n";
    let back = ("crates/fs/src/b.rs", "use super::Root;\npub(crate) fn g() -> Root {\n    Root\n}\n");
    one(&[("crates/fs/src/lib.rs", user), back], "crates/fs/src/b.rs:1:");
}

#[test]
fn vague_words_in_comments_strings_and_names_are_named() {
    let word = concat!("who", "ever");
    one(&[("README.md", &format!("# A\n\n{word} reads it\n"))], "README.md:3:");
    one(&[("docs/SUMMARY.md", &format!("{word}\n"))], "docs/SUMMARY.md:1:");
    one(&[("crates/trace/src/a.rs", &format!("\n/// For {word} reads it.\n"))], "crates/trace/src/a.rs:2:");
    one(&[("crates/trace/tests/a.rs", &format!("// {}\n", word.to_uppercase()))], "crates/trace/tests/a.rs:1:");
    one(&[("crates/trace/src/a.rs", &format!("const A: &str = \"a\n{word}\";\n"))], "crates/trace/src/a.rs:2:");
    one(&[("crates/trace/src/a.rs", &format!("fn {word}_reads() {{}}\n"))], "crates/trace/src/a.rs:1:");
    one(
        &[("crates/trace/src/a.rs", &format!("struct {}Reads;\n", concat!("Who", "ever")))],
        "crates/trace/src/a.rs:1:",
    );
    one(&[("crates/trace/src/a.rs", concat!("struct La", "b;\n"))], "crates/trace/src/a.rs:1:");
    let test = format!("#[cfg(test)]\nmod tests {{\n#[test]\nfn {word}_reads() {{}}\n}}\n");
    one(&[("crates/trace/src/a.rs", &test)], "crates/trace/src/a.rs:4:");
    one(
        &[("crates/trace/tests/a.rs", &format!("#[test]\nasync fn {word}_reads() {{}}\n"))],
        "crates/trace/tests/a.rs:2:",
    );
}

#[test]
fn a_vague_word_may_be_code_a_part_of_another_word_or_an_argument_in_a_test() {
    let word = concat!("no", "body");
    assert_eq!(
        problems(&[
            ("README.md", &format!("the user `{word}`\n")),
            ("CHANGELOG.md", &format!("{word}\n")),
            ("crates/trace/src/a.rs", concat!("// aforesa", "id\nfn f() -> La", "b {}\n")),
            (
                "crates/trace/src/b.rs",
                &format!("#[cfg(test)]\nmod tests {{\n fn a({word}: &str) {{ f(\"{word}\") }}\n}}\n")
            ),
        ]),
        [""; 0]
    );
}
