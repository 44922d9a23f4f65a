//! Runs the real binary in a folder of its own and speaks to it over HTTP.
#![expect(dead_code, reason = "each test binary uses its own part of this")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]
#![expect(clippy::disallowed_methods, reason = "waits for other processes, with a bound")]

pub mod database;
pub mod facts;
pub mod load;
pub mod output;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use database::Database;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

const JWT_SECRET: &str = "a secret of these tests, long enough";
const ORGANISATION: &str = "org_posthaste_tests";
/// How long anything may take before a test fails instead of hanging.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How a process is started. Data stays in `database` over restarts.
pub struct Setup {
    database: Arc<Database>,
    command: Vec<String>,
    variables: Vec<(String, String)>,
}

/// A running process; killed when dropped.
pub struct Posthaste {
    /// Not removed before the process ended.
    database: Arc<Database>,
    child: Child,
    address: String,
    log: Arc<Mutex<Vec<String>>>,
    agent: ureq::Agent,
}

impl Setup {
    /// `serve --dev` with short waits: three retries a moment apart.
    pub fn new() -> Self {
        Self::on(Database::new())
    }

    /// The same on this database.
    pub fn on(database: Database) -> Self {
        let setup = Self {
            database: Arc::new(database),
            command: ["serve", "--dev", "--listen", "127.0.0.1:0"].map(str::to_owned).into(),
            variables: Vec::new(),
        };
        setup
            .with("POSTHASTE_JWT_SECRET", JWT_SECRET)
            .with("POSTHASTE_RETRY__DELAYS", "200ms,200ms,200ms")
            .with("POSTHASTE_RETRY__JITTER", "0")
            .with("POSTHASTE_BREAKER__COOLDOWN", "500ms")
            .with("POSTHASTE_LOG__FORMAT", "json")
    }

    /// Sets an environment variable; a later one of the same name wins.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.retain(|(other, _)| other != name);
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn command(mut self, words: &[&str]) -> Self {
        self.command = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// The same folder, for another process on it.
    pub fn same_folder(&self, other: &Self) -> Self {
        Self {
            database: self.database.clone(),
            command: other.command.clone(),
            variables: other.variables.clone(),
        }
    }

    pub fn folder(&self) -> &Path {
        self.database.folder()
    }

    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Any command of the binary, with this setup's environment and folder.
    pub fn run(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        let url = self.database.url();
        command
            .args(words)
            .envs(url.map(|url| ("POSTHASTE_DATABASE_URL", url)))
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .env("POSTHASTE_DATA_DIR", self.folder())
            .stdin(Stdio::null());
        command
    }

    /// Starts the process and returns when its API listens, or its worker works.
    pub fn start(&self) -> Posthaste {
        let words: Vec<&str> = self.command.iter().map(String::as_str).collect();
        let mut child =
            self.run(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        follow(child.stderr.take().unwrap(), log.clone());
        let address = address(child.stdout.take().unwrap(), &log);
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE))
            .build();
        Posthaste { database: self.database.clone(), child, address, log, agent: config.into() }
    }
}

