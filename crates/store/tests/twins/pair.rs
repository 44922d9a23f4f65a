//! Two stores that are told the same, at the same times, with the same ids and rolls.

use crate::common::dump::{self, difference};
use crate::common::{Database, Folder, NOW};
use crate::operation::{Operation, SPANS_MS};
use posthaste_core::breaker::BreakerPolicy;
use posthaste_core::delivery::LeasedDelivery;
use posthaste_core::endpoint::Endpoint;
use posthaste_core::event::OrganisationId;
use posthaste_core::id::{ApplicationId, EndpointId, MessageId, TaskId, WorkerId};
use posthaste_core::lane::LaneRules;
use posthaste_core::time::Timestamp;
use posthaste_store::{History, PostgresStore, Result, SqliteStore};
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Client;

/// A lease that is out, with what its attempt needs.
pub type Out = (LeasedDelivery, Arc<Endpoint>);

pub struct Pair {
    pub sqlite: Arc<SqliteStore>,
    pub postgres: Arc<PostgresStore>,
    folder: Folder,
    client: Client,
    pub now: Timestamp,
    next: u64,
    /// Workers that were not heard of since then may be forgotten.
    pub silent_since: Timestamp,
    pub applications: Vec<ApplicationId>,
    pub endpoints: Vec<(ApplicationId, EndpointId)>,
    pub messages: Vec<(ApplicationId, MessageId)>,
    pub tasks: Vec<posthaste_store::upkeep::Task>,
    pub out: Vec<Out>,
    /// Dropped last, when nobody is connected any more.
    _database: Database,
}

