//! Charts of the growth on one store, in one SVG file.

use std::{fs, path::Path};

use plotters::prelude::*;

use super::Step;
use crate::contest::Outcome;

/// Size of a file with four charts, in pixels.
const SIZE: (u32, u32) = (1000, 700);

/// A line of a chart.
struct Series {
    label: &'static str,
    points: Vec<(f64, f64)>,
}

pub(super) fn draw(path: &Path, waiters: &[Step], held: &[Step]) -> Outcome {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let line = |label, steps: &[Step], value: fn(&Step) -> f64| {
        let points = steps.iter().map(|step| (step.size as f64, value(step)));
        Series { label, points: points.filter(|(_, value)| *value > 0.0).collect() }
    };
    let times = |steps| [line("p50", steps, |step| step.p50_ms), line("p99", steps, |step| step.p99_ms)];
    let panels = root.split_evenly((2, 2));
    chart(&panels[0], "hand-off, ms, by number of waiters", &times(waiters))?;
    let requests = [line("requests", waiters, |step| step.requests)];
    chart(&panels[1], "requests of a hand-off, by number of waiters", &requests)?;
    chart(&panels[2], "lock + release, ms, by number of held locks", &times(held))?;
    let bytes = [line("waiter", waiters, |step| step.bytes), line("held lock", held, |step| step.bytes)];
    chart(&panels[3], "bytes each, by number of waiters or held locks", &bytes)?;
    root.present()?;
    println!("charts: {}", path.display());
    Ok(())
}

type Panel<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Draws a chart with two logarithmic axes. A chart without points has a title only.
fn chart(panel: &Panel<'_>, title: &str, series: &[Series]) -> Outcome {
    let points = || series.iter().flat_map(|series| &series.points);
    let greatest_size = points().map(|(size, _)| *size).fold(10.0, f64::max);
    let least = points().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
    let greatest = points().map(|(_, value)| *value).fold(0.0, f64::max);
    if greatest == 0.0 {
        return Ok(panel.titled(&format!("{title}: no values"), ("sans-serif", 16))?).map(|_| ());
    }
    let mut chart = ChartBuilder::on(panel)
        .caption(title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(60)
        .build_cartesian_2d((1.0..greatest_size).log_scale(), (least / 2.0..greatest * 2.0).log_scale())?;
    chart.configure_mesh().x_labels(6).y_labels(6).draw()?;
    for (index, Series { label, points }) in series.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let line = LineSeries::new(points.iter().copied(), color.stroke_width(2)).point_size(3);
        let legend = move |(x, y)| PathElement::new([(x, y), (x + 15, y)], color);
        chart.draw_series(line)?.label(*label).legend(legend);
    }
    chart.configure_series_labels().border_style(BLACK).background_style(WHITE).draw()?;
    Ok(())
}
