//! A PostgreSQL server of the tests' own, on a free port of the loopback and in a temporary folder.
//!
//! A server on the machine is never touched, and where Debian's package is installed, no cluster
//! of its own is made. The server refuses to run as root, so for root it runs as another user.

use super::pgbouncer::{self, PgBouncer};
use super::{Service, Variables, install};
use crate::Workspace;
use crate::process::{announce, output, succeeds};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A URL of a superuser.
const URL_VARIABLE: &str = "POSTHASTE_TEST_POSTGRES_URL";
/// The folder of the programs, for tests that stop a server: they start one of their own.
const PROGRAMS_VARIABLE: &str = "POSTHASTE_TEST_POSTGRES_BIN";
/// The same user and database, through PgBouncer.
const POOLER_VARIABLE: &str = "POSTHASTE_TEST_PGBOUNCER_URL";
const DATA_VARIABLE: &str = "POSTHASTE_TEST_POSTGRES_DATA";

const PACKAGE: &str = "postgresql";
/// What the product needs.
const VERSION_LEAST: u32 = 14;
const SUPERUSER: &str = "posthaste";
/// Who may run the server instead of root, the first that exists.
const UNPRIVILEGED: [&str; 2] = ["postgres", "nobody"];
/// Another program may take the free port before the server does.
const STARTS_MAX: u32 = 5;
const PATIENCE: Duration = Duration::from_secs(60);
const FOLDER_PREFIX: &str = "posthaste-postgres-";
/// Found by Debian's scripts while the package is installed, and removed again.
const CLUSTER_SETTING: &str = "/etc/postgresql-common/createcluster.d/posthaste-tests.conf";

/// Tests open many connections, and all cases of the server's log that matter are errors.
/// Flushes stay on: what is tested is durable as it would be at work.
const SETTINGS: &str = "\
listen_addresses = '127.0.0.1'
max_connections = 200
shared_buffers = 128MB
max_wal_size = 1GB
autovacuum_naptime = 10s
log_destination = 'stderr'
log_min_messages = warning
timezone = 'UTC'
";

/// Passwords travel over the loopback only, and asking for them in the clear costs tests no time;
/// `scram` is for the test that logs in as people do.
const ACCESS: &str = "\
local all all trust
local replication all trust
host replication all 127.0.0.1/32 password
host all scram 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 password
";

#[derive(Default)]
pub struct Postgres {
    /// Stops before the server.
    pooler: Option<PgBouncer>,
    server: Option<Server>,
}

impl Service for Postgres {
    fn name(&self) -> &'static str {
        "postgresql"
    }

    fn provide(&mut self, _: &Workspace) -> Result<Variables, String> {
        remove_abandoned();
        let programs = match find() {
            Some(programs) => programs,
            None => {
                install()?;
                find().ok_or_else(|| {
                    let line = install::line(&[PACKAGE]);
                    format!("no PostgreSQL {VERSION_LEAST} or newer is installed; {line}")
                })?
            }
        };
        let server = Server::start(programs)?;
        let pooler = server.pooler()?;
        let variables = vec![
            (POOLER_VARIABLE, server.url_on(pooler.port).into()),
            (URL_VARIABLE, server.url().into()),
            (PROGRAMS_VARIABLE, server.programs.clone().into()),
            (DATA_VARIABLE, server.data().into()),
        ];
        self.server = Some(server);
        self.pooler = Some(pooler);
        Ok(variables)
    }
}

/// Installs Debian's package without the cluster that it would make and start.
fn install() -> Result<(), String> {
    let setting = Path::new(CLUSTER_SETTING);
    // Whoever may not write there may not install either, and is told so below.
    let made = setting.parent().is_some_and(|folder| fs::create_dir_all(folder).is_ok())
        && fs::write(setting, "create_main_cluster = false\n").is_ok();
    let installed = install::debian(&[PACKAGE]);
    if made {
        let _ = fs::remove_file(setting);
    }
    installed
}

/// The folder of the newest programs that are new enough.
pub fn find() -> Option<PathBuf> {
    let named = output(Command::new("pg_config").arg("--bindir")).map(PathBuf::from);
    let debian = fs::read_dir("/usr/lib/postgresql").ok().into_iter().flatten();
    let debian = debian.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    let versions = debian.chain(named).filter_map(|folder| {
        let whole = folder.join("initdb").exists();
        let text = output(Command::new(folder.join("postgres")).arg("--version"))?;
        version(&text).filter(|version| whole && *version >= VERSION_LEAST).map(|it| (it, folder))
    });
    versions.max().map(|(_, folder)| folder)
}

