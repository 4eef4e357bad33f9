//! Tests of what a Node.js program requires.

use super::super::files::tests::MapFiles;
use super::*;

/// What `/app/main.js` requires.
fn required(files: &MapFiles) -> Vec<String> {
    let script = files.find(b"/app/main.js").unwrap();
    let found = modules(files, Some(&script)).unwrap();
    found.into_iter().map(|file| String::from_utf8(file.path).unwrap()).collect()
}

/// What a script requires of the modules `a` to `f` beside it.
fn required_by(script: &str) -> String {
    let files =
        ["a", "b", "c", "d", "e", "f"].iter().fold(MapFiles::default().with("/app/main.js", script), |files, name| {
            files.with(&format!("/app/{name}.js"), "1\n")
        });
    let names = required(&files).into_iter().map(|path| path.replace("/app/", "").replace(".js", ""));
    names.collect::<Vec<_>>().join(" ")
}

#[test]
fn files_are_found_with_and_without_their_endings() {
    let files = MapFiles::default()
        .with("/app/main.js", "require('./a'); require('./b.js'); require('./c'); require('./d'); require('../lib/../lib/e.cjs'); require('/abs')")
        .with("/app/a.js", "1")
        .with("/app/b.js", "1")
        .with("/app/c.json", "{}")
        .with("/app/d.node", "ELF")
        .with("/lib/e.cjs", "1")
        .with("/abs.js", "1");
    assert_eq!(required(&files), ["/app/a.js", "/app/b.js", "/app/c.json", "/app/d.node", "/lib/e.cjs", "/abs.js"]);
}

#[test]
fn parts_of_the_program_that_are_files_are_read_by_each_start() {
    let files =
        MapFiles::default().with("/usr/share/nodejs/acorn/dist/acorn.js", "1").with("/app/main.js", "require('./a')");
    let files = files.with("/app/a.js", "1").with("/usr/share/nodejs/acorn/other.js", "1");
    let paths = |script: Option<&File>| -> Vec<Vec<u8>> {
        modules(&files, script).unwrap().into_iter().map(|file| file.path).collect()
    };
    let external = b"/usr/share/nodejs/acorn/dist/acorn.js".to_vec();
    assert_eq!(paths(None), std::slice::from_ref(&external));
    assert_eq!(paths(files.find(b"/app/main.js").as_ref()), [external, b"/app/a.js".to_vec()]);
}

#[test]
fn a_directory_is_its_main_file_or_its_index() {
    let files = MapFiles::default()
        .with("/app/main.js", "require('./a'); require('./b'); require('./c'); require('./d/'); require('./e')")
        .with("/app/a/index.js", "1")
        .with("/app/b/package.json", "{\"main\": \"lib/start\"}")
        .with("/app/b/lib/start.js", "require('..')")
        .with("/app/c/package.json", "{\"main\": \"./lib/\"}")
        .with("/app/c/lib/index.json", "{}")
        .with("/app/d.js", "the file of a path with a slash is not meant")
        .with("/app/d/index.node", "ELF")
        .with("/app/e/package.json", "{\"main\": \"gone\"}")
        .with("/app/e/index.js", "1");
    let found = required(&files);
    let expected = [
        "a/index.js",
        "b/package.json",
        "b/lib/start.js",
        "c/package.json",
        "c/lib/index.json",
        "d/index.node",
        "e/package.json",
        "e/index.js",
    ];
    assert_eq!(found, expected.map(|name| format!("/app/{name}")));
}

