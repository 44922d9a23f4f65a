//! PgBouncer in transaction mode in front of the tests' PostgreSQL, on a free port of its own.

use super::install;
use crate::process::{announce, output, run};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PACKAGE: &str = "pgbouncer";
/// Debian keeps it where the PATH of most users does not look.
const PLACES: [&str; 2] = ["/usr/sbin/pgbouncer", "/usr/local/bin/pgbouncer"];
const PATIENCE: Duration = Duration::from_secs(20);
/// Asked by Debian's packages whether to start what they install.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Few connections for many clients, as people run it: each transaction may get another one.
const SETTINGS: &str = "\
listen_addr = 127.0.0.1
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 6
max_client_conn = 500
server_idle_timeout = 5
";

/// A running PgBouncer; stopped when dropped.
pub struct PgBouncer {
    pub port: u16,
    process: Child,
}

/// Where its program is; installed if it is not there.
pub fn program() -> Result<PathBuf, String> {
    if let Some(found) = find() {
        return Ok(found);
    }
    install()?;
    find().ok_or_else(|| format!("no PgBouncer is installed; {}", install::line(&[PACKAGE])))
}

fn find() -> Option<PathBuf> {
    let named = output(Command::new("sh").args(["-c", "command -v pgbouncer"])).map(PathBuf::from);
    named.into_iter().chain(PLACES.map(PathBuf::from)).find(|path| path.exists())
}

/// Installs Debian's package without the server that it would start.
fn install() -> Result<(), String> {
    let policy = Path::new(POLICY);
    let made = !policy.exists()
        && fs::write(policy, "#!/bin/sh\nexit 101\n").is_ok()
        && fs::set_permissions(policy, fs::Permissions::from_mode(0o755)).is_ok();
    let installed = install::debian(&[PACKAGE]);
    if made {
        let _ = fs::remove_file(policy);
    }
    installed
}

impl PgBouncer {
    /// `command` runs the program as whom it should; `server` is a line of its `[databases]`, and
    /// `settings` a file that exists and belongs to that user.
    pub fn start(
        mut command: Command,
        server: &str,
        settings: &Path,
        port: u16,
    ) -> Result<Self, String> {
        let text =
            format!("[databases]\n* = {server}\n[pgbouncer]\nlisten_port = {port}\n{SETTINGS}");
        fs::write(settings, text)
            .map_err(|error| format!("cannot write {}: {error}", settings.display()))?;
        command.arg("-q").arg(settings).stdin(Stdio::null());
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let process = process.map_err(|error| format!("cannot run pgbouncer: {error}"))?;
        let mut bouncer = Self { port, process };
        bouncer.wait()?;
        announce(&format!("pgbouncer runs on port {port}"));
        Ok(bouncer)
    }

    #[expect(clippy::disallowed_methods, reason = "waits for another program, with a bound")]
    fn wait(&mut self) -> Result<(), String> {
        let since = Instant::now();
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        while since.elapsed() < PATIENCE {
            if self.process.try_wait().is_ok_and(|ended| ended.is_some()) {
                return Err("PgBouncer ended at once".to_owned());
            }
            if TcpStream::connect(address).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!("PgBouncer is not ready after {} s", PATIENCE.as_secs()))
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        // At once: whoever used it has ended.
        let _ = run(Command::new("kill").args(["-TERM", &self.process.id().to_string()]));
        let _ = self.process.wait();
    }
}
