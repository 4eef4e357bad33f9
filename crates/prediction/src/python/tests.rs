//! Tests of what a Python program imports.

use super::super::files::tests::MapFiles;
use super::*;

/// An interpreter of a version whose start reads `encodings` only.
fn python() -> MapFiles {
    MapFiles::default()
        .with("/usr/local/bin/python3.12", "ELF")
        .with("/usr/local/lib/python3.12/encodings/__init__.py", "import codecs\n")
        .with("/usr/local/lib/python3.12/os.py", "import abc\n")
}

fn modules_of(files: &MapFiles, invoked_as: &str, script: Option<&str>) -> Vec<String> {
    let interpreter = files.find(b"/usr/local/bin/python3.12").unwrap();
    let script = script.map(|path| files.find(path.as_bytes()).unwrap());
    let found = modules(files, &interpreter, invoked_as.as_bytes(), script.as_ref()).unwrap();
    found.into_iter().map(|file| String::from_utf8(file.path).unwrap()).collect()
}

/// What `/app/main.py` imports, in the directory `/app`.
fn imported(files: &MapFiles) -> Vec<String> {
    let found = modules_of(files, "/usr/local/bin/python3", Some("/app/main.py"));
    found.iter().filter_map(|path| path.strip_prefix("/app/").map(str::to_owned)).collect()
}

