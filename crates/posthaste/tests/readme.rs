//! The README's examples, run as they are written.

mod common;

use common::{PATIENCE, Setup};
use posthaste_testkit::Receiver;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

const README: &str = include_str!("../../../README.md");
const BINARY: &str = env!("CARGO_BIN_EXE_posthaste");

/// The blocks of a language, in order.
fn blocks(language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let parts = README.split(&fence).skip(1);
    parts.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// The README speaks of a checkout; the test has built the binary already.
fn with_binary(text: &str) -> String {
    text.replace("cargo run --release --quiet --", BINARY).replace("cargo run --release --", BINARY)
}

fn server(setup: &Setup) -> (Child, String) {
    let words = blocks("sh")
        .into_iter()
        .find(|block| block.contains("-- serve"))
        .map(|block| with_binary(&block))
        .unwrap();
    let mut child = Command::new("sh")
        .args(["-c", &format!("exec {}", words.trim())])
        .current_dir(setup.folder())
        .env("POSTHASTE_LISTEN", "127.0.0.1:0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let url = line.split_once("listens on ").unwrap().1.trim().to_owned();
    (child, url)
}

fn run(setup: &Setup, program: &str, text: &str, variables: &[(&str, &str)]) -> String {
    let output: Output = Command::new(program)
        .args(["-c", text])
        .current_dir(setup.folder())
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{program} is needed for this test: {error}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    stdout
}

/// Ends the process and waits for it, whatever the test did.
struct Stopped(Child);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_message_arrives() {
    let setup = Setup::new();
    let (child, url) = server(&setup);
    let _stopped = Stopped(child);
    let receiver = Receiver::always(posthaste_testkit::Reply::ok()).await;
    let block = blocks("sh").into_iter().find(|block| block.contains("curl")).unwrap();
    let script = with_binary(&block)
        .replace("http://127.0.0.1:8071", &url)
        .replace("http://127.0.0.1:9000", &format!("http://{}", receiver.address()));
    let script = format!("set -eu\n{script}");
    let printed =
        tokio::task::spawn_blocking(move || run(&setup, "sh", &script, &[])).await.unwrap();
    assert!(printed.contains("PENDING"), "{printed}");
    let request = receiver.next_request().await;
    assert_eq!(&request.body[..], br#"{"id": 7, "amount": 1200}"#, "exact bytes");
}

#[test]
fn the_demo_is_the_first_command() {
    let block = blocks("sh").into_iter().next().unwrap();
    assert_eq!(block.trim(), "cargo run --release -- demo");
}

#[test]
fn every_file_the_readme_links_to_is_there() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let links = README.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
    for link in links.filter(|link| !link.starts_with("http")) {
        assert!(root.join(link).exists(), "{link}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_example_sends() {
    let python = std::env::var("POSTHASTE_TEST_PYTHON").unwrap_or_else(|_| {
        panic!("POSTHASTE_TEST_PYTHON is not set: run `cargo xtask test`, which makes it")
    });
    let setup = Setup::new();
    let (child, url) = server(&setup);
    let _stopped = Stopped(child);
    let receiver = Receiver::always(posthaste_testkit::Reply::ok()).await;
    let token = run(&setup, "sh", &format!("{BINARY} token"), &[]);
    let script = blocks("python")
        .remove(0)
        .replace("http://127.0.0.1:9000", &format!("http://{}", receiver.address()));
    let variables = [("POSTHASTE_URL", url), ("POSTHASTE_TOKEN", token.trim().to_owned())];
    let printed = tokio::task::spawn_blocking(move || {
        let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
        run(&setup, &python, &script, &variables)
    });
    assert!(printed.await.unwrap().starts_with("msg_"));
    let since = Instant::now();
    let request = receiver.next_request().await;
    assert!(since.elapsed() < PATIENCE);
    assert!(request.body.ends_with(b"}"));
}