impl Posthaste {
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Every line the process logged so far.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// The logged events of this name, as JSON.
    pub fn events(&self, name: &str) -> Vec<Value> {
        self.log()
            .iter()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|event| event.to_string().contains(&format!("\"{name}\"")))
            .collect()
    }

    /// As a crash would: nothing is given a chance.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends a signal by name, such as `TERM`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
    }

    pub fn wait(mut self) -> ExitStatus {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(since.elapsed() < PATIENCE, "the process does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Blocks; from an async test call it through `api`.
    pub fn call(&self, method: &str, path: &str, body: Option<&str>) -> (u16, Value) {
        call(&self.agent, &format!("{}{path}", self.url()), method, body)
    }

    /// One API call off the async threads. The answer's body is `Null` when it is empty.
    pub async fn api(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let text = (!body.is_null()).then(|| body.to_string());
        self.api_raw(method, path, text).await
    }

    pub async fn api_raw(&self, method: &str, path: &str, body: Option<String>) -> (u16, Value) {
        let (agent, url) = (self.agent.clone(), format!("{}{path}", self.url()));
        let method = method.to_owned();
        tokio::task::spawn_blocking(move || call(&agent, &url, &method, body.as_deref()))
            .await
            .unwrap()
    }

    /// Publishes a message of so many bytes: its id, or what the refusal says. A refusal must say
    /// when to come back.
    pub async fn publish(&self, application: &str, bytes: usize) -> Result<String, String> {
        let url = format!("{}/api/v1/app/{application}/msg", self.url());
        let payload = "x".repeat(bytes);
        let body = json!({ "eventType": "test.event", "payload": { "x": payload } }).to_string();
        let agent = self.agent.clone();
        let answer = tokio::task::spawn_blocking(move || {
            let request = agent.post(&url).header("authorization", format!("Bearer {}", token()));
            let answer = request.header("content-type", "application/json").send(body);
            let mut answer = answer.unwrap();
            let text = answer.body_mut().read_to_string().unwrap();
            (answer, serde_json::from_str::<Value>(&text).unwrap())
        });
        let (answer, body) = answer.await.unwrap();
        if answer.status() == 202 {
            return Ok(body["id"].as_str().unwrap().to_owned());
        }
        assert_eq!(answer.status(), 503, "{body}");
        assert_eq!(answer.headers()["retry-after"], "1");
        Err(body["detail"].as_str().unwrap().to_owned())
    }

    /// A new application's id.
    pub async fn application(&self) -> String {
        let (status, answer) = self.api("POST", "/api/v1/app", json!({ "name": "test" })).await;
        assert_eq!(status, 201, "{answer}");
        answer["id"].as_str().unwrap().to_owned()
    }

    /// A new endpoint's id; `more` is merged into the request.
    pub async fn endpoint(&self, application: &str, url: &str, more: Value) -> String {
        let mut body = json!({ "url": url });
        for (key, value) in more.as_object().into_iter().flatten() {
            body[key] = value.clone();
        }
        let path = format!("/api/v1/app/{application}/endpoint");
        let (status, answer) = self.api("POST", &path, body).await;
        assert_eq!(status, 201, "{answer}");
        answer["id"].as_str().unwrap().to_owned()
    }

    /// A new message's id. `payload` goes into the request as it is.
    pub async fn message(&self, application: &str, payload: &str) -> String {
        let path = format!("/api/v1/app/{application}/msg");
        let body = format!(r#"{{"eventType":"test.event","payload":{payload}}}"#);
        let (status, answer) = self.api_raw("POST", &path, Some(body)).await;
        assert_eq!(status, 202, "{answer}");
        answer["id"].as_str().unwrap().to_owned()
    }

    pub async fn status(&self) -> Value {
        let (status, answer) = self.api("GET", "/api/v1/status", Value::Null).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Asks for the status row until `done` likes it.
    pub async fn status_until(&self, done: impl Fn(&Value) -> bool) -> Value {
        let path = "/api/v1/status".to_owned();
        self.get_until(&path, done).await
    }

    /// Asks for `path` until `done` likes the answer.
    pub async fn get_until(&self, path: &str, done: impl Fn(&Value) -> bool) -> Value {
        let since = Instant::now();
        loop {
            let (_, answer) = self.api("GET", path, Value::Null).await;
            if done(&answer) {
                return answer;
            }
            assert!(since.elapsed() < PATIENCE, "{path} stays at {answer:#}");
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }
}

impl Drop for Posthaste {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            for line in self.log.lock().unwrap().iter().rev().take(40).rev() {
                eprintln!("{line}");
            }
        }
    }
}

/// A token of the tests' organisation.
pub fn token() -> String {
    let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = encode(json!({ "alg": "HS256", "typ": "JWT" }));
    let claims = encode(json!({ "iss": "posthaste", "sub": ORGANISATION }));
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, JWT_SECRET.as_bytes());
    let content = format!("{header}.{claims}");
    let signature = URL_SAFE_NO_PAD.encode(ring::hmac::sign(&key, content.as_bytes()));
    format!("{content}.{signature}")
}

fn call(agent: &ureq::Agent, url: &str, method: &str, body: Option<&str>) -> (u16, Value) {
    let request = ureq::http::Request::builder()
        .method(method)
        .uri(url)
        .header("authorization", format!("Bearer {}", token()))
        .header("content-type", "application/json");
    let answer = match body {
        Some(body) => agent.run(request.body(body.to_owned()).unwrap()),
        None => agent.run(request.body(()).unwrap()),
    };
    let Ok(mut answer) = answer else { return (0, Value::Null) };
    let status = answer.status().as_u16();
    let text = answer.body_mut().read_to_string().unwrap_or_default();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Reads standard output up to the line that names the address, and goes on reading the rest.
fn address(stdout: impl Read + Send + 'static, log: &Arc<Mutex<Vec<String>>>) -> String {
    let (found, address) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Some((_, address)) = line.split_once("listens on http://") {
                let _ = found.try_send(address.trim().to_owned());
            }
            if line.starts_with("posthaste delivers") {
                let _ = found.try_send(String::new());
            }
        }
    });
    address
        .recv_timeout(PATIENCE)
        .unwrap_or_else(|_| panic!("no start: {:#?}", log.lock().unwrap()))
}

fn follow(stderr: impl Read + Send + 'static, log: Arc<Mutex<Vec<String>>>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            log.lock().unwrap().push(line);
        }
    });
}