#[test]
fn packages_are_searched_upwards() {
    let files = MapFiles::default()
        .with("/app/main.js", "require('near'); require('@scope/far'); require('debian'); require('gone')")
        .with("/app/node_modules/near/index.js", "require('inner'); require('@scope/far/part')")
        .with("/app/node_modules/near/node_modules/inner/index.js", "require('single')")
        .with("/app/node_modules/single.js", "1")
        .with("/node_modules/@scope/far/index.js", "1")
        .with("/node_modules/@scope/far/part.js", "1")
        .with("/node_modules/near/index.js", "not this one")
        .with("/usr/share/nodejs/debian/index.js", "1");
    let expected = [
        "/app/node_modules/near/index.js",
        "/app/node_modules/near/node_modules/inner/index.js",
        "/app/node_modules/single.js",
        "/node_modules/@scope/far/part.js",
        "/node_modules/@scope/far/index.js",
        "/usr/share/nodejs/debian/index.js",
    ];
    assert_eq!(required(&files), expected);
}

#[test]
fn the_package_file_above_a_module_is_read_once() {
    let files = MapFiles::default()
        .with("/app/package.json", "{}")
        .with("/app/main.js", "require('./lib/a'); require('x')")
        .with("/app/lib/a.js", "1")
        .with("/app/node_modules/x/index.js", "a package without package.json is not of the one around it");
    assert_eq!(required(&files), ["/app/package.json", "/app/lib/a.js", "/app/node_modules/x/index.js"]);
}

fn exported(exports: &str, script: &str) -> Vec<String> {
    let files = ["index", "r", "i", "d", "lib/a", "lib/b"].iter().fold(
        MapFiles::default()
            .with("/app/main.js", script)
            .with("/app/node_modules/x/package.json", format!("{{\"exports\": {exports}, \"main\": \"index.js\"}}")),
        |files, name| files.with(&format!("/app/node_modules/x/{name}.js"), "1"),
    );
    let found = required(&files);
    assert_eq!(found[0], "/app/node_modules/x/package.json");
    found[1..].iter().map(|path| path["/app/node_modules/x/".len()..].replace(".js", "")).collect()
}

#[test]
fn exports_of_a_package_choose_by_the_kind_of_the_import() {
    let conditions = r#"{"types": "./t.d.ts", "import": "./i.js", "require": {"browser": "./b.js", "default": "./r.js"}, "default": "./d.js"}"#;
    assert_eq!(exported(conditions, "require('x')"), ["r"]);
    assert_eq!(exported(conditions, "import x from 'x'"), ["i"]);
    assert_eq!(exported("\"./d.js\"", "require('x')"), ["d"]);
    assert_eq!(exported("[null, \"./d.js\"]", "require('x')"), ["d"]);
    assert_eq!(exported("{\"default\": \"./d.js\"}", "require('x')"), ["d"]);
    assert_eq!(exported("{\"deno\": \"./d.js\"}", "require('x')"), ["index"]);
}

#[test]
fn exports_of_a_package_name_its_parts() {
    let parts = r#"{".": {"node": "./r.js"}, "./one": "./d.js", "./lib/*": "./lib/*.js", "./lib/b": null}"#;
    assert_eq!(exported(parts, "require('x'); require('x/one'); require('x/lib/a')"), ["r", "d", "lib/a"]);
}

#[test]
fn a_package_may_name_itself_and_internal_modules() {
    let files = MapFiles::default()
        .with(
            "/app/package.json",
            r##"{"name": "own", "exports": {"./a": "./src/a.js"}, "imports": {"#b": "./src/b.js", "#c": "c"}}"##,
        )
        .with("/app/main.js", "import 'own/a'; import '#b'; import '#c'; import '#gone'")
        .with("/app/src/a.js", "1")
        .with("/app/src/b.js", "1")
        .with("/app/node_modules/c/index.js", "1");
    let expected = ["package.json", "src/a.js", "src/b.js", "node_modules/c/index.js"];
    assert_eq!(required(&files), expected.map(|name| format!("/app/{name}")));
}

#[test]
fn modules_are_in_the_order_in_which_they_are_read_and_cycles_end() {
    let files = MapFiles::default()
        .with("/app/main.js", "require('./a'); require('./b')")
        .with("/app/a.js", "require('./c'); require('./main')")
        .with("/app/c.js", "require('./a')")
        .with("/app/b.js", "require('./c')");
    assert_eq!(required(&files), ["/app/a.js", "/app/c.js", "/app/b.js"]);
}

