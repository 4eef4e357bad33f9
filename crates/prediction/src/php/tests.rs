use super::includes::{Scope, Source};
use super::*;
use crate::files::tests::MapFiles;

/// The paths of what an interpreter reads with these arguments in a working directory.
fn read(files: MapFiles, interpreter: &str, arguments: &[&str], directory: &str) -> Vec<String> {
    let files = files.with(interpreter, "a program");
    let command = PhpCommand {
        interpreter: &files.find(interpreter.as_bytes()).unwrap(),
        arguments: &arguments.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>(),
        directory: directory.as_bytes(),
    };
    let found = modules(&files, &command).unwrap();
    found.into_iter().map(|file| String::from_utf8(file.path).unwrap()).collect()
}

#[test]
fn extensions_are_those_that_the_configuration_of_the_interface_enables() {
    let files = || {
        MapFiles::default()
            .with("/etc/php/8.2/cli/php.ini", ";extension=off\n")
            .with("/etc/php/8.2/cli/conf.d/10-a.ini", "zend_extension=a.so\n")
            .with("/etc/php/8.2/fpm/php.ini", "x")
            .with("/etc/php/8.2/fpm/pool.d/www.conf", "x")
            .with("/etc/php/8.2/fpm/conf.d/20-b.ini", "extension = \"b\" ; on\n")
            .with("/usr/lib/php/20220829/a.so", "a library")
            .with("/usr/lib/php/20220829/b.so", "a library")
            .with("/usr/lib/php/20220829/off.so", "a library")
    };
    assert_eq!(
        read(files(), "/usr/bin/php8.2", &["-r", "1;"], "/"),
        ["/etc/php/8.2/cli/php.ini", "/etc/php/8.2/cli/conf.d/10-a.ini", "/usr/lib/php/20220829/a.so"]
    );
    assert_eq!(
        read(files(), "/usr/sbin/php-fpm8.2", &[], "/"),
        [
            "/etc/php/8.2/fpm/php.ini",
            "/etc/php/8.2/fpm/conf.d/20-b.ini",
            "/usr/lib/php/20220829/b.so",
            "/etc/php/8.2/fpm/pool.d/www.conf"
        ]
    );
    let official = MapFiles::default()
        .with("/usr/local/etc/php/conf.d/c.ini", "extension=c\n")
        .with("/usr/local/lib/php/extensions/no-debug-non-zts-20230831/c.so", "a library");
    assert_eq!(read(official, "/usr/lib/apache2/modules/libphp.so", &[], "/").len(), 2);
}

#[test]
fn a_program_includes_by_joined_paths_variables_and_constants() {
    let files = MapFiles::default()
        .with(
            "/app/index.php",
            "<?php\ndefine( 'ROOT', __DIR__ . '/' );\ndefine('PARTS', 'parts');\n\
             // require 'comment.php';\nrequire ROOT . PARTS . '/a.php';\n$base = dirname(__DIR__);\n\
             if (is_file($base . '/opt/b.php')) { require_once($base.\"/opt/b.php\"); }\n\
             include $unknown . '/c.php';\n$required = 'c.php';\n",
        )
        .with("/app/parts/a.php", "<?php return require dirname(__FILE__, 2) . '/d.php';")
        .with("/app/d.php", "<?php")
        .with("/opt/b.php", "<?php")
        .with("/app/c.php", "<?php")
        .with("/app/comment.php", "<?php");
    let found = read(files, "/usr/local/bin/php", &["-d", "a=b", "index.php", "c.php"], "/app");
    assert_eq!(found, ["/app/parts/a.php", "/app/d.php", "/opt/b.php"]);
}

#[test]
fn composer_leads_to_the_files_that_it_always_loads_and_to_the_classes_that_sources_use() {
    let table = "class ComposerStaticInit {\n    public static $files = array (\n        'abc' => __DIR__ . '/..' . '/poly/bootstrap.php',\n    );\n\
        public static $prefixDirsPsr4 = array (\n        'App\\\\' => \n        array (\n            0 => __DIR__ . '/../..' . '/src',\n        ),\n    );\n\
        public static $classMap = array (\n        'Lib\\\\Main' => __DIR__ . '/..' . '/lib/Main.php',\n    );\n";
    let files = MapFiles::default()
        .with("/app/public/index.php", "<?php\nuse App\\Kernel;\nuse function App\\f;\nrequire __DIR__.'/../vendor/autoload.php';\nnew Kernel();\n")
        .with("/app/vendor/autoload.php", "<?php\nrequire_once __DIR__ . '/composer/autoload_real.php';\n")
        .with("/app/vendor/composer/autoload_real.php", "<?php\nrequire __DIR__ . '/autoload_static.php';\n")
        .with("/app/vendor/composer/autoload_static.php", table)
        .with("/app/vendor/poly/bootstrap.php", "<?php\nuse App\\Kernel;\n")
        .with("/app/vendor/lib/Main.php", "<?php")
        .with("/app/src/Kernel.php", "<?php\nuse Lib\\Main;\n");
    let found = read(files, "/usr/local/sbin/php-fpm", &[], "/app");
    assert_eq!(
        found,
        [
            "/app/public/index.php",
            "/app/vendor/autoload.php",
            "/app/vendor/composer/autoload_real.php",
            "/app/vendor/composer/autoload_static.php",
            "/app/vendor/poly/bootstrap.php",
            "/app/src/Kernel.php",
            "/app/vendor/lib/Main.php",
        ]
    );
}

#[test]
fn what_is_no_include_of_a_known_path_is_omitted() {
    let text = "<?php\n$a->require('x');\n'require x.php';\nrequire \"$a/x.php\";\nrequire foo('x.php');\nrequire_once 'y.php';\n\
                require dirname(dirname(__FILE__)) . '/z.php';\n$x = require_once __DIR__.'/v.php';\n\
                (include 'w.php')->run();\ninclude 'u.php' ?: 1;\n";
    let source = Source { text: text.as_bytes(), directory: b"/d/e", path: b"/d/e/s.php" };
    let found = Scope::of(b"/").requests(&source);
    assert_eq!(found, ["/d/e/y.php", "/d/z.php", "/d/e/v.php", "/d/e/w.php"].map(|path| path.as_bytes().to_vec()));
}
