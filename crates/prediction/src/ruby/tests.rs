use super::requests::{Request, requests};
use super::*;
use crate::files::tests::MapFiles;

fn owned(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// What Ruby with these arguments does in `/app`.
fn started(files: MapFiles, arguments: &[&str]) -> (Vec<String>, Option<Command>) {
    let files = files.with("/usr/local/bin/ruby", "a program");
    let command = RubyCommand {
        interpreter: &files.find(b"/usr/local/bin/ruby").unwrap(),
        arguments: &owned(arguments),
        directory: b"/app",
        gems: b"/usr/local/bundle",
    };
    let started = start(&files, &command).unwrap();
    (started.files.into_iter().map(|file| String::from_utf8(file.path).unwrap()).collect(), started.command)
}

/// Libraries and gems where the official image has them.
fn official() -> MapFiles {
    MapFiles::default()
        .with("/usr/local/lib/ruby/3.3.0/rubygems.rb", "require 'rbconfig'\nrequire_relative 'rubygems/errors'\n")
        .with("/usr/local/lib/ruby/3.3.0/rubygems/errors.rb", "1")
        .with("/usr/local/lib/ruby/3.3.0/x86_64-linux/rbconfig.rb", "1")
        .with("/usr/local/lib/ruby/3.3.0/x86_64-linux/monitor.so", "a library")
        .with("/usr/local/lib/ruby/3.3.0/set.rb", "1")
        .with("/usr/local/lib/ruby/gems/3.3.0/specifications/default/set-1.gemspec", "1")
        .with("/usr/local/bundle/specifications/web-2.0.gemspec", "1")
        .with("/usr/local/bundle/gems/web-1.9/lib/web.rb", "1")
        .with("/usr/local/bundle/gems/web-2.0/lib/web.rb", "require 'web/fast'\n")
        .with("/usr/local/bundle/extensions/x86_64-linux/3.3.0/web-2.0/web/fast.so", "a library")
        .with("/usr/local/bundle/gems/web-2.0/exe/puma", "require 'web'\n")
}

const START: [&str; 5] = [
    "/usr/local/lib/ruby/3.3.0/rubygems.rb",
    "/usr/local/lib/ruby/3.3.0/x86_64-linux/rbconfig.rb",
    "/usr/local/lib/ruby/3.3.0/rubygems/errors.rb",
    "/usr/local/lib/ruby/3.3.0/x86_64-linux/monitor.so",
    "/usr/local/lib/ruby/gems/3.3.0/specifications/default/set-1.gemspec",
];
const WEB: [&str; 2] = [
    "/usr/local/bundle/gems/web-2.0/lib/web.rb",
    "/usr/local/bundle/extensions/x86_64-linux/3.3.0/web-2.0/web/fast.so",
];

const SPECIFICATION: &str = "/usr/local/bundle/specifications/web-2.0.gemspec";

/// The files of a start that not every start reads.
fn besides_start(files: MapFiles, arguments: &[&str]) -> (Vec<String>, Option<Command>) {
    let (found, command) = started(files, arguments);
    assert_eq!(found[..START.len()], START);
    (found[START.len()..].to_vec(), command)
}

#[test]
fn every_start_reads_rubygems_and_the_specifications_of_gems() {
    let (found, command) = besides_start(official(), &["-rset", "-e", "require 'web'"]);
    assert_eq!(found, [&["/usr/local/lib/ruby/3.3.0/set.rb"], WEB.as_slice(), &[SPECIFICATION]].concat());
    assert_eq!(command, None);
}

#[test]
fn a_server_of_a_gem_loads_the_application_in_the_working_directory() {
    let stub = "require 'rubygems'\nload Gem.activate_bin_path('web', 'puma', version)\n";
    let files = official()
        .with("/usr/local/bundle/bin/puma", stub)
        .with("/app/config.ru", "require_relative 'app'\nrun App\n")
        .with("/app/app.rb", "1")
        .with("/app/config/puma.rb", "threads 1");
    let (found, _) = besides_start(files, &["/usr/local/bundle/bin/puma", "-p", "80"]);
    let program = ["/usr/local/bundle/gems/web-2.0/exe/puma"];
    assert_eq!(
        found,
        [&program, WEB.as_slice(), &["/app/config/puma.rb", "/app/config.ru", "/app/app.rb", SPECIFICATION]].concat()
    );
}

#[test]
fn bundler_loads_the_gems_of_the_application_and_runs_its_arguments() {
    let files = official()
        .with("/usr/local/bin/bundle", "require 'rubygems'\n")
        .with("/app/Gemfile", "source 'x'\ngem 'web', '~> 2'\n  gem(\"none\")\n")
        .with("/app/Gemfile.lock", "GEM\n");
    let (found, command) = besides_start(files, &["/usr/local/bin/bundle", "exec", "puma", "-p", "80"]);
    assert_eq!(found, [&["/app/Gemfile", "/app/Gemfile.lock"], WEB.as_slice(), &[SPECIFICATION]].concat());
    assert_eq!(command, Some(Command::run(&owned(&["puma", "-p", "80"]))));
}

#[test]
fn what_methods_load_comments_and_the_end_are_omitted() {
    let source = b"=begin\nrequire 'no1'\n=end\n# require 'no2'\nrequire \"one.rb\"\nmodule A\n  def self.b\n    require 'no3'\n  end\n\
        \x20 def c; require 'no4'; end\n  def e(f = 1) = f\n  def g(h = 1)\n    require 'no7'\n  end\n  require_relative \"two\"\n  autoload :D, 'no5'\nend\nbegin\n  require 'three'\nrescue LoadError\nend\n\
        require File.expand_path('../four', __FILE__)\nrequire \"#{__dir__}/five\"\nBundler.require(:default)\n__END__\nrequire 'no6'\n";
    let feature = |name: &str| Request::Feature(name.as_bytes().to_vec());
    let file = |path: &str| Request::File(path.as_bytes().to_vec());
    let expected =
        [feature("one"), file("/lib/two"), feature("three"), file("/lib/four"), file("/lib/five"), Request::Gemfile];
    assert_eq!(requests(source, b"/lib"), expected);
}
