//! What the first start prints, and to whom; and where it makes no secret of its own.

mod common;

use common::Setup;
use common::database::Database;
use common::output::{complaint, ended, printed};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

#[test]
fn in_a_terminal_the_first_start_says_how_to_begin_and_the_second_does_not() {
    let setup = Setup::new();
    let first = printed_in_a_terminal(&setup);
    let token = first.lines().map(str::trim).find(|line| line.starts_with("ey")).unwrap();
    let address = first.lines().find_map(|line| line.split_once("listens on ")).unwrap().1;
    let curl: Vec<_> = first.lines().skip_while(|line| !line.contains("curl")).collect();
    let curl = curl.join("\n");
    let path = format!("{}/api/v1/app", address.trim());
    assert!(curl.contains(&path) && curl.contains(token), "{first}");
    let mode = |name: &str| {
        std::fs::metadata(setup.folder().join(name)).unwrap().permissions().mode() & 0o777
    };
    assert_eq!(mode("data"), 0o700);
    assert_eq!(mode("data/secrets.toml"), 0o600);
    let second = printed_in_a_terminal(&setup);
    assert!(second.contains("listens on") && !second.contains("ey"), "{second}");
}

#[test]
fn elsewhere_the_first_start_prints_no_token_but_how_to_get_one() {
    let setup = Setup::new();
    let mut server = Server::start(&setup, Stdio::piped());
    let output = server.child.stdout.take().unwrap();
    let text = server.text(output);
    assert!(!text.contains("ey"), "a token: {text}");
    let line = text.lines().find(|line| line.contains("first start")).unwrap();
    let words = line.split('`').nth(1).unwrap().strip_prefix("posthaste ").unwrap();
    let words: Vec<_> = words.split(' ').collect();
    let token = Command::new(env!("CARGO_BIN_EXE_posthaste")).args(words).output().unwrap();
    assert!(printed(&token).starts_with("ey"), "{line}");
}

#[test]
fn with_postgresql_no_process_makes_a_secret_of_its_own() {
    let unset = |setup: Setup| setup.without("POSTHASTE_JWT_SECRET");
    let setup = unset(Setup::on(Database::on_postgres()));
    let serve = ["serve", "--listen", "127.0.0.1:0"];
    let line = complaint(&ended(&setup, &serve), 2);
    for part in ["jwt_secret", "POSTHASTE_JWT_SECRET", "--dev"] {
        assert!(line.contains(part), "`{part}` is not in: {line}");
    }
    assert!(!setup.folder().join("secrets.toml").exists());
    let line = complaint(&ended(&setup, &["token"]), 2);
    assert!(line.contains("POSTHASTE_JWT_SECRET"), "{line}");
    // One that says that it is alone makes one, and a folder that has one is not turned away.
    for words in [&["serve", "--dev", "--listen", "127.0.0.1:0"][..], &serve] {
        let server = unset(setup.same_folder(&setup)).command(words).start();
        let warned = !server.events("secrets.of_this_folder_only").is_empty();
        assert_eq!(warned, !words.contains(&"--dev"), "{words:?}");
        server.signal("TERM");
        assert!(server.wait().success());
        assert!(setup.folder().join("secrets.toml").exists());
    }
}

/// A server in a folder of its own.
struct Server {
    child: Child,
    folder: PathBuf,
}

impl Server {
    fn start(setup: &Setup, stdout: Stdio) -> Self {
        let folder = setup.folder().join("data");
        let child = Command::new(env!("CARGO_BIN_EXE_posthaste"))
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(&folder)
            .env_remove("POSTHASTE_JWT_SECRET")
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, folder }
    }

    /// Everything it prints until it is stopped, with a look at whether what it says is true.
    fn text(mut self, output: impl Read) -> String {
        let mut output = BufReader::new(output);
        let mut text = String::new();
        output.read_line(&mut text).unwrap();
        let address = text.split_once("listens on ").unwrap().1.trim();
        let command = |words: &[&str]| {
            let output = Command::new(env!("CARGO_BIN_EXE_posthaste"))
                .args(words)
                .arg("--data-dir")
                .arg(&self.folder)
                .output();
            printed(&output.unwrap())
        };
        let token = command(&["token"]);
        assert!(command(&["status", "--url", address, "--token", &token]).contains("PENDING"));
        let sent = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
        assert!(self.child.wait().unwrap().success());
        // A terminal ends with an error once nobody else has it open.
        let mut rest = Vec::new();
        let _ = output.read_to_end(&mut rest);
        text + &String::from_utf8(rest).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn printed_in_a_terminal(setup: &Setup) -> String {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let theirs = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    Server::start(setup, theirs.into()).text(File::from(ours))
}
