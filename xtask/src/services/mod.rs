//! What tests need besides Rust: one file each, provided before the tests and stopped after them.
//!
//! **Invariant:** a missing thing is an error that says how to install it, never a skipped test.

mod install;
mod pgbouncer;
pub mod postgres;
mod python;

use crate::process::announce;
use crate::{Failure, Workspace};
use std::ffi::OsString;
use std::fs::{self, File};

/// A thing that tests need. Whoever starts processes keeps them in itself and stops them when it
/// is dropped, which happens after the tests however they end.
pub trait Service {
    /// How messages call it.
    fn name(&self) -> &'static str;

    /// Checks that it is there, installs it where that is possible, and starts it. Gives the
    /// variables that tell the tests where it is; the error says what to install and how.
    fn provide(&mut self, workspace: &Workspace) -> Result<Variables, String>;
}

/// Names and values of environment variables.
pub type Variables = Vec<(&'static str, OsString)>;

/// Everything that the tests need, in the order in which it is provided.
pub fn all() -> Vec<Box<dyn Service>> {
    vec![Box::new(python::Python), Box::<postgres::Postgres>::default()]
}

/// Services that are ready; they run until this is dropped.
pub struct Provided {
    variables: Variables,
    _running: Vec<Box<dyn Service>>,
}

impl Provided {
    pub fn environment(&self) -> impl Iterator<Item = (&'static str, &OsString)> {
        self.variables.iter().map(|(name, value)| (*name, value))
    }
}

/// Provides all of them. The failure lists everything that is missing, not only the first.
pub fn provide(
    workspace: &Workspace,
    mut services: Vec<Box<dyn Service>>,
) -> Result<Provided, Failure> {
    let _lock = lock(workspace)?;
    let mut variables = Variables::new();
    let mut missing = Vec::new();
    for service in &mut services {
        announce(&format!("provide {}", service.name()));
        match service.provide(workspace) {
            Ok(found) => variables.extend(found),
            Err(reason) => missing.push(format!("{}: {reason}", service.name())),
        }
    }
    if missing.is_empty() {
        return Ok(Provided { variables, _running: services });
    }
    Err(Failure::new(format!("the tests cannot run\n  {}", missing.join("\n  "))))
}

/// Two test runs in one checkout must not install into the same folder at the same time.
fn lock(workspace: &Workspace) -> Result<File, Failure> {
    let folder = workspace.scratch();
    let path = folder.join("lock");
    let locked = fs::create_dir_all(&folder).and_then(|()| {
        let file = File::create(&path)?;
        file.lock()?;
        Ok(file)
    });
    locked.map_err(|error| Failure::new(format!("cannot lock {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Fake {
        stopped: Arc<AtomicBool>,
        answer: Result<&'static str, &'static str>,
    }

    impl Service for Fake {
        fn name(&self) -> &'static str {
            "fake"
        }

        fn provide(&mut self, _: &Workspace) -> Result<Variables, String> {
            self.answer.map(|value| vec![("FAKE", value.into())]).map_err(str::to_owned)
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            self.stopped.store(true, Ordering::SeqCst);
        }
    }

    fn fake(answer: Result<&'static str, &'static str>) -> (Box<dyn Service>, Arc<AtomicBool>) {
        let stopped = Arc::new(AtomicBool::new(false));
        (Box::new(Fake { stopped: Arc::clone(&stopped), answer }), stopped)
    }

    #[test]
    fn what_is_provided_runs_until_it_is_dropped() {
        let (service, stopped) = fake(Ok("here"));
        let provided = provide(&Workspace::locate(), vec![service]).unwrap();
        let variables: Vec<_> = provided.environment().collect();
        assert_eq!(variables, [("FAKE", &OsString::from("here"))]);
        assert!(!stopped.load(Ordering::SeqCst));
        drop(provided);
        assert!(stopped.load(Ordering::SeqCst));
    }

    #[test]
    fn everything_that_is_missing_is_told_and_what_ran_is_stopped() {
        let (ready, ready_stopped) = fake(Ok("here"));
        let (one, _) = fake(Err("install one"));
        let (two, _) = fake(Err("install two"));
        let Err(failure) = provide(&Workspace::locate(), vec![ready, one, two]) else {
            panic!("two services are missing");
        };
        let message = failure.message.unwrap();
        assert!(message.contains("install one") && message.contains("install two"), "{message}");
        assert!(ready_stopped.load(Ordering::SeqCst));
    }
}
