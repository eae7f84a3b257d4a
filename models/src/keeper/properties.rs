//! The properties of the model.

use stateright::Property;

use super::{Keeper, State};

/// The times for which two guards are not lost never overlap. Holds while the store keeps its data.
pub const OVERLAP: &str = "two guards are never valid at once";
/// Work that stops within the margin of a lost guard has ended before the next grant. Holds while
/// the store keeps its data and its clock is exact.
pub const MARGIN: &str = "no guard is valid in the margin of another";
/// Every grant has a greater token than the grants before.
pub const TOKEN: &str = "tokens grow with every grant";
/// A resource that compares tokens accepts no write of a holder after a write of a later holder.
pub const STALE: &str = "a write is never accepted after one of a later grant";

/// Returns the properties that the model promises, and states that show that it does something.
pub(super) fn of(model: &Keeper) -> Vec<Property<Keeper>> {
    let mut properties = vec![
        Property::sometimes("a guard is valid", |_, state: &State| state.is_valid(0)),
        Property::sometimes("the other client holds after a loss", |_, state: &State| {
            state.is_lost(0) && state.is_valid(1)
        }),
        Property::sometimes("a grant arrives after its deadline", |model, state: &State| {
            state.has_late_grant(model)
        }),
        Property::sometimes("a request of an earlier call may be executed", |_, state: &State| {
            state.has_late_request()
        }),
    ];
    if model.forgets == 0 {
        properties
            .push(Property::always(OVERLAP, |_, state: &State| !(state.is_valid(0) && state.is_valid(1))));
        if !model.gains {
            properties.push(Property::always(MARGIN, |_, state: &State| {
                !(state.is_in_margin(0) && state.is_valid(1) || state.is_in_margin(1) && state.is_valid(0))
            }));
        }
    }
    if model.tokens > 0 {
        properties.extend([
            Property::always(TOKEN, |_, state: &State| !state.token_fell),
            Property::always(STALE, |_, state: &State| !state.stale_write_accepted),
            Property::sometimes("the resource refuses a write", |_, state: &State| state.has_refused_write()),
        ]);
    }
    if model.forgets > 0 {
        properties
            .push(Property::sometimes("two guards are valid after a loss of data", |_, state: &State| {
                state.is_valid(0) && state.is_valid(1)
            }));
    }
    properties
}
