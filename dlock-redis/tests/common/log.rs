//! Captures the log of a test.

use std::{
    fmt::{Debug, Write},
    sync::Arc,
};

use parking_lot::Mutex;
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::DefaultGuard,
};

/// Captures the log of this thread until it is dropped. A test logs on no other thread.
pub(crate) struct Log {
    lines: Lines,
    _guard: DefaultGuard,
}

/// The lines of all events so far.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<String>>);

impl Log {
    pub(crate) fn new() -> Self {
        let lines = Lines::default();
        Self { _guard: tracing::subscriber::set_default(lines.clone()), lines }
    }

    /// Returns a line with level and fields of each event.
    pub(crate) fn text(&self) -> String {
        self.lines.0.lock().clone()
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = EventText(event.metadata().level().to_string());
        event.record(&mut text);
        *self.0.lock() += &(text.0 + "\n");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Level and fields of one event, as a line.
struct EventText(String);

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").expect("writing to a string never fails");
    }
}
