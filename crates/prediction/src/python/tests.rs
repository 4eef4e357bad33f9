//! Tests of what a Python program imports.

use super::super::environment::Environment;
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
    run(files, "/usr/local/bin/python3.12", invoked_as, &script.map(str::to_owned).into_iter().collect::<Vec<_>>(), &[])
}

/// What a command reads in the working directory `/app`.
fn run(files: &MapFiles, interpreter: &str, invoked_as: &str, arguments: &[String], variables: &[&str]) -> Vec<String> {
    let arguments: Vec<Vec<u8>> = arguments.iter().map(|word| word.clone().into_bytes()).collect();
    let variables: Vec<String> = variables.iter().map(|line| (*line).to_owned()).collect();
    let invocation = Invocation {
        interpreter: &files.find(interpreter.as_bytes()).unwrap(),
        invoked_as: invoked_as.as_bytes(),
        arguments: &arguments,
        directory: b"/app",
        environment: &PythonEnvironment::of(Environment(&variables), SEARCHED),
    };
    let found = modules(files, &invocation).unwrap();
    found.into_iter().map(|file| String::from_utf8(file.path).unwrap()).collect()
}

/// What a command reads below `/app` in that working directory.
fn imported_with(files: &MapFiles, line: &str, variables: &[&str]) -> Vec<String> {
    let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let found = run(files, "/usr/local/bin/python3.12", "/usr/local/bin/python3", &arguments, variables);
    found.iter().filter_map(|path| path.strip_prefix("/app/").map(str::to_owned)).collect()
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
    let found = run(&files, "/usr/bin/python3.9", "/usr/bin/python3", &[], &[]);
    assert_eq!(found, ["/usr/lib/python3.9/os.py", "/usr/lib/python3.9/abc.py"]);
}

