//! What the demo shows: a table that is repainted where a terminal can, lines elsewhere.

use super::receiver::{Part, Seen};
use crate::cli;
use crate::failure::Failure;
use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Duration;

/// How one endpoint stands.
pub struct Row {
    pub part: Part,
    pub seen: Seen,
    /// The server's own view.
    pub breaker: String,
    pub waiting: u64,
    pub dead_letters: u64,
    /// How long attempts took: P50, P95 and P99 in milliseconds.
    pub attempt_ms: [Option<f64>; 3],
}

/// Figures over all endpoints.
#[derive(Clone, Copy, Default)]
pub struct Totals {
    pub accepted: u64,
    pub breaker_openings: u64,
    pub retries: u64,
}

pub struct Board {
    live: bool,
    /// Lines painted last time.
    painted: usize,
    shown_at: Option<Duration>,
}

/// How wide the table is.
const COLUMNS: usize = 99;
/// Where nothing can be repainted, a line every so often does.
const LINE_EVERY: Duration = Duration::from_secs(3);

impl Board {
    pub fn new() -> Self {
        let stdout = std::io::stdout();
        // Lines that wrap cannot be painted over.
        let fits = rustix::termios::tcgetwinsize(&stdout)
            .is_ok_and(|size| usize::from(size.ws_col) >= COLUMNS);
        Self { live: stdout.is_terminal() && fits, painted: 0, shown_at: None }
    }

    /// Whether the table stands on the screen already.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Shows how things stand `at` so long after the start.
    ///
    /// # Errors
    /// Standard output cannot be written to.
    pub fn show(&mut self, at: Duration, totals: Totals, rows: &[Row]) -> Result<(), Failure> {
        if self.live {
            let table = table(rows);
            let text = format!("{:>3} s  {}\n\n{table}", at.as_secs(), line(totals, rows));
            // Up to the first painted line, then clear each line as it is painted anew.
            let up = match self.painted {
                0 => String::new(),
                lines => format!("\x1b[{lines}A"),
            };
            self.painted = text.lines().count();
            let text = text.replace('\n', "\x1b[K\n");
            return cli::write(format!("{up}{text}").as_bytes());
        }
        if self.shown_at.is_some_and(|shown| at < shown + LINE_EVERY) {
            return Ok(());
        }
        self.shown_at = Some(at);
        cli::write(format!("{:>3} s  {}\n", at.as_secs(), line(totals, rows)).as_bytes())
    }
}

fn line(totals: Totals, rows: &[Row]) -> String {
    let sum = |figure: fn(&Row) -> u64| rows.iter().map(figure).sum::<u64>();
    let open = rows.iter().filter(|row| row.breaker != "closed").count();
    format!(
        "accepted {}  delivered {}  retried {}  waiting {}  dead letters {}  breakers open {open}",
        totals.accepted,
        sum(|row| row.seen.delivered()),
        totals.retries,
        sum(|row| row.waiting),
        sum(|row| row.dead_letters),
    )
}

/// One line for each endpoint.
pub fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<10} {:<24} {:>5} {:>9} {:>7} {:>4}  {:<9} {:>7} {:>7} {:>7}\n",
        "ENDPOINT",
        "ITS RECEIVER",
        "REQS",
        "DELIVERED",
        "WAITING",
        "DEAD",
        "BREAKER",
        "P50",
        "P95",
        "P99"
    );
    for row in rows {
        let [p50, p95, p99] = row.attempt_ms.map(milliseconds);
        let _ = writeln!(
            text,
            "{:<10} {:<24} {:>5} {:>9} {:>7} {:>4}  {:<9} {:>7} {:>7} {:>7}",
            row.part.name(),
            row.part.about(),
            row.seen.requests,
            row.seen.delivered(),
            row.waiting,
            row.dead_letters,
            row.breaker,
            p50,
            p95,
            p99,
        );
    }
    text
}

fn milliseconds(figure: Option<f64>) -> String {
    match figure {
        Some(ms) if ms < 1_000.0 => format!("{ms:.1}ms"),
        Some(ms) => format!("{:.1}s", ms / 1_000.0),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_as_wide_as_it_says() {
        let row = |part| Row {
            part,
            seen: Seen::default(),
            breaker: "half_open".to_owned(),
            waiting: 9_999_999,
            dead_letters: 9_999,
            attempt_ms: [Some(999.9); 3],
        };
        let table = table(&Part::ALL.map(row));
        assert!(table.lines().all(|line| line.chars().count() <= COLUMNS), "{table}");
        assert!(table.lines().any(|line| line.chars().count() + 6 >= COLUMNS), "{table}");
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(milliseconds(Some(0.25)), "0.2ms");
        assert_eq!(milliseconds(Some(2_500.0)), "2.5s");
        assert_eq!(milliseconds(None), "-");
    }
}