/// The major version in `postgres (PostgreSQL) 15.13 (Debian ...)`.
fn version(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("(PostgreSQL) ")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// A running server; stopped, and its folder removed, when dropped.
pub struct Server {
    programs: PathBuf,
    folder: Folder,
    /// Who runs it, if we may not.
    user: Option<&'static str>,
    password: String,
    port: u16,
    /// Size of a disk of its own that is not the one its data is on.
    small_disk_mib: Option<u32>,
    /// None only before the first start.
    process: Option<Child>,
}

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Clients are told to go, and everything is written.
    Fast,
    /// As a crash would: the next start recovers.
    Immediate,
}

impl Server {
    /// Makes a server of its own out of these programs and starts it.
    ///
    /// # Errors
    /// Why that is not possible, in one line.
    pub fn start(programs: PathBuf) -> Result<Self, String> {
        let server = Self::made(programs, password()?, None)?;
        server.initialise()?;
        server.first_start()
    }

    /// The same with a tablespace `small` on a disk of so many MiB, in memory. Needs root.
    ///
    /// # Errors
    /// Why that is not possible, in one line.
    pub fn start_with_small_disk(programs: PathBuf, mib: u32) -> Result<Self, String> {
        let server = Self::made(programs, password()?, Some(mib))?;
        server.initialise()?;
        let disk = server.small_disk();
        fs::create_dir(&disk).map_err(|error| format!("no folder for a disk: {error}"))?;
        let server = server.first_start()?;
        server.ask(&format!("CREATE TABLESPACE small LOCATION '{}'", disk.display()))?;
        Ok(server)
    }

    /// A server that follows this one and takes no writes until it is promoted.
    ///
    /// # Errors
    /// Why that is not possible, in one line.
    pub fn standby(&self) -> Result<Self, String> {
        let standby = Self::made(self.programs.clone(), self.password.clone(), None)?;
        let mut copy = standby.command("pg_basebackup");
        copy.arg("--pgdata").arg(standby.data());
        copy.args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--dbname"]);
        run(copy.arg(self.url()))?;
        standby.first_start()
    }

    /// From now on it takes writes.
    ///
    /// # Errors
    /// It does not.
    pub fn promote(&self) -> Result<(), String> {
        run(self.command("pg_ctl").arg("promote").arg("--pgdata").arg(self.data()))
    }

    /// Makes a stopped server's next transaction have this number, as if so many had been.
    ///
    /// # Errors
    /// Why that is not possible, in one line.
    pub fn set_next_transaction(&self, number: u32) -> Result<(), String> {
        // Where it will look up how that one ended: 2 bits each, 32 pages of 8 KiB a file.
        let file = self.data().join(format!("pg_xact/{:04X}", number / (4 * 8_192 * 32)));
        let made = self.command_at(Path::new("truncate")).arg("--size=256K").arg(file).status();
        made.map_err(|error| format!("cannot run truncate: {error}"))?;
        let mut reset = self.command("pg_resetwal");
        run(reset.args(["-x", &number.to_string(), "--pgdata"]).arg(self.data()))
    }

    fn made(programs: PathBuf, password: String, disk: Option<u32>) -> Result<Self, String> {
        let user = other_user()?;
        let folder = Folder::make(user)?;
        let (port, small_disk_mib, process) = (0, disk, None);
        Ok(Self { programs, folder, user, password, port, small_disk_mib, process })
    }

    fn first_start(self) -> Result<Self, String> {
        let mut server = self;
        for _ in 0..STARTS_MAX {
            server.port = free_port().map_err(|error| format!("no free port: {error}"))?;
            if server.try_start()? {
                return Ok(server);
            }
        }
        Err(format!("PostgreSQL does not start: {}", server.last_words()))
    }

    /// Stops it, and starts it again at the same address.
    ///
    /// # Errors
    /// It does not come back.
    pub fn restart(&mut self, stop: Stop) -> Result<(), String> {
        self.stop(stop);
        self.resume()
    }

    /// Starts it again after `stop`, at the same address.
    ///
    /// # Errors
    /// It does not come back.
    pub fn resume(&mut self) -> Result<(), String> {
        match self.try_start()? {
            true => Ok(()),
            false => Err(format!("PostgreSQL does not start again: {}", self.last_words())),
        }
    }

    /// Stops it.
    pub fn stop(&mut self, stop: Stop) {
        let Some(process) = &mut self.process else { return };
        let signal = match stop {
            Stop::Fast => "-INT",
            Stop::Immediate => "-QUIT",
        };
        if !succeeds(Command::new("kill").args([signal, &process.id().to_string()])) {
            let _ = process.kill();
        }
        let _ = process.wait();
    }