#[test]
fn built_in_modules_are_no_files() {
    let files = MapFiles::default()
        .with(
            "/app/main.js",
            "require('fs'); require('node:test'); require('fs/promises'); require('events/'); require('./fs')",
        )
        .with("/app/node_modules/fs/index.js", "1")
        .with("/app/node_modules/events/index.js", "1")
        .with("/app/fs.js", "1");
    assert_eq!(required(&files), ["/app/node_modules/events/index.js", "/app/fs.js"]);
}

#[test]
fn specifiers_are_found_in_all_their_forms() {
    assert_eq!(
        required_by("const a = require( './a' ), b = require(\"./b\").x\nmodule.exports={c:require('./c')}"),
        "a b c"
    );
    assert_eq!(
        required_by("import a, {x as y} from './a'\nimport './b'; export * from \"./c\"\nawait import('./d')"),
        "a b c d"
    );
    assert_eq!(required_by("import{a}from'./a';export{b}from\"./b\";import*as c from'./c'"), "a b c");
    assert_eq!(required_by("import {\n  a,\n  b,\n} from\n  './a'\n"), "a");
    assert_eq!(
        required_by("require('./a' + x); my_require('./b'); x.require('./c'); require.resolve('./d'); f('./e')"),
        ""
    );
}

#[test]
fn comments_and_text_do_not_require() {
    assert_eq!(required_by("// require('./a')\n/* require('./b')\n*/ require('./c') // it's\nrequire('./d')"), "c d");
    assert_eq!(required_by("x = \"require('./a')\"; y = '//'; require('./b')"), "b");
    assert_eq!(required_by("x = `require('./a') ${require('./b') + `${'}'}`} don't` + require('./c')"), "b c");
    assert_eq!(required_by("x.accept = '*/*'; require('./a'); /* not closed: require('./b')"), "a b");
}

#[test]
fn regular_expressions_do_not_hide_what_follows() {
    assert_eq!(required_by("x.replace(/['\"`]/g, ''); require('./a')"), "a");
    assert_eq!(required_by("if (/^https?:\\/\\//.test(x)) require('./a'); y = a / b / c; require('./b')"), "a b");
    assert_eq!(required_by("return /[/*'\"]/; require('./a')"), "a");
}

#[test]
fn a_long_source_is_read_and_not_searched() {
    let long = [b"require('./a')\n".as_slice(), &vec![b'\n'; 1 << 20]].concat();
    let files =
        MapFiles::default().with("/app/main.js", "require('./long')").with("/app/long.js", long).with("/app/a.js", "1");
    assert_eq!(required(&files), ["/app/long.js"]);
}

#[test]
fn any_bytes_are_bounded() {
    let mut hostile =
        ["`${".repeat(1 << 16), "}".repeat(1 << 16), "=/[".repeat(1 << 16), "/*".repeat(1 << 18)].to_vec();
    hostile.push(format!("require('{}')", "../".repeat(80)));
    hostile.push(format!("require('{}')", "a/".repeat(1 << 16)));
    hostile.extend(
        ["'", "\\", "`", "/", "require(", "require('')", "require('#')", "require('@')", "require('/')"]
            .map(str::to_owned),
    );
    for script in hostile {
        assert_eq!(required_by(&script), "", "{}", &script[..20.min(script.len())]);
    }
    let files = MapFiles::default()
        .with("/app/main.js", "require('./a'); require('./b')")
        .with("/app/a/package.json", "{".repeat(1 << 16))
        .with("/app/a/index.js", "1")
        .with("/app/b/package.json", "[1]")
        .with("/app/b/index.js", "1");
    assert_eq!(required(&files).len(), 4);
}
