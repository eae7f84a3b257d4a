//! The properties of the model.

use stateright::Property;

use super::{RedLock, State};

/// The times for which two guards are not lost never overlap.
pub const OVERLAP: &str = "two guards are never valid at once";
/// A hold ends when another client is granted the lock. No renewal that is sent later confirms it.
pub const REGAINED: &str = "no renewal confirms a hold that another grant has interrupted";

/// Returns the properties that the model promises, and states that show that it does something.
pub(super) fn of(model: &RedLock) -> Vec<Property<RedLock>> {
    let mut properties = vec![
        Property::always(REGAINED, |_, state: &State| !state.was_regained),
        Property::sometimes("a hold is based on two members", |_, state: &State| state.votes(0) == 2),
        Property::sometimes("a newcomer has joined", |_, state: &State| state.has_joined_newcomer(0)),
    ];
    if !model.tries {
        properties.push(Property::sometimes(
            "both clients hold a member and have no majority",
            |_, state: &State| state.is_split(),
        ));
    }
    // A hold that was broken is valid until its next renewal.
    if !model.breaks {
        properties.insert(
            0,
            Property::always(OVERLAP, |_, state: &State| !(state.is_valid(0) && state.is_valid(1))),
        );
    }
    properties
}
