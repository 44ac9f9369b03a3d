//! What reached the devices, as small pictures, one for each file system.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::format_numbers::{bytes, duration};
use super::table::Tables;
use crate::draw::{PICTURE_COLUMNS, PICTURE_ROWS, Picture};
use crate::results::{Drawn, Results};
use crate::trace::Kind;

/// Pictures together may have this many bytes, that the page can be sent and opened anywhere.
const MOST_BYTES: usize = 3 << 20;

/// The name of a step stands below a picture if the step has at least this share of its width.
const NAME_WIDTH: f64 = 0.15;

/// The pictures that the page has.
pub(super) struct Pictures<'a> {
    all: &'a [Drawn],
    shown: BTreeSet<(&'a str, &'a str)>,
}

impl<'a> Pictures<'a> {
    /// Workloads whose pictures fit; the first one of each device goes before all others.
    pub fn of(results: &'a Results, tables: &Tables<'a>) -> Self {
        let mut pictures = Self { all: &results.pictures, shown: BTreeSet::new() };
        let drawn = |device: &'a str, names: Vec<&'a str>| {
            let known = |name: &&str| pictures.all.iter().any(|d| is_of(d, device, name));
            names.into_iter().filter(known).map(|name| (device, name)).collect::<Vec<_>>()
        };
        let devices: Vec<_> = tables
            .devices
            .iter()
            .map(|device| drawn(device.name, device.workloads.iter().map(|w| w.name).collect()))
            .collect();
        let first = devices.iter().filter_map(|workloads| workloads.first());
        let others = devices.iter().flat_map(|workloads| workloads.iter().skip(1));
        let mut room = MOST_BYTES;
        let mut shown = BTreeSet::new();
        for (device, workload) in first.chain(others) {
            let needed = pictures.bytes(device, workload);
            if needed <= room {
                room -= needed;
                shown.insert((*device, *workload));
            }
        }
        pictures.shown = shown;
        pictures
    }

    fn drawn(&self, device: &str, workload: &str) -> impl Iterator<Item = &'a Drawn> {
        self.all.iter().filter(move |drawn| is_of(drawn, device, workload))
    }

    fn bytes(&self, device: &str, workload: &str) -> usize {
        let strokes = self.drawn(device, workload).flat_map(|drawn| &drawn.picture.strokes);
        strokes.map(|strokes| strokes.path.len()).sum()
    }

    /// The pictures of a workload on a device; nothing if there are none.
    pub fn show(&self, device: &str, workload: &str) -> Markup {
        html! {
            @if self.shown.contains(&(device, workload)) {
                div.traces {
                    @for drawn in self.drawn(device, workload) {
                        (figure(&drawn.file_system, &drawn.picture))
                    }
                }
                p.key {
                    span { i.k-write {} "written" }
                    span { i.k-read {} "read" }
                    span { i.k-discard {} "discarded" }
                    span { "time the device was busy →, address ↑" }
                }
            }
        }
    }
}

fn is_of(drawn: &Drawn, device: &str, workload: &str) -> bool {
    drawn.device == device && drawn.workload == workload
}

fn figure(file_system: &str, picture: &Picture) -> Markup {
    html! {
        figure.trace {
            figcaption {
                b { (file_system) }
                small { " busy " (duration(picture.seconds)) ", in " (bytes(picture.bytes)) }
            }
            (plane(file_system, picture))
        }
    }
}

fn plane(file_system: &str, picture: &Picture) -> Markup {
    html! {
        svg width="100%" height="124" role="img"
            aria-label={ "What reached the device from " (file_system) } {
            svg width="100%" height="104" preserveAspectRatio="none"
                viewBox={ "0 0 " (PICTURE_COLUMNS) " " (PICTURE_ROWS) } {
                @for strokes in &picture.strokes {
                    path class={ (kind(strokes.kind)) " l" (strokes.level) } d=(strokes.path) {}
                }
            }
            @for (number, (at, name)) in picture.steps.iter().enumerate() {
                line.step x1=(percent(*at)) x2=(percent(*at)) y1="0" y2="120" { title { (name) } }
                @if picture.steps.get(number + 1).map_or(1.0, |next| next.0) - at > NAME_WIDTH {
                    text x=(percent(*at)) dx="3" y="118" { (name) }
                }
            }
        }
    }
}

/// A class of the style sheet.
fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Write => "t-write",
        Kind::Read => "t-read",
        Kind::Discard | Kind::Flush => "t-discard",
    }
}

fn percent(part: f64) -> String {
    format!("{:.2}%", part * 100.0)
}
