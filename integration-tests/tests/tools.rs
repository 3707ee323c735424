//! What `make` says before it installs or builds anything, what it hides, how it installs, and how its tools call cargo
//! and end without a reader.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use integration_tests::page::root;
use tempfile::TempDir;

/// What `make stores` says with this `cargo`, and whether it goes on to install.
fn stores_with(cargo: &Path) -> (bool, String) {
    let mut make = Command::new("make");
    make.args(["--no-print-directory", "--directory"]).arg(root()).arg("stores").env("CARGO", cargo);
    // Those of the `make` that runs this test.
    let output = make.env_remove("MAKEFLAGS").env_remove("MFLAGS").output().expect("make is here");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn write_program(file: &Path, text: &str) {
    fs::write(file, text).expect("written");
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).expect("executable");
}

#[test]
fn a_rust_that_is_missing_or_too_old_is_named_before_anything_is_installed() {
    let folder = tempfile::tempdir().expect("a folder");
    let cargo = folder.path().join("cargo");
    let (went_on, said) = stores_with(&cargo);
    assert!(!went_on && said.contains("no Rust") && said.contains("rustup"), "{said}");

    write_program(&cargo, "#!/bin/sh\necho 'cargo 1.85.1 (d73d2caf9 2024-12-31)'\n");
    let (went_on, said) = stores_with(&cargo);
    assert!(!went_on && said.contains("Rust 1.85.1") && said.contains("rustup"), "{said}");
}

/// Builds nothing, and only as `cargo +stable`.
const CARGO: &str = r#"#!/bin/sh
[ "$1" = +stable ] || exit 1
case $2 in
metadata) echo '{"packages":[],"target_directory":"/built/here","version":1}' ;;
test) mkdir -p "$CARGO_TARGET_DIR/debug" && echo "$CARGO_BUILD_BUILD_DIR" >"$CARGO_TARGET_DIR/debug/duetime" ;;
*) exit 1 ;;
esac
"#;

/// Runs a command, which must end well, and returns its output. In a hook of git, or in a rebase, variables name the
/// repository of the developer.
fn said(command: &mut Command) -> String {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"GIT_")) {
        command.env_remove(name);
    }
    let Output { status, stdout, stderr } = command.output().expect("it can be started");
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8_lossy(&stdout).trim_end().to_owned()
}

/// A machine as `integration-tests/install` sees it: with few programs, and a `sudo` that runs `apt-get` alone.
struct Machine(TempDir);

impl Machine {
    /// `apt_get` is what this program does.
    fn with(apt_get: &str) -> Self {
        let machine = Self(tempfile::tempdir().expect("a folder"));
        let path = std::env::var_os("PATH").expect("a PATH");
        for name in ["cat", "env", "flock", "grep", "ln", "mktemp", "rm", "sed", "wc"] {
            let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.exists());
            symlink(found.expect(name), machine.program(name)).expect("linked");
        }
        write_program(&machine.program("id"), "#!/bin/sh\necho 1000\n");
        write_program(&machine.program("sleep"), "#!/bin/sh\n");
        write_program(&machine.program("sudo"), "#!/bin/sh\n[ \"$1\" != env ] || exec \"$@\"\n");
        write_program(&machine.program("apt-get"), &format!("#!/bin/sh\necho \"$1\" >>\"$CALLS\"\n{apt_get}"));
        machine
    }

    fn program(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Installs Redis, which is missing.
    fn install(&self) -> Child {
        self.install_what("redis")
    }

    fn install_what(&self, what: &str) -> Child {
        self.start(Command::new(root().join("integration-tests/install")).arg(what))
    }

    /// Starts an installation on this machine, whose user reads German.
    fn start(&self, install: &mut Command) -> Child {
        install.env_clear().env("LANGUAGE", "de").env("PATH", self.0.path()).env("CALLS", self.program("calls"));
        install.env("MACHINE", self.0.path()).stderr(Stdio::piped()).spawn().expect("it starts")
    }

    /// The calls of `apt-get`, one a line.
    fn calls(&self) -> String {
        fs::read_to_string(self.program("calls")).expect("calls")
    }
}

/// An `apt-get` that finds a lock.
const LOCKED: &str = "[ -z \"${LANGUAGE:-}\" ] || { echo 'E: Sperre konnte nicht bekommen werden' >&2; exit 100; }\n\
    echo 'E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)' >&2\nexit 100\n";

/// Another user's `apt-get update` holds a lock for which no option of apt waits.
#[test]
fn an_installation_waits_for_a_lock_of_apt() {
    let machine = Machine::with(&format!("[ \"$(wc -l <\"$CALLS\")\" -le 2 ] || exit 0\n{LOCKED}"));
    let ended = machine.install().wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && said.contains("another program installs packages"), "{said}");
    assert_eq!(machine.calls(), "install\ninstall\ninstall\n");
}

/// It tries every three seconds for ten minutes. `apt-get update` does not begin to wait anew.
#[test]
fn an_installation_waits_ten_minutes_in_all() {
    let machine = Machine::with(LOCKED);
    let ended = machine.install().wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("Could not get lock"), "{said}");
    assert_eq!(machine.calls(), format!("{}update\n", "install\n".repeat(201)));
}

/// It starts itself again after it has taken its turn.
#[test]
fn an_installation_may_be_started_by_a_shell_in_its_folder() {
    let machine = Machine::with("");
    let mut install = Command::new("/bin/sh");
    let ended = machine.start(install.args(["install", "redis"]).current_dir(root().join("integration-tests")));
    let ended = ended.wait_with_output().expect("it ends");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(machine.calls(), "install\n");
}

