//! The exploration itself, on a model that counts to ten.

use dlock_models::check::{Exploration, explore};
use stateright::{Model, Property};

/// A counter that begins at zero and adds one or two.
#[derive(Clone)]
struct Counter {
    /// The number that must not be reached.
    forbidden: u8,
    /// The number that should be reached.
    expected: u8,
}

impl Model for Counter {
    type State = u8;
    type Action = u8;

    fn init_states(&self) -> Vec<u8> {
        vec![0]
    }

    fn actions(&self, _: &u8, actions: &mut Vec<u8>) {
        actions.extend([1, 2]);
    }

    fn next_state(&self, state: &u8, step: u8) -> Option<u8> {
        Some(state + step).filter(|next| *next <= 10)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("never forbidden", |model, state| *state < model.forbidden),
            Property::sometimes("reaches the expected number", |model, state| *state == model.expected),
            Property::sometimes("reaches one", |_, state| *state == 1),
        ]
    }
}

#[test]
fn a_complete_exploration_counts_all_states() {
    let exploration = explore(&Counter { forbidden: 11, expected: 10 });
    assert_eq!(exploration, Exploration::Complete { states: 11, unreached: Vec::new() });
}

#[test]
fn a_state_that_should_be_reached_and_is_not_is_reported() {
    let exploration = explore(&Counter { forbidden: 11, expected: 12 });
    let unreached = vec!["reaches the expected number"];
    assert_eq!(exploration, Exploration::Complete { states: 11, unreached });
}

#[test]
fn a_counterexample_has_the_shortest_path() {
    let Exploration::Broken(found) = explore(&Counter { forbidden: 7, expected: 1 }) else {
        panic!("the counter reaches a forbidden number")
    };
    assert_eq!((found.property, found.steps.len()), ("never forbidden", 4), "{}", found.text());
    assert!(found.text().contains("in the state "), "{}", found.text());
}