/// What must be apart, when, and its key.
const TIED_DELIVERIES: &str = "
    SELECT hex(endpoint_id) || class, due_at,
        'endpoint_id = ''' || hex(endpoint_id) || ''' AND message_id = ''' || hex(message_id)
            || ''''
    FROM delivery WHERE state = 0 ORDER BY endpoint_id, class, due_at, message_id";
const TIED_LANES: &str = "
    SELECT '', next_due_at, 'endpoint_id = ''' || hex(endpoint_id) || ''''
    FROM lane WHERE next_due_at IS NOT NULL ORDER BY next_due_at, endpoint_id";

/// What differs.
pub type Checked<T = ()> = std::result::Result<T, String>;

/// Asks both the same; gives SQLite's answer if PostgreSQL's is the same.
macro_rules! both {
    ($pair:expr, $call:ident($($argument:expr),* $(,)?)) => {{
        let sqlite = $pair.sqlite.$call($($crate::pair::again(&$argument)),*).await;
        let postgres = $pair.postgres.$call($($crate::pair::again(&$argument)),*).await;
        $crate::pair::same(stringify!($call), sqlite, postgres)
    }};
}
pub(crate) use both;

pub fn again<T: Clone>(argument: &T) -> T {
    argument.clone()
}

/// Errors are the same when they are of one kind.
pub fn same<T: Debug>(what: &str, sqlite: Result<T>, postgres: Result<T>) -> Checked<Option<T>> {
    let shown = |answer: &Result<T>| match answer {
        Ok(answer) => format!("{answer:#?}"),
        Err(error) => format!("{:?}", error.kind()),
    };
    let (ours, theirs) = (shown(&sqlite), shown(&postgres));
    if ours == theirs {
        return Ok(sqlite.ok());
    }
    let reasons = [sqlite.err(), postgres.err()].map(|error| error.map(|error| error.to_string()));
    Err(format!("{what} answers\n{}\nerrors: {reasons:?}", lines(&ours, &theirs)))
}

/// The lines that only one of the two has.
fn lines(sqlite: &str, postgres: &str) -> String {
    let only = |these: &str, those: &str, mark: char| {
        let those: Vec<&str> = those.lines().collect();
        let missing = these.lines().filter(|line| !those.contains(line));
        missing.map(|line| format!("{mark} {line}\n")).collect::<String>()
    };
    let only = only(sqlite, postgres, '-') + &only(postgres, sqlite, '+');
    match only.is_empty() {
        true => format!("the same in another order\n- {sqlite}\n+ {postgres}"),
        false => only,
    }
}

impl Pair {
    pub async fn new() -> Self {
        let (folder, database) = (Folder::new(), Database::new().await);
        Self {
            sqlite: folder.open().await,
            postgres: database.open().await,
            client: database.client().await,
            folder,
            now: NOW,
            next: 0,
            silent_since: Timestamp::MIN,
            applications: Vec::new(),
            endpoints: Vec::new(),
            messages: Vec::new(),
            tasks: Vec::new(),
            out: Vec::new(),
            _database: database,
        }
    }

    /// Does one thing to both and compares what they answer and what they hold.
    pub async fn run(&mut self, operation: &Operation) -> Checked {
        self.now = self.now.after(Duration::from_millis(1));
        if let Operation::Pass(span) = operation {
            self.now = self.now.after(Duration::from_millis(SPANS_MS[usize::from(*span)]));
        } else {
            self.apply(operation).await?;
        }
        both!(self, status(self.now))?;
        both!(self, notices(None, 100))?;
        let silent_since = self.silent_since.as_micros();
        let sqlite = dump::of_sqlite(&self.path(), silent_since);
        let postgres = dump::of_postgres(&self.client, silent_since).await;
        let difference = difference(&sqlite, &postgres);
        if !difference.is_empty() {
            return Err(format!("they hold\n{difference}"));
        }
        self.untie().await;
        Ok(())
    }

    /// Puts what is due at the same time a microsecond apart, by id, on both.
    ///
    /// Which of several equals goes first is nobody's promise: SQLite has them by their keys, and
    /// PostgreSQL as its index happens to have them. It would part the two for good, because who
    /// goes first under a limit leaves another behind. So there are no equals.
    async fn untie(&self) {
        for (table, column, sql) in
            [("delivery", "due_at", TIED_DELIVERIES), ("lane", "next_due_at", TIED_LANES)]
        {
            let moved = self.tied(sql);
            for (at, key) in moved {
                let set = format!("{table} SET {column} = {at} WHERE {key}");
                let sqlite = rusqlite::Connection::open(self.path()).unwrap();
                sqlite.busy_timeout(Duration::from_secs(10)).unwrap();
                sqlite.execute_batch(&format!("UPDATE {}", set.replace("= '", "= x'"))).unwrap();
                self.client.batch_execute(&format!("UPDATE posthaste.{set}")).await.unwrap();
            }
        }
    }

    /// Those that move, with the time they move to.
    fn tied(&self, sql: &str) -> Vec<(i64, String)> {
        let sqlite = rusqlite::Connection::open(self.path()).unwrap();
        let mut statement = sqlite.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, String>(2)?))
        });
        let mut last = (String::new(), i64::MIN);
        let mut moved = Vec::new();
        for row in rows.unwrap() {
            let (group, at, key) = row.unwrap();
            let apart = if group == last.0 { at.max(last.1.saturating_add(1)) } else { at };
            if apart != at {
                moved.push((apart, key));
            }
            last = (group, apart);
        }
        moved
    }

    /// Where SQLite's file is.
    pub fn path(&self) -> PathBuf {
        self.folder.path()
    }

    pub fn random(&mut self) -> [u8; 10] {
        self.next += 1;
        let mut random = [0; 10];
        random[2..].copy_from_slice(&self.next.to_be_bytes());
        random
    }

    pub fn roll(&mut self) -> u64 {
        self.next += 1;
        self.next.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    pub fn task_id(&mut self) -> TaskId {
        TaskId::new(self.now, self.random())
    }

    pub fn application(&self, index: u8) -> Option<ApplicationId> {
        pick(&self.applications, index)
    }

    pub fn endpoint(&self, index: u8) -> Option<(ApplicationId, EndpointId)> {
        pick(&self.endpoints, index)
    }

    pub fn message(&self, index: u8) -> Option<(ApplicationId, MessageId)> {
        pick(&self.messages, index)
    }
}

/// The one with the number, of as many as there are.
fn pick<T: Copy>(things: &[T], index: u8) -> Option<T> {
    let count = things.len();
    (count > 0).then(|| things[usize::from(index) % count])
}

pub fn rules() -> LaneRules {
    LaneRules {
        breaker: BreakerPolicy {
            failure_threshold: 3,
            cooldown: Duration::from_secs(5),
            cooldown_max: Duration::from_secs(600),
        },
        disable_after: Some(Duration::from_secs(3_600)),
        in_flight_max: 4,
    }
}

pub fn organisation() -> OrganisationId {
    OrganisationId::new("org_one").unwrap()
}

pub fn worker(number: u8) -> WorkerId {
    WorkerId::from_bytes([number + 1; 16])
}