/// What a script imports of the modules `a` to `f`.
fn imported_by(script: &str) -> String {
    let files = ["a", "b", "c", "d", "e", "f"]
        .iter()
        .fold(python().with("/app/main.py", script), |files, name| files.with(&format!("/app/{name}.py"), "x = 1\n"));
    imported(&files).iter().map(|name| name.trim_end_matches(".py")).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_start_reads_the_encodings_and_no_frozen_module() {
    let files =
        python().with("/usr/local/lib/python3.12/site-packages/sitecustomize.py", "import os, encodings.idna\n");
    let found = modules_of(&files, "/usr/local/bin/python3", None);
    let expected = ["encodings/__init__.py", "site-packages/sitecustomize.py"];
    assert_eq!(found, expected.map(|name| format!("/usr/local/lib/python3.12/{name}")));
}

#[test]
fn a_start_of_an_old_version_reads_the_modules_that_are_not_frozen() {
    let files = MapFiles::default()
        .with("/usr/bin/python3.9", "ELF")
        .with("/usr/lib/python3.9/os.py", "import abc\n")
        .with("/usr/lib/python3.9/abc.py", "x\n")
        .with("/usr/lib/python3.9/zipimport.py", "x\n");
    let interpreter = files.find(b"/usr/bin/python3.9").unwrap();
    let found = modules(&files, &interpreter, b"/usr/bin/python3", None).unwrap();
    let paths: Vec<&[u8]> = found.iter().map(|file| file.path.as_slice()).collect();
    assert_eq!(paths, [b"/usr/lib/python3.9/os.py".as_slice(), b"/usr/lib/python3.9/abc.py"]);
}

#[test]
fn an_interpreter_without_a_version_is_not_followed() {
    let files = MapFiles::default().with("/usr/bin/python", "ELF").with("/usr/lib/x", "x");
    let interpreter = files.find(b"/usr/bin/python").unwrap();
    assert_eq!(modules(&files, &interpreter, b"/usr/bin/python", None).unwrap(), []);
    let files = files.with("/usr/lib/python3.12/encodings/__init__.py", "x\n");
    assert_eq!(modules(&files, &interpreter, b"/usr/bin/python", None).unwrap().len(), 1);
}

#[test]
fn modules_are_in_the_order_in_which_they_are_read() {
    let files = python()
        .with("/app/main.py", "import a\nimport b.c.d as x\n")
        .with("/app/a.py", "import e\n")
        .with("/app/e.py", "1\n")
        .with("/app/b/__init__.py", "1\n")
        .with("/app/b/c/__init__.py", "1\n")
        .with("/app/b/c/d.py", "1\n");
    assert_eq!(imported(&files), ["a.py", "e.py", "b/__init__.py", "b/c/__init__.py", "b/c/d.py"]);
}

#[test]
fn relative_imports_are_those_of_the_package() {
    let files = python()
        .with("/app/main.py", "from web.views import index\n")
        .with("/app/web/__init__.py", "from .core import (\n    App,  # the application\n    Error,\n)\n")
        .with("/app/web/core.py", "from . import util, missing\nfrom .... import outside\n")
        .with("/app/web/util.py", "x\n")
        .with("/app/web/views/__init__.py", "from ..models import *\nfrom .index import page\n")
        .with("/app/web/views/index.py", "x\n")
        .with("/app/web/models.py", "x\n")
        .with("/app/index.py", "x\n");
    let expected = ["__init__.py", "core.py", "util.py", "views/__init__.py", "models.py", "views/index.py"];
    assert_eq!(imported(&files), expected.map(|name| format!("web/{name}")));
}

#[test]
fn a_package_may_have_an_empty_file_or_none() {
    let files = python()
        .with("/app/main.py", "import empty.a, none.b, none.c\n")
        .with("/app/empty/__init__.py", "")
        .with("/app/empty/a.py", "x\n")
        .with("/app/none/b.py", "x\n")
        .with("/usr/local/lib/python3.12/site-packages/none/c.py", "x\n");
    let found = modules_of(&files, "/usr/local/bin/python3", Some("/app/main.py"));
    let last = ["/app/empty/a.py", "/app/none/b.py", "/usr/local/lib/python3.12/site-packages/none/c.py"];
    assert!(found.ends_with(&last.map(str::to_owned)), "{found:?}");
}

#[test]
fn cycles_end_and_what_is_missing_is_ignored() {
    let files = python()
        .with("/app/main.py", "import a, sys, missing.part, main\n")
        .with("/app/a.py", "import b\n")
        .with("/app/b.py", "import a\n");
    assert_eq!(imported(&files), ["a.py", "b.py", "main.py"]);
}

#[test]
fn a_compiled_module_is_read_instead_of_its_source() {
    let files = python()
        .with("/app/main.py", "import a, b\n")
        .with("/app/a.py", "import c\n")
        .with("/app/__pycache__/a.cpython-312.pyc", "code")
        .with("/app/__pycache__/b.cpython-311.pyc", "code of another version")
        .with("/app/b.py", "x\n")
        .with("/app/c.pyc", "code without source");
    assert_eq!(imported(&files), ["__pycache__/a.cpython-312.pyc", "c.pyc", "b.py"]);
}

#[test]
fn extensions_are_found_by_the_tag_of_the_version() {
    let files = python()
        .with("/app/main.py", "import fast, stable, plain, other\n")
        .with("/app/fast.cpython-312-x86_64-linux-gnu.so", "ELF")
        .with("/app/fast.py", "x\n")
        .with("/app/stable.abi3.so", "ELF")
        .with("/app/plain.so", "ELF")
        .with("/app/other.cpython-311-x86_64-linux-gnu.so", "ELF")
        .with("/usr/local/lib/python3.12/lib-dynload/other.cpython-312-x86_64-linux-gnu.so", "ELF");
    assert_eq!(imported(&files), ["fast.cpython-312-x86_64-linux-gnu.so", "stable.abi3.so", "plain.so"]);
    let found = modules_of(&files, "/usr/local/bin/python3", Some("/app/main.py"));
    assert!(found.last().unwrap().contains("lib-dynload/other"));
}

#[test]
fn a_virtual_environment_has_its_own_packages() {
    let files = python()
        .with("/venv/pyvenv.cfg", "home = /usr/local/bin\ninclude-system-site-packages = false\n")
        .with("/venv/lib/python3.12/site-packages/web.py", "x\n")
        .with("/usr/local/lib/python3.12/site-packages/system.py", "x\n")
        .with("/app/main.py", "import web, system\n");
    let found = modules_of(&files, "/venv/bin/python", Some("/app/main.py"));
    let last = ["/venv/pyvenv.cfg", "/venv/lib/python3.12/site-packages/web.py"];
    assert_eq!(found[0], last[0]);
    assert_eq!(found.last().unwrap(), last[1]);
    let found = modules_of(&files, "/usr/local/bin/python3", Some("/app/main.py"));
    assert_eq!(found.last().unwrap(), "/usr/local/lib/python3.12/site-packages/system.py");
}

#[test]
fn path_files_of_a_site_add_directories_and_import() {
    let site = "/usr/local/lib/python3.12/site-packages";
    let files = python()
        .with(
            &format!("{site}/a.pth"),
            "# a comment\n/src/project\nimport os; os.x or __import__('hack').run()\nnothing\n",
        )
        .with(&format!("{site}/hack.py"), "x\n")
        .with("/src/project/project.py", "x\n")
        .with("/app/main.py", "import project\n");
    let found = modules_of(&files, "/usr/local/bin/python3", Some("/app/main.py"));
    let last = [format!("{site}/a.pth"), format!("{site}/hack.py"), "/src/project/project.py".to_owned()];
    assert!(found.ends_with(&last), "{found:?}");
}

#[test]
fn a_script_of_a_package_is_run_as_its_module() {
    let files = python()
        .with("/app/pkg/__main__.py", "from . import cli\nfrom pkg.core import run\n")
        .with("/app/pkg/__init__.py", "1\n")
        .with("/app/pkg/cli.py", "1\n")
        .with("/app/pkg/core.py", "1\n");
    let found = modules_of(&files, "/usr/local/bin/python3", Some("/app/pkg/__main__.py"));
    let last = ["__init__.py", "cli.py", "core.py"].map(|name| format!("/app/pkg/{name}"));
    assert!(found.ends_with(&last), "{found:?}");
}

#[test]
fn statements_are_found_in_all_their_forms() {
    assert_eq!(imported_by("import a, b as x; import c\n"), "a b c");
    assert_eq!(imported_by("from a import x; from b import(y,)\nfrom.c import z"), "a b");
    assert_eq!(imported_by("import a, \\\n  b\r\nimport c # import d\r\n"), "a b c");
    assert_eq!(imported_by("try: import a\nfinally: import b\nif x: import c; import d\n"), "a b c d");
    assert_eq!(imported_by("class C:\n    import a\n    if x:\n\n        import b\n"), "a b");
    assert_eq!(imported_by("x = __import__('a')\ny = importlib.import_module( \"b\" )\nimport_module(c)"), "a b");
    assert_eq!(imported_by("importa = 1\nfromage = 2\nimport_b = 3\n"), "");
}

#[test]
fn text_and_comments_do_not_import() {
    assert_eq!(
        imported_by("'''\nimport a\n'''\nx = \"\"\"\nimport b \\\"\"\"\nimport c\n\"\"\"\n# import d\nimport e\n"),
        "e"
    );
    assert_eq!(imported_by("x = ('it is', '#', \"'\",\nimport_a)\ny = 'open\nimport b\n"), "b");
}

#[test]
fn bodies_of_functions_run_only_if_the_script_calls_them() {
    let script = "def later():\n    import a\nasync def more(): import b\nclass C:\n    def f(self):\n        import c\n    import d\n";
    assert_eq!(imported_by(script), "d");
    let script = "def main():\n    import a\ndef other():\n    import b\nif __name__ == '__main__':\n    main()\n";
    assert_eq!(imported_by(script), "a");
    let files = python().with("/app/main.py", "import lib").with("/app/lib.py", script).with("/app/a.py", "x");
    assert_eq!(imported(&files), ["lib.py"]);
}

#[test]
fn blocks_that_never_run_do_not_import() {
    assert_eq!(imported_by("if TYPE_CHECKING:\n    import a\nelse:\n    import b\nimport c\n"), "b c");
    assert_eq!(
        imported_by("if sys.platform.startswith('win') and x:\n    import a\nif TYPE_CHECKING or x: import b\n"),
        "b"
    );
    assert_eq!(imported_by("if typing.TYPE_CHECKING: import a\nif not t.TYPE_CHECKING: import b\n"), "b");
    assert_eq!(
        imported_by("if sys.platform == 'win32':\n  import a\nelif os.name == \"nt\":\n  import b\nelse: import c\n"),
        "c"
    );
}

#[test]
fn a_fallback_is_imported_only_for_what_is_missing() {
    assert_eq!(imported_by("try:\n    import a\nexcept ImportError:\n    import b\nimport c\n"), "a c");
    assert_eq!(
        imported_by("try:\n    import a, gone\nexcept (X, ImportError):\n    import b\nelse:\n    import c\n"),
        "a b c"
    );
    assert_eq!(imported_by("try:\n    from a import gone\nexcept ModuleNotFoundError:\n    from b import x\n"), "a");
    assert_eq!(imported_by("try:\n    f()\nexcept ImportError:\n    import b\n"), "b");
    assert_eq!(imported_by("try:\n    import a\nexcept ValueError:\n    import b\n"), "a b");
}

#[test]
fn a_long_source_is_read_and_not_searched() {
    let long = [b"import a\n".as_slice(), &vec![b'\n'; 1 << 20]].concat();
    let files = python().with("/app/main.py", "import long").with("/app/long.py", long).with("/app/a.py", "x");
    assert_eq!(imported(&files), ["long.py"]);
}

#[test]
fn any_bytes_are_bounded() {
    let mut hostile = vec!["(".repeat(1 << 16), "import ".to_owned() + &"a.".repeat(1 << 16), "'''".to_owned()];
    hostile.extend(
        ["from .", "from", "import", "\\", "\"\\", "if", "def", ":::", "try:\nexcept:", "from . import"]
            .map(str::to_owned),
    );
    hostile.push("from a import ".to_owned() + &"b,".repeat(1 << 18));
    hostile.push((0..2000).map(|depth| " ".repeat(depth) + "try:\n").collect());
    for script in hostile {
        assert!(imported_by(&script).len() < 2, "{}", &script[..20.min(script.len())]);
    }
}
