//! A container's file as a picture, and how full its pages are.

use std::fmt::Write as _;

use crate::container::Container;
use crate::span::Span;
use crate::unit::Region;

/// Consecutive pages of one array with as many bytes in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRun {
    /// The array: text, vision or experts.
    pub region: Region,
    /// First page.
    pub first: u64,
    /// Pages.
    pub count: u64,
    /// Bytes of planes on each page, without padding.
    pub in_use: u64,
}

/// The container's pages, grouped by bytes in use, in file order.
#[must_use]
pub fn page_runs(container: &Container) -> Vec<PageRun> {
    let mut runs: Vec<PageRun> = Vec::new();
    for region in [Region::Text, Region::Vision, Region::Experts] {
        let units = container.unit_count(region) as usize;
        let mut in_use = vec![0u64; units];
        for entry in container.tensors() {
            let place = if entry.is_expert_paged() {
                let block = entry.key.block.unsigned_abs();
                (region == Region::Experts)
                    .then(|| container.mixtures().binary_search(&block).ok())
                    .flatten()
            } else {
                let is_here = entry.is_paged()
                    && entry.key.role.is_vision() == (region == Region::Vision)
                    && region != Region::Experts;
                is_here.then_some(entry.key.block.unsigned_abs() as usize)
            };
            let lens = if entry.is_expert_paged() {
                entry.sheet_planes()
            } else {
                entry.planes()
            };
            if let (Some(slot), Some(lens)) = (place.and_then(|at| in_use.get_mut(at)), lens) {
                *slot += lens.as_array().iter().sum::<u64>();
            }
        }
        let pages_a_unit = match region {
            Region::Experts => u64::from(container.experts()),
            _ => 1,
        };
        for (unit, in_use) in in_use.into_iter().enumerate() {
            match runs.last_mut() {
                Some(run) if run.region == region && run.in_use == in_use => {
                    run.count += pages_a_unit;
                }
                _ => runs.push(PageRun {
                    region,
                    first: unit as u64 * pages_a_unit,
                    count: pages_a_unit,
                    in_use,
                }),
            }
        }
    }
    runs
}

/// Every part of the file in file order: its name, where it is, and the bytes of each of its pages
/// (its length when it is in one piece).
#[must_use]
pub fn parts(container: &Container) -> Vec<(&'static str, Span, u64)> {
    let header = container.header();
    let mut parts = vec![
        ("header", Span::new(0, crate::header::HEADER_LEN)),
        ("config", header.config),
        ("tensor table", header.table),
        ("fingerprint", header.fingerprint),
    ]
    .into_iter()
    .map(|(name, span)| (name, span, span.length))
    .collect::<Vec<_>>();
    for region in Region::ALL {
        parts.push((
            region.name(),
            container.region(region),
            container.page_len(region),
        ));
    }
    parts.retain(|(_, span, _)| span.length > 0);
    parts.sort_by_key(|(_, span, _)| span.offset);
    parts
}

/// The file's map as an SVG image under `title`: the file to scale in one strip, then each part
/// with its offset, length and pages, each page filled as far as it is in use.
#[must_use]
pub fn map_svg(container: &Container, title: &str) -> String {
    let parts = parts(container);
    let runs = page_runs(container);
    let total = container.header().file_len().max(1);
    let height = TOP + STRIP + GAP + parts.len() as u64 * ROW + GAP;
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>{title}</title>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{MARGIN}\" y=\"20\" font-size=\"14\">{title}</text>\n\
         <text x=\"{MARGIN}\" y=\"38\">{arch}, {total} bytes, {tensors} tensors</text>\n",
        width = WIDTH + 2 * MARGIN,
        title = escape(title),
        arch = container.config().arch.name(),
        tensors = container.tensors().len(),
    );
    for (at, (name, span, _)) in parts.iter().enumerate() {
        let (x, width) = scaled(*span, total);
        let _ = writeln!(
            out,
            "<rect class=\"strip\" x=\"{x:.2}\" y=\"{TOP}\" width=\"{width:.2}\" height=\"{STRIP}\" \
             fill=\"{}\"><title>{name}: {} bytes at {}</title></rect>",
            colour(at),
            span.length,
            span.offset
        );
    }
    for (at, (name, span, page)) in parts.iter().enumerate() {
        let y = TOP + STRIP + GAP + at as u64 * ROW;
        let pages = span.length.checked_div(*page).unwrap_or(0);
        let size = match pages {
            0 | 1 => format!("{} bytes", span.length),
            _ => format!("{pages} pages of {page} bytes"),
        };
        let _ = writeln!(
            out,
            "<text x=\"{MARGIN}\" y=\"{}\">{name}: {size} at {}</text>",
            y + 12,
            span.offset
        );
        let runs: Vec<_> = runs
            .iter()
            .filter(|run| run.region.name() == *name)
            .collect();
        draw_pages(&mut out, y + 18, colour(at), pages, *page, &runs);
    }
    out.push_str("</svg>\n");
    out
}

/// One row: a cell a page, or as many cells as fit, each then standing for several pages.
fn draw_pages(out: &mut String, y: u64, colour: &str, pages: u64, page: u64, runs: &[&PageRun]) {
    let cells = pages.clamp(1, MAX_CELLS);
    let width = WIDTH as f64 / cells as f64;
    for cell in 0..cells {
        let index = cell * pages / cells;
        let run = runs
            .iter()
            .find(|run| (run.first..run.first + run.count).contains(&index));
        let part = run.map_or(1.0, |run| run.in_use as f64 / page.max(1) as f64);
        let x = MARGIN as f64 + cell as f64 * width;
        let _ = writeln!(
            out,
            "<rect class=\"page\" x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{CELL}\" \
             fill=\"#eeeeee\" stroke=\"#ffffff\" stroke-width=\"0.5\"/>\
             <rect class=\"used\" x=\"{x:.2}\" y=\"{top:.2}\" width=\"{width:.2}\" height=\"{used:.2}\" \
             fill=\"{colour}\" stroke=\"#ffffff\" stroke-width=\"0.5\"/>",
            top = y as f64 + CELL as f64 * (1.0 - part),
            used = CELL as f64 * part,
        );
    }
}

/// Place and width of a span in the strip; every part is at least visible.
fn scaled(span: Span, total: u64) -> (f64, f64) {
    let scale = WIDTH as f64 / total as f64;
    let x = MARGIN as f64 + span.offset as f64 * scale;
    (x, (span.length as f64 * scale).max(0.5))
}

fn colour(at: usize) -> &'static str {
    COLOURS[at % COLOURS.len()]
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // Not allowed in XML at all.
            control if control.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

const MARGIN: u64 = 16;
const WIDTH: u64 = 960;
const TOP: u64 = 52;
const STRIP: u64 = 28;
const GAP: u64 = 16;
const ROW: u64 = 48;
const CELL: u64 = 22;
/// Cells of a row.
const MAX_CELLS: u64 = 240;
/// Okabe and Ito's palette, which people with any colour vision can tell apart.
const COLOURS: [&str; 8] = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#b8a800",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_cannot_leave_its_element() {
        assert_eq!(escape("a<b>&\"\n"), "a&lt;b&gt;&amp;&quot;\u{fffd}");
    }
}
