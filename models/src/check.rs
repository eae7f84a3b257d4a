//! Exploration of all states of a model, and the shortest path to a state that breaks a property.

use std::{fmt::Debug, hash::Hash};

use stateright::{Checker, HasDiscoveries, Model, Path};

/// A model that this crate can explore.
pub trait Explorable:
    Model<State: Clone + Debug + Hash + PartialEq + Send + Sync, Action: Clone + Debug + PartialEq>
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<M> Explorable for M where
    M: Model<State: Clone + Debug + Hash + PartialEq + Send + Sync, Action: Clone + Debug + PartialEq>
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// Result of an exploration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exploration {
    /// Every reachable state was visited, and no property is broken.
    Complete {
        /// Number of different states.
        states: usize,
        /// Properties that say that a state can be reached, without such a state.
        unreached: Vec<&'static str>,
    },
    /// A property is broken. The exploration has ended there.
    Broken(Counterexample),
}

/// The shortest path to a state that breaks a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counterexample {
    /// Name of the property.
    pub property: &'static str,
    /// Actions of the path, in order.
    pub steps: Vec<String>,
    /// The state that breaks the property.
    pub state: String,
}

impl Counterexample {
    /// Returns the property, the path and the last state, one step a line.
    pub fn text(&self) -> String {
        let Self { property, steps, state } = self;
        format!("`{property}` is broken after:\n  {}\nin the state {state}", steps.join("\n  "))
    }
}

/// Visits the states of a model, nearest first, until all are visited or a property is broken.
pub fn explore<M: Explorable>(model: &M) -> Exploration {
    let checker = model.clone().checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    if let Some(broken) = broken(model, &checker) {
        return Exploration::Broken(shortest(model, broken));
    }
    assert!(checker.is_done(), "the checker has stopped early");
    let discoveries = checker.discoveries();
    let properties = model.properties().into_iter().filter(|it| !it.expectation.discovery_is_failure());
    let unreached = properties.map(|property| property.name).filter(|name| !discoveries.contains_key(name));
    Exploration::Complete { states: checker.unique_state_count(), unreached: unreached.collect() }
}

type Broken<M> = (&'static str, Path<<M as Model>::State, <M as Model>::Action>);

/// Returns the broken property with the shortest path that the checker has found.
fn broken<M: Explorable>(model: &M, checker: &impl Checker<M>) -> Option<Broken<M>> {
    let mut discoveries = checker.discoveries();
    let failures = model.properties().into_iter().filter(|it| it.expectation.discovery_is_failure());
    let broken = failures.filter_map(|property| discoveries.remove_entry(property.name));
    broken.min_by_key(|(_, path)| path.clone().into_states().len())
}

/// Repeats the exploration with fewer steps until no property is broken. This is necessary because
/// the checker visits states in blocks, and returns the last broken state of a block.
fn shortest<M: Explorable>(model: &M, mut found: Broken<M>) -> Counterexample {
    loop {
        let depth = found.1.clone().into_states().len();
        let checker = model
            .clone()
            .checker()
            .finish_when(HasDiscoveries::AnyFailures)
            .target_max_depth(depth)
            .spawn_bfs()
            .join();
        match broken(model, &checker) {
            Some(shorter) if shorter.1.clone().into_states().len() < depth => found = shorter,
            _ => break,
        }
    }
    let (property, path) = found;
    let state = format!("{:?}", path.last_state());
    let steps = path.into_actions().iter().map(|action| format!("{action:?}")).collect();
    Counterexample { property, steps, state }
}

/// Visits all states of a model.
///
/// # Panics
/// If a property is broken, if a state that should be reachable is not, or if there are fewer than
/// `least` states. The last two conditions detect a model that has become too small to prove
/// anything.
pub fn assert_holds<M: Explorable>(model: &M, least: usize) {
    match explore(model) {
        Exploration::Broken(counterexample) => panic!("{}", counterexample.text()),
        Exploration::Complete { states, unreached } => {
            assert_eq!(unreached, [""; 0], "states that should be reachable were not found");
            assert!(states >= least, "the model has only {states} states, fewer than {least}");
        }
    }
}

/// Searches for a counterexample, and returns its steps.
///
/// # Panics
/// If there is none, or if it breaks another property.
pub fn assert_finds<M: Explorable>(model: &M, property: &str) -> Counterexample {
    match explore(model) {
        Exploration::Broken(found) if found.property == property => found,
        Exploration::Broken(other) => panic!("instead of `{property}`, {}", other.text()),
        Exploration::Complete { states, .. } => {
            panic!("`{property}` holds in all {states} states, but the rules were changed")
        }
    }
}
