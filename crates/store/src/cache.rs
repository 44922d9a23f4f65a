//! What each API request needs and rarely changes, kept in memory: applications and routes.
//!
//! Every change of the catalogue in this process empties it, after the commit. Another process's
//! changes are seen within `FRESH_FOR`; routes are also checked by version when a message is
//! accepted, so a stale copy never routes.

use crate::monotonic::monotonic;
use posthaste_core::endpoint::Application;
use posthaste_core::event::OrganisationId;
use posthaste_core::id::ApplicationId;
use posthaste_core::routing::Routes;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long an entry is used without asking the database again.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// Applications and names kept; all are forgotten when there are more.
const KEPT_MAX: usize = 10_000;

/// **Invariant:** what was read before a change is never kept after it: whoever reads takes the
/// `generation` first, and keeping under an old one does nothing.
#[derive(Default)]
pub(crate) struct Cache {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    generation: u64,
    applications: HashMap<OrganisationId, HashMap<String, (Instant, Application)>>,
    names: usize,
    routes: HashMap<ApplicationId, (Instant, Arc<Routes>)>,
}

impl Cache {
    pub fn generation(&self) -> u64 {
        self.lock().generation
    }

    pub fn application(&self, organisation: &OrganisationId, name: &str) -> Option<Application> {
        let kept = self.lock();
        let (at, application) = kept.applications.get(organisation)?.get(name)?;
        (monotonic().saturating_duration_since(*at) < FRESH_FOR).then(|| application.clone())
    }

    pub fn keep_application(&self, generation: u64, name: &str, application: &Application) {
        let mut kept = self.lock();
        if kept.generation != generation {
            return;
        }
        if kept.names >= KEPT_MAX {
            kept.applications.clear();
            kept.names = 0;
        }
        let of = kept.applications.entry(application.organisation_id.clone()).or_default();
        let entry = (monotonic(), application.clone());
        if of.insert(name.to_owned(), entry).is_none() {
            kept.names += 1;
        }
    }

    pub fn routes(&self, id: ApplicationId) -> Option<Arc<Routes>> {
        let kept = self.lock();
        let (at, routes) = kept.routes.get(&id)?;
        (monotonic().saturating_duration_since(*at) < FRESH_FOR).then(|| Arc::clone(routes))
    }

    pub fn keep_routes(&self, generation: u64, routes: &Arc<Routes>) {
        let mut kept = self.lock();
        if kept.generation != generation {
            return;
        }
        if kept.routes.len() >= KEPT_MAX {
            kept.routes.clear();
        }
        kept.routes.insert(routes.application.id, (monotonic(), Arc::clone(routes)));
    }

    /// One application's routes turned out to be old.
    pub fn forget_routes(&self, id: ApplicationId) {
        let mut kept = self.lock();
        kept.generation += 1;
        kept.routes.remove(&id);
    }

    /// Something of the catalogue changed.
    pub fn forget(&self) {
        let mut kept = self.lock();
        let generation = kept.generation + 1;
        *kept = Kept { generation, ..Kept::default() };
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