#[test]
fn an_interpreter_without_a_version_is_not_followed() {
    let files = MapFiles::default().with("/usr/bin/python", "ELF").with("/usr/lib/x", "x");
    let started = |files: &MapFiles| run(files, "/usr/bin/python", "/usr/bin/python", &[], &[]).len();
    assert_eq!(started(&files), 0);
    assert_eq!(started(&files.with("/usr/lib/python3.12/encodings/__init__.py", "x\n")), 1);
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
fn a_module_is_run_as_the_program_and_so_are_the_functions_that_it_calls() {
    let files = python()
        .with("/app/pkg/__init__.py", "1\n")
        .with("/app/pkg/__main__.py", "from .cli import main\ndef run():\n    from . import late\nrun()\n")
        .with("/app/pkg/cli.py", "1\n")
        .with("/app/pkg/late.py", "1\n")
        .with("/app/one.py", "import pkg.cli\n");
    let expected = ["__init__.py", "__main__.py", "cli.py", "late.py"].map(|name| format!("pkg/{name}"));
    assert_eq!(imported_with(&files, "-u -m pkg --port 1", &[]), expected);
    assert_eq!(imported_with(&files, "-m one", &[]), ["one.py", "pkg/__init__.py", "pkg/cli.py"]);
    assert_eq!(imported_with(&files, "-m none", &[]), [""; 0]);
}

#[test]
fn code_in_an_argument_imports_from_the_working_directory() {
    let files = python().with("/app/a.py", "1\n");
    let arguments = ["-c", "import a; print(1)"].map(str::to_owned);
    let found = run(&files, "/usr/local/bin/python3.12", "/usr/local/bin/python3", &arguments, &[]);
    assert_eq!(found.last().unwrap(), "/app/a.py");
}

#[test]
fn a_server_imports_the_module_that_an_argument_or_a_variable_names() {
    let files = python()
        .with("/venv/bin/serve", "import sys\n")
        .with("/app/web/__init__.py", "1\n")
        .with("/app/web/wsgi.py", "import settings\n")
        .with("/app/settings.py", "1\n")
        .with("/app/worker.py", "1\n")
        .with("/src/other.py", "1\n");
    let expected = ["web/__init__.py", "web/wsgi.py", "settings.py"];
    assert_eq!(imported_with(&files, "/venv/bin/serve -w 2 web.wsgi:application", &[]), expected);
    assert_eq!(imported_with(&files, "/venv/bin/serve", &["FLASK_APP=web.wsgi", "X=worker"]), expected);
    assert_eq!(imported_with(&files, "/venv/bin/serve sys other", &[]), [""; 0], "in another directory");
    let named = python().with("/app/settings.py", "x = 'worker.x'\n").with("/app/worker.py", "1\n");
    assert_eq!(imported_with(&named, "-m settings", &["PYTHONPATH=/app"]), ["settings.py", "worker.py"]);
    let arguments = ["/venv/bin/serve", "other"].map(str::to_owned);
    let found = run(&files, "/usr/local/bin/python3.12", "/usr/local/bin/python3", &arguments, &["PYTHONPATH=/src"]);
    assert_eq!(found.last().unwrap(), "/src/other.py");
}

#[test]
fn a_project_names_its_settings_and_these_name_applications() {
    let settings = "INSTALLED_APPS = [\n    'framework.auth',  # comment\n    'polls',\n]\nROOT = \"project.urls\"\n";
    let library = "/usr/local/lib/python3.12/site-packages";
    let files = python()
        .with("/app/manage.py", "import os\nos.environ.setdefault('SETTINGS', 'project.settings')\n")
        .with("/app/project/__init__.py", "1\n")
        .with("/app/project/settings.py", settings)
        .with("/app/project/urls.py", "paths = [include('polls.urls'), 'no name', 'polls']\n")
        .with("/app/polls/__init__.py", "1\n")
        .with("/app/polls/apps.py", "1\n")
        .with("/app/polls/models.py", "1\n")
        .with("/app/polls/urls.py", "1\n")
        .with("/app/polls/unused.py", "1\n")
        .with(&format!("{library}/framework/__init__.py"), "x = 'framework.unused'\n")
        .with(&format!("{library}/framework/unused.py"), "1\n")
        .with(&format!("{library}/framework/auth/__init__.py"), "1\n")
        .with(&format!("{library}/framework/auth/models.py"), "1\n");
    let found = run(&files, "/usr/local/bin/python3.12", "/usr/local/bin/python3", &["manage.py".to_owned()], &[]);
    let names: Vec<&str> = found.iter().filter_map(|path| path.strip_prefix("/app/")).collect();
    assert_eq!(
        names,
        [
            "project/__init__.py",
            "project/settings.py",
            "polls/__init__.py",
            "polls/apps.py",
            "polls/models.py",
            "project/urls.py",
            "polls/urls.py"
        ]
    );
    let installed: Vec<&str> = found.iter().filter_map(|path| path.strip_prefix(library)).collect();
    assert_eq!(installed, ["/framework/__init__.py", "/framework/auth/__init__.py", "/framework/auth/models.py"]);
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
fn a_function_that_a_script_imports_and_calls_runs_too() {
    let cli =
        "def main():\n    from .late import x\n    more()\ndef more():\n    import a\ndef other():\n    import b\n";
    let files = python()
        .with("/app/main.py", "import sys\nfrom pkg.cli import main, other\nsys.exit(main())\n")
        .with("/app/pkg/__init__.py", "1\n")
        .with("/app/pkg/cli.py", cli)
        .with("/app/pkg/late.py", "1\n")
        .with("/app/a.py", "1\n")
        .with("/app/b.py", "1\n");
    assert_eq!(imported(&files), ["pkg/__init__.py", "pkg/cli.py", "pkg/late.py", "a.py"]);
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
fn a_name_longer_than_real_ones_is_not_followed() {
    let files = python().with("/app/manage.py", "import os\n").with("/app/a/__init__.py", "1\n");
    let long = "a.".repeat(1 << 20) + "a";
    for line in [format!("-m {long}"), format!("manage.py {long}"), format!("-c {}", "import a;".repeat(1 << 18))] {
        assert!(imported_with(&files, &line, &[]).len() < 2);
    }
    let colons = "a".repeat(1 << 19) + &":".repeat(1 << 19);
    assert_eq!(imported_by(&colons), "", "in less than minutes");
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
