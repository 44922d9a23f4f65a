//! Publishers for tests that take away what they speak to.

use super::token;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PUBLISHERS: usize = 4;

/// Publishers that go on over restarts, and what was accepted. The payload is
/// `{"number":N}`, each number once.
pub struct Load {
    addresses: Arc<Mutex<Vec<String>>>,
    stopping: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<Vec<u64>>>,
}

impl Load {
    /// Each of some publishers goes from one address to the next.
    pub fn start(addresses: Vec<String>, application: &str) -> Self {
        let addresses = Arc::new(Mutex::new(addresses));
        let stopping = Arc::new(AtomicBool::new(false));
        let next = Arc::new(AtomicU64::new(0));
        let publisher = || {
            let (addresses, stopping, next) = (addresses.clone(), stopping.clone(), next.clone());
            let path = format!("/api/v1/app/{application}/msg");
            std::thread::spawn(move || publish(&addresses, &path, &stopping, &next))
        };
        let threads = (0..PUBLISHERS).map(|_| publisher()).collect();
        Self { addresses, stopping, threads }
    }

    /// The API at this place of the list is somewhere else now.
    pub fn turn_to(&self, place: usize, url: String) {
        self.addresses.lock().unwrap()[place] = url;
    }

    /// Every number that was answered with 202.
    pub fn stop(self) -> BTreeSet<u64> {
        self.stopping.store(true, Ordering::Relaxed);
        self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    }
}

fn publish(
    addresses: &Mutex<Vec<String>>,
    path: &str,
    stopping: &AtomicBool,
    next: &AtomicU64,
) -> Vec<u64> {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(10)))
        .build();
    let agent: ureq::Agent = config.into();
    let authorization = format!("Bearer {}", token());
    let mut accepted = Vec::new();
    while !stopping.load(Ordering::Relaxed) {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let url = {
            let addresses = addresses.lock().unwrap();
            format!("{}{path}", addresses[usize::try_from(number).unwrap() % addresses.len()])
        };
        let body = format!(r#"{{"eventType":"chaos","payload":{{"number":{number}}}}}"#);
        let answer = agent
            .post(&url)
            .header("authorization", &authorization)
            .header("content-type", "application/json")
            .send(body);
        match answer {
            Ok(answer) if answer.status() == 202 => accepted.push(number),
            // Nobody listens while the server is down; the number is not used again.
            Ok(_) | Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    accepted
}
