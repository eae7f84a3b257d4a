//! The part of tokio that dlock-core uses, on shuttle's scheduler and a virtual clock.
//!
//! Channels and semaphores are tokio's own. Each call is one step, before which another thread may
//! continue. Timers end when the thread of the virtual clock runs, see [`time::run_clock`].

pub mod runtime;
pub mod sync;
pub mod task;
pub mod time;

pub use task::spawn;
pub use tokio_original::{join, pin, select};

/// A point at which the scheduler may let another thread continue.
fn switch() {
    shuttle::sync::atomic::AtomicBool::new(false).load(std::sync::atomic::Ordering::SeqCst);
}