#[test]
fn an_installation_does_not_repeat_what_fails_without_a_lock() {
    let machine = Machine::with("echo 'E: Unable to locate package redis-server' >&2\nexit 100\n");
    let ended = machine.install().wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("Unable to locate"), "{said}");
    assert_eq!(machine.calls(), "install\nupdate\n");
}

/// At least etcd is missing too.
#[test]
fn the_compiler_that_a_build_needs_is_installed_with_the_stores() {
    let machine = Machine::with("echo \" $* \" >\"$MACHINE/asked\"\n");
    let asked = || {
        let ended = machine.install_what("stores").wait_with_output().expect("it ends");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        fs::read_to_string(machine.program("asked")).expect("it asks")
    };
    let without = asked();
    assert!(without.contains(" gcc ") && without.contains(" libc6-dev "), "{without}");
    for (crt1, is_missing) in [("crt1.o", true), ("/usr/lib/crt1.o", false)] {
        write_program(&machine.program("cc"), &format!("#!/bin/sh\necho {crt1}\n"));
        let with = asked();
        assert!(!with.contains(" gcc ") && with.contains(" libc6-dev ") == is_missing, "{with}");
    }
}

/// The one that ends first would take the policy away by which the other's services do not start.
#[test]
fn of_two_installations_at_once_the_second_waits_and_finds_nothing_missing() {
    let machine = Machine::with("read -r _ <\"$MACHINE/go\" && ln -s id \"$MACHINE/redis-server\"\n");
    said(Command::new("mkfifo").arg(machine.program("go")));
    // Opened for both, so that neither side waits for the other.
    let mut go = fs::File::options().read(true).write(true).open(machine.program("go")).expect("a pipe");
    let begin = || {
        let mut install = machine.install();
        let (mut errors, mut line) = (BufReader::new(install.stderr.take().expect("a pipe")), String::new());
        errors.read_line(&mut line).expect("a line");
        (install, errors, line)
    };
    let (mut first, _first_errors, line) = begin();
    assert_eq!(line, "installing redis-server\n");
    let (mut second, _second_errors, line) = begin();
    assert!(line.contains("another run installs"), "{line}");
    go.write_all(b"go\n").expect("written");
    assert!(first.wait().expect("it ends").success() && second.wait().expect("it ends").success());
    assert_eq!(machine.calls(), "install\n");
}

/// The drivers in tests would follow what the shell of a developer says to them.
#[test]
fn make_hides_variables_that_name_another_database_or_collector() {
    let mut make = Command::new("make");
    make.args(["--silent", "--eval=show: ; @env", "--directory"]).arg(root()).arg("show");
    make.envs([("PGSSLMODE", "require"), ("OTEL_SERVICE_NAME", "theirs"), ("KEPT", "kept")]);
    let shown = said(make.env_remove("MAKEFLAGS").env_remove("MFLAGS"));
    let is_there = |name: &str| shown.lines().any(|line| line.starts_with(name));
    assert!(is_there("KEPT=") && !is_there("PGSSLMODE=") && !is_there("OTEL_SERVICE_NAME="), "{shown}");
}

/// As in `make test CARGO='cargo +stable'`.
#[test]
fn cargo_may_be_several_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("cargo");
    write_program(&program, CARGO);
    let cargo = format!("{} +stable", program.display());
    assert_eq!(said(Command::new(root().join("tools/target-folder")).env("CARGO", &cargo)), "/built/here");

    // A repository with one commit, the last release.
    let project = folder.path().join("project");
    for tool in ["tools/target-folder", "integration-tests/build-last-release"] {
        let copy = project.join(tool);
        fs::create_dir_all(copy.parent().expect("a tool lies in a folder")).expect("made");
        fs::copy(root().join(tool), copy).expect("copied");
    }
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "core.hooksPath=/dev/null", "-C"]);
        said(git.arg(&project).args(words))
    };
    git(&["init", "--quiet"]);
    git(&["add", "tools"]);
    git(&["commit", "--quiet", "--no-gpg-sign", "--message", "the last release"]);
    let releases = format!("# version, commit, schema\n0.1.0 {} 1\n", git(&["rev-parse", "HEAD"]));
    fs::write(project.join("integration-tests/releases"), releases).expect("written");
    said(Command::new(project.join("integration-tests/build-last-release")).env("CARGO", &cargo));
    let built = fs::read_to_string(project.join(".local/releases/0.1.0/duetime")).expect("it was built");
    assert_eq!(built, "/built/here\n");
}

/// The image needs a builder of images to be tried.
#[test]
fn no_tool_takes_cargo_for_one_word() {
    for tool in ["tools/image", "tools/rust-version", "tools/target-folder", "integration-tests/build-last-release"] {
        let text = fs::read_to_string(root().join(tool)).expect("it can be read");
        assert!(text.contains("${CARGO:-cargo}") && !text.contains("\"${CARGO:-cargo}\""), "{tool}");
    }
}

/// As in `stack chaos --list | head -3`.
#[test]
fn a_list_whose_reader_has_seen_enough_ends_well() {
    let (_, without_reader) = std::io::pipe().expect("a pipe");
    let mut list = Command::new(env!("CARGO_BIN_EXE_stack"));
    let listing = list.args(["chaos", "--list"]).stdout(without_reader).stderr(Stdio::piped()).spawn();
    let ended = listing.expect("it starts").wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && said.is_empty(), "{said}");
}
