//! Channels, semaphores and notifications.

pub use tokio_original::sync::{Mutex, MutexGuard, Semaphore, SemaphorePermit, mpsc, watch};

use crate::switch;

/// tokio's `Notify`, with a point before each call at which another thread may continue.
#[derive(Debug, Default)]
pub struct Notify(tokio_original::sync::Notify);

impl Notify {
    /// Creates a `Notify` without a permit.
    pub fn new() -> Self {
        Self(tokio_original::sync::Notify::new())
    }

    /// Waits for a notification.
    pub fn notified(&self) -> tokio_original::sync::futures::Notified<'_> {
        switch();
        self.0.notified()
    }

    /// Notifies one waiter, or the next one.
    pub fn notify_one(&self) {
        switch();
        self.0.notify_one();
    }

    /// Notifies all present waiters.
    pub fn notify_waiters(&self) {
        switch();
        self.0.notify_waiters();
    }
}

/// A channel for one value.
pub mod oneshot {
    pub use tokio_original::sync::oneshot::{Receiver, error};

    use crate::switch;

    /// tokio's `Sender`, with a point before each call at which another thread may continue.
    #[derive(Debug)]
    pub struct Sender<T>(tokio_original::sync::oneshot::Sender<T>);

    /// Creates a channel.
    pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
        let (sender, receiver) = tokio_original::sync::oneshot::channel();
        (Sender(sender), receiver)
    }

    impl<T> Sender<T> {
        /// Sends the value, or returns it if the receiver was dropped.
        ///
        /// # Errors
        /// The receiver was dropped.
        pub fn send(self, value: T) -> Result<(), T> {
            switch();
            self.0.send(value)
        }

        /// Returns whether the receiver was dropped.
        pub fn is_closed(&self) -> bool {
            switch();
            self.0.is_closed()
        }

        /// Waits until the receiver is dropped.
        pub async fn closed(&mut self) {
            self.0.closed().await;
        }
    }
}
