//! Invariant: for any files the prediction of a start ends, and names parts of these files, none twice and no more than its limit.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use tarpon_oci::{Digest, RunConfig};
use tarpon_prediction::{File, Files, Result, predict_in};

/// The paths of programs and libraries, which all have the first part of the input.
const BINARIES: [&str; 17] = [
    "/usr/bin/server",
    "/usr/bin/python3.11",
    "/usr/bin/node",
    "/usr/lib/libc.so.6",
    "/usr/lib/liba.so",
    "/usr/lib/server/modules/a.so",
    "/usr/bin/java",
    "/usr/lib/server/libjvm.so",
    "/usr/lib/modules",
    "/app/a.jar",
    "/usr/bin/perl",
    "/usr/share/perl5/auto/A/A.so",
    "/usr/bin/ruby",
    "/usr/lib/ruby/gems/3.1.0/extensions/x/3.1.0/a-1/g.so",
    "/usr/bin/php",
    "/usr/lib/php/20220829/a.so",
    "/usr/lib/libphp.so",
];
/// The paths of texts, which all have the rest.
const TEXTS: [&str; 22] = [
    "/app/main",
    "/app/main.py",
    "/app/main.js",
    "/app/a.py",
    "/app/b/__init__.py",
    "/app/package.json",
    "/app/node_modules/a/package.json",
    "/app/node_modules/a/index.js",
    "/etc/server/server.conf",
    "/etc/ld.so.conf",
    "/app/main.pl",
    "/usr/share/perl5/A.pm",
    "/usr/share/perl5/A/B.pm",
    "/app/main.rb",
    "/app/Gemfile",
    "/usr/lib/ruby/3.1.0/a.rb",
    "/usr/lib/ruby/gems/3.1.0/gems/a-1/lib/g.rb",
    "/usr/lib/ruby/gems/3.1.0/gems/a-1/exe/a",
    "/app/main.php",
    "/app/index.php",
    "/app/vendor/composer/autoload_static.php",
    "/etc/php/8.2/cli/php.ini",
];
const COMMANDS: [&[&str]; 11] = [
    &["server", "main.py"],
    &["python3.11", "main.py"],
    &["node", "main.js"],
    &["/app/main", "server"],
    &["/app/main.py"],
    &["/app/main.py", "a:x"],
    &["python3.11", "-m", "b"],
    &["java", "-cp", "/app/*", "-jar", "a.jar"],
    &["perl", "-Ilib", "main.pl"],
    &["ruby", "main.rb"],
    &["php", "main.php"],
];
/// More than a prediction may have.
const LIMIT: u64 = 100 << 20;

struct Parts<'d>(BTreeMap<&'static str, &'d [u8]>);

impl Files for Parts<'_> {
    fn find(&self, path: &[u8]) -> Option<File> {
        let path = str::from_utf8(path).ok()?.replace("/./", "/").replace("//", "/");
        let (path, content) = self.0.get_key_value(path.as_str()).filter(|(_, content)| !content.is_empty())?;
        let (object, size) = (Digest::of(path.as_bytes()), content.len() as u64);
        Some(File { path: path.as_bytes().to_vec(), object, size, is_executable: true })
    }

    fn list(&self, directory: &[u8]) -> Option<Vec<Vec<u8>>> {
        let prefix = [directory, b"/"].concat();
        let below = self.0.keys().filter_map(|path| path.as_bytes().strip_prefix(&*prefix));
        let mut names: Vec<Vec<u8>> =
            below.filter_map(|rest| Some(rest.split(|byte| *byte == b'/').next()?.to_vec())).collect();
        names.dedup();
        Some(names).filter(|names| !names.is_empty())
    }

    fn read(&self, file: &File, range: Range<u64>) -> Result<Bytes> {
        let content = self.0[str::from_utf8(&file.path).expect("a path of these")];
        let end = range.end.min(content.len() as u64);
        let range = usize::try_from(range.start.min(end)).expect("it is in memory")
            ..usize::try_from(end).expect("it is in memory");
        Ok(Bytes::copy_from_slice(&content[range]))
    }
}

/// Predicts starts in an image of a binary, as long as the first two bytes say, and a text.
pub fn predicted_start(data: &[u8]) {
    let Some((length, rest)) = data.split_first_chunk::<2>() else { return };
    let (binary, text) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
    let contents = BINARIES.map(|path| (path, binary)).into_iter().chain(TEXTS.map(|path| (path, text)));
    let files = Parts(contents.collect());
    for command in COMMANDS {
        let cmd = command.iter().map(|word| (*word).to_owned()).collect();
        let config = RunConfig { cmd, working_dir: "/app".to_owned(), ..RunConfig::default() };
        let pieces = predict_in(&files, &config).expect("every file can be read");
        let mut seen: BTreeMap<Digest, u64> = BTreeMap::new();
        for (object, range) in &pieces {
            let known = files.0.iter().find(|(path, _)| Digest::of(path.as_bytes()) == *object);
            let (_, content) = known.expect("a file of the image");
            assert!(range.start < range.end && range.end <= content.len() as u64, "{range:?}");
            *seen.entry(*object).or_default() += range.end - range.start;
        }
        assert!(seen.values().sum::<u64>() <= LIMIT);
    }
}
