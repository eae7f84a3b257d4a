//! The plan of a client process, which the coordinator writes on the process's stdin. The URL may
//! contain a password, so it is not an argument of the process.

use std::time::Duration;

use dlock_core::Kind;
use serde::{Deserialize, Serialize};

/// Number of permits of every semaphore of a run.
pub(super) const PERMITS: u32 = 3;

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Plan {
    /// URL of the store, or of the relay in front of it.
    pub(super) url: String,
    /// Seed of the client's choices.
    pub(super) seed: u64,
    /// Number of tasks that lock, hold and wait.
    pub(super) tasks: usize,
    pub(super) names: Vec<Name>,
    pub(super) ttl: Duration,
    /// Name of a lock that the coordinator holds. The client checks that it cannot have it.
    pub(super) held_by_coordinator: Option<String>,
}

/// A lock, with the kinds in which it is requested.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Name {
    pub(super) name: String,
    pub(super) kinds: Vec<Kind>,
}

impl Plan {
    /// Longest time for which a task holds a lock: several renewals.
    pub(super) fn longest_hold(&self) -> Duration {
        self.ttl * 2
    }

    /// Longest wait limit of a task. Some tasks wait without a limit.
    pub(super) fn longest_wait(&self) -> Duration {
        self.ttl * 2
    }
}

/// Families of kinds that one name may mix in every store. Redis refuses others, because it keeps
/// their claims in different queues.
const FAMILIES: [&[Kind]; 3] = [&[Kind::Mutex, Kind::Fair], &[Kind::Read, Kind::Write], &[Kind::Permit]];

/// Returns `count` names that begin with `prefix`, each with a family of these kinds.
pub(super) fn names(prefix: &str, count: usize, kinds: &[Kind]) -> Vec<Name> {
    let families = FAMILIES.iter().map(|family| {
        let kinds = family.iter().filter(|kind| kinds.contains(kind));
        kinds.copied().collect::<Vec<_>>()
    });
    let families: Vec<Vec<Kind>> = families.filter(|family| !family.is_empty()).collect();
    let numbered = families.iter().cycle().take(count).enumerate();
    numbered.map(|(index, kinds)| Name { name: format!("{prefix}-{index}"), kinds: kinds.clone() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_mixes_no_kinds_that_a_store_may_refuse_to_mix() {
        let all = names("x", 4, Kind::ALL);
        let kinds: Vec<_> = all.iter().map(|name| &name.kinds[..]).collect();
        assert_eq!(kinds, [FAMILIES[0], FAMILIES[1], FAMILIES[2], FAMILIES[0]]);
        assert_eq!((all[0].name.as_str(), all[3].name.as_str()), ("x-0", "x-3"));
    }

    #[test]
    fn a_name_has_only_kinds_of_the_store() {
        let mutex = Name { name: "x-0".to_owned(), kinds: vec![Kind::Mutex] };
        assert_eq!(names("x", 1, &[Kind::Mutex]), [mutex]);
        assert_eq!(names("x", 1, &[]), []);
    }
}
