use super::requests::{Request, requests};
use super::*;
use crate::files::tests::MapFiles;

fn owned(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// The paths of what Perl reads with these arguments in a working directory.
fn read(files: MapFiles, arguments: &[&str], directory: &str, library: &str) -> Vec<String> {
    let files = files.with("/usr/bin/perl", "a program");
    let command = PerlCommand {
        interpreter: &files.find(b"/usr/bin/perl").unwrap(),
        arguments: &owned(arguments),
        directory: directory.as_bytes(),
        library: library.as_bytes(),
    };
    let found = modules(&files, &command).unwrap();
    found.into_iter().map(|file| String::from_utf8(file.path).unwrap()).collect()
}

fn module(name: &str) -> Request {
    Request::Module(name.as_bytes().to_vec())
}

/// Modules where Debian has them.
fn debian() -> MapFiles {
    MapFiles::default()
        .with("/usr/share/perl5/Web.pm", "package Web;\nuse strict;\nuse Web::Part ();\nrequire Web::Top;\nsub lazy {\n  require Web::Lazy;\n}\n1;\n")
        .with("/usr/share/perl5/Web/Part.pm", "use parent qw(Web::Parent Exporter);\n")
        .with("/usr/share/perl5/Web/Parent.pm", "1;")
        .with("/usr/share/perl5/Web/Top.pm", "1;")
        .with("/usr/share/perl5/Web/Lazy.pm", "1;")
        .with("/usr/share/perl/5.36/Exporter.pm", "1;")
        .with("/usr/lib/x86_64-linux-gnu/perl-base/strict.pm", "1;")
        .with("/usr/lib/x86_64-linux-gnu/perl-base/POSIX.pm", "use XSLoader;")
        .with("/usr/lib/x86_64-linux-gnu/perl-base/auto/POSIX/POSIX.so", "a library")
}

#[test]
fn a_module_leads_to_those_that_it_uses_and_to_its_compiled_part() {
    let found = read(debian(), &["-w", "-MPOSIX=floor", "-e", "use Web; print 1"], "/", "");
    assert_eq!(
        found,
        [
            "/usr/lib/x86_64-linux-gnu/perl-base/POSIX.pm",
            "/usr/lib/x86_64-linux-gnu/perl-base/auto/POSIX/POSIX.so",
            "/usr/share/perl5/Web.pm",
            "/usr/lib/x86_64-linux-gnu/perl-base/strict.pm",
            "/usr/share/perl5/Web/Part.pm",
            "/usr/share/perl5/Web/Parent.pm",
            "/usr/share/perl/5.36/Exporter.pm",
            "/usr/share/perl5/Web/Top.pm",
        ]
    );
}

#[test]
fn a_program_finds_its_own_modules_beside_it_and_those_that_options_and_the_environment_add() {
    let files = debian()
        .with("/srv/bin/serve", "use FindBin;\nuse lib \"$FindBin::Bin/../lib\";\nuse Site;\nuse Extra;\nuse Own;\n")
        .with("/srv/lib/Site.pm", "1;")
        .with("/opt/perl/Extra.pm", "1;")
        .with("/srv/more/Own.pm", "1;")
        .with("/srv/app.psgi", "use Web::Parent;\n");
    let found = read(files, &["-Imore", "bin/serve", "-p", "80", "app.psgi"], "/srv", "/opt/perl");
    let expected = [
        "/srv/lib/Site.pm",
        "/opt/perl/Extra.pm",
        "/srv/more/Own.pm",
        "/srv/app.psgi",
        "/usr/share/perl5/Web/Parent.pm",
    ];
    assert_eq!(found, expected);
}

#[test]
fn the_modules_of_the_official_image_are_found_by_version_and_architecture() {
    let files = MapFiles::default()
        .with("/usr/local/bin/perl", "a program")
        .with("/usr/local/lib/perl5/site_perl/5.40.0/Own.pm", "use List::Util;")
        .with("/usr/local/lib/perl5/5.40.0/x86_64-linux-gnu/List/Util.pm", "1;")
        .with("/usr/local/lib/perl5/5.40.0/x86_64-linux-gnu/auto/List/Util/Util.so", "a library");
    let found = read(files, &["-MOwn", "-e1"], "/", "");
    assert_eq!(found.len(), 3, "{found:?}");
}

#[test]
fn documentation_comments_versions_and_the_end_name_no_modules() {
    let source = b"use v5.10;\nuse 5.010;\n# use No1;\n=pod\n\nuse No2;\n\n=cut\n\nBEGIN {\n  require One;\n}\n\
        eval { require Two; 1 };\nuse if $] < 5, 'x';\nno warnings;\nrequire \"old.pl\";\n__END__\nuse No3;\n";
    let expected = [module("One"), module("Two"), module("if"), module("warnings"), Request::File(b"old.pl".to_vec())];
    assert_eq!(requests(source), expected);
    assert_eq!(
        requests(b"use parent -norequire, 'A';\nuse base 'B';"),
        [module("parent"), module("base"), module("B")]
    );
}
