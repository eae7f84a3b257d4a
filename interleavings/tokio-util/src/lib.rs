//! The part of tokio-util that dlock-core uses. Everything but starting a task is tokio-util's own.

pub mod sync {
    //! Cancellation.
    pub use tokio_util_original::sync::CancellationToken;
}

pub mod task {
    //! Tasks that can be waited for.

    use std::{
        ops::Deref,
        pin::Pin,
        task::{Context, Poll},
    };

    use tokio::task::{JoinError, JoinHandle};

    /// tokio-util's `TaskTracker`, whose tasks run on shuttle.
    #[derive(Clone, Debug, Default)]
    pub struct TaskTracker(tokio_util_original::task::TaskTracker);

    impl TaskTracker {
        /// Creates a tracker.
        pub fn new() -> Self {
            Self::default()
        }

        /// Starts a task.
        pub fn spawn<T: Send + 'static>(
            &self,
            task: impl Future<Output = T> + Send + 'static,
        ) -> JoinHandle<T> {
            tokio::spawn(self.0.track_future(task))
        }
    }

    impl Deref for TaskTracker {
        type Target = tokio_util_original::task::TaskTracker;

        fn deref(&self) -> &Self::Target {
            &self.0
        }
    }

    /// A task that ends when this value is dropped.
    #[derive(Debug)]
    pub struct AbortOnDropHandle<T>(JoinHandle<T>);

    impl<T> AbortOnDropHandle<T> {
        /// Creates a handle that owns the task.
        pub fn new(task: JoinHandle<T>) -> Self {
            Self(task)
        }
    }

    impl<T> Future for AbortOnDropHandle<T> {
        type Output = Result<T, JoinError>;

        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
            Pin::new(&mut self.0).poll(context)
        }
    }

    impl<T> Drop for AbortOnDropHandle<T> {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
}