    fn initialise(&self) -> Result<(), String> {
        let secret = self.folder.path.join("password");
        write(&secret, format!("{}\n", self.password))?;
        let mut initdb = self.command("initdb");
        initdb
            .arg("--pgdata")
            .arg(self.data())
            .args(["--username", SUPERUSER, "--encoding", "UTF8", "--locale", "C", "--no-sync"])
            .args(["--auth", "scram-sha-256", "--pwfile"])
            .arg(&secret);
        run(&mut initdb)?;
        let socket = self.folder.path.display();
        let settings = format!("{SETTINGS}unix_socket_directories = '{socket}'\n");
        // Written into files that initdb made, which therefore belong to whom they should.
        write(&self.data().join("postgresql.conf"), settings)?;
        write(&self.data().join("pg_hba.conf"), ACCESS)
    }

    /// `false`: it ended at once, most likely because somebody else has its port.
    #[expect(clippy::disallowed_methods, reason = "waits for another program, with a bound")]
    fn try_start(&mut self) -> Result<bool, String> {
        let log = File::create(self.log()).map_err(|error| format!("no log: {error}"))?;
        let mut postgres = self.with_disk(self.command("postgres"));
        postgres.arg("-D").arg(self.data()).args(["-p", &self.port.to_string()]);
        let process = postgres.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let process = process.map_err(|error| format!("cannot run postgres: {error}"))?;
        let process = self.process.insert(process);
        let mut ready = Command::new(self.programs.join("pg_isready"));
        ready.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            if succeeds(&mut ready) {
                announce(&format!("postgresql runs on port {}", self.port));
                return Ok(true);
            }
            if process.try_wait().is_ok_and(|ended| ended.is_some()) {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!("PostgreSQL is not ready after {} s", PATIENCE.as_secs()))
    }

    /// One of its programs, as the user that runs it. It ends in order should we be killed.
    fn command(&self, program: &str) -> Command {
        self.command_at(&self.programs.join(program))
    }

    fn command_at(&self, program: &Path) -> Command {
        let mut command = match (self.user, has_setpriv()) {
            (None, false) => Command::new(program),
            (user, _) => {
                let mut command = Command::new("setpriv");
                command.arg("--pdeathsig=INT");
                if let Some(user) = user {
                    let group = output(Command::new("id").args(["-g", user])).unwrap_or_default();
                    command.args(["--reuid", user, "--regid", &group, "--clear-groups"]);
                }
                command.arg(program);
                command
            }
        };
        // The folder we are in may be closed to that user.
        command.current_dir("/").env("LC_ALL", "C");
        command
    }

    /// The program in a file system view of its own, in which the disk is: it goes with it.
    fn with_disk(&self, program: Command) -> Command {
        let Some(mib) = self.small_disk_mib else { return program };
        let mut command = Command::new("unshare");
        let owner = self.user.map(|user| format!(",uid={user}")).unwrap_or_default();
        let disk = self.small_disk();
        let mount = format!(
            "mount -t tmpfs -o size={mib}m,mode=700{owner} small '{}' && exec \"$@\"",
            disk.display()
        );
        command.args(["--mount", "sh", "-c", &mount, "sh"]);
        command.arg(program.get_program()).args(program.get_args());
        command.current_dir("/").env("LC_ALL", "C");
        command
    }

    fn small_disk(&self) -> PathBuf {
        self.folder.path.join("small")
    }

    /// Has the server do something, as its superuser.
    ///
    /// # Errors
    /// It refuses.
    pub fn ask(&self, sql: &str) -> Result<(), String> {
        let mut psql = self.command("psql");
        run(psql.args(["-X", "-q", "-w", "-v", "ON_ERROR_STOP=1", "-c", sql, &self.url()]))
    }

    fn data(&self) -> PathBuf {
        self.folder.path.join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder.path.join("log")
    }

    /// A superuser's.
    pub fn url(&self) -> String {
        self.url_on(self.port)
    }

    fn url_on(&self, port: u16) -> String {
        format!("postgres://{SUPERUSER}:{}@127.0.0.1:{port}/postgres", self.password)
    }

