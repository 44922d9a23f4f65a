//! Structured logs on standard error: one line for each event, as text or JSON.
//!
//! **Invariant:** whoever logs never waits for the terminal, pipe or disk behind standard error.
//! When that falls behind, lines are dropped and counted, and deliveries go on.
//!
//! **Invariant:** other libraries are heard from `warn` on only, whatever the level: below it,
//! some of them print headers and addresses, which may hold secrets.

use crate::config::{Log, LogFormat};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

/// Lines that wait for standard error.
const WAITING_MAX: usize = 16_384;
/// How long lines are gathered before they are written together: waking up for each one costs more
/// than writing it.
const GATHER_FOR: Duration = Duration::from_millis(5);
/// How long the end of the process waits for the last lines.
const LAST_LINES_WAIT_MAX: Duration = Duration::from_secs(2);
const OURS: &str = "posthaste";

/// Writes what is left when it is dropped.
pub struct Logging {
    lines: Lines,
}

/// Starts logging for the whole process; only the first call counts.
pub fn start(log: Log) -> Logging {
    let (sender, receiver) = sync_channel(WAITING_MAX);
    let lines = Lines { sender, lost: Arc::default() };
    let lost = lines.lost.clone();
    let write = move || write_lines(&receiver, &lost, log.format, io::stderr());
    // Without a thread there is no log, but deliveries still go out.
    let _ = std::thread::Builder::new().name("log".to_owned()).spawn(write);
    let _ = tracing::subscriber::set_global_default(subscriber(log, lines.clone()));
    Logging { lines }
}

fn subscriber<W>(log: Log, writer: W) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = Targets::new()
        .with_target(OURS, log.level)
        .with_default(LevelFilter::from(log.level.min(Level::WARN)));
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    let registry = tracing_subscriber::registry().with(filter);
    match log.format {
        LogFormat::Text => Box::new(registry.with(layer.with_target(false))),
        LogFormat::Json => Box::new(registry.with(layer.json().flatten_event(true))),
    }
}

enum Line {
    Text(Vec<u8>),
    End(SyncSender<()>),
}

#[derive(Clone)]
struct Lines {
    sender: SyncSender<Line>,
    lost: Arc<AtomicU64>,
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.sender.try_send(Line::Text(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        let (done, ended) = sync_channel(1);
        // A standard error that nobody reads must not keep the process from ending: when no line
        // fits any more, or the last one does not get out in time, the rest is lost.
        if self.lines.sender.try_send(Line::End(done)).is_ok() {
            let _ = ended.recv_timeout(LAST_LINES_WAIT_MAX);
        }
    }
}

/// Writes what gathers in a few milliseconds together.
fn write_lines(lines: &Receiver<Line>, lines_lost: &AtomicU64, format: LogFormat, out: impl Write) {
    let mut out = io::BufWriter::with_capacity(64 * 1024, out);
    loop {
        let line = match lines.try_recv() {
            Ok(line) => line,
            Err(_) => {
                let _ = out.flush();
                let Ok(line) = lines.recv() else { return };
                // Nobody unparks this thread: it sleeps, and senders need not wake it.
                std::thread::park_timeout(GATHER_FOR);
                line
            }
        };
        let lost = lines_lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let _ = match format {
                LogFormat::Text => writeln!(out, "WARN log.lines_lost count={lost}"),
                LogFormat::Json => writeln!(
                    out,
                    "{{\"level\":\"WARN\",\"message\":\"log.lines_lost\",\"count\":{lost}}}"
                ),
            };
        }
        match line {
            Line::Text(text) => {
                let _ = out.write_all(&text);
            }
            Line::End(done) => {
                let _ = out.flush();
                let _ = done.send(());
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Kept {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    fn logged(log: Log, act: impl FnOnce()) -> String {
        let kept = Kept::default();
        tracing::subscriber::with_default(subscriber(log, kept.clone()), act);
        String::from_utf8(kept.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn json_lines_carry_their_fields_at_the_top() {
        let log = Log { format: LogFormat::Json, level: Level::INFO };
        let text = logged(log, || {
            tracing::info!(message_id = "msg_1", status = 200, "delivery.attempted");
        });
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["message"], "delivery.attempted");
        assert_eq!(line["message_id"], "msg_1");
        assert_eq!(line["status"], 200);
        assert_eq!(line["level"], "INFO");
    }

    #[test]
    fn other_libraries_are_not_heard_below_warn() {
        let log = Log { format: LogFormat::Text, level: Level::TRACE };
        let text = logged(log, || {
            tracing::debug!(target: "h2::codec", header = "authorization: hunter2", "frame");
            tracing::trace!(target: "posthaste_engine", "ours");
            tracing::warn!(target: "h2::codec", "theirs");
        });
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("ours") && text.contains("theirs"), "{text}");
    }

    #[test]
    fn our_own_level_holds_for_others_too() {
        let log = Log { format: LogFormat::Text, level: Level::ERROR };
        assert_eq!(logged(log, || tracing::warn!(target: "h2::codec", "theirs")), "");
    }

    #[test]
    fn lines_that_do_not_fit_are_counted() {
        let (sender, receiver) = sync_channel(2);
        let mut lines = Lines { sender, lost: Arc::default() };
        for line in ["one\n", "two\n", "three\n", "four\n"] {
            lines.write_all(line.as_bytes()).unwrap();
        }
        let lost = lines.lost.clone();
        drop(lines);
        let kept = Kept::default();
        write_lines(&receiver, &lost, LogFormat::Json, kept.clone());
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        assert!(text.contains("one\n") && text.contains("two\n") && !text.contains("three"));
        assert!(text.contains("log.lines_lost") && text.contains("\"count\":2"), "{text}");
    }
}
