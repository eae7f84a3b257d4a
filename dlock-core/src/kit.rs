//! Building blocks for drivers of network stores: URL parameters, errors, connections, batches of
//! requests, waking of waiters, expiry of claims, clocks.

mod backoff;
mod batch;
mod calls;
mod clock;
mod credentials;
mod driver;
mod errors;
mod hosts;
mod lanes;
mod late;
mod link;
mod params;
mod reaper;
mod retries;
mod seats;
mod shared_read;
mod url;
mod weak_map;

pub use backoff::Backoff;
pub use batch::{Batch, Batcher};
pub use calls::{CallCounter, CountedCall};
pub use clock::Moment;
#[cfg(feature = "test-util")]
pub use clock::{pretend_clock, pretend_suspend};
pub use credentials::{Login, Pems, Secret, Tls};
pub use driver::{ConnectFuture, ConnectLater, Driver};
pub use errors::{SharedError, StoreErrors, Verdict, client_error};
pub use hosts::connect_to_first;
pub use lanes::{Lane, Lanes, OpenLane};
pub use late::{ClockReading, LateExecution, LateRequests};
pub use link::{Connect, Link, LiveConnection};
pub use params::Address;
pub use reaper::Reaper;
pub use retries::Retries;
pub use seats::{EventSource, Listener, Seat, Seats, Wake};
pub use shared_read::SharedRead;
pub use url::StoreUrl;
pub use weak_map::WeakMap;