    /// A PgBouncer before it, in the same folder.
    fn pooler(&self) -> Result<PgBouncer, String> {
        let program = pgbouncer::program()?;
        let settings = self.folder.path.join("pgbouncer.ini");
        write(&settings, "")?;
        if let Some(user) = self.user {
            succeeds(Command::new("chown").arg(user).arg(&settings));
        }
        let server = format!(
            "host=127.0.0.1 port={} user={SUPERUSER} password={}",
            self.port, self.password
        );
        let port = free_port().map_err(|error| format!("no free port: {error}"))?;
        PgBouncer::start(self.command_at(&program), &server, &settings, port)
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        log.trim().replace('\n', "; ")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Stop::Fast);
    }
}

/// A temporary folder with a short path, as sockets need it; removed when dropped. Not under the
/// checkout, which may be closed to the user that runs the server.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn make(owner: Option<&str>) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("{FOLDER_PREFIX}{process}-{number}"));
        let failed = |why: &dyn std::fmt::Display| format!("cannot make {}: {why}", path.display());
        DirBuilder::new().mode(0o700).create(&path).map_err(|error| failed(&error))?;
        let folder = Self { path: path.clone() };
        match owner {
            Some(user) if !succeeds(Command::new("chown").arg(user).arg(&path)) => {
                Err(failed(&"chown failed"))
            }
            _ => Ok(folder),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes what a run left behind that was killed; its server ended with it.
fn remove_abandoned() {
    let folders = fs::read_dir(std::env::temp_dir()).ok().into_iter().flatten().flatten();
    for folder in folders {
        let name = folder.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(FOLDER_PREFIX));
        let process = process.map(|rest| rest.split('-').next().unwrap_or(rest));
        let own = std::process::id().to_string();
        let alive = |id: &str| id != own && Path::new("/proc").join(id).exists();
        let running = folder.path().join("data/postmaster.pid").exists();
        if process.is_some_and(|id| !alive(id)) && !running && Path::new("/proc/self").exists() {
            let _ = fs::remove_dir_all(folder.path());
        }
    }
}

/// Who is to run the server: nobody else unless we are root.
fn other_user() -> Result<Option<&'static str>, String> {
    let id = |arguments: &[&str]| output(Command::new("id").args(arguments));
    if id(&["-u"]).is_none_or(|id| id != "0") {
        return Ok(None);
    }
    if !has_setpriv() {
        return Err("root needs setpriv (package util-linux) to run it as another user".to_owned());
    }
    let found = UNPRIVILEGED.into_iter().find(|user| id(&["-u", user]).is_some());
    found.map(Some).ok_or_else(|| {
        format!("it does not run as root, and there is no user {}", UNPRIVILEGED.join(" or "))
    })
}

/// Runs a program to its end.
fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.stdin(Stdio::null()).output();
    let done = done.map_err(|error| format!("cannot run {name}: {error}"))?;
    if done.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&done.stderr);
    Err(format!("{name} failed: {}", words.trim().replace('\n', "; ")))
}

fn has_setpriv() -> bool {
    succeeds(Command::new("setpriv").arg("--version"))
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// 32 hexadecimal digits that nobody else on this machine knows.
fn password() -> Result<String, String> {
    let mut random = [0; 16];
    let filled = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random));
    filled.map_err(|error| format!("no randomness: {error}"))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn write(path: &Path, text: impl AsRef<OsStr>) -> Result<(), String> {
    fs::write(path, text.as_ref().as_encoded_bytes())
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(version("postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)"), Some(15));
        assert_eq!(version("postgres (PostgreSQL) 18beta1"), Some(18));
        assert_eq!(version("postgres 15"), None);
    }

    #[test]
    fn a_server_runs_until_it_is_dropped_and_leaves_nothing() {
        let programs = find().unwrap_or_else(|| panic!("{}", install::line(&[PACKAGE])));
        let server = Server::start(programs.clone()).unwrap();
        let (port, folder) = (server.port, server.folder.path.clone());
        let ask = |url: &str| {
            let mut psql = Command::new(programs.join("psql"));
            output(psql.args(["--no-psqlrc", "-w", "-Atc", "SHOW fsync", url]))
        };
        assert_eq!(ask(&server.url()).as_deref(), Some("on"));
        let stranger = server.url().replace(&server.password, "wrong");
        assert_eq!(ask(&stranger), None, "a wrong password lets nobody in");
        let pooler = server.pooler().unwrap();
        let pooled = server.url_on(pooler.port);
        assert_eq!(ask(&pooled).as_deref(), Some("on"));
        drop(pooler);
        assert_eq!(ask(&pooled), None, "the pooler still listens");
        drop(server);
        assert!(!folder.exists());
        assert!(TcpListener::bind(("127.0.0.1", port)).is_ok(), "the server still listens");
    }
}
