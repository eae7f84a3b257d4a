//! The timeline of a run as SVG. Each client has a row with its faults, and each lock a row with its
//! holders.

use std::{collections::HashMap, fmt::Write as _};

use super::super::{
    check::Facts,
    clock::Nanos,
    faults::FaultKind,
    record::{Acquisition, Record},
};

/// Width of the times, in pixels.
const WIDTH: f64 = 1600.0;

/// Width of the labels to the left, in pixels.
const LABELS: f64 = 150.0;

const ROW: f64 = 16.0;

/// Space above the first row, for the axis.
const TOP: f64 = 40.0;

/// Maximum number of locks that are shown. The others would make the file too large for a browser.
const MOST_LOCKS: usize = 40;

/// Colours of the clients.
const COLOURS: [&str; 8] =
    ["#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#ff9da7"];

/// Colour of a hold that was lost.
const LOST: &str = "#e15759";

/// Returns the timeline.
pub(super) fn draw(record: &Record, facts: &Facts) -> String {
    let clients = record.acquisitions.iter().map(|acquisition| acquisition.process.client + 1).max();
    let clients = clients.unwrap_or_default();
    let locks = facts.names.len().min(MOST_LOCKS);
    let height = TOP + ROW * (clients + locks + 2) as f64;
    let mut drawing = Drawing { svg: String::new(), start: facts.start, span: facts.end - facts.start };
    drawing.axis(height);
    for client in 0..clients {
        drawing.label(client, &format!("client {client}"));
    }
    for fault in &record.faults {
        let rows = fault.client.map_or(0..clients, |client| client..client + 1);
        for row in rows {
            let title = format!("{}: {}", fault.kind, fault.what);
            drawing.bar(row, fault.from, fault.until, fault_colour(fault.kind), &title);
        }
    }
    for (name, lock) in facts.names.iter().take(locks).enumerate() {
        let kinds: Vec<_> = lock.kinds.iter().map(|kind| kind.name()).collect();
        drawing.label(clients + 1 + name, &format!("lock {name}: {}", kinds.join(", ")));
    }
    // Bars of one row and client that would cover each other are drawn once.
    let mut drawn = HashMap::<(usize, usize), f64>::new();
    for acquisition in record.acquisitions.iter().filter(|acquisition| acquisition.name < locks) {
        let Some(from) = acquisition.granted else { continue };
        let until = acquisition.held_until().unwrap_or(facts.end);
        let client = acquisition.process.client;
        let end = drawn.entry((acquisition.name, client)).or_insert(-1.0);
        if drawing.x(until) < *end + 0.5 && acquisition.lost.is_none() {
            continue;
        }
        *end = drawing.x(until);
        let colour = if acquisition.lost.is_some() { LOST } else { COLOURS[client % COLOURS.len()] };
        drawing.bar(clients + 1 + acquisition.name, from, until, colour, &title(acquisition));
    }
    let total = LABELS + WIDTH + 20.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{total}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
        drawing.svg
    )
}

fn fault_colour(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Pause => "#bab0ac",
        FaultKind::Kill => "#333333",
        FaultKind::Cut => "#e15759",
        FaultKind::Late => "#f28e2b",
        FaultKind::Clock => "#4e79a7",
        FaultKind::Full => "#9c755f",
    }
}

fn title(acquisition: &Acquisition) -> String {
    let token = acquisition.token.map_or(String::new(), |token| format!(", token {token}"));
    let lost = acquisition.lost.map_or(String::new(), |(_, reason)| format!(", lost: {reason:?}"));
    format!("{} of client {}{token}{lost}", acquisition.kind, acquisition.process)
}

struct Drawing {
    svg: String,
    start: Nanos,
    span: Nanos,
}

impl Drawing {
    fn x(&self, at: Nanos) -> f64 {
        let share = at.saturating_sub(self.start) as f64 / self.span.max(1) as f64;
        LABELS + WIDTH * share.min(1.0)
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing into a text never fails.
        let _ = self.svg.write_fmt(element);
        self.svg.push('\n');
    }

    /// Draws ten marks of time.
    fn axis(&mut self, height: f64) {
        for mark in 0..=10 {
            let at = self.start + self.span / 10 * mark;
            let (x, seconds) = (self.x(at), (at - self.start) as f64 / 1e9);
            let bottom = height - ROW;
            self.add(format_args!(
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#ddd\"/><text x=\"{x:.1}\" y=\"{}\" \
                 text-anchor=\"middle\">{seconds:.0} s</text>",
                TOP - 10.0
            ));
        }
    }

    fn label(&mut self, row: usize, text: &str) {
        let y = TOP + ROW * row as f64 + 12.0;
        let text = escaped(text);
        self.add(format_args!("<text x=\"{}\" y=\"{y}\" text-anchor=\"end\">{text}</text>", LABELS - 6.0));
    }

    fn bar(&mut self, row: usize, from: Nanos, until: Nanos, colour: &str, title: &str) {
        let (left, y) = (self.x(from), TOP + ROW * row as f64 + 2.0);
        let width = (self.x(until) - left).max(0.5);
        let title = escaped(title);
        self.add(format_args!(
            "<rect x=\"{left:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"><title>{title}</title></rect>",
            ROW - 4.0
        ));
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
