//! A database of a test's own on the server that `cargo xtask test` starts.

use posthaste_core::time::Timestamp;
use posthaste_store::{PostgresOptions, PostgresStore};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};

pub const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);
const URL_VARIABLE: &str = "POSTHASTE_TEST_POSTGRES_URL";

/// A database on the server, made from a template that was migrated once; dropped at the end.
pub struct Database {
    pub name: String,
}

static NUMBER: AtomicU32 = AtomicU32::new(0);
static TEMPLATE: OnceCell<String> = OnceCell::const_new();

/// The server that the tests use, as a superuser.
pub fn server() -> String {
    std::env::var(URL_VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{URL_VARIABLE} is not set; `cargo xtask test` starts a server and sets it, or name \
             one of yours: {URL_VARIABLE}=postgres://user:password@127.0.0.1:5432/postgres"
        )
    })
}

/// The server's URL with another database.
pub fn url(database: &str) -> String {
    let mut url = url::Url::parse(&server()).unwrap();
    url.set_path(database);
    url.to_string()
}

pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A migrated database that nobody is connected to.
async fn template() -> &'static str {
    let make = async || {
        let name = format!("posthaste_template_{}", std::process::id());
        let admin = connect(&server()).await;
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        let store = PostgresStore::open(&url(&name), PostgresOptions::default(), NOW).await;
        posthaste_store::Upkeep::close(&store.unwrap()).await.unwrap();
        // A database that is copied must have no other connection, and ours end a moment later.
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1";
        while admin.query_one(sql, &[&name]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::task::yield_now().await;
        }
        name
    };
    TEMPLATE.get_or_init(make).await
}

impl Database {
    pub async fn new() -> Self {
        let template = template().await;
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let name = format!("posthaste_case_{}_{number}", std::process::id());
        let admin = connect(&server()).await;
        // One copy at a time: the server refuses while another copies the same template.
        admin.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
        let copy = format!("CREATE DATABASE {name} TEMPLATE {template}");
        admin.batch_execute(&copy).await.unwrap();
        Self { name }
    }

    pub fn url(&self) -> String {
        url(&self.name)
    }

    pub async fn client(&self) -> Client {
        connect(&self.url()).await
    }

    pub async fn open(&self) -> Arc<PostgresStore> {
        let options = PostgresOptions { connections_max: 4, ..PostgresOptions::default() };
        Arc::new(PostgresStore::open(&self.url(), options, NOW).await.unwrap())
    }
}

impl Drop for Database {
    /// Also when the case failed: databases are many and the disk is not.
    fn drop(&mut self) {
        let name = self.name.clone();
        let drop = async move {
            let admin = connect(&server()).await;
            let sql = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
            let _ = admin.batch_execute(&sql).await;
        };
        let on_its_own = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(drop);
        });
        let _ = on_its_own.join();
    }
}
